"""The batch size with the best value of a metric, for a fixed amount of training.

The value of a batch size is that of its best trial, or the median of that trial's repeats if every
batch size has some. Where a single metaparameter was searched and nothing was repeated, it is the
minimum of a parabola in the logarithm of that metaparameter, through the trials next to the best
one: a coarse grid of learning rates misses the best rate by more at some batch sizes than at others.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from orchestrator.analysis.estimates import Estimate
from orchestrator.analysis.valleys import Points, minima
from orchestrator.records import ENOUGH_SIZES, Study, Value
from orchestrator.records.lr_schedules import schedule_of
from orchestrator.results import BestRow, Run, Within, best_of_studies
from orchestrator.results.counting import Counted, columns, has_finished
from orchestrator.results.frontier import refuse_unmeasured
from orchestrator.results.searches import refuse_branches
from orchestrator.results.tables import numbers

ROUNDING = 0.05
"""Share by which a training may be shorter or longer than an amount and still be made for it."""

NEXT_TO_BEST = 1.1
"""Distance from the best trial, in doublings of the metaparameter, within which trials belong to
the parabola beside its two neighbours."""

COME_DOWN = 1.05
"""How many times its last learning rate a schedule may have at the end of an amount."""

MEDIAN_ERROR = math.sqrt(math.pi / 2)
"""Error of a median in errors of a mean."""

EDGE = "at the edge of what was tried"
UNDECIDED = "undecided: the points allow all batch sizes that were tried"


@dataclass(frozen=True, kw_only=True)
class LowestAt:
    """The best value at one batch size."""

    batch_size: int
    value: float
    is_median: bool
    """Whether it is the median of repeats."""
    error: float | None
    """Standard deviation of the value; None if there are no repeats to tell it."""
    trial: int
    params: Mapping[str, Value]
    """Metaparameters of the trial; the one that was searched alone is where its parabola has the
    minimum."""
    steps: int
    """Steps of the whole amount."""


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
    largest one that was tried, or beyond it. None if there are too few points."""
    verdict: str
    """What there is to know about it; empty if both ends are known."""
    points: tuple[LowestAt, ...]
    left_out: tuple[str, ...]
    """Batch sizes that are not used, with the reasons."""
    remarks: tuple[str, ...] = ()
    devices: str = ""
    """On which devices it was timed, if the amount is one of seconds."""

    @property
    def known(self) -> bool:
        return self.batch_size is not None and not self.verdict

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def best_batch_sizes(
    run: Run,
    metric: str,
    *,
    within: Sequence[Within] = (),
    maximise: bool | None = None,
) -> list[BestBatch]:
    """The best batch size of each workload and recipe for each amount; without amounts, for the
    budget that all its batch sizes had."""
    refuse_branches(run)
    studies = run.studies()
    if maximise is None:
        goals = [goal for study in studies for goal in study.goals if goal.metric == metric]
        maximise = any(goal.direction == ">" for goal in goals)
    curves: dict[tuple[str, str], list[Study]] = {}
    for study in sorted(studies, key=lambda study: study.batch_size):
        if not study.grows:
            curves.setdefault((study.workload, study.recipe), []).append(study)
    asked = {names: [*within] or [_whole(mine)] for names, mine in curves.items()}
    rows = {
        (row.workload, row.recipe, row.batch_size, row.within): row
        for names, mine in curves.items()
        for row in best_of_studies(
            run, mine, metric, maximise=maximise, within=[None, *asked[names]]
        )
    }
    if all(row.value is None for row in rows.values()):
        refuse_unmeasured(run, studies, metric)
    found = []
    for place in range(max(map(len, asked.values()), default=0)):
        together = [
            _Curve(run, metric, maximise, studies, asked[names][place], rows)
            for names, studies in curves.items()
        ]
        # The scatter about the curves is taken from all that are about one amount.
        usable = [curve for curve in together if len(curve.points) >= ENOUGH_SIZES]
        places = dict(zip(map(id, usable), minima([c.scaled for c in usable]), strict=True))
        found += [curve.answer(places.get(id(curve))) for curve in together]
    return found


def _whole(studies: Sequence[Study]) -> Within:
    """The largest amount that all studies were trained for."""
    steps = {study.budget_steps for study in studies}
    if len(steps) == 1:
        return Within(amount=steps.pop(), unit="steps")
    examples = [study.examples(study.budget_steps) for study in studies]
    return Within(amount=min(examples), unit="examples")


