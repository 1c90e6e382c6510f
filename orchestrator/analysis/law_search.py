"""Least squares for many curves of one form at once; each has a few parameters and a free level.

This is the Levenberg-Marquardt method with numerical derivatives. All curves are fitted together in
arrays, so curves with points left out cost no more than whole ones.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from orchestrator.analysis.law_fits import Floats

ITERATIONS = 25
DIFFERENCE = 1e-5
SMALL_GAIN = 1e-4
"""Relative gain of the sum of squares below which the search ends."""

Shape = Callable[[Floats], Floats]
"""Parameters (curves, parameters) -> log2 of steps over the level (curves, points)."""


def least_squares(
    shape: Shape, starts: Floats, logs: Floats, weights: Floats, bounds: Floats
) -> tuple[Floats, Floats]:
    """Parameters and sum of squares of each curve. `weights` (curves, points) is 0 for points that
    are left out and 1 for others. The parameters stay within `bounds` (2, parameters)."""

    def distances(parameters: Floats) -> Floats:
        off = logs - shape(parameters)
        return off - level_of(off, weights)[:, None]

    at = np.clip(starts, *bounds)
    off = distances(at)
    squares = (weights * off**2).sum(axis=1)
    damping = np.full(len(at), 1e-2)
    for _ in range(ITERATIONS):
        slopes = np.stack(
            [(distances(at + DIFFERENCE * step) - off) / DIFFERENCE for step in np.eye(at.shape[1])]
        )
        weighted = slopes * weights
        normal = np.einsum("icn,jcn->cij", weighted, slopes)
        gradient = np.einsum("icn,cn->ci", weighted, off)
        scale = np.einsum("cii->ci", normal) + 1e-9
        damped = normal + (damping[:, None] * scale)[:, :, None] * np.eye(at.shape[1])
        moved = np.clip(at - np.linalg.solve(damped, gradient[..., None])[..., 0], *bounds)
        off_moved = distances(moved)
        squares_moved = (weights * off_moved**2).sum(axis=1)
        better = squares_moved < squares
        still = better & (squares - squares_moved > SMALL_GAIN * squares + 1e-12)
        at = np.where(better[:, None], moved, at)
        off = np.where(better[:, None], off_moved, off)
        squares = np.where(better, squares_moved, squares)
        damping = np.clip(np.where(better, damping / 5, damping * 4), 1e-9, 1e9)
        if not (still | (~better & (damping < 1e6))).any():
            break
    return at, squares


def level_of(offsets: Floats, weights: Floats) -> Floats:
    """The mean of each curve's offsets over the points that are not left out."""
    level: Floats = (weights * offsets).sum(axis=1) / weights.sum(axis=1)
    return level
