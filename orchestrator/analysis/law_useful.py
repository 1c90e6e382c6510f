"""The law with a smallest useful batch size, and curves that deviate from all bends at one end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from orchestrator.analysis.law_fits import (
    BEYOND_LOG2,
    LARGEST_SOFTNESS,
    Bend,
    Floats,
    Measured,
    bend_of,
)
from orchestrator.analysis.law_search import Shape, least_squares, level_of

STARTS = np.array([(z, b, g) for z in (-2.0, 0.5) for b in (-0.7, 0.7) for g in (-0.7, 0.7)])
BOUNDS = np.array([(-12.0, np.log(0.1), np.log(0.1)), (12.0, np.log(8.0), np.log(8.0))])
"""Bounds of the parameters: the logit of (B_min / smallest batch size)^beta, and the logarithms of
beta and gamma."""


@dataclass(frozen=True, kw_only=True)
class SmallestUseful:
    """One curve S_min (1 - (B_min / B)^beta)^(-1/gamma), with the distance of the points from
    it."""

    log_smallest: float
    """log2 of B_min."""
    beta: float
    gamma: float
    level: float
    """log2 of S_min."""
    squares: float
    """Sum of the squared distances, in doublings."""

    def log_steps(self, log_sizes: Floats) -> Floats:
        """log2 of the steps, which are infinite at B_min and below."""
        share = np.exp2(self.beta * (self.log_smallest - log_sizes))
        with np.errstate(divide="ignore"):
            steps: Floats = self.level - np.log2(np.maximum(1 - share, 0)) / self.gamma
        return steps

    @property
    def log_fewest(self) -> float:
        """log2 of the batch size that takes the fewest examples."""
        return float(self.log_smallest + np.log2((self.beta + self.gamma) / self.gamma) / self.beta)


def fit_useful(measured: Measured) -> SmallestUseful:
    """The fit to at least five points."""
    sizes, count = measured.log_sizes, len(STARTS)
    shape = _useful_shape(sizes)
    logs = np.tile(measured.logs, (count, 1))
    at, squares = least_squares(shape, STARTS, logs, np.ones_like(logs), BOUNDS)
    best = int(squares.argmin())
    logit, log_beta, log_gamma = at[best].tolist()
    beta = float(np.exp(log_beta))
    return SmallestUseful(
        log_smallest=float(sizes[0] - np.log2(1 + np.exp(-logit)) / beta),
        beta=beta,
        gamma=float(np.exp(log_gamma)),
        level=float((logs - shape(at))[best].mean()),
        squares=float(squares[best]),
    )


def left_out_errors(measured: Measured, bend: Bend, useful: SmallestUseful) -> tuple[float, float]:
    """Mean squared errors, in doublings, of a bend and of the law with a smallest useful batch
    size, at inner points that were left out of the fit. The searches begin at the fits to all
    points."""
    sizes = measured.log_sizes
    off = np.array([(0, 0), (1, 0.3), (-1, -0.3)])
    starts = np.array([bend.log_bend, bend.softness]) + off
    bounds = np.array([(sizes[0] - BEYOND_LOG2, 0.0), (sizes[-1] + BEYOND_LOG2, LARGEST_SOFTNESS)])
    bends = _error(_bend_shape(sizes), starts, measured, bounds)
    share = np.clip(2 ** (useful.beta * (useful.log_smallest - sizes[0])), 1e-5, 1 - 1e-5)
    start = np.array([[np.log(share / (1 - share)), np.log(useful.beta), np.log(useful.gamma)]])
    starts = np.concatenate([start, STARTS[[1, 6]]])
    return bends, _error(_useful_shape(sizes), starts, measured, BOUNDS)


def _error(shape: Shape, starts: Floats, measured: Measured, bounds: Floats) -> float:
    inner: NDArray[np.int64] = np.arange(1, len(measured.logs) - 1)
    runs = len(inner) * len(starts)
    weights = np.ones((runs, len(measured.logs)))
    weights[np.arange(runs), np.repeat(inner, len(starts))] = 0
    logs = np.tile(measured.logs, (runs, 1))
    at, squares = least_squares(shape, np.tile(starts, (len(inner), 1)), logs, weights, bounds)
    best = squares.reshape(len(inner), -1).argmin(axis=1) + len(starts) * np.arange(len(inner))
    off = logs - shape(at)
    off -= level_of(off, weights)[:, None]
    return float((off[best, inner] ** 2).mean())


def fit_departure(measured: Measured, best: Bend, *, upwards: bool) -> float:
    """Sum of squared distances of the best curve that is a bend times 1 + B / B_r (`upwards`: steps
    rise again beyond B_r), or a bend times 1 + B_r / B (examples fall up to B_r)."""
    sizes, sign = measured.log_sizes, 1 if upwards else -1
    end = sizes[-1] - 0.5 if upwards else sizes[0] + 0.5
    starts = np.array(
        [
            *(
                (best.log_bend + d, best.softness, end + r)
                for d in (0, 1, -1)
                for r in (0, 2 * sign)
            ),
            (best.log_bend, 1.0, end),
            (best.log_bend, 0.2, end),
        ]
    )
    low, high = sizes[0] - BEYOND_LOG2, sizes[-1] + BEYOND_LOG2
    bounds = np.array([(low, 0.0, low), (high, LARGEST_SOFTNESS, high)])
    bend = _bend_shape(sizes)

    def shape(at: Floats) -> Floats:
        steps: Floats = bend(at) + np.log2(1 + np.exp2(sign * (sizes - at[:, 2:])))
        return steps

    logs = np.tile(measured.logs, (len(starts), 1))
    return float(least_squares(shape, starts, logs, np.ones_like(logs), bounds)[1].min())


def _useful_shape(log_sizes: Floats) -> Shape:
    def shape(at: Floats) -> Floats:
        beta, gamma = np.exp(at[:, 1:2]), np.exp(at[:, 2:])
        share = np.exp2(-beta * (log_sizes - log_sizes[0])) / (1 + np.exp(-at[:, :1]))
        steps: Floats = -np.log2(1 - share) / gamma
        return steps

    return shape


def _bend_shape(log_sizes: Floats) -> Shape:
    def shape(at: Floats) -> Floats:
        return bend_of(at[:, :1] - log_sizes, at[:, 1:2])

    return shape
