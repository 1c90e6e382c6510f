"""How the critical and the best batch size, and what is tuned with it, grow with data and model.

A law is a power of each scale, log y = a + sum of p log x. Each point weighs by its own error and
by the scatter about the law beyond it, which is estimated from the points. Intervals are Student's,
of as many degrees of freedom as there are points to spare, so that they hold when points scatter
more than their errors say. Trainings at different places are different trainings, so the errors of
their points are independent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from orchestrator.analysis.best_batch import BestBatch, LowestAt, best_batch_sizes
from orchestrator.analysis.estimates import Estimate, Floats, reach_of
from orchestrator.analysis.points import without_growing
from orchestrator.analysis.scaling import Scaling, scalings
from orchestrator.analysis.words import in_words, listed
from orchestrator.records import BadInput
from orchestrator.results import GoalOf, Run, Within, frontier_of
from orchestrator.results.scales import scales_of

BEST_BATCH, BEST_RATE, TIMESCALE = (
    "best batch size",
    "best learning rate",
    "timescale of weight decay",
)
"""The timescale, B / (eta lambda D), is the share of a training over which weight decay averages
the weights."""
CRITICAL, FIFTH_MORE = "B_crit", "batch size with +20 % examples"

RATES, DECAYS = ("learning_rate", "lr"), ("weight_decay", "wd")
"""Names of metaparameters, here and in tables from elsewhere."""

PUBLISHED: dict[tuple[str, str], dict[str, float]] = {
    (BEST_BATCH, "data"): {"2505.13738": 0.383, "Step Law": 0.571},
    (BEST_BATCH, "model"): {"2505.13738": 0.0, "Step Law": 0.0},
    (BEST_RATE, "data"): {"Step Law": 0.307},
    (BEST_RATE, "model"): {"Step Law": -0.713},
}
"""Exponents by quantity and scale, for language models. Step Law is 2503.04715."""

LEAST_ERROR = 0.005
"""Standard deviation, in natural logarithms, below which no error of a point is trusted."""

TELLING = 0.5
"""Width of the interval of an exponent from which on it agrees with nothing."""

NEARBY = 2.5
"""Distance from the best batch size, in doublings, of the batch sizes whose best metaparameters say
what is best there."""


@dataclass(frozen=True, kw_only=True)
class ScalePoint:
    """A quantity at one place on the scales."""

    workload: str
    at: Mapping[str, float]
    value: Estimate


@dataclass(frozen=True, kw_only=True)
class Held:
    """A point at the largest scale, predicted by the law of all smaller ones."""

    point: ScalePoint
    predicted: Estimate
    holds: bool
    """Whether the measured value lies in the interval of the predicted one, which allows for the
    error of the measurement."""


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """A law at another place."""

    at: Mapping[str, float]
    value: Estimate
    if_bent: Estimate | None
    """The same if the exponent may change as it did over the points; None if these are too few."""
    beyond: Mapping[str, float]
    """How many times further the place is than the nearest point that was measured, by scale; 1
    within the range."""


@dataclass(frozen=True, kw_only=True)
class Law:
    """A quantity as powers of scales."""

    quantity: str
    recipe: str
    exponents: Mapping[str, Estimate]
    """By scale."""
    published: Mapping[str, Mapping[str, str]]
    """Scale -> published law -> whether the exponent `agrees`, `differs`, or it is `undecided`
    because the interval is wide, or holds another published exponent, or 0, as well."""
    scatter: float
    """Standard deviation of the points about the law beyond their errors, in natural logarithms."""
    bends: Mapping[str, Estimate]
    """Scale -> change of the exponent from the smallest to the largest scale. The exponent is no
    constant if its interval does not hold 0."""
    held: tuple[Held, ...]
    points: tuple[ScalePoint, ...]
    left_out: tuple[str, ...] = ()
    fit: _Fit | None = field(default=None, repr=False)

    @property
    def bent(self) -> list[str]:
        """The scales along which the exponent changes."""
        return [name for name, change in self.bends.items() if not _holds(change, 0.0)]

    def at(self, place: Mapping[str, float]) -> Predicted:
        """The law at another place, which must name each of its scales."""
        assert self.fit is not None
        whole = {name: place[name] for name in self.exponents}
        beyond = {}
        for name, value in whole.items():
            tried = [point.at[name] for point in self.points]
            beyond[name] = max(value / max(tried), min(tried) / value, 1.0)
        names = [*self.exponents]
        bent = _fitted(self.points, names, [name for name in names if name in self.bends])
        return Predicted(
            at=whole,
            value=self.fit.at(whole),
            if_bent=bent.at(whole) if bent is not None and self.bends else None,
            beyond=beyond,
        )

    def to_json(self) -> dict[str, Any]:
        return {**asdict(replace(self, fit=None)), "bent": self.bent}


@dataclass(frozen=True, kw_only=True)
class _Fit:
    """Least squares with weights by known errors and a scatter beyond them."""

    names: Sequence[str]
    bent: Sequence[str]
    middle: Mapping[str, float]
    """Mean logarithm of each scale."""
    coefficients: Floats
    covariance: Floats
    scatter: float
    freedom: int

    def estimate(self, place: int, factor: float = 1.0) -> Estimate:
        value = factor * float(self.coefficients[place])
        reach = abs(factor) * self.covariance[place, place] ** 0.5 * reach_of(self.freedom)
        return Estimate(value=value, low=value - reach, high=value + reach)

    def at(self, place: Mapping[str, float], error: float = 0.0, *, mean: bool = False) -> Estimate:
        """The law at a place, with the interval of a point there that has this error, or of the
        `mean` of such points."""
        (row,) = _design([place], self.names, self.bent, self.middle)
        variance = row @ self.covariance @ row + error**2 + (0 if mean else self.scatter**2)
        middle, reach = float(row @ self.coefficients), variance**0.5 * reach_of(self.freedom)
        low, value, high = (math.exp(min(m, 700)) for m in (middle - reach, middle, middle + reach))
        return Estimate(value=value, low=low, high=high)


def _design(
    places: Iterable[Mapping[str, float]],
    names: Sequence[str],
    bent: Sequence[str],
    middle: Mapping[str, float],
) -> Floats:
    return np.array(
        [
            [1.0]
            + [math.log(at[name]) - middle[name] for name in names]
            + [(math.log(at[name]) - middle[name]) ** 2 for name in bent]
            for at in places
        ]
    )


def _fitted(
    points: Sequence[ScalePoint], names: Sequence[str], bent: Sequence[str] = ()
) -> _Fit | None:
    """None if the points can't tell these exponents."""
    freedom = len(points) - 1 - len(names) - len(bent)
    if freedom < 1:
        return None
    middle = {name: float(np.mean([math.log(p.at[name]) for p in points])) for name in names}
    design = _design([point.at for point in points], names, bent, middle)
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
    return _Fit(
        names=names,
        bent=bent,
        middle=middle,
        coefficients=coefficients,
        covariance=covariance * squares / freedom,
        scatter=low,
        freedom=freedom,
    )


