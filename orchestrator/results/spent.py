"""What the trainings of each study took so far, from which the price of more is estimated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from orchestrator.records import Study, StudyKey
from orchestrator.results.store import Run


@dataclass(frozen=True, kw_only=True)
class Spent:
    """The average price of a training of one study."""

    key: StudyKey
    trial_examples: float
    """Average number of examples that a trial of the search trained on, including trials that were
    ended early."""
    repeat_examples: float
    """Average number of examples of a repeat of the winner; without repeats, that of the longest
    trial."""
    seconds_per_example: float | None
    """Device-seconds per example, evaluations included. Trials that shared a device each count
    their share of its time. None if it wasn't measured."""


def spent(run: Run, studies: Sequence[Study]) -> list[Spent]:
    """The averages of each study in which anything was trained."""
    found = run.in_parallel(partial(_of_study, run), studies)
    return [of_study for of_study in found if of_study is not None]


def _of_study(run: Run, study: Study) -> Spent | None:
    columns = ["steps", "seconds", "evaluation_seconds", "ranks"]
    trials = [row for row in run.trials(study.key, columns).to_pylist() if row["steps"]]
    repeats = [row for row in run.repeats.trials(study.key, columns).to_pylist() if row["steps"]]
    if not trials:
        return None
    return Spent(
        key=study.key,
        trial_examples=_mean([study.examples(row["steps"]) for row in trials]),
        repeat_examples=_mean([study.examples(row["steps"]) for row in repeats])
        or max(study.examples(row["steps"]) for row in trials),
        seconds_per_example=_seconds_per_example(study, [*trials, *repeats]),
    )


def _seconds_per_example(study: Study, rows: Sequence[dict[str, Any]]) -> float | None:
    timed = [row for row in rows if (row["seconds"] or 0) > 0 and row["ranks"]]
    if not timed:
        return None
    seconds = sum(
        (row["seconds"] + (row.get("evaluation_seconds") or 0)) * row["ranks"] for row in timed
    )
    return float(seconds / sum(study.examples(row["steps"]) for row in timed))


def _mean(numbers: Sequence[int]) -> float:
    return sum(numbers) / len(numbers) if numbers else 0.0
