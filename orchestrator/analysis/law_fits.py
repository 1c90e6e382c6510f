"""Curves of steps to goal against batch size, fitted to the logarithm of the steps.

Bend: S_min (1 + (B_c / B)^a)^(1/a). The exponent a is 1 for the hyperbola and infinite for a curve
that is straight up to B_c and flat from there on. The code has softness = 1 / a, which is finite.

Smallest useful batch: S_min (1 - (B_min / B)^beta)^(-1/gamma). Below B_min no number of steps is
enough, and the fewest examples are needed at B_min ((beta + gamma) / gamma)^(1/beta).

For given values of the other parameters the level, log2(S_min), is a mean. So a bend is fitted by a
search in a plane. All points of the plane whose squared distance is small enough are the interval.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtri

Floats = NDArray[np.float64]

LARGEST_SOFTNESS = 4.0
"""Softer bends than this are straight lines in any range that can be measured."""

BEYOND_LOG2 = 12
"""Distance beyond the tested batch sizes up to which a bend is searched, in doublings."""

ROWS, COLUMNS = 25, 33
"""Numbers of values of the softness and of B_c that are tried in each round."""

ROUNDS = 3
ZOOMS = 8


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The measured points of one curve, as logarithms."""

    log_sizes: Floats
    """log2 of the batch sizes, ascending."""
    logs: Floats
    """log2 of the steps to goal."""
    known_variance: float
    """Smallest variance of `logs`, known beforehand, for example from the distance between
    measurements."""

    def with_point(self, log_size: float, log_steps: float) -> Measured:
        place = int(np.searchsorted(self.log_sizes, log_size))
        return Measured(
            log_sizes=np.insert(self.log_sizes, place, log_size),
            logs=np.insert(self.logs, place, log_steps),
            known_variance=self.known_variance,
        )


@dataclass(frozen=True, kw_only=True)
class Bend:
    """One curve S_min (1 + (B_c / B)^a)^(1/a), with the distance of the points from it."""

    softness: float
    """1 / a."""
    log_bend: float
    """log2 of B_c."""
    level: float
    """log2 of S_min."""
    squares: float
    """Sum of the squared distances, in doublings."""

    def log_steps(self, log_sizes: Floats) -> Floats:
        bend = np.array([self.log_bend])
        shape: Floats = bend_shape(np.array([self.softness]), bend, log_sizes)[0, 0]
        return self.level + shape


@dataclass(frozen=True, kw_only=True)
class BendFit:
    """The best bend and all likely bends."""

    best: Bend
    allowed: float
    """Sum of squared distances up to which a bend is likely."""
    softness: Floats
    """Softness of each likely bend; the next two fields also have one value per likely bend."""
    log_bend: Floats
    level: Floats
    """The best level for that softness and B_c."""
    reach: Floats
    """Largest distance from the best level at which the bend is still likely."""


def bend_of(distance: Floats, softness: Floats) -> Floats:
    """log2 of steps / S_min at a `distance` of log2(B_c / B)."""
    soft = np.maximum(softness, 1e-9)
    shape: Floats = np.maximum(distance, 0) + soft * np.log2(1 + np.exp2(-np.abs(distance) / soft))
    return shape


def bend_shape(softness: Floats, log_bend: Floats, log_sizes: Floats) -> Floats:
    """log2 of steps / S_min for each softness, B_c and batch size."""
    return bend_of(log_bend[:, None] - log_sizes, softness[:, None, None])


@lru_cache(maxsize=256)
def _everywhere(log_sizes: tuple[float, ...]) -> tuple[Floats, Floats, Floats]:
    """All values of the softness and of B_c in the first round, with the shapes of their curves."""
    sizes = np.array(log_sizes)
    softness = LARGEST_SOFTNESS * np.linspace(0, 1, ROWS) ** 2
    first, last = sizes[0] - BEYOND_LOG2, sizes[-1] + BEYOND_LOG2
    log_bend = np.linspace(first, last, int(4 * (last - first)) + 1)
    return softness, log_bend, bend_shape(softness, log_bend, sizes)


