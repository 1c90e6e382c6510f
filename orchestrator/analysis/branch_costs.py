"""The cost of larger batch sizes from one point on, computed from the losses of branches.

Rows are seeds, columns are places along a branch. We look for the place at which factor 1 had the
loss that factor k has at its end. A place belongs to the interval of the answer unless a t test of
the differences, seed by seed, says that the mean losses differ. The mean of each seed's log c_k
would be biased if the noise in the losses is not small compared with their fall, and infinite as
soon as the loss of one seed has risen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np

from orchestrator.analysis.estimates import Estimate, Floats, reach_of_mean
from orchestrator.analysis.scaling import CRITICAL_TOLERANCE

ENOUGH_EVALUATIONS = 4
"""Number of evaluations that a branch needs after the point, and that must lie on either side of a
knot of the curve through them."""

FURTHEST = 2.0
"""Distance up to which factor 1 is extrapolated along its slope, in lengths of a branch. A cost
below 1 / FURTHEST is reported as 1 / FURTHEST."""

COMPARED_AT = np.linspace(0, FURTHEST, 1001)
"""Places where losses are compared, in lengths of a branch."""

END = int(np.searchsorted(COMPARED_AT, 1))

INVERSES = np.concatenate([[0], np.geomspace(1e-5, 1e5, 1001)])
"""Values of b / B_crit that are tried."""


@lru_cache(maxsize=256)
def smoothing(at: tuple[float, ...]) -> Floats:
    """The matrix that takes losses evaluated `at` shares of the length to those at `COMPARED_AT`: a
    least-squares spline of parabolas, and a straight line beyond the end.

    The curve is linear in the losses, so the mean over seeds may be taken before or after, and
    noise causes no bias. It consists of parabolas, because straight lines miss how the slope
    changes. Its knots are at 1/2, 1/4, 1/8 ..., as long as enough evaluations lie between them,
    because a loss falls fast at first."""
    found = np.array(at)
    knots = [0.0]
    for knot in 0.5 ** np.arange(1, 30):
        sides = (found <= knot).sum(), ((knot < found) & (found <= 2 * knot)).sum()
        if min(sides) >= ENOUGH_EVALUATIONS:
            knots.append(float(knot))
    matrix: Floats = _parabolas(COMPARED_AT, knots) @ np.linalg.pinv(_parabolas(found, knots))
    return matrix


def _parabolas(positions: Floats, knots: Sequence[float]) -> Floats:
    """A matrix with a column for each basis function of the spline."""
    within, beyond = np.minimum(positions, 1), np.maximum(positions - 1, 0)
    columns = [np.ones(len(positions)), positions]
    for knot in knots:
        columns.append(np.maximum(within - knot, 0) ** 2 + 2 * (1 - knot) * beyond)
    return np.column_stack(columns)


def loss_falls(reference: Floats) -> bool:
    """Whether the mean loss is lower at the end than at the beginning, beyond its noise."""
    fall = reference[:, 0] - reference[:, END]
    return bool(fall.mean() > reach_of_mean(fall))


def examples_ratio(reference: Floats, losses: Floats) -> Estimate:
    """The ratio of the examples of a factor to those of factor 1, the reference, for equal loss."""
    if not np.isfinite(losses).all():
        return Estimate(value=math.inf, low=math.inf, high=math.inf)
    value, high, low = (
        1 / min(crossing, FURTHEST) if crossing else math.inf
        for crossing in _crossings(COMPARED_AT, reference - losses[:, [END]])
    )
    return Estimate(value=value, low=low, high=high)


def critical_batch_size(curves: Mapping[int, Floats], batch_size: int) -> Estimate | None:
    """The B_crit that explains the losses of all factors together. For a value of B_crit the law
    gives the examples after which factor 1 has the loss of each factor: the larger b / B_crit, the
    fewer examples and the higher these losses. At the answer, their sum equals the sum of the
    measured losses. None if all factors diverged, or if nothing bounds it."""
    differences = np.zeros((len(curves[1]), len(INVERSES)))
    sound = [factor for factor in curves if factor > 1 and np.isfinite(curves[factor]).all()]
    for factor in sound:
        positions = (1 + INVERSES) / (1 + factor * INVERSES)
        differences += curves[factor][:, [END]]
        differences -= [np.interp(positions, COMPARED_AT, losses) for losses in curves[1]]
    value, high, low = (
        batch_size / inverse if inverse else math.inf
        for inverse in _crossings(INVERSES, differences)
    )
    known = sound and (low, high) != (0, math.inf)
    return Estimate(value=value, low=low, high=high) if known else None


def _crossings(positions: Floats, differences: Floats) -> tuple[float, float, float]:
    """The first place where the mean over seeds is below 0, the first where it may be, and the
    first where it must be. Infinite if there is none."""
    mean = differences.mean(axis=0)
    with np.errstate(over="ignore"):  # losses of a branch that nearly diverged may overflow
        reach = reach_of_mean(differences)
    value, early, late = (_first(positions, line) for line in (mean, mean - reach, mean + reach))
    return value, early, late


def _first(positions: Floats, line: Floats) -> float:
    below = np.flatnonzero(line <= 0)
    if not len(below):
        return math.inf
    after = int(below[0])
    before = max(after - 1, 0)
    share = line[before] / (line[before] - line[after]) if after else 0.0
    return float(positions[before] + share * (positions[after] - positions[before]))


def fifth_more(ratios: Mapping[int, Estimate]) -> Estimate:
    """The factor that costs a fifth more examples, from c_k and the ends of its interval."""
    of_ends = zip(*((one.value, *reversed(one.ends)) for one in ratios.values()), strict=True)
    value, low, high = (_passing([*ratios], found) for found in of_ends)
    return Estimate(value=value, low=low, high=high)


def _passing(factors: Sequence[int], ratios: Sequence[float]) -> float:
    """The factor at which log c_k, linear in log k, first exceeds a fifth more, or infinity."""
    bound = math.log(1 + CRITICAL_TOLERANCE)
    for (below, cheap), (above, dear) in pairwise(zip(factors, np.log(ratios), strict=True)):
        if dear > bound:
            return float(below * (above / below) ** ((bound - cheap) / (dear - cheap)))
    return math.inf
