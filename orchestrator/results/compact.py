"""The measurements that a compact run holds, and the questions that it can't answer.

A compact run holds all measurements of the best trials of each goal, and of repeats. Of every other
trial it holds only those that an answer needs: the steps to each goal, the best values and the
state at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from orchestrator.records import DESIGN_NAMES, BadInput, Goal, Study
from orchestrator.results.counting import Columns, Counted, Within, first_steps, past, reached
from orchestrator.results.store import Run
from orchestrator.results.tables import is_metric, numbers

Places = NDArray[np.intp]
"""Places of rows in a table of measurements."""


def needed(study: Study, trials: pa.Table, measurements: pa.Table) -> NDArray[np.bool_]:
    """Which measurements of a study's trials a compact run holds."""
    trial, step = numbers(measurements["trial"]), numbers(measurements["step"])
    # A sampler was told whole curves, and is told them again when the run goes on.
    sampled = study.search.algorithm not in (*DESIGN_NAMES, "grid", "points")
    if sampled or study.is_one_point or not len(trial):
        return np.full(len(trial), True)
    found = np.full(len(trial), False)
    counted = Counted(study, trials)
    last = np.append(np.flatnonzero(np.diff(trial)), len(trial) - 1)
    found[last] = True
    # If the budget is raised, a trial that spent it goes back to the measurement before.
    found[_before(trial, last[step[last] == study.budget_steps])] = True
    for goal in study.goals:
        if goal.metric not in measurements.column_names:
            continue
        value = numbers(measurements[goal.metric])
        passed = np.flatnonzero(past(goal, value))
        # Runs of measurements that pass are as long as they were, and end where they ended.
        needed_of_goal = passed if goal.holds else _first_of_each(trial, passed)
        found[needed_of_goal] = found[_before(trial, needed_of_goal)] = True
        if goal.holds:
            found[np.minimum(passed + 1, len(trial) - 1)] = True
        best = first_steps(counted, reached(study, goal, (trial, step, value)))[: study.keep]
        found |= np.isin(trial, [index for _, index in best])
        found[_improvements(counted, goal, (trial, step, value))] = True
        measured = numbers(measurements[goal.metric].is_valid().cast(pa.int8()))
        found[_first_of_each(trial, np.flatnonzero(measured)[::-1])] = True
    for name in measurements.column_names:
        if is_metric(name):
            for places in _extremes(trial, numbers(measurements[name])):
                found[places] = True
    return found


def _first_of_each(trial: NDArray[np.int32], places: Places) -> Places:
    """The first of the `places` of each trial."""
    return places[np.unique(trial[places], return_index=True)[1]]


def _before(trial: NDArray[np.int32], places: Places) -> Places:
    """The places before `places` that belong to the same trial."""
    later = places[places > 0]
    before: Places = later[trial[later - 1] == trial[later]] - 1
    return before


def _improvements(counted: Counted, goal: Goal, measured_at: Columns) -> Places:
    """Measurements that improve the study's best value, in order of step, for any budget."""
    trial, step, value = measured_at
    usable = np.flatnonzero(np.isin(trial, [*counted.places]) & np.isfinite(value))
    lower = value if goal.direction == "<" else -value
    ordered = usable[np.lexsort((trial[usable], lower[usable], step[usable]))]
    best = np.minimum.accumulate(lower[ordered])
    return ordered[np.diff(best, prepend=np.inf) < 0]


def _extremes(trial: NDArray[np.int32], value: NDArray[np.float64]) -> Iterator[Places]:
    """Each trial's first measurement with its lowest value, then those with its highest value."""
    starts = np.flatnonzero(np.diff(trial, prepend=-1))
    lengths = np.diff(starts, append=len(trial))
    for sign in (1, -1):
        lower = np.where(np.isfinite(value), sign * value, np.inf)
        lowest = np.repeat(np.minimum.reduceat(lower, starts), lengths)
        yield _first_of_each(trial, np.flatnonzero(np.isfinite(value) & (lower == lowest)))


def refuse_other_goals(run: Run, asked: Iterable[tuple[Study, Goal]]) -> None:
    """Raises `BadInput` for a compact run and a goal that a study was not searched for."""
    others = [(study, goal) for study, goal in asked if goal not in study.goals]
    if others:
        study, goal = others[0]
        known = " and ".join(map(str, study.goals))
        refuse_compact(run, f"steps to other goals than {known} (asked for: {goal})")


FIRST_WITHIN = "answers to `trials` together with `within`"


def refuse_best(
    run: Run,
    studies: Sequence[Study],
    metric: str,
    *,
    maximise: bool,
    first: int | None,
    within: Sequence[Within | None],
) -> None:
    """Raises `BadInput` for a compact run and a best value within a budget, unless the question is
    about all trials, and each study has a goal for this metric in this direction."""
    if not any(within) or not run.is_compact:
        return
    if first is not None:
        refuse_compact(run, FIRST_WITHIN)
    asked = (metric, ">" if maximise else "<")
    for study in studies:
        known = {(goal.metric, goal.direction) for goal in study.goals}
        if asked not in known:
            what = f"{'highest' if maximise else 'lowest'} {metric} within a budget"
            refuse_compact(run, f"the {what} of {study.key}, which is none of its goals")


def refuse_compact(run: Run, question: str) -> None:
    if run.is_compact:
        raise BadInput(
            f"{run.place} is a compact run and lacks {question}. Ask the run it was exported from.",
            code="compact-run",
        )
