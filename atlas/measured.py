"""What the runs of the atlas measured, as the numbers that claims are decided by."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from picture import said
from scipy import optimize

import orchestrator
from orchestrator.analysis import Scaling, points_of, scalings
from orchestrator.analysis.estimates import Estimate
from orchestrator.analysis.forecasts import forecast_ratio, together
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

Answer = Literal["agrees", "disagrees", "undecided", "not measured"]


class NotMeasured(Exception):
    """A run of the atlas is not there yet; the text is its name."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One of the numbers that a claim is decided by."""

    name: str
    estimate: Estimate


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What was measured of a claim."""

    title: str
    source: str
    groups: tuple[str, ...]
    measured: str
    """In a sentence."""
    cells: tuple[Cell, ...]
    axis: str
    """What the numbers of the cells are."""
    bounds: tuple[float, ...] = ()
    """The bounds of the rule, on that axis."""
    answer: Answer


def opened(group: str) -> orchestrator.Run:
    """The run of that name."""
    if not (RUNS / group).exists():
        raise NotMeasured(group)
    return orchestrator.open_run(RUNS / group)


@cache
def frontier_of(group: str) -> tuple[FrontierRow, ...]:
    return tuple(opened(group).frontier())


@cache
def scalings_of(group: str) -> tuple[Scaling, ...]:
    return tuple(scalings(frontier_of(group)))


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
    low = point.steps if point.low is None else point.low
    high = math.inf if point.high is None and point.is_median else point.high or point.steps
    return Estimate(value=point.steps, low=max(low - point.resolution, 0.5), high=high)


def ratio_of(first: Estimate, second: Estimate) -> Estimate:
    ratio = forecast_ratio(first, second)
    if ratio is None:
        raise ValueError(f"{first} and {second} have no ratio")
    return ratio


def low_end(estimate: Estimate) -> float:
    return estimate.value if estimate.low is None else estimate.low


def high_end(estimate: Estimate) -> float:
    return estimate.value if estimate.high is None else estimate.high


def reach_of(estimate: Estimate) -> float:
    """Half the width of an interval, in doublings; that of the lower half if nothing bounds it
    above."""
    low, high = low_end(estimate), high_end(estimate)
    if math.isinf(high):
        return math.log2(estimate.value / low)
    return math.log2(high / low) / 2


def mean_of(cells: Sequence[Cell]) -> Estimate:
    return together([cell.estimate for cell in cells])


def within(estimate: Estimate, low: float, high: float) -> Answer:
    if low < low_end(estimate) and high_end(estimate) < high:
        return "agrees"
    return "disagrees" if high_end(estimate) < low or low_end(estimate) > high else "undecided"


def decided(
    *,
    title: str,
    source: str,
    groups: Iterable[str],
    measured: str,
    cells: Sequence[Cell],
    axis: str,
    bounds: tuple[float, ...] = (),
    estimate: Estimate,
    side: Literal["above", "below"],
    bound: float,
) -> Finding:
    """A finding that agrees if the whole interval lies above, or below, a bound, and disagrees if
    it lies on the other side."""
    is_above, is_below = low_end(estimate) > bound, high_end(estimate) < bound
    agrees, disagrees = (is_above, is_below) if side == "above" else (is_below, is_above)
    return Finding(
        title=title,
        source=source,
        groups=tuple(groups),
        measured=measured,
        cells=tuple(cells),
        axis=axis,
        bounds=bounds,
        answer="agrees" if agrees else "disagrees" if disagrees else "undecided",
    )


def recipes_compared(
    *, title: str, source: str, pairs: Sequence[tuple[str, str, str]], what: str
) -> Finding:
    """Whether one recipe scales further than another, over (workload, recipe, other recipe)."""
    cells = []
    for workload, recipe, other in pairs:
        first, second = fifth_more(workload, recipe), fifth_more(workload, other)
        if first is not None and second is not None:
            name = f"{workload}, {recipe} / {other}"
            cells.append(Cell(name=name, estimate=ratio_of(first, second)))
    mean = mean_of(cells)
    return decided(
        title=title,
        source=source,
        groups=dict.fromkeys(GROUPS[workload] for workload, _, _ in pairs),
        measured=what.format(said(mean)),
        cells=cells,
        axis="ratio of the batch sizes that need a fifth more examples",
        bounds=(1,),
        estimate=mean,
        side="above",
        bound=1,
    )


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
