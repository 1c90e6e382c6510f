"""All curves of steps to goal against batch size that the points of one recipe allow.

A curve is a bend, S_min (1 + (B_c / B)^a)^(1/a), divided by 1 - B_min / B where small batch sizes
may be of little use. The exponent a is 1 for the hyperbola and infinite for a curve that is
straight up to B_c and flat from there on. The code has softness = 1 / a, which is finite.

The points seldom tell which of them it is, so no answer is that of the best one. Each curve of a
grid has a probability, given the points and the covariance of their errors. S_min and the scatter
about the curve beyond those errors are not known either: each of their values counts as much as the
points allow. From all of them we draw `DRAWS` curves; an answer is a median over these, and its
90 % interval leaves out a twentieth of them on either side.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from orchestrator.analysis.estimates import CONFIDENCE, Estimate, Floats

SOFTNESS = np.linspace(0, 2, 21)
"""Softer bends can't be told from straight lines in any range that can be measured."""

SHARP = 0.2
"""Straight-then-flat curves are as likely, before the measurements, as all whose softness lies in a
range of this width: without them, intervals held too few of those that were planted."""

BEYOND = 4.0
"""Distance beyond the tested batch sizes, in doublings, up to which B_c is looked for."""

SHARES = np.array([0, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9])
"""B_min over the smallest batch size that was tested."""

UNBOUNDED = 0.5
"""Distance from the end of the range, in doublings, within which nothing bounds B_c."""

STARVING = 0.3
"""Probability, before the measurements, that B_min isn't 0."""

ENOUGH_FOR_SHARES = 6
"""Number of batch sizes from which on B_min is looked for."""

SCATTER = np.array([0.001, 0.01, 0.02, 0.04, 0.07, 0.11, 0.16, 0.23, 0.32, 0.45, 0.7])
"""Standard deviations about the curve, in doublings, beyond the known errors."""

USUAL_SCATTER, SCATTER_OF_LUCK = 0.05, 0.15
"""The scatter beyond which larger ones become unlikely, before the measurements, where the error
from few trials is known and where it is not: one of ten times as much is a hundredth as likely."""

ZOOMS = 2
"""How many times a finer grid is laid over the likely part of the one before."""

UNLIKELY = 3e-4
"""Probability, as a share of the largest, below which a curve is left out of the finer grid."""

DRAWS = 2000

ENDS = ((1 - CONFIDENCE) / 2, 0.5, (1 + CONFIDENCE) / 2)
"""Shares of the draws: those below an interval, below the median, and below its upper end."""

COMPARED_AT = 97
"""Number of batch sizes, from the smallest to the largest, at which curves are compared."""

REFUSED = 3.5
"""Difference of log likelihoods from which on the hyperbola is refused for another bend."""


