"""The outcome of every trial of a study, for one goal."""

from __future__ import annotations

import json
import math

import numpy as np
import pyarrow as pa

from orchestrator.records import Goal, Study
from orchestrator.results.counting import Counted, columns, first_steps, lowest_of_each, reached
from orchestrator.results.store import Run
from orchestrator.results.tables import arrow_of, column_from


def column_of(metaparameter: str) -> str:
    """The name of a metaparameter's column, which can't be the same as that of another column."""
    return f"metaparameter {metaparameter}"


def outcomes_of(run: Run, study: Study, goal: Goal) -> pa.Table:
    """A table with a row per trial: `trial`, `status`, `counted`, `steps` trained, `open_from` of
    trials that are cooled down, `steps_to_goal` (null if it did not reach the goal), `best` value
    of the goal's metric (NaN if not measured), and for each metaparameter the column `column_of`
    names."""
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
            "counted": arrow_of(np.array([index in counted.places for index in indices], bool)),
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


def steps_to_all(run: Run, study: Study, trials: pa.Table) -> int | None:
    """The step by which `trials` of a study had passed all goals, whichever trial passed which."""
    goes_on = study.is_one_point or any(goal.holds for goal in study.goals)
    goes_on |= study.cooldown is not None
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