def error_of(value: Estimate) -> float:
    """The standard deviation of the logarithm of an estimate, by its interval."""
    low, high = value.ends
    return max(math.log(high / low) / 2 / reach_of(math.inf), LEAST_ERROR)


def laws_of(
    quantity: str,
    recipe: str,
    points: Sequence[ScalePoint],
    left_out: Sequence[str] = (),
) -> list[Law]:
    """The law in all scales that vary and, if there are several, the law in `data` alone. Empty if
    the points are too few for any."""
    names = [name for name in _shared(points) if len({point.at[name] for point in points}) > 1]
    kinds = [names, ["data"]] if "data" in names and len(names) > 1 else [names]
    laws = (_law(quantity, recipe, points, kind, left_out) for kind in kinds if kind)
    return [law for law in laws if law is not None]


def _shared(points: Sequence[ScalePoint]) -> list[str]:
    """The scales on which all points have a place."""
    first = points[0].at if points else {}
    return [name for name in first if all(name in point.at for point in points)]


def _law(
    quantity: str,
    recipe: str,
    points: Sequence[ScalePoint],
    names: Sequence[str],
    left_out: Sequence[str],
) -> Law | None:
    fit = _fitted(points, names)
    if fit is None:
        return None
    exponents = {name: fit.estimate(1 + place) for place, name in enumerate(names)}
    bends = {}
    for name in names:
        if (bent := _fitted(points, names, [name])) is not None:
            logs = [math.log(point.at[name]) for point in points]
            bends[name] = bent.estimate(-1, 2 * (max(logs) - min(logs)))
    return Law(
        quantity=quantity,
        recipe=recipe,
        exponents=exponents,
        published={
            name: _beside(exponent, PUBLISHED.get((quantity, name), {}))
            for name, exponent in exponents.items()
        },
        scatter=fit.scatter,
        bends=bends,
        held=tuple(_held(points, names)),
        points=tuple(points),
        left_out=tuple(left_out),
        fit=fit,
    )


