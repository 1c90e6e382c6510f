"""What the runs of the atlas measured, as the numbers that claims are decided by."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

import orchestrator
from orchestrator.analysis import Scaling, points_of, scalings
from orchestrator.analysis.estimates import Estimate
from orchestrator.analysis.forecasts import Comparison
from orchestrator.analysis.points import Point
from orchestrator.results import FrontierRow
from orchestrator.results import Run as Files

HERE = Path(__file__).parent
RUNS = HERE / "runs"

DIGITS, CNN = "digits/mlp", "digits/cnn"
FASHION = "fashion_mnist/fc_64_64_64"
MIDDLE = {
    DIGITS: "val/error < 0.04",
    CNN: "val/error < 0.03",
    FASHION: "val/error < 0.17",
}
"""The middle goal of each workload, which all claims are about that name no other."""

GROUPS = {DIGITS: "digits_mlp", CNN: "digits_cnn", FASHION: "fashion_mnist"}


def opened(group: str) -> orchestrator.Run:
    """The run of that name."""
    return orchestrator.open_run(RUNS / group)


@cache
def frontier_of(group: str) -> tuple[FrontierRow, ...]:
    return tuple(opened(group).frontier())


@cache
def scalings_of(group: str) -> tuple[Scaling, ...]:
    return tuple(scalings(frontier_of(group)))


@cache
def forecasts_of(workload: str) -> tuple[Comparison, ...]:
    return tuple(opened(GROUPS[workload]).forecasts(MIDDLE[workload]))


def rows_of(workload: str) -> list[FrontierRow]:
    return [row for row in frontier_of(GROUPS[workload]) if row.goal == MIDDLE[workload]]


def curve_of(workload: str, recipe: str) -> Scaling:
    (found,) = (
        scaling
        for scaling in scalings_of(GROUPS[workload])
        if (scaling.recipe, scaling.goal) == (recipe, MIDDLE[workload])
    )
    return found


def fifth_more(workload: str, recipe: str) -> Estimate | None:
    return known(curve_of(workload, recipe).critical_by_examples)


def known(estimate: Estimate | None) -> Estimate | None:
    """The estimate if its value is a number; a curve that never bends has an infinite one."""
    return estimate if estimate is not None and math.isfinite(estimate.value) else None


def points_by(group: str, goal: str | None = None) -> dict[tuple[str, int], Point | None]:
    """Maps (recipe, batch size) to the point of each study, which is None if it has no answer."""
    rows = [row for row in frontier_of(group) if goal in (None, row.goal)]
    points = {(point.recipe, point.batch_size): point for point in points_of(rows)}
    return {key: points.get(key) for key in ((row.recipe, row.batch_size) for row in rows)}


def steps_of(workload: str, recipe: str, size: int) -> Estimate | None:
    point = points_by(GROUPS[workload], MIDDLE[workload])[recipe, size]
    return None if point is None else of_point(point)


def of_point(point: Point) -> Estimate:
    """The steps with an interval. The goal was passed after the measurement before."""
    low = high = point.steps
    if (again := point.again) is not None:
        low = point.steps if again.low is None else again.low
        high = math.inf if again.high is None else again.high
    return Estimate(value=point.steps, low=max(low - point.resolution, 0.5), high=high)


def fewest_steps(batch_size: int, goal: float, dimensions: int) -> float:
    """The fewest steps of SGD in which the expected risk of the noisy quadratic model falls below
    the goal, over all learning rates. With rate a, a coordinate of curvature h has
    E x^2 = s + (1 - s) (1 - a h)^(2 t) after t steps, where s = a^2 h / B / (1 - (1 - a h)^2)."""
    h = 1 / np.arange(1, dimensions + 1)

    def steps(log_rate: float) -> float:
        a = math.exp(log_rate)
        shrinks = (1 - a * h) ** 2
        rest = a * a * h / batch_size / (1 - shrinks)

        def risk(t: float) -> float:
            return float(0.5 * (h * (rest + (1 - rest) * shrinks**t)).sum()) - goal

        most = 1e7
        return most if risk(most) > 0 else optimize.brentq(risk, 0, most)

    rates = np.linspace(math.log(1e-4), math.log(1.99), 200)
    best = rates[int(np.argmin([steps(rate) for rate in rates]))]
    width = rates[1] - rates[0]
    found = optimize.minimize_scalar(steps, bounds=(best - width, min(best + width, rates[-1])))
    return min(float(found.fun), steps(best))


def best_errors() -> dict[int, NDArray[np.float64]]:
    """Maps each batch size of the run `quality` to the lowest validation error of each repeat."""
    run = Files.open(opened("quality").path)
    found = {}
    for study in run.studies():
        table = run.repeats.measurements(study.key, {"val/error"})
        lowest = table.group_by(["trial", "repeat"]).aggregate([("val/error", "min")])
        found[study.batch_size] = lowest["val/error_min"].to_numpy()
    return found
