"""The batch size with the best value of a metric, for a fixed amount of training.

The value of a batch size is that of its best trial, or the median of that trial's repeats if every
batch size has some. If a single metaparameter was searched and nothing was repeated, it is the
minimum of a parabola in the logarithm of that metaparameter, through the trials next to the best
one: a coarse grid of learning rates misses the best rate by more at some batch sizes than at
others.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeGuard

import numpy as np
import pyarrow as pa

from orchestrator.analysis.estimates import Estimate, Floats
from orchestrator.analysis.valleys import Points, minima
from orchestrator.analysis.words import in_words
from orchestrator.records import ENOUGH_SIZES, Study, Value, grouped
from orchestrator.records.lr_schedules import schedule_of
from orchestrator.results import RunFiles, Within
from orchestrator.results.best import reaches, sign_of
from orchestrator.results.counting import (
    Counted,
    columns,
    has_finished,
    lowest_of_each,
    where_measured,
)
from orchestrator.results.frontier import refuse_unmeasured
from orchestrator.results.store import refuse_branches, refuse_compact
from orchestrator.results.tables import numbers

ROUNDING = 0.05
"""Share by which a training may be shorter or longer than an amount and still be made for it."""

NEXT_TO_BEST = 1.1
"""Distance from the best trial, in doublings of the metaparameter, up to which trials belong to the
parabola beside its two neighbours."""

COME_DOWN = 1.05
"""How many times its last learning rate a schedule may have at the end of an amount."""

ENOUGH_REPEATS = 3

MEDIAN_ERROR = math.sqrt(math.pi / 2)
"""The error of a median in errors of a mean."""

EARLY = "trials were stopped early, and might have become better: `stop: {at_goal: false}`"
HIGH_RATE = "learning rates had not come down yet, as at the end of a training"
EDGE = "at the edge of what was tried"
UNDECIDED = "undecided: it may be any of those that were tried"


@dataclass(frozen=True, kw_only=True)
class LowestAt:
    batch_size: int
    value: float
    error: float | None = None
    """Standard deviation of the median of repeats; None if the value is no median."""
    trial: int
    params: Mapping[str, Value]
    """Metaparameters of the trial; one that was searched alone is where its parabola is lowest."""
    at_end: bool = False
    """Whether the best value lies at an end of the range of such a metaparameter."""
    steps: int


@dataclass(frozen=True, kw_only=True)
class BestBatch:
    """The best batch size of one workload and recipe for one amount of training."""

    workload: str
    recipe: str
    metric: str
    within: str
    """The amount, such as `examples=1000000`."""
    batch_size: Estimate | None
    """An end of the interval is 0 or infinite if the best batch size may be the smallest or the
    largest one that was tried, or lie beyond it. None if there are too few points."""
    verdict: str
    """Why it is not known; empty if both ends of its interval are."""
    points: tuple[LowestAt, ...]
    left_out: tuple[str, ...]
    """Batch sizes that are not used, with the reasons."""


def best_batch_sizes(
    run: RunFiles, metric: str, *, within: Sequence[Within] = (), maximise: bool | None = None
) -> list[BestBatch]:
    """The best batch size of each workload and recipe for each amount; without amounts, for the
    budget that all its batch sizes had."""
    refuse_branches(run)
    refuse_compact(run, "the values of all trials, which best batch sizes need")
    studies = sorted(run.studies(), key=lambda study: study.batch_size)
    sign = sign_of(studies, metric, maximise)
    read = run.in_parallel(partial(_Searched, run, metric, sign), studies)
    if not any(one.measured for one in read):
        refuse_unmeasured(run, studies, metric)
    constant = [one for one in read if not one.study.grows]
    curves = grouped(constant, lambda one: (one.study.workload, one.study.recipe))
    found = []
    # Twice the same amount would count each point of a law twice.
    for amount in dict.fromkeys(within) or [None]:
        bests = [_points(metric, mine, amount) for mine in curves.values()]
        # The scatter about the curves is taken from all that are about one amount.
        usable = [best.points for best in bests if len(best.points) >= ENOUGH_SIZES]
        batch_sizes = iter(minima([_scaled(points, sign) for points in usable]))
        for best, mine in zip(bests, curves.values(), strict=True):
            batch_size = next(batch_sizes) if len(best.points) >= ENOUGH_SIZES else None
            verdict = _verdict(batch_size, best.points, len(mine))
            found.append(replace(best, batch_size=batch_size, verdict=verdict))
    return found


def _points(metric: str, curve: Sequence[_Searched], amount: Within | None) -> BestBatch:
    asked = amount or _whole([one.study for one in curve])
    points, medians, reasons = [], [], dict[str, list[int]]()
    for one in curve:
        lowest = one.at(asked)
        if isinstance(lowest, str):
            reasons.setdefault(lowest, []).append(one.study.batch_size)
        else:
            points.append(lowest[0])
            medians.append(lowest[1])
    repeated = [median for median in medians if median is not None]
    if len(repeated) == len(points):
        points = repeated
    return BestBatch(
        workload=curve[0].study.workload,
        recipe=curve[0].study.recipe,
        metric=metric,
        within=str(asked),
        batch_size=None,
        verdict="",
        points=tuple(points),
        left_out=tuple(f"{_sizes(of)} ({why})" for why, of in reasons.items()),
    )


def _whole(studies: Sequence[Study]) -> Within:
    steps = {study.budget_steps for study in studies}
    if len(steps) == 1:
        return Within(amount=steps.pop(), unit="steps")
    examples = [study.budget_examples for study in studies]
    return Within(amount=min(examples), unit="examples")


class _Searched:
    """All that was measured in one study."""

    def __init__(self, run: RunFiles, metric: str, sign: float, study: Study) -> None:
        self.study, self._sign, self._metric = study, sign, metric
        self.trials = run.trials(study.key)
        self._counted = Counted(study, self.trials)
        self._params: dict[int, dict[str, Value]] = {
            index: json.loads(self.trials["params"][row].as_py())
            for index, row in self._counted.row_of.items()
        }
        self._of_trials = run.measurements(study.key, {metric})
        self._of_repeats = run.repeats.measurements(study.key, {metric})
        self.measured = metric in self._of_trials.column_names

    def at(self, within: Within) -> tuple[LowestAt, LowestAt | None] | str:
        """The value of the best trial and the median of its repeats, if it has enough, within an
        amount; or why there is none."""
        study, last = self.study, within.steps(self.study)
        # What was made for the amount counts to its end, whatever its steps were rounded to.
        made_for = abs(study.budget_steps / max(last, 1) - 1) <= ROUNDING
        span = None if made_for else within
        enough, early = reaches(study, self.trials, self._counted, span)
        fair = made_for or self._has_come_down(last)
        lowest = self._lowest(self._of_trials, span, "trial", self._params)
        for reason, holds in (
            (EARLY, early),
            ("not finished yet", not has_finished(study, self.trials)),
            ("not trained that long", not enough),
            (HIGH_RATE, not fair),
            ("nothing was measured", not lowest),
        ):
            if holds:
                return reason
        trial = min(lowest, key=lambda index: (lowest[index], index))
        best = LowestAt(
            batch_size=study.batch_size,
            value=self._sign * lowest[trial],
            trial=trial,
            params=self._params[trial],
            steps=study.budget_steps if made_for else last,
        )
        again = [*self._lowest(self._of_repeats, span, "repeat", [trial]).values()]
        median = None
        if len(again) >= ENOUGH_REPEATS:
            error = MEDIAN_ERROR * float(np.std(again, ddof=1)) / len(again) ** 0.5
            median = replace(best, value=self._sign * float(np.median(again)), error=error)
        return self._between(best, lowest), median

    def _has_come_down(self, last: int) -> bool:
        """Whether the learning rates at step `last` are what they are at the end of a training, or
        a cooldown ended about there."""
        if self.study.cooldown is not None:
            ends = where_measured(columns(self._of_trials, self._metric))[1]
            return bool(((ends <= last) & (ends * (1 + ROUNDING) >= last)).any())
        for params in self._params.values():
            factor = schedule_of(self.study, params, self.study.train_size)
            if factor is not None and last:
                end, now = factor(self.study.budget_steps - 1), factor(last - 1)
                if not end / COME_DOWN <= now <= end * COME_DOWN:
                    return False
        return True

    def _lowest(
        self, table: pa.Table, span: Within | None, key: str, trials: Any
    ) -> dict[int, float]:
        """The lowest value of each trial or repeat of `trials`."""
        if key not in table.column_names:
            return {}
        trial, step, value = columns(table, self._metric)
        usable = np.isfinite(value) & np.isin(trial, [*trials])
        if span is not None:
            usable &= step <= span.steps(self.study)
        return lowest_of_each(numbers(table[key])[usable], self._sign * value[usable])

    def _between(self, best: LowestAt, lowest: Mapping[int, float]) -> LowestAt:
        """The lowest point between the trials, if they differ in one number alone."""
        names = {name for params in self._params.values() for name in params}
        every = {name: [params.get(name) for params in self._params.values()] for name in names}
        differing = [name for name, values in every.items() if len({*values}) > 1]
        if len(differing) != 1 or not all(map(is_positive, every[differing[0]])):
            return best
        (name,) = differing
        of_log: dict[float, float] = {}
        for index, params in self._params.items():
            log = math.log2(float(params[name]))
            of_log[log] = min(of_log.get(log, math.inf), lowest.get(index, math.inf))
        logs, values = np.array(sorted(of_log.items())).T
        values, raised = _in_logs(values, self._sign)
        at = int(values.argmin())
        if at in (0, len(values) - 1):
            return replace(best, at_end=True)
        near = np.abs(logs - logs[at]) <= NEXT_TO_BEST
        near[at - 1 : at + 2] = True
        near &= np.isfinite(values)
        if near.sum() < 3:
            return best
        bend, slope, level = np.polyfit(logs[near] - logs[at], values[near], 2)
        log = logs[at] - slope / (2 * bend)
        if bend <= 0 or not logs[at - 1] <= log <= logs[at + 1]:
            return best
        value = float(level - slope**2 / (4 * bend))
        return replace(
            best,
            value=self._sign * (math.exp(value) if raised else value),
            params={**best.params, name: float(2**log)},
        )


def is_positive(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and value is not True and 0 < value < math.inf


def _in_logs(values: Floats, sign: float) -> tuple[Floats, bool]:
    """The logarithms of errors and losses, which scatter in proportion to their size."""
    return (np.log(values), True) if sign > 0 and values.min() > 0 else (values, False)


def _scaled(points: Sequence[LowestAt], sign: float) -> Points:
    plain = sign * np.array([point.value for point in points])
    errors = np.array([point.error or 0.0 for point in points])
    values, raised = _in_logs(plain, sign)
    sizes = np.log2([point.batch_size for point in points])
    return Points(log_sizes=sizes, values=values, errors=errors / plain if raised else errors)


def _verdict(batch_size: Estimate | None, points: Sequence[LowestAt], tried: int) -> str:
    if batch_size is None:
        can = f"{len(points)} of {tried} can be used, {ENOUGH_SIZES} are needed"
        return f"too few batch sizes to tell: {can}"
    low, high = batch_size.ends
    if low == 0 and high == math.inf:
        return UNDECIDED
    if low == 0:
        most = in_words(Estimate(value=high))
        return f"{EDGE}: at most {most}, and {points[0].batch_size:,} is the smallest"
    if high == math.inf:
        least = in_words(Estimate(value=low))
        return f"{EDGE}: at least {least}, and {points[-1].batch_size:,} is the largest"
    return ""


def best_in_words(best: BestBatch) -> str:
    return in_words(best.batch_size) if best.batch_size and not best.verdict else best.verdict


HEADS = ("Workload", "Recipe", "Within", "Best batch size", "Notes")


def rows_of(bests: Sequence[BestBatch]) -> list[list[str]]:
    """The best batch sizes below `HEADS`, with what a reader should know of them."""
    rows = []
    for best in bests:
        notes = [f"left out: {one}" for one in best.left_out]
        if ends := [point.batch_size for point in best.points if point.at_end]:
            notes.append(f"at {_sizes(ends)} the best value is at an end of the range searched")
        said = [best.within, best_in_words(best), "; ".join(notes)]
        rows.append([best.workload, best.recipe, *said])
    return rows


def _sizes(sizes: Sequence[int]) -> str:
    return ", ".join(f"{size:,}" for size in sizes)