def _held(points: Sequence[ScalePoint], names: Sequence[str]) -> Iterator[Held]:
    largest = max(point.at[names[0]] for point in points)
    fit = _fitted([point for point in points if point.at[names[0]] < largest], names)
    if fit is None:
        return
    for point in points:
        if point.at[names[0]] == largest:
            predicted = fit.at(point.at, error_of(point.value))
            holds = _holds(predicted, point.value.value)
            yield Held(point=point, predicted=predicted, holds=holds)


def _beside(exponent: Estimate, published: Mapping[str, float]) -> dict[str, str]:
    inside = {value for value in {*published.values(), 0.0} if _holds(exponent, value)}
    low, high = exponent.ends
    agrees = len(inside) == 1 and high - low < TELLING
    return {
        law: "differs" if value not in inside else "agrees" if agrees else "undecided"
        for law, value in published.items()
    }


def _holds(estimate: Estimate, value: float) -> bool:
    low, high = estimate.ends
    return low <= value <= high


def at_best(best: BestBatch, name: str) -> Estimate | None:
    """The best learning rate, or timescale, at the best batch size: by a power of the batch size
    through its best values nearby. None if it was not searched, or at too few batch sizes."""
    if best.batch_size is None or best.verdict:
        return None
    low, high = (best.batch_size.value * 2**off for off in (-NEARBY, NEARBY))
    values = {
        point.batch_size: _value(point, name)
        for point in best.points
        if low <= point.batch_size <= high and not point.at_end
    }
    nearby = [
        ScalePoint(
            workload="", at={"size": size}, value=Estimate(value=value, low=value, high=value)
        )
        for size, value in values.items()
        if value is not None
    ]
    fit = _fitted(nearby, ["size"]) if len({*values.values()}) > 1 else None
    if fit is None:
        return None
    error = abs(float(fit.coefficients[1])) * error_of(best.batch_size)
    return fit.at({"size": best.batch_size.value}, error, mean=True)


def _value(point: LowestAt, name: str) -> float | None:
    product = 1.0
    for names in (RATES, DECAYS) if name == TIMESCALE else (RATES,):
        value = next((point.params[one] for one in names if one in point.params), None)
        if not isinstance(value, int | float) or value <= 0:
            return None
        product *= value
    return 1 / (product * point.steps) if name == TIMESCALE else product


@dataclass(frozen=True, kw_only=True)
class ScaleAnswer:
    """What runs say about best batch sizes, and about laws of scale."""

    bests: tuple[BestBatch, ...]
    laws: tuple[Law, ...]
    notes: tuple[str, ...]
    """Why there is no law."""


def scale_answer(
    runs: Sequence[Run],
    metric: str | None = None,
    *,
    within: Sequence[Within] = (),
    goals: Sequence[GoalOf] = (),
    maximise: bool | None = None,
) -> ScaleAnswer:
    """The best batch sizes and the laws of one run, or of several together."""
    bests: list[BestBatch] = []
    curves: list[Scaling] = []
    scales: dict[str, Mapping[str, float]] = {}
    for run in runs:
        label = f"{run.sweep()['name']}: " if len(runs) > 1 else ""
        found = best_batch_sizes(run, metric or metric_of(run), within=within, maximise=maximise)
        bests += [replace(one, workload=label + one.workload) for one in found]
        scales |= {label + workload: at for workload, at in scales_of(run).items()}
        if goals or any(study.goals for study in run.studies()):
            of_run = scalings(without_growing(frontier_of(run, goals)))
            curves += [replace(one, workload=label + one.workload) for one in of_run]
    laws = [*laws_of_critical(curves, scales)]
    for amount in dict.fromkeys(one.within for one in bests) if within else [None]:
        laws += _of_best([one for one in bests if amount in (None, one.within)], scales)
    missing = [name for name in dict.fromkeys(one.workload for one in bests) if name not in scales]
    notes = []
    if missing:
        notes.append(f"no scale is named for {listed(missing, 3)}")
    elif not laws:
        notes.append("too few places on the scales are known for a law")
    return ScaleAnswer(bests=tuple(bests), laws=tuple(laws), notes=tuple(notes))


def metric_of(run: Run) -> str:
    """The metric of the run's first goal or, without goals, the first that it was imported with, or
    the only one that it measured."""
    studies = run.studies()
    goals = [goal.metric for study in studies for goal in study.goals]
    mapped = (run.sweep().get("mapping") or {}).get("metrics") or []
    known = (
        goals[:1]
        or mapped[:1]
        or sorted({name for study in studies for name in run.metrics(study.key)})
    )
    if len(known) != 1:
        raise BadInput(
            f"{run.place} has no goals. Name the metric by --metric: {', '.join(known) or 'none'}.",
            code="missing-option",
        )
    return known[0]


