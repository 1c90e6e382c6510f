"""How the critical and the best batch size, and what is tuned with it, grow with data and model.

A law is a power of each scale, log y = a + sum of p log x. Each point weighs by its own error and
by the scatter about the law beyond it, which is estimated from the points. Intervals are Student's,
of as many degrees of freedom as there are points to spare, so that they hold when points scatter
more than their errors say; where few of them lie on a law by luck, their errors say how far it is
known. Trainings at different places are different trainings, so the errors of
their points are independent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from orchestrator.analysis.best_batch import BestBatch, LowestAt, best_batch_sizes, is_positive
from orchestrator.analysis.estimates import Estimate, Floats, reach_of
from orchestrator.analysis.points import without_growing
from orchestrator.analysis.scaling import Scaling, scalings
from orchestrator.analysis.words import in_digits, in_words, listed
from orchestrator.records import BadInput, wrong_value
from orchestrator.results import GoalOf, RunFiles, Within, frontier_of

DATA = "data"
"""The scale in which there is a law of its own: the amount of training data."""

BEST_BATCH, BEST_RATE, TIMESCALE = (
    "best batch size",
    "best learning rate",
    "timescale of weight decay",
)
"""B / (eta lambda D): over which share of a training weight decay averages weights."""
CRITICAL, FIFTH_MORE = "B_crit", "batch size with +20 % examples"

RATES, DECAYS = ("learning_rate", "lr"), ("weight_decay", "wd")
"""Names of metaparameters, here and in tables from elsewhere."""

LEAST_ERROR = 0.005
"""Standard deviation, in natural logarithms, below which no error of a point is trusted."""

NEARBY = 2.5
"""Doublings from the best batch size within which best metaparameters say what is best there."""


@dataclass(frozen=True, kw_only=True)
class ScalePoint:
    workload: str
    at: Mapping[str, float]
    value: Estimate


@dataclass(frozen=True, kw_only=True)
class ForetoldPoint:
    """A point at the largest scale, predicted by the law of all smaller ones."""

    point: ScalePoint
    predicted: Estimate
    holds: bool
    """Whether the measured value lies in the interval, which allows for its error."""


@dataclass(frozen=True, kw_only=True)
class Predicted:
    at: Mapping[str, float]
    value: Estimate
    if_bent: Estimate | None
    """The same if the exponent may change as it did over the points; None if these are too few."""
    beyond: Mapping[str, float]
    """By scale, how many times further it is than the nearest point; 1 within the range."""


@dataclass(frozen=True, kw_only=True)
class Law:
    quantity: str
    recipe: str
    exponents: Mapping[str, Estimate]
    """By scale."""
    scatter: float
    """Standard deviation of the points about the law beyond their errors, in natural logarithms."""
    bends: Mapping[str, Estimate]
    """Scale -> change of the exponent along it, which is no constant if this excludes 0."""
    held: tuple[ForetoldPoint, ...]
    points: tuple[ScalePoint, ...]
    left_out: tuple[str, ...]

    @property
    def bent(self) -> list[str]:
        return [name for name, change in self.bends.items() if not change.holds(0.0)]

    def at(self, point: Mapping[str, float]) -> Predicted:
        """The law at another point, which must name each of its scales."""
        names, whole, beyond = [*self.exponents], {}, {}
        for name in names:
            tried = [each.at[name] for each in self.points]
            whole[name] = point[name]
            beyond[name] = max(point[name] / max(tried), min(tried) / point[name], 1.0)
        straight = _fitted(self.points, names)
        bent = _fitted(self.points, names, [*self.bends]) if self.bends else None
        assert straight is not None
        if_bent = None if bent is None else bent.at(whole)
        return Predicted(at=whole, value=straight.at(whole), if_bent=if_bent, beyond=beyond)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "bent": self.bent}


@dataclass(frozen=True, kw_only=True)
class _Fit:
    """Least squares with weights by known errors and a scatter beyond them."""

    names: Sequence[str]
    bent: Sequence[str]
    """The scales whose logarithms also count by their squares."""
    middle: Floats
    """Mean logarithm of each scale."""
    coefficients: Floats
    covariance: Floats
    scatter: float
    freedom: int

    def estimate(self, index: int, factor: float = 1.0) -> Estimate:
        value = factor * float(self.coefficients[index])
        reach = abs(factor) * self.covariance[index, index] ** 0.5 * reach_of(self.freedom)
        return Estimate(value=value, low=value - reach, high=value + reach)

    def at(self, point: Mapping[str, float], error: float = 0.0, *, mean: bool = False) -> Estimate:
        """The law at a place, as a point of this error would find it, or the `mean` of points."""
        (row,) = _design(_logs([point], self.names) - self.middle, self.names, self.bent)
        variance = row @ self.covariance @ row + error**2 + (0 if mean else self.scatter**2)
        middle, reach = float(row @ self.coefficients), variance**0.5 * reach_of(self.freedom)
        low, value, high = (math.exp(min(m, 700)) for m in (middle - reach, middle, middle + reach))
        return Estimate(value=value, low=low, high=high)


def _logs(scales: Iterable[Mapping[str, float]], names: Sequence[str]) -> Floats:
    return np.array([[math.log(at[name]) for name in names] for at in scales])


def _design(logs: Floats, names: Sequence[str], bent: Sequence[str]) -> Floats:
    squares = logs[:, [names.index(name) for name in bent]] ** 2
    return np.column_stack([np.ones(len(logs)), logs, squares])


def _fitted(
    points: Sequence[ScalePoint], names: Sequence[str], bent: Sequence[str] = ()
) -> _Fit | None:
    """None if the points can't tell these exponents."""
    freedom = len(points) - 1 - len(names) - len(bent)
    if freedom < 1:
        return None
    logs = _logs([point.at for point in points], names)
    middle = np.array([column.mean() for column in logs.T])
    design = _design(logs - middle, names, bent)
    scale = np.abs(design).max(axis=0)
    if not scale.all() or np.linalg.cond(design / scale) > 100:
        return None
    values = np.log([point.value.value for point in points])
    known = np.array([error_of(point.value) for point in points])

    def weighted(scatter: float) -> tuple[Floats, Any, float]:
        weights = 1 / (known**2 + scatter**2)
        covariance = np.linalg.inv(design.T @ (weights[:, None] * design))
        coefficients = covariance @ (design.T @ (weights * values))
        off = values - design @ coefficients
        return coefficients, covariance, float(weights @ off**2)

    # The scatter with which the squares come to what is expected of them.
    low, high = 0.0, float(np.ptp(values)) + LEAST_ERROR
    if weighted(0.0)[2] > freedom:
        for _ in range(60):
            half = (low + high) / 2
            low, high = (half, high) if weighted(half)[2] > freedom else (low, half)
    coefficients, covariance, squares = weighted(low)
    least = (reach_of(math.inf) / reach_of(freedom)) ** 2
    return _Fit(
        names=names,
        bent=bent,
        middle=middle,
        coefficients=coefficients,
        covariance=covariance * max(squares / freedom, least),
        scatter=low,
        freedom=freedom,
    )


