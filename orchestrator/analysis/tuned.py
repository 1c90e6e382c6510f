"""How the best metaparameters change with the batch size, compared with the usual scaling rules."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from orchestrator.analysis.estimates import reach_of
from orchestrator.analysis.points import ENOUGH_STEPS, OfCurve, curves_of
from orchestrator.records import ENOUGH_SIZES, Goal, Study, Value
from orchestrator.results import FrontierRow, column_of
from orchestrator.results.counting import next_possible

EFFECTIVE = "effective learning rate"
"""The learning rate over 1 - momentum: the total distance by which a gradient moves the weights."""

DECAYS = ("momentum", "beta1", "beta2", "decay_rate")


@dataclass(frozen=True, kw_only=True)
class Tuned(OfCurve):
    """The best values of one metaparameter for one workload, recipe and goal."""

    name: str
    points: tuple[tuple[int, float], ...]
    """(batch size, value), from the smallest batch size up, without batch sizes where it is 0."""
    zeros: int
    """Number of batch sizes where the best value is 0."""
    exponent: float | None
    """Exponent of the power of the batch size that the values follow: 1 is the linear rule, 0.5 the
    square root rule. None if there are too few points."""
    exponent_interval: tuple[float, float] | None
    """90 % interval of the exponent, from the scatter of the points about the power law."""

    @property
    def is_rate(self) -> bool:
        """Whether it is a learning rate, to which the usual rules apply."""
        return self.name in ("learning_rate", EFFECTIVE)

    def rule(self, exponent: float) -> tuple[tuple[int, float], ...]:
        """The values that a scaling rule derives from the first point."""
        first, value = self.points[0]
        return tuple((size, value * (size / first) ** exponent) for size, _ in self.points)


def tuned(rows: Sequence[FrontierRow]) -> list[Tuned]:
    """For each workload, recipe and goal: every metaparameter that was searched and is a positive
    number, the effective learning rate first."""
    known = [row for row in rows if row.params is not None and not row.censored]
    found = []
    for (workload, recipe, goal), curve in curves_of(known).items():
        best = {row.batch_size: row.answering[1] or {} for row in curve}
        values = {size: _numbers(params) for size, params in best.items()}
        steps = {row.batch_size: row.steps or 0 for row in curve if row.finished}
        names = dict.fromkeys(name for numbers in values.values() for name in numbers)
        for name in sorted(names, key=lambda name: name != EFFECTIVE):
            points = [(size, numbers[name]) for size, numbers in values.items() if name in numbers]
            if len({value for _, value in points}) < 2:
                continue
            zeros = sum(params.get(name) == 0 for params in best.values())
            telling = [point for point in points if steps.get(point[0], 0) >= ENOUGH_STEPS]
            exponent, interval = _power([] if zeros else telling)
            found.append(
                Tuned(
                    workload=workload,
                    recipe=recipe,
                    goal=goal,
                    name=name,
                    points=tuple(points),
                    zeros=zeros,
                    exponent=exponent,
                    exponent_interval=interval,
                )
            )
    return found


def _numbers(params: Mapping[str, Value]) -> dict[str, float]:
    numbers = {
        name: float(value)
        for name, value in params.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }
    # The decay of a moving average acts by its distance from 1.
    for name in [name for name in numbers if name in DECAYS and numbers[name] < 1]:
        numbers[f"1 - {name}"] = 1 - numbers.pop(name)
    if "learning_rate" in numbers and "1 - momentum" in numbers:
        numbers[EFFECTIVE] = numbers["learning_rate"] / numbers["1 - momentum"]
    return {name: value for name, value in numbers.items() if value > 0}


def _power(points: Sequence[tuple[int, float]]) -> tuple[float | None, tuple[float, float] | None]:
    """The slope of log value against log batch size, and its interval."""
    if len(points) < ENOUGH_SIZES:
        return None, None
    sizes, values = np.log2(np.array(points, dtype=np.float64)).T
    (slope, _), covariance = np.polyfit(sizes, values, 1, cov=True)
    reach = float(np.sqrt(covariance[0, 0])) * reach_of(len(points) - 2)
    return float(slope), (slope - reach, slope + reach)


@dataclass(frozen=True, kw_only=True)
class OptionPoint:
    """The results of the trials with one option of a metaparameter at one batch size."""

    option: Value
    batch_size: int
    steps: int | None
    """Fewest steps to the goal. None if none reached it or one ended early might have sooner."""
    best: float | None
    """Best value of the goal's metric. None if trials were ended early or nothing was measured."""


def by_option(study: Study, outcomes: pa.Table, name: str, goal: Goal) -> list[OptionPoint]:
    """A point for each option, from the outcomes of the study's trials."""
    column = column_of(name)
    rows = [row for row in outcomes.to_pylist() if row["counted"] and row.get(column) is not None]
    better = max if goal.direction == ">" else min
    found = []
    for option in dict.fromkeys(row[column] for row in rows):
        of_option = [row for row in rows if row[column] == option]
        reached = [r["steps_to_goal"] for r in of_option if r["steps_to_goal"] is not None]
        steps = min(reached, default=math.inf)
        upcoming = [next_possible(study, r) for r in of_option if r["steps_to_goal"] is None]
        sooner = any(step is not None and step <= steps for step in upcoming)
        ended_early = any(next_possible(study, r) is not None for r in of_option)
        values = [r["best"] for r in of_option if math.isfinite(r["best"])]
        found.append(
            OptionPoint(
                option=option,
                batch_size=study.batch_size,
                steps=None if sooner or not reached else min(reached),
                best=better(values) if values and not ended_early else None,
            )
        )
    return found
