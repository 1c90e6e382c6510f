"""The errors of the steps of each study of a run, to compare them with those of another run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from orchestrator.analysis.enough import enough_trials
from orchestrator.analysis.estimates import Estimate
from orchestrator.analysis.hyperbola import rounding_variance
from orchestrator.analysis.known_curves import OWN_WEIGHT, own_seed_variances
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
        points = {point.batch_size: point for point in points_of(constant)}
        few = _few_trials([*points.values()], found.get(names))
        seeds = _seeds([*points.values()])
        for row in curve:
            point, size = points.get(row.batch_size), row.batch_size
            sides[names, size] = Side(
                row=row,
                budget=answers.budgets.get(row.key),
                point=point,
                own=() if point is None else (_rounding(point), *seeds.get(size, ())),
                few_trials=few.get(size),
            )
    return found, sides


def _rounding(point: Point) -> Error:
    steps = np.maximum([point.steps], 1)
    return float(rounding_variance(steps, np.array([point.resolution]))[0]), EXACT


def _seeds(points: Sequence[Point]) -> dict[int, tuple[Error]]:
    """The error of each median of repeats. Its variance is partly that of all batch sizes, which
    counts as much as `OWN_WEIGHT` more repeats."""
    repeats = {p.batch_size: p.row.repeats for p in points if p.is_median and p.row.repeats}
    variances = own_seed_variances([*repeats.values()])
    return {
        size: ((variance, OWN_WEIGHT + max(len(again.steps) - 1, 0)),)
        for (size, again), variance in zip(repeats.items(), variances, strict=True)
    }


def _few_trials(points: Sequence[Point], scaling: Scaling | None) -> dict[int, Error]:
    """The error from the small number of trials at each batch size, or the scatter of the points
    about their curve in its place. Empty if neither is known."""
    telling = [point for point in points if point.tells]
    luck = enough_trials(telling)[1].luck
    if luck is not None:
        known = {p.batch_size: found for p, found in zip(telling, np.diag(luck), strict=True)}
        largest = max(known.values())
        return {p.batch_size: (float(known.get(p.batch_size, largest)), EXACT) for p in points}
    if scaling is None or scaling.contributions is None:
        return {}
    scatter = scaling.contributions.scatter**2, len(telling) - 2
    return {point.batch_size: scatter for point in points}