def error_of(value: Estimate) -> float:
    """The standard deviation of the logarithm of an estimate, by its interval."""
    low, high = value.ends
    return max(math.log(high / low) / 2 / reach_of(math.inf), LEAST_ERROR)


def laws_of(
    quantity: str, recipe: str, points: Sequence[ScalePoint], left_out: Sequence[str] = ()
) -> Iterator[Law]:
    """The law in all scales that vary and in `data` alone; none if points are too few."""
    shared = [n for n in (points[0].at if points else ()) if all(n in p.at for p in points)]
    names = [name for name in shared if len({point.at[name] for point in points}) > 1]
    names.sort(key=lambda name: name != DATA)
    for kind in [names, names[:1]] if DATA in names[:1] and names[1:] else [names]:
        if (fit := _fitted(points, kind) if kind else None) is None:
            continue
        exponents = {name: fit.estimate(1 + index) for index, name in enumerate(kind)}
        yield Law(
            quantity=quantity,
            recipe=recipe,
            exponents=exponents,
            scatter=fit.scatter,
            bends=dict(_bends(points, kind)),
            held=tuple(_held(points, kind)),
            points=tuple(points),
            left_out=tuple(left_out),
        )


def _bends(points: Sequence[ScalePoint], names: Sequence[str]) -> Iterator[tuple[str, Estimate]]:
    for name in names:
        if (bent := _fitted(points, names, [name])) is not None:
            logs = [math.log(point.at[name]) for point in points]
            yield name, bent.estimate(-1, 2 * (max(logs) - min(logs)))


