"""Answers how steps to goal fall with the batch size: where examples begin to be wasted, and where
a larger batch saves no more steps."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from orchestrator.analysis.curve import (
    REFUSED,
    SCATTER_OF_LUCK,
    USUAL_SCATTER,
    Curves,
    curves_through,
    ratio_of_draws,
)
from orchestrator.analysis.errors import Errors, Parts, errors_of
from orchestrator.analysis.estimates import Estimate, Floats
from orchestrator.analysis.points import (
    ENOUGH_STEPS,
    CurvePoint,
    Names,
    OfCurve,
    curves_of,
    has_medians,
    points_of,
)
from orchestrator.records import ENOUGH_SIZES
from orchestrator.results import NEAR_END, FrontierRow

PERFECT_TOLERANCE = 0.3
"""Share by which steps x batch size may exceed its minimum while scaling counts as perfect."""

USEFUL_TOLERANCE = 0.1
"""Share by which steps may exceed the fewest of any tested batch size at the first one from which
larger ones are of little use."""

CRITICAL_TOLERANCE = 0.2
"""Share by which examples exceed the fewest at the critical batch size, in its other definition."""

MISSED = 0.1
"""Share by which the examples at all tested batch sizes may exceed the fewest of the curve before
an answer in terms of the fewest is no more than a bound."""

RISE_TOLERANCE = 0.2
"""Share by which steps may exceed the fewest at a larger batch size without counting as a rise."""

SURE = 3.0
"""Standard deviations beyond which a rise is no chance."""

UNKNOWN = 0.03
"""Standard deviation of each difference, in doublings, assumed beside errors that are known."""

STILL = 0.8
"""Share of the most steps that the fewest take, above which a curve counts as flat."""

GOOD_FIT_LOG2 = 0.25
"""Scatter about the curve beyond the known errors, as a standard deviation in doublings, up to
which bends are said to fit."""

FLAT = "flat: of the batch sizes used, none saves a fifth of the steps of another"
BENDS = "no bend fits the curve, so read the answer from the points"
SCALES = "still scaling at the largest batch size"
FITS = "perfect scaling, then diminishing returns"

Bound = Literal["", "at most", "below the smallest tested"]


@dataclass(frozen=True, kw_only=True)
class Scaling(OfCurve):
    """The answer for one workload, recipe and goal. A number that is not known is None."""

    critical_by_examples: Estimate | None = None
    """The batch size that takes a fifth more examples than the fewest of any tested batch size."""
    critical_by_examples_is: Bound = ""
    """What can be said of the batch size that takes a fifth more than the fewest of all batch
    sizes, tested or not: it is that number, or at most that, or below the smallest tested one."""
    max_useful_batch_size: Estimate | None = None
    """The first batch size whose steps lie within a tenth of the fewest of any tested one."""
    critical_batch_size: Estimate | None = None
    """B_crit of steps = S_min (1 + B_crit / B); None if the points refuse that law."""
    steps_min: Estimate | None = None
    """The fewest steps that any batch size would need; None if the curve does not bend yet."""
    perfect_scaling_until: Estimate | None = None
    exponent: Estimate | None = None
    """Exponent of the bend, which is 1 for the law of B_crit; None if it does not bend yet."""
    fit_residual_log2: float | None = None
    """Root mean square distance, in doublings, of the points from the curve in the middle."""
    largest: int | None = None
    """Largest batch size that the answer covers; it says nothing about larger ones."""
    of_medians: bool = False
    """Whether the answer is about medians of repeats rather than the luckiest of many trials."""
    left_out: tuple[str, ...] = ()
    """Batch sizes of the curve that are not used, with the reasons."""
    contributions: Parts | None = None
    """The errors from which the intervals are made; None if nothing was fitted."""
    by_part: float | None = None
    """How many more steps two thirds of the trials would need, in doublings, over all batch sizes;
    None if too few of the best trials are known."""
    at_end: str = ""
    """Which metaparameter is near an end of its range at most batch sizes past the bend, if any."""
    verdict: str
    curves: Curves | None = field(default=None, repr=False)
    """All curves that the points allow."""
    errors: Errors | None = field(default=None, repr=False)

    @property
    def fifth_more(self) -> Estimate | None:
        """`critical_by_examples`; if its interval goes up to the largest batch size, nothing that
        was tested bounds it from above, and it has no upper end."""
        found, largest = self.critical_by_examples, self.largest
        if found is None or largest is None or found.ends[1] < largest:
            return found
        return replace(found, high=math.inf)

    def beside(self, other: Scaling) -> Estimate | None:
        """`fifth_more`, to be compared with that of another curve. It has no lower end if it is but
        a bound and the other curve begins at a smaller batch size."""
        found, mine, others = self.fifth_more, self.curves, other.curves
        if found is None or mine is None or others is None or not self.critical_by_examples_is:
            return found
        return replace(found, low=0.0) if mine.log_sizes[0] > others.log_sizes[0] else found

    @property
    def still_falls(self) -> bool:
        """Whether steps still fall at the largest batch size, also where no bend fits."""
        fifth, largest = self.critical_by_examples, self.largest
        return fifth is not None and largest is not None and fifth.value >= largest

    def to_json(self) -> dict[str, Any]:
        found = asdict(replace(self, curves=None, errors=None))
        del found["curves"], found["errors"]
        return found


def scalings(rows: Sequence[FrontierRow]) -> list[Scaling]:
    """The scaling of each workload, recipe and goal in a frontier."""
    return [_scaling(names, curve) for names, curve in curves_of(rows).items()]


def _scaling(names: Names, curve: Sequence[FrontierRow]) -> Scaling:
    points = points_of(curve)
    telling = [point for point in points if point.tells]
    errors = errors_of(telling)
    logs = np.log2([point.steps for point in telling])
    until = rises_after(logs, errors)
    drawn = {point.batch_size for point in points}
    never = [row for row in curve if row.finished and row.batch_size not in drawn]
    reasons = {
        "not finished yet": [row.batch_size for row in curve if not row.finished],
        "ended too early to tell": [row.batch_size for row in never if row.censored],
        "goal not reached": [row.batch_size for row in never if not row.censored],
        f"fewer than {ENOUGH_STEPS} steps": [
            point.batch_size for point in points if point.row.finished and not point.tells
        ],
        "steps rise again": [point.batch_size for point in telling[until:]],
    }
    left_out = tuple(
        f"{', '.join(f'{size:,}' for size in sizes)} ({why})"
        for why, sizes in reasons.items()
        if sizes
    )
    of_medians = has_medians(curve)
    used = [(point.batch_size, point.steps) for point in telling[:until]]
    found = scaling_of(names, used, errors.of_first(until), tested=len(curve))
    if len(never) == len(curve):
        said = "the goal was never reached" + ", in the median of repeats" * of_medians
        if any(row.censored for row in curve):
            said = "trials were ended too early to tell"
        return replace(found, verdict=said, of_medians=of_medians)
    at_end = _at_end(found, telling[:until])
    return replace(found, of_medians=of_medians, left_out=left_out, at_end=at_end)


def _at_end(found: Scaling, points: Sequence[CurvePoint]) -> str:
    fifth = found.critical_by_examples
    past = [point.row for point in points if fifth and point.batch_size >= fifth.value]
    warned = [NEAR_END.match(warning) for row in past for warning in row.warnings]
    ends = Counter(end.groups() for end in warned if end)
    ((name, side), count), *_ = [*ends.most_common(1), (("", ""), 0)]
    said = f"at {count} of the {len(past)} batch sizes past the bend, {name} is near the {side} end"
    return f"{said} of its range, which may have made the bend" * (count > max(1, len(past) / 2))


def rises_after(logs: Floats, errors: Errors) -> int:
    """The number of points up to which steps do not rise again. No bend allows a rise."""
    if not len(logs):
        return 0
    lowest = int(logs.argmin())
    apart = np.eye(len(logs)) - np.eye(len(logs))[lowest]
    unknown = SCATTER_OF_LUCK if errors.few_trials is None else UNKNOWN
    error = np.sqrt(np.einsum("ij,jk,ik->i", apart, errors.covariance, apart) + unknown**2)
    rises = logs - logs[lowest] > math.log2(1 + RISE_TOLERANCE) + SURE * error
    return lowest + 1 if rises[lowest:].any() else len(logs)


def scaling_of(
    names: Names, points: Sequence[tuple[int, float]], errors: Errors, *, tested: int
) -> Scaling:
    """The scaling of the curve of a workload, recipe and goal. `points` are (batch size, steps) of
    those that may be used, from the smallest batch size up, and `errors` belong to them. `tested`
    is the number of batch sizes that were tried."""
    workload, recipe, goal = names
    largest = points[-1][0] if points else None
    found = Scaling(workload=workload, recipe=recipe, goal=goal, largest=largest, verdict=FITS)
    if len(points) < ENOUGH_SIZES:
        return replace(
            found,
            verdict=f"too few batch sizes to tell where the curve bends: {len(points)} of {tested} "
            f"can be used, {ENOUGH_SIZES} are needed",
        )
    sizes, steps = np.log2(np.array(points, dtype=np.float64)).T
    usual = SCATTER_OF_LUCK if errors.few_trials is None else USUAL_SCATTER
    of_points = partial(curves_through, sizes, steps, errors.covariance, usual=usual)
    curves, of_hyperbola = of_points(), of_points(softness=1.0)
    off = steps - np.median(curves.log_steps(sizes), axis=0)
    scatter = float(np.sqrt((curves.scatter**2).mean()))
    found = replace(
        found,
        errors=errors,
        contributions=errors.parts(scatter),
        by_part=None if errors.by_part is None else float(errors.by_part.mean()),
        fit_residual_log2=float(np.sqrt((off**2).mean())),
    )
    # Steps that are measured as equal may differ by their resolution d, whose variance is d^2 / 12.
    if max(np.ptp(steps), math.sqrt(12 * errors.resolution.mean())) < -math.log2(STILL):
        return replace(found, verdict=FLAT)
    critical, fifth_more = of_hyperbola.bends_at, curves.examples_within(CRITICAL_TOLERANCE)
    verdict = SCALES if fifth_more.value >= points[-1][0] else FITS
    # Where a curve bends farther on than B_c is looked for, its other numbers would be of no curve.
    endless = verdict == SCALES and critical.high == math.inf
    refused = curves.likelihood - of_hyperbola.likelihood > REFUSED
    if scatter > GOOD_FIT_LOG2:
        verdict = BENDS
    least, most = curves.unseen
    bound: Bound = "at most" if most > MISSED else ""
    if least > CRITICAL_TOLERANCE:
        bound = "below the smallest tested"
    return replace(
        found,
        curves=curves,
        critical_by_examples=fifth_more,
        critical_by_examples_is=bound,
        max_useful_batch_size=curves.steps_within(USEFUL_TOLERANCE),
        critical_batch_size=None if refused else critical,
        steps_min=None if endless else curves.steps_min,
        perfect_scaling_until=curves.examples_within(PERFECT_TOLERANCE),
        exponent=None if endless else curves.exponent,
        verdict=verdict,
    )


def compared_with(one: Scaling, other: Scaling) -> tuple[Estimate, Estimate]:
    """Two ratios of a recipe to another one: of the batch sizes that take a fifth more examples,
    and of the fewest steps of any tested batch size."""
    mine, others = one.beside(other), other.beside(one)
    assert one.curves is not None
    assert mine is not None
    assert other.curves is not None
    assert others is not None
    draws = (2 ** each.log_within(CRITICAL_TOLERANCE) for each in (one.curves, other.curves))
    fifths = ratio_of_draws(*draws)
    if others.high == math.inf or mine.low == 0:
        fifths = replace(fifths, low=0.0)
    if mine.high == math.inf or others.low == 0:
        fifths = replace(fifths, high=math.inf)
    return fifths, ratio_of_draws(one.curves.fewest, other.curves.fewest)


def fewest_steps(one: Scaling) -> float:
    """The fewest steps of any tested batch size, in the median of all curves."""
    assert one.curves is not None
    return float(np.median(one.curves.fewest))
