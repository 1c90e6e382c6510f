"""Compares one number in two runs, A and B: the steps of a study, or the batch size of a curve
that takes a fifth more examples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeVar

from scipy.special import ndtri, stdtr, stdtrit

from orchestrator.analysis.estimates import CONFIDENCE, Estimate
from orchestrator.analysis.scaling import Scaling
from orchestrator.analysis.study_errors import EXACT, Error, Side
from orchestrator.results import to_csv

Agreed = Literal["same", "agree", "differ", "not known"]
"""`same`: equal to the last bit. `agree`: no further apart than the interval of the ratio."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One number in two runs."""

    workload: str
    recipe: str
    goal: str
    a: Estimate | None
    b: Estimate | None
    ratio: Estimate | None = None
    """B over A with its 90 % interval, which numbers that are the same do not have. If only one run
    reached the goal, this is the bound that the budget of the other one sets."""
    probability: float = 1.0
    """Probability of a ratio at least as far from 1 if nothing differs."""
    verdict: Agreed
    beyond_chance: bool = False
    """Whether it differs even considering how many pairs were compared."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class StudyPair(Pair):
    """The steps to goal of one study. The interval of a median is that of its repeats. The interval
    of a minimum begins at the measurement before, since the goal was passed between the two."""

    batch_size: int
    of_medians: bool
    luck_unknown: bool = False
    """Whether the ratio has an error from the small number of trials that nothing tells of."""
    reason: str = ""
    """Why there are no steps, or why it is not known whether they agree."""


@dataclass(frozen=True, kw_only=True)
class CurvePair(Pair):
    """The batch size of one curve that takes a fifth more examples than the fewest."""


AnyPair = TypeVar("AnyPair", bound=Pair)


def study_pair(a: Side, b: Side, *, alike: bool) -> StudyPair:
    """Compares one study; `alike` says whether all its measurements are equal."""
    workload, recipe, goal = a.row.workload, a.row.recipe, a.row.goal
    pair = StudyPair(
        workload=workload, recipe=recipe, goal=goal, batch_size=a.row.batch_size,
        a=a.estimate, b=b.estimate, verdict="not known",
        of_medians=any(side.point is not None and side.point.is_median for side in (a, b)),
    )  # fmt: skip
    if reason := _unknown(a, "A") or _unknown(b, "B"):
        return replace(pair, reason=reason)
    reason = _unreached(a, b)
    if alike and to_csv([a.row]) == to_csv([b.row]):
        one = None if a.point is None else Estimate(value=1.0)
        return replace(pair, ratio=one, verdict="same", reason=reason)
    if a.point is None and b.point is None:
        return replace(pair, verdict="agree", reason=reason)
    known = [side for side in (a, b) if side.point is not None]
    if len(known) == 1:
        known *= 2  # the other run would have had the same errors
    errors = [error for side in known for error in side.own]
    luck_unknown = False
    if not _repeated_the_same(a, b):
        errors += [side.few_trials for side in known if side.few_trials is not None]
        luck_unknown = any(side.few_trials is None for side in known)
    judged = _bounded(pair, a, b, errors) if reason else _judged(pair, a, b, errors)
    return replace(judged, luck_unknown=luck_unknown, reason=reason)


def _unknown(side: Side, name: str) -> str:
    if not side.row.finished:
        return f"not finished in {name}"
    return f"trials of {name} were ended too early to tell" if side.row.censored else ""


def _unreached(a: Side, b: Side) -> str:
    missing = [name for side, name in ((a, "A"), (b, "B")) if side.point is None]
    return f"not reached in {' and '.join(missing)}" if missing else ""


def _repeated_the_same(a: Side, b: Side) -> bool:
    """Whether both steps are medians of repeats of the same point."""
    if a.point is None or b.point is None or not (a.point.is_median and b.point.is_median):
        return False
    x, y = a.row.repeats, b.row.repeats
    return x is not None and y is not None and x.params is not None and x.params == y.params


def _judged(pair: StudyPair, a: Side, b: Side, errors: Sequence[Error]) -> StudyPair:
    """The pair with the ratio of two known numbers of steps."""
    log = math.log2(b.steps / a.steps)
    deviation, freedom = _together(errors)
    reach = float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * deviation
    # The goals may have been passed at any step since the measurements before.
    low = min(log - reach, math.log2(b.earliest / a.steps))
    high = max(log + reach, math.log2(b.steps / a.earliest))
    return _concluded(pair, log, low, high, _two_sided(log, deviation, freedom))


def _bounded(pair: StudyPair, a: Side, b: Side, errors: Sequence[Error]) -> StudyPair:
    """The pair with the bound that the budget of the run that did not reach the goal sets."""
    in_b = b.point is None
    budget, steps = (b.budget, a.steps) if in_b else (a.budget, b.steps)
    if budget is None or budget < steps:
        return pair
    deviation, freedom = _together(errors)
    most = math.log2(budget / steps)
    least = most - float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * deviation
    probability = _two_sided(most, deviation, freedom)
    if in_b:
        return _concluded(pair, most, least, math.inf, probability)
    return _concluded(pair, -most, -math.inf, -least, probability)


def _together(errors: Sequence[Error]) -> tuple[float, float]:
    """The standard deviation of a sum of errors, and its degrees of freedom by Satterthwaite's
    formula."""
    variance = sum(found for found, _ in errors)
    if not variance:
        return 0.0, EXACT
    return math.sqrt(variance), variance**2 / sum(v**2 / free for v, free in errors if v)


def _two_sided(log: float, deviation: float, freedom: float) -> float:
    return 2 * float(stdtr(freedom, -abs(log) / max(deviation, 1e-12)))


def _concluded(pair: AnyPair, log: float, low: float, high: float, probability: float) -> AnyPair:
    """The pair with its ratio, given by its logarithms, and the verdict."""
    differs = low > 0 or high < 0
    # Within the distance between measurements, any ratio is as likely as 1.
    unlikely = probability <= 1 - CONFIDENCE
    return replace(
        pair,
        ratio=Estimate(value=2**log, low=2**low, high=2**high),
        probability=1.0 if unlikely and not differs else probability,
        verdict="differ" if differs else "agree",
    )


def curve_pair(a: Scaling, b: Scaling, *, same: bool) -> CurvePair:
    """Compares the batch sizes that take a fifth more examples; `same` says whether all studies of
    the curve are the same."""
    of_a, of_b = a.critical_by_examples, b.critical_by_examples
    workload, recipe, goal = a.workload, a.recipe, a.goal
    pair = CurvePair(
        workload=workload, recipe=recipe, goal=goal, a=of_a, b=of_b, verdict="not known"
    )
    if of_a is None or of_b is None:
        return pair
    if same and of_a == of_b:
        return replace(pair, ratio=Estimate(value=1.0), verdict="same")
    log = math.log2(of_b.value / of_a.value)
    # The distances of the ends of two independent intervals add up like standard deviations.
    below = math.hypot(_reach(of_b.value, of_b.low), _reach(of_a.high, of_a.value))
    above = math.hypot(_reach(of_b.high, of_b.value), _reach(of_a.value, of_a.low))
    deviation = (below if log > 0 else above) / float(ndtri((1 + CONFIDENCE) / 2))
    return _concluded(pair, log, log - below, log + above, _two_sided(log, deviation, EXACT))


def _reach(high: float | None, low: float | None) -> float:
    """The distance between two ends in doublings; infinite if nothing bounds one of them."""
    if high is None or low is None or low <= 0 or not math.isfinite(high):
        return math.inf
    return math.log2(high / low)