def _held(points: Sequence[ScalePoint], names: Sequence[str]) -> Iterator[ForetoldPoint]:
    largest = max(point.at[names[0]] for point in points)
    fit = _fitted([point for point in points if point.at[names[0]] < largest], names)
    for point in points:
        if fit is not None and point.at[names[0]] == largest:
            predicted = fit.at(point.at, error_of(point.value))
            holds = predicted.holds(point.value.value)
            yield ForetoldPoint(point=point, predicted=predicted, holds=holds)


def at_best(best: BestBatch, name: str) -> Estimate | None:
    """The best learning rate, or timescale, at the best batch size: by a power of the batch size
    through its best values nearby. None if it was not searched, or at too few batch sizes."""
    assert best.batch_size is not None
    middle, values = best.batch_size, {}
    for point in best.points:
        near = abs(math.log2(point.batch_size / middle.value)) <= NEARBY
        if near and not point.at_end and (value := _value(point, name)) is not None:
            values[point.batch_size] = value
    nearby = [
        ScalePoint(workload="", at={"size": size}, value=Estimate(value=one, low=one, high=one))
        for size, one in values.items()
    ]
    fit = _fitted(nearby, ["size"]) if len({*values.values()}) > 1 else None
    if fit is None:
        return None
    error = abs(float(fit.coefficients[1])) * error_of(middle)
    return fit.at({"size": middle.value}, error, mean=True)


def _value(point: LowestAt, name: str) -> float | None:
    product = 1.0
    for names in (RATES, DECAYS) if name == TIMESCALE else (RATES,):
        value = next((point.params[one] for one in names if one in point.params), None)
        if not is_positive(value):
            return None
        product *= value
    return 1 / (product * point.steps) if name == TIMESCALE else product


@dataclass(frozen=True, kw_only=True)
class ScaleAnswer:
    """What runs say about best batch sizes, and about laws of scale."""

    bests: tuple[BestBatch, ...]
    laws: tuple[Law, ...]
    notes: tuple[str, ...]
    """Why there is no law, or what it leaves out."""


Scales = Mapping[str, Mapping[str, float]]
"""Workload -> its place."""


def scale_answer(
    runs: Mapping[str, RunFiles],
    metric: str | None = None,
    *,
    within: Sequence[Within] = (),
    goals: Sequence[GoalOf] = (),
    maximise: bool | None = None,
) -> ScaleAnswer:
    """The best batch sizes and the laws of one run, or of several together by their names."""
    bests: list[BestBatch] = []
    curves: list[Scaling] = []
    scales: dict[str, Mapping[str, float]] = {}
    metric = metric or _metric_of(next(iter(runs.values())), goals)
    if maximise is None:  # for all runs alike
        asked = [one.goal for one in goals]
        asked += [goal for run in runs.values() for study in run.studies() for goal in study.goals]
        maximise = any((goal.metric, goal.direction) == (metric, ">") for goal in asked)
    for name, run in runs.items():
        label = f"{name}: " if len(runs) > 1 else ""
        found = best_batch_sizes(run, metric, within=within, maximise=maximise)
        bests += [replace(one, workload=label + one.workload) for one in found]
        scales |= {label + workload: at for workload, at in scales_of(run).items()}
        if goals or any(study.goals for study in run.studies()):
            of_run = scalings(without_growing(frontier_of(run, goals)))
            curves += [replace(one, workload=label + one.workload) for one in of_run]
    bests.sort(key=lambda one: [*scales.get(one.workload, {}).values()])
    laws = [*laws_of_critical(curves, scales)]
    for amount in dict.fromkeys(one.within for one in bests) if within else [""]:
        laws += _of_best([one for one in bests if amount in ("", one.within)], scales, amount)
    missing = [name for name in dict.fromkeys(one.workload for one in bests) if name not in scales]
    notes = [f"no scale is named for {listed(missing, 3)}"] if missing else []
    if not (missing or laws):
        notes.append("too few places on the scales are known for a law")
    return ScaleAnswer(bests=tuple(bests), laws=tuple(laws), notes=tuple(notes))


def scales_of(run: RunFiles) -> dict[str, dict[str, float]]:
    """The place of each workload, by the name of the scale. Empty if the run names no scales."""
    scales: Any = run.sweep().get("scales") or {}
    values = scales.values() if isinstance(scales, Mapping) else [None]
    if not all(isinstance(at, Mapping) and all(map(is_positive, at.values())) for at in values):
        rule = "a mapping of workloads to numbers above 0, by the name of the scale"
        raise wrong_value(f"`scales` of {run.place}", rule, scales)
    return {name: {scale: float(one) for scale, one in at.items()} for name, at in scales.items()}


