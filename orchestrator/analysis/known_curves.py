"""The curves of a frontier as `next_trials` looks at them: each point with its variances."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from orchestrator.analysis.known_points import (
    KnownCurve,
    KnownPoint,
    curve_of,
    finite_variance,
    of_median,
    seed_variances,
)
from orchestrator.analysis.points import Point, curves_of, points_of
from orchestrator.analysis.scaling import scalings
from orchestrator.records import ENOUGH_SIZES, Range, Space, Study, StudyKey, near_bounds
from orchestrator.results import FrontierRow
from orchestrator.search import DESIGNS

Leaders = Mapping[tuple[StudyKey, str], Sequence[tuple[int, int]]]
"""(study, goal) -> (steps, trial) of its best trials, in order, as far as they are known."""


def known_curves(
    rows: Sequence[FrontierRow], studies: Mapping[StudyKey, Study], leaders: Leaders
) -> list[KnownCurve]:
    """Those of enough batch sizes that are not flat. Where another law than the hyperbola holds, or
    none, the hyperbola still says about where the curve bends, and how surely."""
    flat = {
        (scaling.workload, scaling.recipe, scaling.goal)
        for scaling in scalings(rows)
        if scaling.is_flat
    }
    found = []
    for names, curve in curves_of(rows).items():
        points = [point for point in points_of(curve) if point.tells]
        if len(points) >= ENOUGH_SIZES and names not in flat:
            found.append(
                curve_of(*names, _known(points, studies, leaders), _alike(points, leaders))
            )
    return found


def deciding_sizes(rows: Sequence[FrontierRow]) -> list[int]:
    """The batch sizes that would tell apart the laws between which curves are undecided."""
    laws = [scaling.law for scaling in scalings(rows) if not scaling.is_flat]
    sizes = [law.deciding_size for law in laws if law is not None]
    return list(dict.fromkeys(size for size in sizes if size is not None))


def beyond_end(study: Study, winner: Mapping[str, object]) -> int:
    """How many trials `extend` adds where the winner lies near an end of its range; 0 if it lies
    elsewhere, or if the study was widened already."""
    if study.search.algorithm not in DESIGNS or study.search.extend:
        return 0
    space: Space = study.space
    volume = 1.0
    for name, side in near_bounds(space, winner):  # type: ignore[arg-type]
        entry = space[name]
        assert isinstance(entry, Range)
        if (wide := entry.widened(side)) is not None:
            volume *= entry.fraction(wide.high) - entry.fraction(wide.low)
    return math.ceil(study.trials * (volume - 1) - 1e-9)


def _known(
    points: Sequence[Point], studies: Mapping[StudyKey, Study], leaders: Leaders
) -> list[KnownPoint]:
    seeds = seed_variances([point.row.repeats if point.is_median else None for point in points])
    return [
        KnownPoint(
            batch_size=point.batch_size,
            log2_steps=math.log2(point.steps),
            rounding=math.log2(point.steps / max(point.steps - point.resolution, 1)) ** 2 / 12,
            seeds=variance,
            finite=finite_variance(
                [steps for steps, _ in leaders.get((point.row.key, point.row.goal), ())],
                point.row.trials_used,
                variance / of_median(study.repeats) if variance else 0.0,
            ),
            trials=study.trials,
            repeats=study.repeats if point.is_median else 0,
            beyond=beyond_end(study, point.row.params or {}),
        )
        for point, variance in zip(points, seeds, strict=True)
        for study in [studies[point.row.key]]
    ]


def _alike(points: Sequence[Point], leaders: Leaders) -> float:
    """The correlation of batch sizes one doubling apart, from the share of best trials that
    neighbours have in common."""
    ordered = sorted(points, key=lambda point: point.batch_size)
    best = [{trial for _, trial in leaders.get((p.row.key, p.row.goal), ())} for p in ordered]
    shares = [
        (len(mine & other) / min(len(mine), len(other))) ** (1 / math.log2(large / small))
        for (mine, other), (small, large) in zip(
            pairwise(best), pairwise(point.batch_size for point in ordered), strict=True
        )
        if mine and other
    ]
    return sum(shares) / len(shares) if shares else 0.0
