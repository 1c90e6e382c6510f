"""Compares one number in two runs, A and B: the steps of a study, or the batch size of a curve
that takes a fifth more examples.

The steps of a study differ if the 90 % interval of their ratio excludes 1. The variance of the
logarithm of the ratio is the sum of those of both sides: from the distance between measurements,
from the seeds of repeats, and from the small number of trials. The last one does not count if both
runs repeated the same point. Where it is not known, the scatter of the points about their curve
stands for it. Nor does a study differ as long as both runs may have passed the goal at the same
step, between two measurements.

Runs with the same seeds share their luck, so they differ by less than that: their intervals are too
wide rather than too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, TypeVar

from orchestrator.analysis.errors import errors_of, freedom_of
from orchestrator.analysis.estimates import CONFIDENCE, Estimate, ratio_of, reach_of
from orchestrator.analysis.points import CurvePoint, Names, OfCurve, curves_of, points_of
from orchestrator.analysis.scaling import Scaling
from orchestrator.analysis.words import fifth_in_words
from orchestrator.records import StudyKey
from orchestrator.results import FrontierRow, to_csv

Agreed = Literal["same", "agree", "differ", "not known"]
"""`same`: equal to the last bit. `agree`: no further apart than the interval of the ratio."""

EXACT = 1e9
"""Degrees of freedom of a variance that is not estimated from a few numbers."""


@dataclass(frozen=True, kw_only=True)
class Pair(OfCurve):
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

    said: tuple[str, str]
    """Both in words, which also say where a number is no more than a bound."""


AnyPair = TypeVar("AnyPair", bound=Pair)


class Error(NamedTuple):
    """One error of log2 steps."""

    variance: float
    freedom: float = EXACT
    """Number of degrees of freedom from which the variance was estimated."""


@dataclass(frozen=True, kw_only=True)
class Side:
    row: FrontierRow
    budget: int | None
    """Largest number of steps of its trials."""
    point: CurvePoint | None = None
    own: tuple[Error, ...] = ()
    """Errors from the distance between measurements, and from the seeds of repeats."""
    few_trials: Error | None = None
    """The error from few trials, or the scatter about the curve in its place; None: unknown."""

    @property
    def steps(self) -> float:
        """Steps to goal. A goal that was passed before the first step counts as one step."""
        return 0 if self.point is None else max(self.point.steps, 1)

    @property
    def earliest(self) -> float:
        """The step of the measurement before; the goal was passed after it."""
        return 0 if self.point is None else max(self.steps - self.point.resolution, 1)

    @property
    def estimate(self) -> Estimate | None:
        point = self.point
        if point is None:
            return None
        if point.again is None:
            return Estimate(
                value=point.steps, low=min(self.earliest, point.steps), high=point.steps
            )
        high = math.inf if point.again.high is None else point.again.high
        return Estimate(value=point.steps, low=point.again.low, high=high)


@dataclass(frozen=True, kw_only=True)
class Answers:
    """The frontier of one run, and the budgets of its studies in steps."""

    rows: Sequence[FrontierRow]
    budgets: Mapping[StudyKey, int] = field(default_factory=dict)

    def curves(self) -> dict[Names, list[FrontierRow]]:
        """The rows of each curve; a study whose batch size grows is compared like any other."""
        return curves_of([replace(row, batch_schedule=None) for row in self.rows])

    def as_minima(self, curves: Sequence[Names]) -> Answers:
        gone = {(row.key, row.goal) for names in curves for row in self.curves()[names]}
        rows = [replace(r, repeats=None) if (r.key, r.goal) in gone else r for r in self.rows]
        return replace(self, rows=rows)


def sides_of(
    answers: Answers, scalings: Mapping[Names, Scaling]
) -> dict[tuple[StudyKey, str], Side]:
    """Key and goal -> the study with its errors. `scalings` has the answers of the curves."""
    rows = {(row.key, row.goal): row for row in answers.rows}
    sides = {}
    for names, curve in answers.curves().items():
        points = points_of(curve)
        errors = errors_of(points)
        scatter = None
        if (scaling := scalings.get(names)) is not None and scaling.contributions is not None:
            # Where the error from few trials is not known, the scatter about the curve stands in.
            telling = sum(point.tells for point in points)
            scatter = Error(scaling.contributions.scatter**2, telling - 2)
        for key in ((row.key, row.goal) for row in curve):
            sides[key] = Side(row=rows[key], budget=answers.budgets.get(key[0]))
        for at, point in enumerate(points):
            few, again = errors.few_trials, point.again
            own = [Error(float(errors.resolution[at]))]
            if errors.seeds is not None and again is not None:
                own.append(Error(float(errors.seeds[at]), freedom_of(again)))
            key = point.row.key, point.row.goal
            sides[key] = replace(
                sides[key],
                point=point,
                own=tuple(own),
                few_trials=scatter if few is None else Error(float(few[at, at])),
            )
    return sides


def study_pair(a: Side, b: Side) -> StudyPair:
    """Compares one study."""
    known = [side for side in (a, b) if side.point is not None]
    pair = StudyPair(
        workload=a.row.workload, recipe=a.row.recipe, goal=a.row.goal,
        batch_size=a.row.batch_size, a=a.estimate, b=b.estimate, verdict="not known",
        of_medians=any(side.point.is_median for side in known if side.point),
    )  # fmt: skip
    if reason := _unknown(a, "A") or _unknown(b, "B"):
        return replace(pair, reason=reason)
    if missing := [name for side, name in ((a, "A"), (b, "B")) if side.point is None]:
        pair = replace(pair, reason=f"not reached in {' and '.join(missing)}")
    if to_csv([a.row]) == to_csv([b.row]):
        return replace(pair, ratio=Estimate(value=1.0) if known else None, verdict="same")
    if not known:
        return replace(pair, verdict="agree")
    if len(known) == 1:
        known *= 2  # the other run would have had the same errors
    errors = [error for side in known for error in side.own]
    # The error from seeds is not known where each point was trained but once.
    if not (_repeated_the_same(a, b) and all(len(side.own) > 1 for side in known)):
        errors += [side.few_trials for side in known if side.few_trials is not None]
        pair = replace(pair, luck_unknown=any(side.few_trials is None for side in known))
    deviation, freedom = _together(errors)
    found = _log_ratio(a, b, reach_of(freedom) * deviation)
    return pair if found is None else _concluded(pair, *found, deviation, freedom)


def _unknown(side: Side, name: str) -> str:
    if not side.row.finished:
        return f"not finished in {name}"
    return f"trials of {name} were ended too early to tell" if side.row.censored else ""


def _repeated_the_same(a: Side, b: Side) -> bool:
    """Whether both steps are medians of repeats of the same point."""
    x, y = (side.point.again if side.point else None for side in (a, b))
    return x is not None and y is not None and x.params is not None and x.params == y.params


def _together(errors: Sequence[Error]) -> tuple[float, float]:
    """The standard deviation of a sum, and its degrees of freedom by Satterthwaite."""
    variance = sum(found for found, _ in errors)
    if not variance:
        return 0.0, EXACT
    return math.sqrt(variance), variance**2 / sum(v**2 / free for v, free in errors if v)


def _log_ratio(a: Side, b: Side, reach: float) -> tuple[float, float, float] | None:
    """log2 of B over A, and the ends of its interval. If only one run reached the goal, this is the
    bound that the budget of the other one sets; None if that one is too small or not known."""
    if a.point is not None and b.point is not None:
        log = math.log2(b.steps / a.steps)
        # The goals may have been passed at any step since the measurements before.
        low = min(log - reach, math.log2(b.earliest / a.steps))
        return log, low, max(log + reach, math.log2(b.steps / a.earliest))
    budget, steps = (b.budget, a.steps) if b.point is None else (a.budget, b.steps)
    if budget is None or budget < steps:
        return None
    most = math.log2(budget / steps)
    return (most, most - reach, math.inf) if b.point is None else (-most, -math.inf, reach - most)


def _concluded(
    pair: AnyPair, log: float, low: float, high: float, deviation: float, freedom: float = EXACT
) -> AnyPair:
    """The pair with its ratio, given by its logarithms, and the verdict."""
    from scipy.special import stdtr

    differs = low > 0 or high < 0
    probability = 2 * float(stdtr(freedom, -abs(log) / max(deviation, 1e-12)))
    # Within the distance between measurements, any ratio is as likely as 1.
    unlikely = probability <= 1 - CONFIDENCE
    return replace(
        pair,
        ratio=Estimate(value=2**log, low=2**low, high=2**high),
        probability=1.0 if unlikely and not differs else probability,
        verdict="differ" if differs else "agree",
    )


def curve_pair(a: Scaling, b: Scaling, *, same: bool) -> CurvePair:
    """Compares fifth-more batch sizes; `same`: all studies of the curve are the same."""
    of_a, of_b = a.beside(b), b.beside(a)
    pair = CurvePair(
        workload=a.workload, recipe=a.recipe, goal=a.goal, a=of_a, b=of_b, verdict="not known",
        said=(fifth_in_words(a), fifth_in_words(b)),
    )  # fmt: skip
    if of_a is None or of_b is None:
        return pair
    if same and of_a == of_b:
        return replace(pair, ratio=Estimate(value=1.0), verdict="same")
    ratio = ratio_of(of_b, of_a)
    assert ratio is not None
    log, low, high = (math.log2(end) if end else -math.inf for end in (ratio.value, *ratio.ends))
    deviation = (log - low if log > 0 else high - log) / reach_of(math.inf)
    return _concluded(pair, log, low, high, deviation)