def _metric_of(run: RunFiles, goals: Sequence[GoalOf]) -> str:
    """The metric of the first goal or, without goals, the first that the run was imported with."""
    known = [one.goal.metric for one in goals]
    known += [goal.metric for study in run.studies() for goal in study.goals]
    known += (run.sweep().get("mapping") or {}).get("metrics") or []
    if not known:
        raise BadInput(
            f"{run.place} has no goals. Name the metric by --metric.", code="missing-option"
        )
    return known[0]


def _of_best(bests: Sequence[BestBatch], scales: Scales, amount: str) -> Iterator[Law]:
    """The laws of best batch sizes, and of what is tuned with them, by recipe."""
    for recipe in dict.fromkeys(best.recipe for best in bests):
        mine = [best for best in bests if best.recipe == recipe and best.workload in scales]
        known = [best for best in mine if not best.verdict]
        left_out = [f"{best.workload} ({best.verdict})" for best in mine if best.verdict]
        for quantity in (BEST_BATCH, BEST_RATE, TIMESCALE):
            of_quantity = (
                (one.workload, one.batch_size if quantity == BEST_BATCH else at_best(one, quantity))
                for one in known
            )
            said = f"{quantity} within {amount}" if amount else quantity
            yield from laws_of(said, recipe, _placed(of_quantity, scales), left_out)


def laws_of_critical(curves: Sequence[Scaling], scales: Scales) -> Iterator[Law]:
    """The laws of B_crit or, if more curves tell it, of the batch size that takes a fifth more
    examples, by recipe and goal."""
    for recipe, goal in dict.fromkeys((one.recipe, one.goal) for one in curves):
        mine = [c for c in curves if (c.recipe, c.goal) == (recipe, goal) and c.workload in scales]
        critical = ((one.workload, one.critical_batch_size) for one in mine)
        fifth_more = (
            (one.workload, one.fifth_more) for one in mine if not one.critical_by_examples_is
        )
        points_of = {CRITICAL: _placed(critical, scales), FIFTH_MORE: _placed(fifth_more, scales)}
        quantity = max(points_of, key=lambda quantity: len(points_of[quantity]))
        used = {point.workload for point in points_of[quantity]}
        why = f"no {quantity} with both ends of its interval"
        left_out = [f"{one.workload} ({why})" for one in mine if one.workload not in used]
        yield from laws_of(f"{quantity} until {goal}", recipe, points_of[quantity], left_out)


def _placed(values: Iterable[tuple[str, Estimate | None]], scales: Scales) -> list[ScalePoint]:
    """Those values of workloads that have both ends of an interval."""
    return [
        ScalePoint(workload=workload, at=scales[workload], value=value)
        for workload, value in values
        if value is not None and value.low and value.high and value.high < math.inf
    ]


def law_in_words(law: Law) -> list[str]:
    """The law, whether exponents change, how it predicts its largest scale."""
    powers = " x ".join(f"{name}^{_exponent(one)}" for name, one in law.exponents.items())
    return [
        f"like {powers}, by {len(law.points)} points",
        *(
            f"the exponent of {name} changes along it by {_exponent(law.bends[name])}: no one "
            f"power holds"
            for name in law.bent
        ),
        *(
            f"held against itself: {_place(one.point.at)} is predicted from all smaller as "
            f"{in_words(one.predicted, in_digits)} and measured as "
            f"{in_words(one.point.value, in_digits)}: {'holds' if one.holds else 'misses'}"
            for one in law.held
        ),
        *(f"left out: {one}" for one in law.left_out),
    ]


def predicted_in_words(law: Law, found: Predicted) -> str:
    """The law at another place, from how far it is said, and what a change of exponent would do."""
    far = [f"{times:,.3g} times beyond {name}" for name, times in found.beyond.items() if times > 1]
    said = f"at {_place(found.at)}: {in_words(found.value, in_digits)}, "
    if not far:
        return f"{said}within the range of each scale"
    said += f"{listed(far)} that was measured"
    if law.bent:
        said += f". NOT to be trusted: the exponent of {listed(law.bent)} changes along the points"
    if found.if_bent is not None:
        low, high = map(in_digits, found.if_bent.ends)
        said += f". If the exponent may go on changing as it does over the points: {low} to {high}"
    return said


def _place(at: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in at.items())


def _exponent(estimate: Estimate) -> str:
    return in_words(estimate, "{:z.2f}".format)
