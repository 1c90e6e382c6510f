"""What the best metaparameters do as the batch grows, and how they relate to the usual rules."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from scipy.special import stdtrit

from orchestrator.analysis.hyperbola import CONFIDENCE
from orchestrator.analysis.points import ENOUGH_STEPS, curves_of
from orchestrator.records import ENOUGH_SIZES, Goal, Study, Value
from orchestrator.results import FrontierRow, column_of
from orchestrator.results.counting import stopped_early

EFFECTIVE = "effective learning rate"
"""The learning rate over 1 - momentum: what a gradient moves the weights by in the end."""

DECAYS = ("momentum", "beta1", "beta2", "decay_rate")


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The best values of one metaparameter for one workload, recipe and goal."""

    workload: str
    recipe: str
    goal: str
    name: str
    points: tuple[tuple[int, float], ...]
    """(batch size, value), from the smallest batch size up; without those where it is 0."""
    zeros: int
    """How many those are."""
    exponent: float | None
    """Of the power of the batch size that it follows: 1 is the linear rule, 0.5 the square root.
    None where too few points tell."""
    exponent_interval: tuple[float, float] | None
    """90 %, by the scatter about that power."""

    @property
    def is_rate(self) -> bool:
        """Whether the usual rules are about it."""
        return self.name in ("learning_rate", EFFECTIVE)

    def rule(self, exponent: float) -> tuple[tuple[int, float], ...]:
        """What a rule would make of the first point."""
        first, value = self.points[0]
        return tuple((size, value * (size / first) ** exponent) for size, _ in self.points)


def tuned(rows: Sequence[FrontierRow]) -> list[Tuned]:
    """For each workload, recipe and goal: every metaparameter that was searched and is a positive
    number, the effective learning rate first."""
    known = [row for row in rows if row.params is not None and not row.censored]
    found = []
    for (workload, recipe, goal), curve in curves_of(known).items():
        values = [_numbers(row.params or {}) for row in curve]
        names = dict.fromkeys(name for some in values for name in some)
        sure = {
            row.batch_size for row in curve if row.finished and (row.steps or 0) >= ENOUGH_STEPS
        }
        for name in sorted(names, key=lambda name: name != EFFECTIVE):
            points = tuple(
                (row.batch_size, some[name])
                for row, some in zip(curve, values, strict=True)
                if name in some
            )
            if len({value for _, value in points}) < 2:
                continue
            zeros = sum((row.params or {}).get(name) == 0 for row in curve)
            telling = [] if zeros else [point for point in points if point[0] in sure]
            exponent, interval = _power(telling)
            found.append(
                Tuned(
                    workload=workload,
                    recipe=recipe,
                    goal=goal,
                    name=name,
                    points=points,
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
    # What matters of an average's decay is how far below one it is.
    for name in [name for name in numbers if name in DECAYS and numbers[name] < 1]:
        numbers[f"1 - {name}"] = 1 - numbers.pop(name)
    if "learning_rate" in numbers and "1 - momentum" in numbers:
        numbers[EFFECTIVE] = numbers["learning_rate"] / numbers["1 - momentum"]
    return {name: value for name, value in numbers.items() if value > 0}


def _power(
    points: Sequence[tuple[int, float]],
) -> tuple[float | None, tuple[float, float] | None]:
    """The slope of log value against log batch size, and its interval."""
    if len(points) < ENOUGH_SIZES:
        return None, None
    sizes, values = (
        np.log2(np.array(column, dtype=np.float64)) for column in zip(*points, strict=True)
    )
    spread = ((sizes - sizes.mean()) ** 2).sum()
    slope = float(((sizes - sizes.mean()) * (values - values.mean())).sum() / spread)
    freedom = len(points) - 2
    off = values - values.mean() - slope * (sizes - sizes.mean())
    error = np.sqrt((off**2).sum() / freedom / spread)
    reach = float(error * stdtrit(freedom, (1 + CONFIDENCE) / 2))
    return slope, (slope - reach, slope + reach)


@dataclass(frozen=True, kw_only=True)
class OptionPoint:
    """What the trials with one option of a metaparameter came to at one batch size."""

    option: Value
    batch_size: int
    steps: int | None
    """The fewest to the goal; None where none reached it, or one that was ended early could have
    done so sooner."""
    best: float | None
    """The best of the goal's metric; None where trials were ended early, or nothing was measured.
    """


def by_option(study: Study, outcomes: pa.Table, name: str, goal: Goal) -> list[OptionPoint]:
    """A point for each option, from the outcomes of the study's trials."""
    column = column_of(name)
    rows = [row for row in outcomes.to_pylist() if row["counted"] and row.get(column) is not None]
    better = max if goal.direction == ">" else min
    found = []
    for option in dict.fromkeys(row[column] for row in rows):
        mine = [row for row in rows if row[column] == option]
        steps = min(
            (r["steps_to_goal"] for r in mine if r["steps_to_goal"] is not None), default=None
        )
        cut = [r for r in mine if stopped_early(study, r)]
        upcoming = [study.following(r["steps"]) for r in cut if r["steps_to_goal"] is None]
        values = [r["best"] for r in mine if math.isfinite(r["best"])]
        sooner = any(steps is None or step <= steps for step in upcoming)
        found.append(
            OptionPoint(
                option=option,
                batch_size=study.batch_size,
                steps=None if sooner else steps,
                best=better(values) if values and not cut else None,
            )
        )
    return found