@dataclass(frozen=True, kw_only=True)
class Curves:
    """Curves drawn by their probability. All logarithms are to base 2."""

    log_sizes: Floats
    """log of the batch sizes that were tested."""
    softness: Floats
    log_bend: Floats
    """log of B_c."""
    share: Floats
    """B_min over the smallest batch size."""
    level: Floats
    """log of S_min."""
    scatter: Floats
    likelihood: float
    """Logarithm (base e) of the largest likelihood of a curve."""

    @cached_property
    def compared_at(self) -> Floats:
        """log of the batch sizes at which curves are compared."""
        return np.linspace(self.log_sizes[0], self.log_sizes[-1], COMPARED_AT)

    def log_steps(self, log_sizes: Floats) -> Floats:
        """(curves, batch sizes)"""
        return self.level[:, None] + self._shape(log_sizes)

    def _shape(self, log_sizes: Floats) -> Floats:
        bends = bend(self.log_bend[:, None] - log_sizes, self.softness[:, None])
        return bends + starving(self.share[:, None], log_sizes - self.log_sizes[0])

    def examples_within(self, tolerance: float) -> Estimate:
        """The largest batch size whose examples exceed the fewest tested by at most this share."""
        logs, last = self.log_within(tolerance), self.log_sizes[-1]
        # At the end it is the largest batch size itself, not that but for rounding.
        return estimate_of(np.where(logs < last, 2**logs, np.rint(2**last)))

    def log_within(self, tolerance: float) -> Floats:
        """log of that batch size, for each curve."""
        return _last_within(self._log_examples, self.compared_at, tolerance)

    @cached_property
    def _shape_there(self) -> Floats:
        return self._shape(self.compared_at)

    @cached_property
    def _log_examples(self) -> Floats:
        return self._shape_there + self.compared_at

    @property
    def unseen(self) -> tuple[float, float]:
        """The share by which the fewest examples of any tested batch size exceed the fewest of the
        curve: both ends of its interval."""
        if self.log_sizes[0] <= 0:
            return 0.0, 0.0  # no batch size is below 1
        # A bend takes the fewest examples at the smallest batch sizes, S_min B_c.
        below = np.where(self.share > 0, 0.0, self._log_examples.min(axis=1) - self.log_bend)
        least, _, most = (2 ** np.quantile(below, ENDS) - 1).tolist()
        return least, most

    def steps_within(self, tolerance: float) -> Estimate:
        """The first batch size whose steps exceed the fewest tested by at most this share."""
        logs = self._shape_there
        return estimate_of(2 ** -_last_within(logs[:, ::-1], -self.compared_at[::-1], tolerance))

    @property
    def fewest(self) -> Floats:
        """The fewest steps of any tested batch size, for each curve."""
        fewest: Floats = 2 ** (self.level + self._shape_there.min(axis=1))
        return fewest

    @property
    def steps_min(self) -> Estimate:
        return estimate_of(2**self.level)

    @property
    def exponent(self) -> Estimate:
        with np.errstate(divide="ignore"):
            return estimate_of(1 / self.softness)

    @property
    def bends_at(self) -> Estimate:
        """B_c. An end of its interval that nothing bounds is 0 or infinite."""
        low, value, high = np.quantile(self.log_bend, ENDS, method="inverted_cdf").tolist()
        first, last = self.log_sizes[0] - BEYOND, self.log_sizes[-1] + BEYOND
        return Estimate(
            value=2**value,
            low=2**low if low > first + UNBOUNDED else 0.0,
            high=2**high if high < last - UNBOUNDED else np.inf,
        )

    def band(self, log_sizes: Floats) -> tuple[Floats, Floats, Floats]:
        """The median steps at each batch size, and both ends of their 90 % interval."""
        low, middle, high = 2 ** np.quantile(self.log_steps(log_sizes), ENDS, axis=0)
        return middle, low, high


def estimate_of(draws: Floats) -> Estimate:
    """The median of draws, and their 90 % interval."""
    low, value, high = np.quantile(draws, ENDS, method="inverted_cdf").tolist()
    return Estimate(value=value, low=low, high=high)


def bend(distance: Floats, softness: Floats) -> Floats:
    """log of steps / S_min at a `distance` of log(B_c / B)."""
    soft = np.maximum(softness, 1e-9)
    shape: Floats = np.maximum(distance, 0) + soft * np.log2(1 + np.exp2(-np.abs(distance) / soft))
    return shape


def starving(share: Floats, beyond: Floats) -> Floats:
    """log of how many times the steps B_min makes it take, at log(B / smallest batch size)."""
    extra: Floats = -np.log2(1 - share * np.exp2(-beyond))
    return extra


