"""The errors of the steps of each study of a run, to compare them with those of another run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from orchestrator.analysis.errors import OWN_WEIGHT, Errors, errors_of
from orchestrator.analysis.estimates import Estimate
from orchestrator.analysis.points import Point, points_of
from orchestrator.analysis.scaling import Scaling, scalings
from orchestrator.records import StudyKey
from orchestrator.results import FrontierRow

Names = tuple[str, str, str]
"""Workload, recipe and goal of a curve."""

Error = tuple[float, float]
"""A variance of log2 steps, and the number of degrees of freedom from which it was estimated."""

EXACT = 1e9
"""Degrees of freedom of a variance that is not estimated from a few numbers."""


@dataclass(frozen=True, kw_only=True)
class Answers:
    """The frontier of one run, and the budgets of its studies in steps."""

    rows: Sequence[FrontierRow]
    budgets: Mapping[StudyKey, int] = field(default_factory=dict)

    def by_curve(self) -> dict[Names, list[FrontierRow]]:
        """All rows of each curve, also those of studies whose batch size grows."""
        found: dict[Names, list[FrontierRow]] = {}
        for row in self.rows:
            found.setdefault((row.workload, row.recipe, row.goal), []).append(row)
        return found


@dataclass(frozen=True, kw_only=True)
class Side:
    """One study in one run."""

    row: FrontierRow
    budget: int | None
    point: Point | None
    own: tuple[Error, ...] = ()
    """Errors from the seeds of repeats, and from the distance between measurements."""
    few_trials: Error | None = None

    @property
    def steps(self) -> float:
        """Steps to goal. A goal that was passed before the first step counts as one step."""
        return 0 if self.point is None else max(self.point.steps, 1)

    @property
    def earliest(self) -> float:
        """The step of the measurement before; the goal was passed after it."""
        return 0 if self.point is None else max(self.steps - self.point.resolution, 1)

    @property
    def estimate(self) -> Estimate | None:
        point = self.point
        if point is None:
            return None
        if not point.is_median:
            return Estimate(value=point.steps, low=self.earliest, high=point.steps)
        high = math.inf if point.high is None else point.high
        return Estimate(value=point.steps, low=point.low, high=high)


def sides_of(answers: Answers) -> tuple[dict[Names, Scaling], dict[tuple[Names, int], Side]]:
    """The answer of each curve, and each study with its errors."""
    found = {(one.workload, one.recipe, one.goal): one for one in scalings(answers.rows)}
    sides = {}
    for names, curve in answers.by_curve().items():
        # Steps of a study whose batch size grows are compared like any others.
        constant = [replace(row, batch_schedule=None) for row in curve]
        points = points_of(constant)
        errors = errors_of(points)
        own, few = _own(points, errors), _few_trials(points, errors, found.get(names))
        at = {point.batch_size: place for place, point in enumerate(points)}
        for row in curve:
            place = at.get(row.batch_size)
            sides[names, row.batch_size] = Side(
                row=row,
                budget=answers.budgets.get(row.key),
                point=None if place is None else points[place],
                own=() if place is None else own[place],
                few_trials=None if place is None else few[place],
            )
    return found, sides


def _own(points: Sequence[Point], errors: Errors) -> list[tuple[Error, ...]]:
    """The errors of each point from the distance between measurements and from seeds."""
    rounding = [(float(variance), EXACT) for variance in errors.resolution]
    if errors.seeds is None:
        return [(one,) for one in rounding]
    counts = (len(point.row.repeats.steps) if point.row.repeats else 0 for point in points)
    free = (OWN_WEIGHT + max(count - 1, 0) for count in counts)
    seeds = [(float(variance), each) for variance, each in zip(errors.seeds, free, strict=True)]
    return [*zip(rounding, seeds, strict=True)]


def _few_trials(
    points: Sequence[Point], errors: Errors, scaling: Scaling | None
) -> list[Error | None]:
    """The error of each point from the small number of trials, or the scatter of the points about
    their curve in its place; None if neither is known."""
    if errors.few_trials is not None:
        return [(float(variance), EXACT) for variance in np.diag(errors.few_trials)]
    if scaling is None or scaling.contributions is None:
        return [None] * len(points)
    telling = sum(point.tells for point in points)
    return [(scaling.contributions.scatter**2, telling - 2)] * len(points)
