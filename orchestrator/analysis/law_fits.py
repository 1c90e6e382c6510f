"""Curves of steps to goal against batch size, fitted to the logarithm of the steps.

Bend: S_min (1 + (B_c / B)^a)^(1/a). The exponent a is 1 for the hyperbola and infinite for a curve
that is straight up to B_c and flat from there on. The code has softness = 1 / a, which is finite.

Smallest useful batch: S_min (1 - (B_min / B)^beta)^(-1/gamma). Below B_min no number of steps is
enough, and the fewest examples are needed at B_min ((beta + gamma) / gamma)^(1/beta).

The level, log2(S_min), is a mean for given values of the other parameters. So a bend is a search in
a plane, and all its points whose squared distance is small enough are its interval.
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
"""How far beyond the batch sizes a bend is looked for, in doublings."""

ROWS, COLUMNS = 25, 33
"""Values of the softness and of B_c that are tried in each round."""

ROUNDS = 3
ZOOMS = 8


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What was measured of one curve."""

    log_sizes: Floats
    """log2 of the batch sizes, ascending."""
    logs: Floats
    """log2 of the steps to goal."""
    known_variance: float
    """Variance of `logs` that is known beforehand, at least, as of how coarsely steps were
    measured."""

    def with_point(self, log_size: float, log_steps: float) -> Measured:
        place = int(np.searchsorted(self.log_sizes, log_size))
        return Measured(
            log_sizes=np.insert(self.log_sizes, place, log_size),
            logs=np.insert(self.logs, place, log_steps),
            known_variance=self.known_variance,
        )


@dataclass(frozen=True, kw_only=True)
class Bend:
    """One curve S_min (1 + (B_c / B)^a)^(1/a), and how far the points lie from it."""

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
    """The best bend, and all that are likely."""

    best: Bend
    allowed: float
    """Sum of squared distances up to which a bend is likely."""
    softness: Floats
    """Of the likely ones, as are the next two."""
    log_bend: Floats
    level: Floats
    """The best one for that softness and B_c."""
    reach: Floats
    """How far the level may be from it."""


def bend_of(distance: Floats, softness: Floats) -> Floats:
    """log2 of steps / S_min, `distance` being log2(B_c / B)."""
    soft = np.maximum(softness, 1e-9)
    shape: Floats = np.maximum(distance, 0) + soft * np.log2(1 + np.exp2(-np.abs(distance) / soft))
    return shape


def bend_shape(softness: Floats, log_bend: Floats, log_sizes: Floats) -> Floats:
    """The same for each softness, B_c and batch size."""
    return bend_of(log_bend[:, None] - log_sizes, softness[:, None, None])


@lru_cache(maxsize=256)
def _everywhere(log_sizes: tuple[float, ...]) -> tuple[Floats, Floats, Floats]:
    """Every softness and B_c of the first round, and their shapes."""
    sizes = np.array(log_sizes)
    softness = LARGEST_SOFTNESS * np.linspace(0, 1, ROWS) ** 2
    first, last = sizes[0] - BEYOND_LOG2, sizes[-1] + BEYOND_LOG2
    log_bend = np.linspace(first, last, int(4 * (last - first)) + 1)
    return softness, log_bend, bend_shape(softness, log_bend, sizes)


def _squares(shape: Floats, logs: Floats) -> tuple[Floats, Floats]:
    """The best levels, and the squared distances with them."""
    distances = logs - shape
    levels = distances.mean(axis=-1)
    return levels, ((distances - levels[..., None]) ** 2).sum(axis=-1)


def best_bend(measured: Measured, softness: float) -> Bend:
    """The best one of this softness."""
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
    """The fit to at least four points. Likely is what the F distribution allows, for normal errors
    of unknown size that is no smaller than what is known of it."""
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
    """Evenly spaced values from before the first place to behind the last one."""
    low, high = values[max(places[0] - 1, 0)], values[min(places[-1] + 1, len(values) - 1)]
    return np.linspace(low, high, count)


def _best_near(measured: Measured, softness: Floats, log_bend: Floats, squares: Floats) -> Bend:
    """The best bend near the best point of a grid, whose squared distances are given."""
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