def curves_through(
    log_sizes: Floats,
    logs: Floats,
    covariance: Floats,
    *,
    softness: float | None = None,
    usual: float = USUAL_SCATTER,
) -> Curves:
    """The curves through at least three points, given log of batch sizes and of steps, and the
    covariance of the latter. With a `softness`, all are bends of this one. `usual` is the scatter
    beyond that covariance beyond which larger ones are unlikely."""
    from scipy.special import ndtri

    soft = SOFTNESS if softness is None else np.array([softness])
    first, last = log_sizes[0] - BEYOND, log_sizes[-1] + BEYOND
    bends = np.linspace(first, last, round(4 * (last - first)) + 1)
    starves = softness is None and len(log_sizes) >= ENOUGH_FOR_SHARES
    share = SHARES if starves else SHARES[:1]
    starving_too = np.log(np.where(share > 0, STARVING / max(len(share) - 1, 1), 1 - STARVING))
    errors = np.linalg.eigh(covariance)
    for remaining in reversed(range(ZOOMS + 1)):
        shape = bend(bends[:, None] - log_sizes, soft[:, None, None])[:, :, None]
        shape = shape + starving(share[:, None], log_sizes - log_sizes[0])
        found, levels, spread = _likelihoods(logs - shape, *errors, usual)
        found += starving_too[:, None] + _before(soft)[:, None, None, None]
        weights = np.exp(found - found.max())
        if remaining:
            likely = weights > UNLIKELY
            soft = _around(soft, likely.any(axis=(1, 2, 3)), 21)
            bends = _around(bends, likely.any(axis=(0, 2, 3)), 61)
    # Evenly spaced shares of the whole probability, so that chance plays no part.
    cumulated = np.cumsum(weights)
    cumulated /= cumulated[-1]
    taken = np.searchsorted(cumulated, (np.arange(DRAWS) + 0.5) / DRAWS)
    order = np.random.default_rng(0)
    u, b, q, s = np.unravel_index(order.permutation(taken), weights.shape)
    normal = ndtri((order.permutation(DRAWS) + 0.5) / DRAWS)
    return Curves(
        log_sizes=log_sizes,
        softness=soft[u],
        log_bend=bends[b],
        share=share[q],
        level=levels[u, b, q, s] + spread[s] * normal,
        scatter=SCATTER[s],
        likelihood=float(found.max()),
    )


def _before(softness: Floats) -> Floats:
    """Logarithms of the probability of each softness before the measurements."""
    if len(softness) == 1:
        return np.zeros(1)
    apart = softness[1] - softness[0]
    probability: Floats = np.where(softness > 0, apart, apart / 2 + SHARP) / apart
    return np.log(probability)


def _likelihoods(
    off: Floats, variances: Floats, axes: Floats, usual: float
) -> tuple[Floats, Floats, Floats]:
    """For points that lie `off` their shape (..., points), and each scatter: the logarithm of the
    likelihood over all levels, the mean of the level, and its standard deviation."""
    turned, ones = off @ axes, axes.sum(axis=0)[:, None]
    weights = 1 / (np.maximum(variances, 0)[:, None] + SCATTER**2)
    known = (ones**2 * weights).sum(axis=0)
    levels = turned @ (ones * weights) / known
    squares = turned**2 @ weights - levels**2 * known
    prior = np.log(np.gradient(SCATTER) / (1 + (SCATTER / usual) ** 2))
    return (np.log(weights).sum(axis=0) - np.log(known) - squares) / 2 + prior, levels, known**-0.5


def _around(values: Floats, likely: NDArray[np.bool_], count: int) -> Floats:
    """Evenly spaced values from just below the first likely one to just above the last."""
    if len(values) == 1:
        return values
    positions = np.flatnonzero(likely)
    ends = values[max(positions[0] - 1, 0)], values[min(positions[-1] + 1, len(values) - 1)]
    return np.linspace(*ends, count)


def _last_within(logs: Floats, positions: Floats, tolerance: float) -> Floats:
    """The last position, of each curve, at which `logs` exceed their minimum by at most this share;
    between two positions on a straight line."""
    bound = logs.min(axis=1) + np.log2(1 + tolerance)
    count = len(positions)
    last = count - 1 - (logs <= bound[:, None])[:, ::-1].argmax(axis=1)
    after = np.minimum(last + 1, count - 1)
    rows = np.arange(len(logs))
    rise = logs[rows, after] - logs[rows, last]
    part = np.where(after > last, (bound - logs[rows, last]) / np.maximum(rise, 1e-12), 0)
    found: Floats = positions[last] + np.minimum(part, 1) * (positions[after] - positions[last])
    return found


def ratio_of_draws(first: Floats, second: Floats) -> Estimate:
    """The ratio of draws of two curves, which are independent of each other."""
    return estimate_of(first / second[np.random.default_rng(1).permutation(DRAWS)])
