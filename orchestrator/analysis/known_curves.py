"""The curves of a frontier as `next_trials` looks at them: each point with its variances."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from orchestrator.analysis.known_points import KnownCurve, KnownPoint, curve_of, seed_variances
from orchestrator.analysis.points import Point, curves_of, points_of
from orchestrator.records import (
    ENOUGH_SIZES,
    Range,
    Space,
    Study,
    StudyKey,
    near_bounds,
)
from orchestrator.results import FrontierRow
from orchestrator.search import DESIGNS


def known_curves(
    rows: Sequence[FrontierRow], studies: Mapping[StudyKey, Study]
) -> list[KnownCurve]:
    """Those of enough batch sizes for a law to be fitted."""
    found = []
    for names, curve in curves_of(rows).items():
        points = [point for point in points_of(curve) if point.tells]
        if len(points) >= ENOUGH_SIZES:
            found.append(curve_of(*names, _known(points, studies)))
    return found


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


def _known(points: Sequence[Point], studies: Mapping[StudyKey, Study]) -> list[KnownPoint]:
    seeds = seed_variances([point.row.repeats if point.is_median else None for point in points])
    return [
        KnownPoint(
            batch_size=point.batch_size,
            log2_steps=math.log2(point.steps),
            rounding=math.log2(point.steps / max(point.steps - point.resolution, 1)) ** 2 / 12,
            seeds=variance,
            trials=study.trials,
            repeats=study.repeats if point.is_median else 0,
            beyond=beyond_end(study, point.row.params or {}),
        )
        for point, variance in zip(points, seeds, strict=True)
        for study in [studies[point.row.key]]
    ]