def _squares(shape: Floats, logs: Floats) -> tuple[Floats, Floats]:
    """The best level of each shape, and the sum of squared distances with it."""
    distances = logs - shape
    levels = distances.mean(axis=-1)
    return levels, ((distances - levels[..., None]) ** 2).sum(axis=-1)


def best_bend(measured: Measured, softness: float) -> Bend:
    """The best bend of this softness."""
    sizes, rows = measured.log_sizes, np.array([softness])
    low, high = sizes[0] - BEYOND_LOG2, sizes[-1] + BEYOND_LOG2
    count = int(4 * (high - low)) + 1
    while True:
        log_bend = np.linspace(low, high, count)
        levels, squares = _squares(bend_shape(rows, log_bend, sizes), measured.logs)
        at = int(squares[0].argmin())
        if high - low < 1e-5:
            break
        low, high = log_bend[max(at - 1, 0)], log_bend[min(at + 1, count - 1)]
        count = 17
    return Bend(
        softness=softness, log_bend=float(log_bend[at]),
        level=float(levels[0, at]), squares=float(squares[0, at]),
    )  # fmt: skip


def fit_bend(measured: Measured, confidence: float) -> BendFit:
    """The fit to at least four points. Bends are likely if the F distribution allows them, for
    normal errors of unknown variance that is not below the known variance."""
    sizes, logs = measured.log_sizes, measured.logs
    softness, log_bend, shape = _everywhere(tuple(sizes.tolist()))
    levels, squares = _squares(shape, logs)
    best = _best_near(measured, softness, log_bend, squares)
    freedom = len(sizes) - 3
    variance = max(best.squares / freedom, measured.known_variance)
    allowed = best.squares + variance * float(fdtri(1, freedom, confidence)) + 1e-12
    for remaining in reversed(range(ROUNDS)):
        likely = squares <= allowed
        if not likely.any():
            likely[np.unravel_index(int(squares.argmin()), squares.shape)] = True
        if remaining:
            softness = _around(softness, np.flatnonzero(likely.any(axis=1)), ROWS)
            log_bend = _around(log_bend, np.flatnonzero(likely.any(axis=0)), COLUMNS)
            levels, squares = _squares(bend_shape(softness, log_bend, sizes), logs)
    at = np.nonzero(likely)
    room = np.maximum(allowed - np.append(squares[at], best.squares), 0)
    return BendFit(
        best=best,
        allowed=allowed,
        softness=np.append(softness[at[0]], best.softness),
        log_bend=np.append(log_bend[at[1]], best.log_bend),
        level=np.append(levels[at], best.level),
        reach=np.sqrt(room / len(sizes)),
    )


def _around(values: Floats, places: NDArray[np.int64], count: int) -> Floats:
    """Evenly spaced values from just below the first of the `places` to just above the last."""
    low, high = values[max(places[0] - 1, 0)], values[min(places[-1] + 1, len(values) - 1)]
    return np.linspace(low, high, count)


def _best_near(measured: Measured, softness: Floats, log_bend: Floats, squares: Floats) -> Bend:
    """The best bend near the best point of a grid. `squares` holds the grid's squared distances."""
    for _ in range(ZOOMS):
        row, column = np.unravel_index(int(squares.argmin()), squares.shape)
        softness = _around(softness, np.array([row]), 9)
        log_bend = _around(log_bend, np.array([column]), 17)
        shape = bend_shape(softness, log_bend, measured.log_sizes)
        levels, squares = _squares(shape, measured.logs)
    row, column = np.unravel_index(int(squares.argmin()), squares.shape)
    near = Bend(
        softness=float(softness[row]),
        log_bend=float(log_bend[column]),
        level=float(levels[row, column]),
        squares=float(squares[row, column]),
    )
    return min(near, best_bend(measured, 1.0), key=lambda bend: bend.squares)
