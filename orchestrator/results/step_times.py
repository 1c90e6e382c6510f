"""The measured time of a step in each study."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from orchestrator.records import Study
from orchestrator.results.store import Run


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """The step time of one study on a number of ranks."""

    workload: str
    recipe: str
    batch_size: int
    ranks: int
    seconds: float
    """Median of the seconds per step, over trials that trained for at least a quarter of the steps
    of the longest one. The first steps are slow, so shorter trials say little."""


def step_times(run: Run, studies: Sequence[Study]) -> list[StepTime]:
    """The step times of studies for which they are known. Other trials may have shared the machine
    when they were measured."""
    # If the batch size grows along a training, its steps differ in size.
    of_one_size = [study for study in studies if study.batch_schedule is None]
    return [
        time for times in run.in_parallel(partial(_of_study, run), of_one_size) for time in times
    ]


def _of_study(run: Run, study: Study) -> list[StepTime]:
    trials = run.trials(study.key, ["steps", "seconds", "ranks", "width"]).to_pylist()
    trained = [
        row
        for row in trials
        # The seconds of stacked trials are shares of the stack's time.
        if row["steps"] and (row["seconds"] or 0) > 0 and (row["width"] or 1) == 1
    ]
    found = []
    if (alone := run.timed().get(study.key)) is not None:
        trained.append({"steps": 1, "seconds": alone, "ranks": 1})
    for ranks in sorted({row["ranks"] for row in trained}):
        on_ranks = [row for row in trained if row["ranks"] == ranks]
        longest = max(row["steps"] for row in on_ranks)
        rates = [row["seconds"] / row["steps"] for row in on_ranks if 4 * row["steps"] >= longest]
        found.append(
            StepTime(
                workload=study.workload,
                recipe=study.recipe,
                batch_size=study.batch_size,
                ranks=ranks,
                seconds=median(rates),
            )
        )
    return found