def _of_best(
    bests: Sequence[BestBatch], scales: Mapping[str, Mapping[str, float]]
) -> Iterator[Law]:
    """The laws of best batch sizes, and of what is tuned with them, by recipe."""
    for recipe in dict.fromkeys(best.recipe for best in bests):
        mine = [best for best in bests if best.recipe == recipe and best.workload in scales]
        left_out = [f"{best.workload} ({best.verdict})" for best in mine if best.verdict]
        for quantity in (BEST_BATCH, BEST_RATE, TIMESCALE):
            points = []
            for best in mine:
                of_size = best.batch_size if quantity == BEST_BATCH else at_best(best, quantity)
                if of_size is not None and not best.verdict:
                    at = scales[best.workload]
                    points.append(ScalePoint(workload=best.workload, at=at, value=of_size))
            yield from laws_of(quantity, recipe, points, left_out)


def laws_of_critical(
    curves: Sequence[Scaling], scales: Mapping[str, Mapping[str, float]]
) -> Iterator[Law]:
    """The laws of B_crit or, if more curves tell it, of the batch size that takes a fifth more
    examples, by recipe and goal."""
    for recipe, goal in dict.fromkeys((one.recipe, one.goal) for one in curves):
        mine = [c for c in curves if (c.recipe, c.goal) == (recipe, goal) and c.workload in scales]
        told: dict[str, list[ScalePoint]] = {CRITICAL: [], FIFTH_MORE: []}
        for one in mine:
            fifth_more = None if one.critical_by_examples_is else one.critical_by_examples
            values = {CRITICAL: one.critical_batch_size, FIFTH_MORE: fifth_more}
            for quantity, value in values.items():
                if value is not None and value.low and value.high and value.high < math.inf:
                    at = scales[one.workload]
                    told[quantity].append(ScalePoint(workload=one.workload, at=at, value=value))
        quantity = max(told, key=lambda quantity: len(told[quantity]))
        used = {point.workload for point in told[quantity]}
        why = f"no {quantity} with both ends of its interval"
        left_out = [f"{one.workload} ({why})" for one in mine if one.workload not in used]
        yield from laws_of(f"{quantity} until {goal}", recipe, told[quantity], left_out)


def law_in_words(law: Law) -> list[str]:
    """The law, what was published beside it, whether its exponents are constant, and how it
    predicts its own largest scale."""
    powers = " x ".join(f"{name}^{_exponent(one)}" for name, one in law.exponents.items())
    said = [f"{law.quantity}, {law.recipe}: like {powers}, by {len(law.points)} points"]
    for name, published in law.published.items():
        for source, verdict in published.items():
            value = PUBLISHED[law.quantity, name][source]
            said.append(f"beside {name}^{value:g} of {source}: {verdict}")
    for name in law.bent:
        change = _exponent(law.bends[name])
        said.append(f"the exponent of {name} changes along it by {change}: no one power holds")
    said += [
        f"held against itself: {_place(one.point.at)} is predicted from all smaller as "
        f"{in_words(one.predicted, _number)} and measured as {in_words(one.point.value, _number)}: "
        f"{'holds' if one.holds else 'misses'}"
        for one in law.held
    ]
    return said + [f"left out: {one}" for one in law.left_out]


def predicted_in_words(law: Law, found: Predicted) -> str:
    """The law at another place, from how far it is said, and what a change of exponent would do."""
    far = [f"{times:,.3g} times beyond {name}" for name, times in found.beyond.items() if times > 1]
    said = f"{law.quantity}, {law.recipe}, at {_place(found.at)}: {in_words(found.value, _number)}"
    said += f", {listed(far)} that was measured" if far else ", within what was measured"
    if far and law.bent:
        said += f". NOT to be trusted: the exponent of {listed(law.bent)} changes along the points"
    if far and found.if_bent is not None:
        low, high = found.if_bent.ends
        said += (
            f". If the exponent may go on changing as it does over the points: {_number(low)} to "
            f"{_number(high)}"
        )
    return said


def _place(at: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in at.items())


def _exponent(estimate: Estimate) -> str:
    return in_words(estimate, lambda value: f"{value:.2f}")


def _number(value: float) -> str:
    return f"{value:,.0f}" if 100 <= value < 1e9 else f"{value:.3g}"
