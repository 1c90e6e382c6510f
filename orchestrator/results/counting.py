"""Decides which trials of a study count for a question, and up to which step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from orchestrator.records import BadInput, Goal, Study, wrong_value
from orchestrator.results.study_files import is_noted_over
from orchestrator.results.tables import as_number, numbers

STOPPED_EARLY = ("reached", "dominated", "paused")

UNITS = ("steps", "examples", "epochs")


def next_possible(study: Study, row: Mapping[str, Any]) -> int | None:
    """The step at which a trial with this row would have been measured next, if it was ended while
    it still trained well: its measurements don't show what would have followed. None for others."""
    if row["status"] not in STOPPED_EARLY:
        return None
    if study.cooldown is not None:
        at: int | None = row["open_from"]
        return at
    step = study.following(row["steps"])
    return step if step > row["steps"] else None


@dataclass(frozen=True, kw_only=True)
class Within:
    """The amount of training that a question allows. Later measurements are left out."""

    amount: float
    unit: str

    @classmethod
    def parse(cls, text: str) -> Within:
        name, _, number = text.partition("=")
        amount = as_number(number)
        if name not in UNITS or amount is None or not 0 <= amount < 2**62:
            rule = "steps=N, examples=N or epochs=N, such as epochs=10"
            raise wrong_value("A budget", rule, text)
        return cls(amount=amount, unit=name)

    def __str__(self) -> str:
        return f"{self.unit}={self.amount:.15g}"

    def steps(self, study: Study) -> int:
        """The last step of a study that is within this amount, rounded as a sweep's budget is."""
        if self.unit == "steps":
            return int(self.amount)
        if self.unit == "examples":
            return study.batches.steps(math.ceil(self.amount))
        if study.train_size is None:
            raise BadInput(
                f"How many examples an epoch of {study.workload} has isn't known: give examples=N.",
                code="unknown-epoch",
            )
        return study.batches.steps(math.ceil(self.amount * study.train_size))


def has_finished(study: Study, trials: pa.Table) -> bool:
    """Whether a study has nothing left to train."""
    if "archive_status" in trials.column_names:
        return True
    ends = [*zip(trials["status"].to_pylist(), trials["steps"].to_pylist(), strict=True)]
    statuses = Counter(status for status, _ in ends)
    raised = any(steps < study.budget_steps for status, steps in ends if status == "exhausted")
    if raised and study.cooldown is None and study.program is None:
        return False  # the budget has been raised since the trial ended; that of a program can't be
    if is_noted_over(trials) and statuses.total() >= min(study.trials, study.launches):
        return True
    # Diverged trials are replaced by others, which may not have been trained yet.
    lasting = statuses.total() - statuses["diverged"]
    return not statuses["paused"] and (
        lasting >= study.trials or statuses.total() >= study.launches
    )


class Counted:
    """The trials of a study that count, as index -> row in the table of trials. All count except
    those that failed or that an archive marks as not complete."""

    def __init__(self, study: Study, trials: pa.Table) -> None:
        self._study = study
        named = ("trial", "status", "steps", "open_from", "archive_status")
        self._rows = trials.select([n for n in named if n in trials.column_names]).to_pylist()
        self.row_of = {
            row["trial"]: number
            for number, row in enumerate(self._rows)
            if row["status"] != "failed" and row.get("archive_status") in (None, "COMPLETE")
        }

    def next_steps(
        self, crossed: Collection[int], trunk: tuple[NDArray[Any], NDArray[Any]] | None = None
    ) -> list[tuple[int, int]]:
        """(step, index) of the next possible measurement of each trial that stopped early, except
        those that have `crossed` the goal. One that is cooled down might have crossed it sooner.
        For a goal on its `trunk`, trials and steps of the measurements there are given."""
        if trunk is not None:
            last = lowest_of_each(trunk[0], -trunk[1])
            others = self.row_of.keys() - set(crossed)
            return [(self._study.following(-last[index]), index) for index in others & last.keys()]
        found = []
        for index, number in self.row_of.items():
            row = self._rows[number]
            sooner = self._study.cooldown is not None and row["status"] != "reached"
            if index in crossed and not sooner:
                continue
            if (step := next_possible(self._study, row)) is not None:
                found.append((step, index))
        return found


