"""The law with a smallest useful batch size, and whether points that were left out speak for it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orchestrator.analysis.law_fits import Bend, Floats, Measured, bend_shape, LARGEST_SOFTNESS
from orchestrator.analysis.law_search import Shape, least_squares, level_of

STARTS = np.array([(z, b, g) for z in (-2.0, 0.5) for b in (-0.7, 0.7) for g in (-0.7, 0.7)])
BOUNDS = np.array([(-12.0, np.log(0.1), np.log(0.1)), (12.0, np.log(8.0), np.log(8.0))])


@dataclass(frozen=True, kw_only=True)
class SmallestUseful:
    """One curve S_min (1 - (B_min / B)^beta)^(-1/gamma), and how far the points lie from it."""

    log_smallest: float
    beta: float
    gamma: float
    level: float
    squares: float

    def log_steps(self, log_sizes: Floats) -> Floats:
        share = np.exp2(np.minimum(self.beta * (self.log_smallest - log_sizes), -1e-9))
        return self.level - np.log2(1 - share) / self.gamma

    @property
    def log_fewest(self) -> float:
        """log2 of the batch size that takes the fewest examples."""
        return self.log_smallest + np.log2((self.beta + self.gamma) / self.gamma) / self.beta


def _useful_shape(log_sizes: Floats) -> Shape:
    def shape(at: Floats) -> Floats:
        share = 1 / (1 + np.exp(-at[:, :1]))
        beta, gamma = np.exp(at[:, 1:2]), np.exp(at[:, 2:3])
        off = share * np.exp2(-beta * (log_sizes - log_sizes[0]))
        return -np.log2(1 - off) / gamma
    return shape


def _bend_of(log_sizes: Floats) -> Shape:
    def shape(at: Floats) -> Floats:
        distance, soft = at[:, :1] - log_sizes, np.maximum(at[:, 1:2], 1e-6)
        return np.maximum(distance, 0) + soft * np.log2(1 + np.exp2(-np.abs(distance) / soft))
    return shape


def fit_useful(measured: Measured) -> SmallestUseful:
    count = len(STARTS)
    logs = np.tile(measured.logs, (count, 1))
    at, squares = least_squares(_useful_shape(measured.log_sizes), STARTS, logs, np.ones_like(logs), BOUNDS)
    best = at[squares.argmin()]
    off = measured.logs - _useful_shape(measured.log_sizes)(best[None])[0]
    beta = float(np.exp(best[1]))
    return SmallestUseful(
        log_smallest=float(measured.log_sizes[0] - np.log2(1 + np.exp(-best[0])) / beta),
        beta=beta, gamma=float(np.exp(best[2])), level=float(off.mean()), squares=float(squares.min()))


def left_out(measured: Measured, bend: Bend, useful: SmallestUseful) -> tuple[float, float]:
    """Mean squared error, in doublings, of a bend and of the other law at inner points that they
    were not fitted to."""
    sizes, logs = measured.log_sizes, measured.logs
    inner = np.arange(1, len(sizes) - 1)
    start = np.array([bend.log_bend, bend.softness])
    spread = np.array([(0, 0), (1, 0.3), (-1, 0.3), (0, -0.5)])
    bounds = np.array([(sizes[0] - 8, 0.0), (sizes[-1] + 8, LARGEST_SOFTNESS)])
    bends = _errors(_bend_of(sizes), start + spread, logs, inner, bounds)
    beta = useful.beta
    x0 = np.clip(np.exp2(beta * (useful.log_smallest - sizes[0])), 1e-5, 1 - 1e-5)
    start = np.array([[np.log(x0 / (1 - x0)), np.log(beta), np.log(useful.gamma)]])
    usefuls = _errors(_useful_shape(sizes), np.concatenate([start, STARTS[[1, 2, 5, 6]]]), logs, inner, BOUNDS)
    return bends, usefuls


def _errors(shape: Shape, starts: Floats, logs: Floats, inner: Floats, bounds: Floats) -> float:
    runs = len(inner) * len(starts)
    weights = np.ones((runs, len(logs)))
    weights[np.arange(runs), np.repeat(inner, len(starts))] = 0
    rows = np.tile(logs, (runs, 1))
    at, squares = least_squares(shape, np.tile(starts, (len(inner), 1)), rows, weights, bounds)
    best = squares.reshape(len(inner), -1).argmin(axis=1) + len(starts) * np.arange(len(inner))
    off = rows - shape(at)
    off -= level_of(off, weights)[:, None]
    return float((off[best, inner] ** 2).mean())