class _Curve:
    """The values of one workload and recipe for one amount."""

    def __init__(
        self,
        run: Run,
        metric: str,
        maximise: bool,
        studies: Sequence[Study],
        within: Within,
        rows: Mapping[Any, BestRow],
    ) -> None:
        self._run, self._metric, self._within = run, metric, within
        self._sign = -1.0 if maximise else 1.0
        self._names = studies[0].workload, studies[0].recipe
        self._reasons: dict[str, list[int]] = {}
        self._at_ends: list[int] = []
        self._ranks: dict[str, list[int]] = {}
        used = []
        for study in studies:
            whole = rows[*self._names, study.batch_size, None]
            row = rows[*self._names, study.batch_size, str(within)]
            made_for = within.unit != "seconds" and _is_made_for(study, within)
            # What was made for the amount counts to its end, whatever its steps were rounded to.
            row, span = (whole, None) if made_for else (row, within)
            if (why := self._unusable(study, row, made_for)) is not None:
                self._reasons.setdefault(why, []).append(study.batch_size)
            else:
                used.append((study, row, span))
        medians = [self._median(*one) for one in used]
        if used and all(median is not None for median in medians):
            self.points = [median for median in medians if median is not None]
        else:
            self.points = [self._lowest(*one) for one in used]
        for study, _, _ in used if within.unit == "seconds" else ():
            self._note_ranks(study)

    def _unusable(self, study: Study, row: BestRow, made_for: bool) -> str | None:
        trials = self._run.trials(study.key)
        if row.censored:
            return "trials were stopped early, and might have become better"
        if not row.trained_enough:
            return "not trained that long"
        if row.value is None:
            return "nothing was measured"
        if not has_finished(study, trials):
            return "not finished yet"
        if not made_for and self._within.unit != "seconds":
            last, params = self._within.steps(study), trials["params"].to_pylist()
            if not all(_has_come_down(study, json.loads(one), last) for one in params):
                return "the learning rate had not come down yet, as it has at the end of a training"
        return None

    def _median(self, study: Study, row: BestRow, within: Within | None) -> LowestAt | None:
        """The median of the repeats of the best trial."""
        measurements = self._run.repeats.measurements(study.key, {self._metric, "seconds"})
        if "repeat" not in measurements.column_names:
            return None
        trial, _, value = columns(measurements, self._metric)
        usable = (trial == row.trial) & np.isfinite(value)
        if within is not None:
            usable &= within.covers(study, measurements)
        repeat, value = numbers(measurements["repeat"])[usable], self._sign * value[usable]
        lowest = [float(value[repeat == one].min()) for one in np.unique(repeat)]
        if len(lowest) < 3:
            return None
        error = MEDIAN_ERROR * float(np.std(lowest, ddof=1)) / len(lowest) ** 0.5
        return self._point(study, row, float(np.median(lowest)), error)

    def _lowest(self, study: Study, row: BestRow, within: Within | None) -> LowestAt:
        """The value of the best trial, or that of the parabola through its neighbours."""
        assert row.value is not None
        best = self._point(study, row, self._sign * row.value, None)
        searched = self._searched_alone(study, within)
        if searched is None:
            return best
        name, (places, values) = searched
        values = self._logs(values)
        at = int(values.argmin())
        if at in (0, len(values) - 1):
            self._at_ends += [study.batch_size]
            return best
        near = np.abs(places - places[at]) <= NEXT_TO_BEST
        near[at - 1 : at + 2] = True
        near &= np.isfinite(values)
        if near.sum() < 3:
            return best
        bend, slope, level = np.polyfit(places[near] - places[at], values[near], 2)
        if bend <= 0 or not places[at - 1] <= places[at] - slope / (2 * bend) <= places[at + 1]:
            return best
        value = level - slope**2 / (4 * bend)
        params = {**best.params, name: float(2 ** (places[at] - slope / (2 * bend)))}
        value = math.exp(value) if self._in_logs(self._sign * row.value) else value
        return replace(best, value=self._sign * float(value), params=params)

    def _searched_alone(
        self, study: Study, within: Within | None
    ) -> tuple[str, tuple[np.ndarray, np.ndarray]] | None:
        """The metaparameter that alone differs between the trials, the logarithms (base 2) of its
        values, and the best value of the metric at each."""
        trials = self._run.trials(study.key)
        counted = Counted(study, trials).places
        params = {index: json.loads(trials["params"][at].as_py()) for index, at in counted.items()}
        differing = [
            name
            for name in {name: None for one in params.values() for name in one}
            if len({one.get(name) for one in params.values()}) > 1
        ]
        if len(differing) != 1 or len(params) < 3:
            return None
        (name,) = differing
        tried = {index: one.get(name) for index, one in params.items()}
        if not all(
            isinstance(v, int | float) and not isinstance(v, bool) and v > 0 for v in tried.values()
        ):
            return None
        measurements = self._run.measurements(study.key, {self._metric, "seconds"})
        trial, _, value = columns(measurements, self._metric)
        usable = np.isfinite(value)
        if within is not None:
            usable &= within.covers(study, measurements)
        lowest = dict.fromkeys(sorted(set(tried.values())), math.inf)
        for index, one in zip(trial[usable].tolist(), value[usable].tolist(), strict=True):
            if index in tried:
                lowest[tried[index]] = min(lowest[tried[index]], self._sign * one)
        return name, (np.log2([*lowest]), np.array([*lowest.values()]))

    def _point(self, study: Study, row: BestRow, value: float, error: float | None) -> LowestAt:
        assert row.trial is not None
        steps = study.budget_steps
        if self._within.unit != "seconds" and not _is_made_for(study, self._within):
            steps = self._within.steps(study)
        return LowestAt(
            batch_size=study.batch_size,
            value=self._sign * value,
            is_median=error is not None,
            error=error,
            trial=row.trial,
            params=row.params or {},
            steps=steps,
        )

    def _in_logs(self, *values: float) -> bool:
        """Whether logarithms are taken: errors and losses scatter in proportion to their size."""
        return self._sign > 0 and min(values) > 0

    def _logs(self, values: np.ndarray) -> np.ndarray:
        return np.log(values) if self._in_logs(*values.tolist()) else values

    @property
    def scaled(self) -> Points:
        """The points as the search for the minimum takes them."""
        values = self._sign * np.array([point.value for point in self.points])
        errors = np.array([point.error or 0.0 for point in self.points])
        if self._in_logs(*values.tolist()):
            values, errors = np.log(values), errors / values
        sizes = np.log2([point.batch_size for point in self.points])
        return Points(log_sizes=sizes, values=values, errors=errors)

    def _note_ranks(self, study: Study) -> None:
        trials = self._run.trials(study.key, ["ranks", "width"])
        ranks = sorted({ranks for ranks in trials["ranks"].to_pylist() if ranks})
        said = " or ".join(f"{count} rank{'s' * (count != 1)}" for count in ranks) or "not known"
        if any((width or 1) > 1 for width in trials["width"].to_pylist()):
            said += ", shared by stacked trials"
        self._ranks.setdefault(said, []).append(study.batch_size)

    def answer(self, place: Estimate | None) -> BestBatch:
        return BestBatch(
            workload=self._names[0],
            recipe=self._names[1],
            metric=self._metric,
            within=str(self._within),
            batch_size=place,
            verdict=self._verdict(place),
            points=tuple(self.points),
            left_out=tuple(f"{_sizes(sizes)} ({why})" for why, sizes in self._reasons.items()),
            remarks=tuple(self._remarks()),
            devices="; ".join(
                said if len(self._ranks) == 1 else f"{said} at batch size {_sizes(sizes)}"
                for said, sizes in self._ranks.items()
            ),
        )

    def _verdict(self, place: Estimate | None) -> str:
        if place is None:
            tried = len(self.points) + sum(map(len, self._reasons.values()))
            return (
                f"too few batch sizes to tell: {len(self.points)} of {tried} can be used, "
                f"{ENOUGH_SIZES} are needed"
            )
        low, high = place.ends
        first, last = self.points[0].batch_size, self.points[-1].batch_size
        if low == 0 and high == math.inf:
            return UNDECIDED
        if low == 0:
            return f"{EDGE}: at most {high:,.0f}, and {first:,} is the smallest"
        if high == math.inf:
            return f"{EDGE}: at least {low:,.0f}, and {last:,} is the largest"
        return ""

    def _remarks(self) -> Iterator[str]:
        if self._at_ends:
            yield (
                f"at batch size {_sizes(self._at_ends)} the best value lies at an end of the range "
                f"that was searched, so a better one may lie beyond it"
            )
        if self._run.imported and any("steps" in p.params for p in self.points):
            yield "imported"


def _is_made_for(study: Study, within: Within) -> bool:
    return abs(study.budget_steps / max(within.steps(study), 1) - 1) <= ROUNDING


def _has_come_down(study: Study, params: Mapping[str, Value], last: int) -> bool:
    """Whether the learning rate at step `last` is what it is at the end of the training."""
    factor = schedule_of(study, params, study.train_size)
    if factor is None or last < 1:
        return True
    end = factor(study.budget_steps - 1)
    return end / COME_DOWN <= factor(last - 1) <= COME_DOWN * end


def _sizes(sizes: Sequence[int]) -> str:
    return ", ".join(f"{size:,}" for size in sizes)