Columns = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]


def columns(measurements: pa.Table, metric: str) -> Columns:
    """Trial, step and value of the metric for each measurement; NaN if it wasn't measured."""
    trial, step = numbers(measurements["trial"]), numbers(measurements["step"])
    if metric not in measurements.column_names:
        return trial, step, np.full(len(trial), math.nan)
    return trial, step, numbers(measurements[metric])


def where_measured(measurements: Columns) -> Columns:
    """Those of the measurements that have the metric, which may be fewer than those of others. Of
    trials that are cooled down, they are the ends of cooldowns, since the trunk is measured by
    metrics of other names."""
    trial, step, value = measurements
    measured = ~np.isnan(value)
    return trial[measured], step[measured], value[measured]


def past(goal: Goal, values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which of the values pass the goal, as `goal.passed` decides it."""
    with np.errstate(invalid="ignore"):
        beyond = values < goal.bound if goal.direction == "<" else values > goal.bound
    return beyond & np.isfinite(values)


@dataclass(frozen=True, kw_only=True)
class Reached:
    """Where trials reached a goal."""

    trial: NDArray[np.int64]
    step: NDArray[np.int64]
    """The first step of a run of measurements that is long enough. A trial may have several."""
    begun: Mapping[int, int]
    """Trial -> first step of a run of measurements that was too short when the trial ended."""

    @property
    def first(self) -> int | None:
        """The fewest steps of any trial."""
        return int(self.step.min()) if len(self.step) else None


def reached(study: Study, goal: Goal, measured_at: Columns) -> Reached:
    """Where the trials of these measurements reached a goal, as `Watch` decides it."""
    trial, step, value = measured_at
    passes = past(goal, value)
    if not goal.holds:
        return Reached(trial=trial[passes], step=step[passes], begun={})
    measured = np.flatnonzero(~np.isnan(value))
    measured = measured[np.lexsort((step[measured], trial[measured]))]
    trial, step, passes = trial[measured], step[measured], passes[measured]
    row = np.arange(len(trial))
    begins = np.diff(trial, prepend=-1) != 0
    ends = np.flatnonzero(np.roll(begins, -1)) if len(trial) else row
    goes_on = np.roll(passes, 1) & ~begins
    start = np.maximum.accumulate(np.where(passes & ~goes_on, row, 0))
    steps, of_step = np.unique(step, return_inverse=True)
    examples = np.array([study.examples(at) for at in steps.tolist()], dtype=np.int64)[of_step]
    long = (row - start + 1 >= goal.measurements) & (examples - examples[start] >= goal.examples)
    held = passes & long
    short = ends[passes[ends] & ~long[ends]]
    begun = dict(zip(trial[short].tolist(), step[start[short]].tolist(), strict=True))
    return Reached(trial=trial[held], step=step[start[held]], begun=begun)


def first_steps(counted: Counted, found: Reached) -> list[tuple[int, int]]:
    """(steps, index) of the trials that count and reached a goal, best first."""
    lowest = lowest_of_each(found.trial, found.step)
    return sorted((at, index) for index, at in lowest.items() if index in counted.row_of)


def lowest_of_each(trial: NDArray[np.int64], values: NDArray[Any]) -> dict[int, Any]:
    """Trial -> the lowest of its values, none of which is NaN."""
    if not len(trial):
        return {}
    # Starts of consecutive rows of the same trial, which may have several such sequences. Sorting
    # all rows would take far longer.
    starts = np.flatnonzero(np.diff(trial, prepend=trial[0] - 1))
    of_each = np.minimum.reduceat(values, starts).tolist()
    lowest: dict[int, Any] = {}
    for index, value in zip(trial[starts].tolist(), of_each, strict=True):
        lowest[index] = min(value, lowest.get(index, value))
    return lowest
