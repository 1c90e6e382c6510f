"""The curve steps = S_min (1 + B_crit / B), fitted to the logarithm of steps.

For a given B_crit the best S_min is a mean, so the fit is a search for B_crit alone, and so are
both intervals. An interval holds all values for which the sum of squared distances stays below the
bound that 90 % of fits with normal errors would stay below (profile likelihood with the F
distribution). The known errors (distance between measurements, seeds, small number of trials) form
a covariance matrix. If the points scatter about the curve by more than that, the rest is added to
the variance of each. Every point has the same weight, whatever its error. Weights by the inverse of
the covariance made intervals far too narrow: if two batch sizes share their best trials, such
weights trust the difference between the two far more than it deserves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtri

CONFIDENCE = 0.9

BEYOND_LOG2 = 12
"""Distance, in doublings, beyond the tested batch sizes up to which B_crit is searched. Further out
the curve differs from a straight line, or from a flat one, by less than a thousandth."""

SKEW_OF_MINIMA = 0.15
"""Distance, in standard deviations, by which the median of a minimum over trials lies below its
mean. It is 0.31 if good trials are as likely as any, and nearly 0 if they are rare. With this
value, intervals of S_min cover the truth in 87 to 91 % of cases for five such distributions;
without it, in 86 to 90 %. Medians of repeats have no such skew."""

POINTS = 2001
"""Number of values of B_crit that are tried in the whole range, and again in the likely range."""


@dataclass(frozen=True, kw_only=True)
class Hyperbola:
    """A fit with 90 % intervals. An unbounded end of an interval is 0 or infinity."""

    steps_min: float
    steps_min_interval: tuple[float, float]
    critical: float
    critical_interval: tuple[float, float]
    residual_log2: float
    """Root mean square distance of the points from the curve, in doublings."""
    scatter_log2: float
    """Standard deviation about the curve, in doublings, beyond the errors that are known."""

    def steps(self, sizes: NDArray[np.float64]) -> NDArray[np.float64]:
        return self.steps_min * (1 + self.critical / sizes)


def fit_hyperbola(
    sizes: NDArray[np.float64],
    steps: NDArray[np.float64],
    resolutions: NDArray[np.float64],
    skew: float = 0.0,
    known: NDArray[np.float64] | None = None,
) -> Hyperbola:
    """The fit to at least three points. A goal was passed anywhere within the `resolution` of its
    steps, so intervals are never narrower than this uncertainty alone. `known` is the covariance of
    the other errors of log2 steps."""
    count = len(sizes)
    errors = np.diag(rounding_variance(steps, resolutions))
    errors = errors if known is None else errors + known
    first, last = np.log2(sizes.min()) - BEYOND_LOG2, np.log2(sizes.max()) + BEYOND_LOG2
    low, high = first, last
    for _ in range(3):
        grid = np.linspace(low, high, POINTS)
        rises = 2.0 ** (grid[:, None] - np.log2(sizes))
        offsets = np.log2(steps) - np.log2(1 + rises)
        levels = offsets.mean(axis=1)
        squares = ((offsets - levels[:, None]) ** 2).sum(axis=1)
        best = int(squares.argmin())
        slopes = rises / (1 + rises)
        scatter = scatter_beyond(squares[best], slopes[best], errors)
        total = errors + scatter * np.eye(count)
        bound = fdtri(1, count - 2, CONFIDENCE)
        likely = np.flatnonzero(squares <= squares[best] + bound * variance_along(slopes, total))
        allowed = squares[best] + bound * _of_level(slopes[best], total)
        near = np.flatnonzero(squares <= allowed)
        ends = min(likely[0], near[0]), max(likely[-1], near[-1])
        bounded_below = grid[likely[0]] > first
        bounded_above = grid[likely[-1]] < last
        low, high = grid[max(ends[0] - 1, 0)], grid[min(ends[1] + 1, POINTS - 1)]
    reach = np.sqrt((allowed - squares[near]) / count)
    levels -= skew * np.sqrt(squares[best] / (count - 2))
    return Hyperbola(
        steps_min=float(2 ** levels[best]),
        steps_min_interval=(
            float(2 ** (levels[near] - reach).min()) if bounded_above else 0.0,
            float(2 ** (levels[near] + reach).max()),
        ),
        critical=float(2 ** grid[best]),
        critical_interval=(
            float(2 ** grid[likely[0]]) if bounded_below else 0.0,
            float(2 ** grid[likely[-1]]) if bounded_above else np.inf,
        ),
        residual_log2=float(np.sqrt(squares[best] / count)),
        scatter_log2=float(np.sqrt(scatter)),
    )


def rounding_variance(
    steps: NDArray[np.float64], resolutions: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The variance of log2 steps that comes from the distance d between measurements: d^2 / 12."""
    apart = np.log2(steps / np.maximum(steps - resolutions, 1))
    variance: NDArray[np.float64] = apart**2 / 12
    return variance


def scatter_beyond(
    squares: float, slopes: NDArray[np.float64], errors: NDArray[np.float64]
) -> float:
    """The variance beyond `errors` that explains the squared distances from the best curve."""
    count = len(slopes)
    design = np.stack([np.ones(count), slopes], axis=1)
    left = np.eye(count) - design @ np.linalg.pinv(design)
    return float(max(squares - np.trace(left @ errors), 0) / (count - 2))


def variance_along(slopes: NDArray[np.float64], errors: NDArray[np.float64]) -> NDArray[np.float64]:
    """The variance, per squared distance, along the direction in which a change of each B_crit
    moves the points after S_min is fitted again."""
    turns = slopes - slopes.mean(axis=1, keepdims=True)
    lengths = np.maximum((turns**2).sum(axis=1), 1e-300)
    variance: NDArray[np.float64] = ((turns @ errors) * turns).sum(axis=1) / lengths
    return variance


def _of_level(slopes: NDArray[np.float64], errors: NDArray[np.float64]) -> float:
    """The same variance for a change of S_min, after B_crit is fitted again."""
    lifts = 1 - slopes * slopes.sum() / (slopes**2).sum()
    return float(lifts @ errors @ lifts / (lifts @ lifts))
