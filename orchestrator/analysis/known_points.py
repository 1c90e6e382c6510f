"""The uncertainty of each point of a curve, and the width of the interval of B_crit that follows.
All amounts are in doublings: variances of log2(steps), widths of log2(B_crit)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtri

from orchestrator.analysis.hyperbola import (
    BEYOND_LOG2,
    CONFIDENCE,
    fit_hyperbola,
    scatter_beyond,
    variance_along,
)

POINTS = 501
"""Number of values of B_crit that are tried for the width of its interval."""


@dataclass(frozen=True, kw_only=True)
class KnownPoint:
    """The steps to goal at one batch size, and where their uncertainty comes from."""

    batch_size: int
    log2_steps: float
    rounding: float
    """Variance from the resolution: the goal was passed anywhere between two measurements."""
    seeds: float = 0.0
    """Variance of the median of the repeats. It is 0 without repeats, where it is unknown."""
    finite: float = 0.0
    """Variance of the distance between the best of `trials` trials and the best of many."""
    halvings: float = 4 / 3
    """How many times doubling the trials halves `finite`: 4 over the number of metaparameters that
    matter, here three."""
    trials: int
    repeats: int
    repeated: int = 1
    """The number of trials that are repeated `repeats` times."""
    beyond: int = 0
    """The number of trials that a wider range would add, where the winner lies near the end of its
    range; else 0."""


@dataclass(frozen=True, kw_only=True)
class KnownCurve:
    """The points of one curve from which conclusions are drawn, from the smallest batch size up."""

    workload: str
    recipe: str
    goal: str
    points: tuple[KnownPoint, ...]
    unexplained: float
    """Variance of the scatter about the law that the known variances of the points do not
    explain."""
    alike: float
    """Correlation of the errors behind `finite` at two batch sizes one doubling apart. All batch
    sizes try the same points, so neighbours share their best trials and their errors."""
    critical: float
    """log2(B_crit) of the law."""
    level: float
    """log2(S_min) of the law."""

    @property
    def covariance(self) -> NDArray[np.float64]:
        """The covariance of the points' log2(steps)."""
        whole = _covariance(self.points, self.alike)
        whole += self.unexplained * np.eye(len(self.points))
        return whole

    @property
    def variance(self) -> float:
        """The mean variance of a point."""
        return float(np.diag(self.covariance).mean())

    @property
    def sizes(self) -> NDArray[np.float64]:
        return np.array([math.log2(point.batch_size) for point in self.points])

    def log2_steps(self, batch_size: int) -> float:
        """Returns log2(steps) by the law."""
        return self.level + math.log2(1 + 2.0 ** (self.critical - math.log2(batch_size)))

    @property
    def interval(self) -> tuple[float, float]:
        """The 90 % interval of log2(B_crit) for points that lie on the law and scatter by their
        covariance; an end that nothing bounds is minus infinity or infinity."""
        sizes, count = self.sizes, len(self.points)
        low, high = sizes[0] - BEYOND_LOG2, sizes[-1] + BEYOND_LOG2
        grid = np.linspace(low, high, POINTS)
        off = _shape(np.array([self.critical]), sizes) - _shape(grid, sizes)
        squares = ((off - off.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)
        squares /= np.maximum(variance_along(_slopes(grid, sizes), self.covariance), 1e-30)
        allowed = fdtri(1, count - 2, CONFIDENCE)
        below, above = grid <= self.critical, grid >= self.critical
        return (
            -_reach(self.critical - grid[below][::-1], squares[below][::-1], allowed)
            + self.critical,
            _reach(grid[above] - self.critical, squares[above], allowed) + self.critical,
        )

    @property
    def width(self) -> float:
        """The width of `interval`. An end that nothing bounds is replaced by the batch size at
        which the law is practically a straight line, or flat."""
        sizes = self.sizes
        low, high = self.interval
        return float(min(high, sizes[-1] + BEYOND_LOG2) - max(low, sizes[0] - BEYOND_LOG2))


def curve_of(
    workload: str,
    recipe: str,
    goal: str,
    points: Sequence[KnownPoint],
    alike: float = 0.0,
) -> KnownCurve:
    """Returns the curve through at least three points. Its law is the hyperbola with the least
    squares; the scatter of its residuals beyond the known variances is `unexplained`."""
    ordered = tuple(sorted(points, key=lambda point: point.batch_size))
    sizes = np.array([math.log2(point.batch_size) for point in ordered])
    logs = np.array([point.log2_steps for point in ordered])
    critical, level, squares = fitted(sizes, logs)
    slopes = _slopes(np.array([critical]), sizes)[0]
    return KnownCurve(
        workload=workload,
        recipe=recipe,
        goal=goal,
        points=ordered,
        unexplained=scatter_beyond(squares, slopes, _covariance(ordered, alike)),
        alike=alike,
        critical=critical,
        level=level,
    )


def lowered(curve: KnownCurve) -> KnownCurve:
    """Returns the curve that is expected if each winner near the end of its range improved to the
    law of the other points, where it lies above that law."""
    points = [
        replace(point, beyond=0, log2_steps=min(point.log2_steps, _of_others(curve, place)))
        if point.beyond
        else point
        for place, point in enumerate(curve.points)
    ]
    return curve_of(curve.workload, curve.recipe, curve.goal, points, curve.alike)


def fitted(sizes: NDArray[np.float64], logs: NDArray[np.float64]) -> tuple[float, float, float]:
    """Fits the hyperbola with the least sum of squares; returns log2(B_crit), log2(S_min) and that
    sum."""
    count = len(sizes)
    fit = fit_hyperbola(2.0**sizes, 2.0**logs, resolutions=np.zeros(count))
    return math.log2(fit.critical), math.log2(fit.steps_min), count * fit.residual_log2**2


def between(amounts: Mapping[int, float], batch_size: int) -> float:
    """Interpolates an amount between the batch sizes where it is known, or takes the nearest."""
    sizes = sorted(amounts)
    logs = [math.log2(size) for size in sizes]
    return float(np.interp(math.log2(batch_size), logs, [amounts[size] for size in sizes]))


def _covariance(points: Sequence[KnownPoint], alike: float) -> NDArray[np.float64]:
    sizes = np.array([math.log2(point.batch_size) for point in points])
    off = np.sqrt([point.finite for point in points])
    apart = np.abs(sizes[:, None] - sizes)
    shared: NDArray[np.float64] = alike**apart * np.outer(off, off)
    return shared + np.diag([point.rounding + point.seeds for point in points])


def _slopes(critical: NDArray[np.float64], sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the derivative of log2(steps) by log2(B_crit), for each B_crit and batch size."""
    slopes: NDArray[np.float64] = 1 / (1 + 2.0 ** (sizes - critical[:, None]))
    return slopes


def _shape(critical: NDArray[np.float64], sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns log2(steps / S_min), for each B_crit and batch size, all in doublings."""
    shape: NDArray[np.float64] = np.log2(1 + 2.0 ** (critical[:, None] - sizes))
    return shape


def _reach(distances: NDArray[np.float64], squares: NDArray[np.float64], allowed: float) -> float:
    """Returns the distance at which the squares, which grow with it, reach `allowed`; infinity if
    they never do."""
    beyond = np.flatnonzero(squares > allowed)
    if not len(beyond):
        return math.inf
    last = beyond[0] + 1
    return float(np.interp(allowed, [0.0, *squares[:last]], [0.0, *distances[:last]]))


def _of_others(curve: KnownCurve, place: int) -> float:
    """Returns log2(steps) at one point by the law of the other points, or by the law of all points
    if the others are fewer than three."""
    others = np.arange(len(curve.points)) != place
    if others.sum() < 3:
        return curve.log2_steps(curve.points[place].batch_size)
    logs = np.array([point.log2_steps for point in curve.points])
    critical, level, _ = fitted(curve.sizes[others], logs[others])
    return level + math.log2(1 + 2.0 ** (critical - float(curve.sizes[place])))
