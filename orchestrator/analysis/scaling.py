"""How steps to goal fall with batch size: perfect scaling, diminishing returns, and the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from orchestrator.results import FrontierRow

PERFECT_TOLERANCE = 0.3
"""Scaling counts as perfect while steps x batch size is at most so far above its minimum."""

USEFUL_TOLERANCE = 0.1
"""A batch size is the last useful one once its steps are at most so far above the fewest."""

GOOD_FIT_LOG2 = 0.25
"""Root mean square distance, in doublings, up to which the hyperbola is said to fit."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A number and, where one could be computed, its interval."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """The answer for one workload, recipe and goal. What can't be said is None."""

    workload: str
    recipe: str
    goal: str
    perfect_scaling_until: Estimate | None
    max_useful_batch_size: Estimate | None
    steps_min: Estimate | None
    critical_batch_size: Estimate | None
    """B_crit of steps = steps_min (1 + B_crit / B), where that curve fits."""
    fit_residual_log2: float | None
    verdict: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def scalings(rows: Sequence[FrontierRow]) -> list[Scaling]:
    """The scaling of each workload, recipe and goal in a frontier."""
    curves: dict[tuple[str, str, str], list[FrontierRow]] = {}
    for row in rows:
        curves.setdefault((row.workload, row.recipe, row.goal), []).append(row)
    return [
        scaling_of(
            *names,
            [(r.batch_size, r.steps) for r in curve if r.steps is not None and not r.censored],
            tested=len(curve),
        )
        for names, curve in curves.items()
    ]


def scaling_of(
    workload: str, recipe: str, goal: str, points: Sequence[tuple[int, int]], *, tested: int
) -> Scaling:
    """The scaling of one curve of (batch size, steps to goal), of `tested` batch sizes tried."""
    points = sorted((size, max(steps, 1)) for size, steps in points)
    sizes = np.array([size for size, _ in points], dtype=np.float64)
    steps = np.array([count for _, count in points], dtype=np.float64)
    perfect = useful = fit = None
    if len(points) >= 2:
        perfect = _perfect_until(sizes, steps)
        useful = float(sizes[np.argmax(steps <= (1 + USEFUL_TOLERANCE) * steps.min())])
    if len(points) >= 3:
        fit = _fit_hyperbola(sizes, steps)
    return Scaling(
        workload=workload,
        recipe=recipe,
        goal=goal,
        perfect_scaling_until=None if perfect is None else Estimate(value=perfect),
        max_useful_batch_size=None if useful is None else Estimate(value=useful),
        steps_min=Estimate(value=fit[0]) if fit else None,
        critical_batch_size=Estimate(value=fit[1]) if fit else None,
        fit_residual_log2=fit[2] if fit else None,
        verdict=_verdict(sizes, steps, fit, tested),
    )


def _perfect_until(sizes: NDArray[np.float64], steps: NDArray[np.float64]) -> float:
    """The last batch size before steps x batch size leaves its minimum for good."""
    examples = sizes * steps
    good = np.flatnonzero(examples <= (1 + PERFECT_TOLERANCE) * examples.min())
    return float(sizes[good[-1]])


def _fit_hyperbola(
    sizes: NDArray[np.float64], steps: NDArray[np.float64]
) -> tuple[float, float, float]:
    """S_min, B_crit and the residual of steps = S_min (1 + B_crit / B), fitted to log2 steps."""

    def residuals(parameters: NDArray[np.float64]) -> NDArray[np.float64]:
        log_s_min, log_b_crit = parameters
        off: NDArray[np.float64] = (
            log_s_min + np.log2(1 + 2.0 ** (log_b_crit - np.log2(sizes))) - np.log2(steps)
        )
        return off

    starts = np.linspace(np.log2(sizes[0]) - 1, np.log2(sizes[-1]) + 1, 5)
    fits = [
        least_squares(residuals, (np.log2(steps.min()), start), bounds=([-10, -20], [60, 60]))
        for start in starts
    ]
    best = min(fits, key=lambda fit: float(fit.cost))
    log_s_min, log_b_crit = best.x
    return (
        float(2**log_s_min),
        float(2**log_b_crit),
        float(np.sqrt(np.mean(residuals(best.x) ** 2))),
    )


def _verdict(
    sizes: NDArray[np.float64],
    steps: NDArray[np.float64],
    fit: tuple[float, float, float] | None,
    tested: int,
) -> str:
    if not len(sizes):
        return "the goal was never reached"
    if len(sizes) < 3:
        return f"too few batch sizes reached the goal to tell ({len(sizes)} of {tested})"
    assert fit is not None
    if steps.min() > 0.8 * steps.max():
        return "flat: a larger batch buys nothing in the range tested"
    if fit[2] > GOOD_FIT_LOG2:
        return "the curve bends, but not as S_min (1 + B_crit / B): read it off the points"
    if fit[1] > sizes[-1]:
        return "still scaling at the largest batch size tested"
    return "perfect scaling, then diminishing returns, as S_min (1 + B_crit / B) has it"
