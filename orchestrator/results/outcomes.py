"""What became of the trainings of a study: the outcome of every trial for one goal, what trainings
took so far, for the price of more, and the time of a step."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from statistics import fmean, median

import numpy as np
import pyarrow as pa

from orchestrator.records import Goal, Study, StudyKey
from orchestrator.results.counting import Counted, columns, first_steps, lowest_of_each, reached
from orchestrator.results.store import RunFiles
from orchestrator.results.tables import arrow_of, column_from


def column_of(metaparameter: str) -> str:
    """The name of a metaparameter's column, which can't be the same as that of another column."""
    return f"metaparameter {metaparameter}"


def outcomes_of(run: RunFiles, study: Study, goal: Goal) -> pa.Table:
    """A table with a row per trial: `trial`, `status`, `counted`, `steps`, `open_from`,
    `steps_to_goal` (null if it did not reach the goal), `best` value of the goal's metric (NaN if
    not measured), and for each metaparameter the column that `column_of` names."""
    trials = run.trials(study.key)
    trial, step, value = columns(run.measurements(study.key, {goal.metric}), goal.metric)
    counted = Counted(study, trials)
    firsts = first_steps(counted, reached(study, goal, (trial, step, value)))
    steps_to_goal = {index: steps for steps, index in firsts}
    usable, sign = np.isfinite(value), 1 if goal.direction == "<" else -1
    best = lowest_of_each(trial[usable], sign * value[usable])
    indices = trials["trial"].to_pylist()
    params = [json.loads(text) for text in trials["params"].to_pylist()]
    names = dict.fromkeys(name for point in params for name in point)
    return pa.table(
        {
            "trial": trials["trial"],
            "status": trials["status"],
            "counted": arrow_of(np.array([index in counted.row_of for index in indices], bool)),
            "steps": trials["steps"],
            "open_from": trials["open_from"],
            "steps_to_goal": arrow_of(
                np.array([steps_to_goal.get(index, 0) for index in indices], np.int64),
                np.array([index in steps_to_goal for index in indices], bool),
            ),
            "best": column_from([sign * best.get(index, math.nan) for index in indices]),
            **{
                column_of(name): column_from([point.get(name) for point in params])
                for name in names
            },
        }
    )


def steps_to_all(run: RunFiles, study: Study, trials: pa.Table) -> int | None:
    """The step by which `trials` of a study had passed all goals, whichever trial passed which."""
    goals_hold = any(goal.holds for goal in study.goals)
    goes_on = goals_hold or study.is_one_point or study.cooldown is not None
    if study.stop_at_goal and len(study.goals) == 1 and not goes_on:
        # A trial that reached its goal was not trained further.
        ends = zip(trials["status"].to_pylist(), trials["steps"].to_pylist(), strict=True)
        return min((steps for status, steps in ends if status == "reached"), default=None)
    counted = Counted(study, trials)
    measurements = run.measurements(study.key, {goal.metric for goal in study.goals})
    firsts = [
        first_steps(counted, reached(study, goal, columns(measurements, goal.metric)))
        for goal in study.goals
    ]
    return max(first[0][0] for first in firsts) if firsts and all(firsts) else None


@dataclass(frozen=True, kw_only=True)
class MeanCost:
    """The average price of a training of one study."""

    key: StudyKey
    trial_examples: float
    """Average number of examples of a trial of the search, even if it was ended early."""
    repeat_examples: float
    """The same of a repeat of the winner; without repeats, that of the longest trial."""
    seconds_per_example: float | None
    """Device-seconds per example, evaluations included. Trials that shared a device each count
    their share of its time. None if it wasn't measured."""


def mean_costs(run: RunFiles, studies: Sequence[Study]) -> list[MeanCost]:
    """The averages of each study in which anything was trained."""
    found = run.in_parallel(partial(_of_study, run), studies)
    return [of_study for of_study in found if of_study is not None]


def _of_study(run: RunFiles, study: Study) -> MeanCost | None:
    columns = ["steps", "seconds", "evaluation_seconds", "ranks"]
    trials, repeats = (
        [row for row in of.trials(study.key, columns).to_pylist() if row["steps"]]
        for of in (run, run.repeats)
    )
    if not trials:
        return None
    of_trials, of_repeats = (
        [study.examples(row["steps"]) for row in rows] for rows in (trials, repeats)
    )
    timed = [row for row in [*trials, *repeats] if (row["seconds"] or 0) > 0 and row["ranks"]]
    seconds = sum(
        (row["seconds"] + (row["evaluation_seconds"] or 0)) * row["ranks"] for row in timed
    )
    examples = sum(study.examples(row["steps"]) for row in timed)
    return MeanCost(
        key=study.key,
        trial_examples=fmean(of_trials),
        repeat_examples=fmean(of_repeats) if of_repeats else max(of_trials),
        seconds_per_example=float(seconds / examples) if timed else None,
    )


@dataclass(frozen=True, kw_only=True)
class StepTime(StudyKey):
    """The step time of one study on a number of ranks."""

    ranks: int
    seconds: float
    """Median of the seconds per step, over trials that trained for at least a quarter of the steps
    of the longest one. The first steps are slow, so shorter trials say little."""


def step_times(run: RunFiles, studies: Sequence[Study]) -> list[StepTime]:
    """The known step times of studies. Other trials may have shared the machine."""
    # If the batch size grows along a training, its steps differ in size.
    of_one_size = [study for study in studies if study.batch_schedule is None]
    found = partial(_step_times, run, run.timed())
    return [*chain.from_iterable(run.in_parallel(found, of_one_size))]


def _step_times(
    run: RunFiles, timed: Mapping[tuple[StudyKey, int], float], study: Study
) -> list[StepTime]:
    trials = run.trials(study.key, ["steps", "seconds", "ranks", "width"]).to_pylist()
    trained = [
        row
        for row in trials
        # The seconds of stacked trials are shares of the stack's time. Those of a program hold its
        # evaluations, and its first steps may not be timed. What was imported may not say on how
        # many ranks it was trained.
        if study.program is None
        and row["ranks"]
        and row["steps"]
        and (row["seconds"] or 0) > 0
        and (row["width"] or 1) == 1
    ]
    found, stated = [], [(ranks, timed[key, ranks]) for key, ranks in timed if key == study.key]
    trained += [{"steps": 1, "seconds": seconds, "ranks": ranks} for ranks, seconds in stated]
    for ranks in sorted({row["ranks"] for row in trained}):
        on_ranks = [row for row in trained if row["ranks"] == ranks]
        longest = max(row["steps"] for row in on_ranks)
        rates = [row["seconds"] / row["steps"] for row in on_ranks if 4 * row["steps"] >= longest]
        found.append(StepTime(**asdict(study.key), ranks=ranks, seconds=median(rates)))
    return found
