"""Prepares the curves of a frontier for `next_trials`: each point with its variances."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from orchestrator.analysis.enough import enough_trials, variance_of_median
from orchestrator.analysis.hyperbola import rounding_variance
from orchestrator.analysis.known_points import KnownCurve, KnownPoint, curve_of
from orchestrator.analysis.points import Point, curves_of, points_of
from orchestrator.analysis.scaling import Scaling
from orchestrator.records import ENOUGH_SIZES, Range, Space, Study, StudyKey, near_bounds
from orchestrator.results import FrontierRow
from orchestrator.results.repeats import Repeats

OWN_WEIGHT = 4
"""The pooled scatter over all batch sizes of the curve counts as much as this many repeats at the
batch size itself, because the spread of five numbers is a poor estimate."""


def known_curves(
    rows: Sequence[FrontierRow], studies: Mapping[StudyKey, Study], found: Sequence[Scaling]
) -> list[KnownCurve]:
    """Returns the curves that have enough batch sizes and are not flat, according to `found`. Where
    another law than the hyperbola holds, or none, the hyperbola still shows about where the curve
    bends, and how certain that is."""
    flat = {(one.workload, one.recipe, one.goal) for one in found if one.is_flat}
    known = []
    for names, curve in curves_of(rows).items():
        points = [point for point in points_of(curve) if point.tells]
        if len(points) >= ENOUGH_SIZES and names not in flat:
            luck = enough_trials(points)[1].luck
            known.append(curve_of(*names, _known(points, studies, luck), _alike(points, luck)))
    return known


def deciding_sizes(found: Sequence[Scaling]) -> list[int]:
    """Returns the batch sizes that would decide between the laws of undecided curves."""
    laws = [scaling.law for scaling in found if not scaling.is_flat]
    sizes = [law.deciding_size for law in laws if law is not None]
    return list(dict.fromkeys(size for size in sizes if size is not None))


def own_seed_variances(repeats: Sequence[Repeats | None]) -> list[float]:
    """Returns the variance of log2 of the median of each of these repeats; 0 without repeats. It
    averages the scatter of the repeats at this batch size and the scatter at all batch sizes: an
    interval concerns all of them together, but advice must show where more repeats help most."""
    logs = [np.log2(np.maximum(again.steps, 1)) if again else np.zeros(0) for again in repeats]
    squares = [float(((some - some.mean()) ** 2).sum()) if len(some) else 0.0 for some in logs]
    freedom = [max(len(some) - 1, 0) for some in logs]
    typical = sum(squares) / max(sum(freedom), 1)
    return [
        0.0
        if again is None
        else (OWN_WEIGHT * typical + own) / (OWN_WEIGHT + free) * variance_of_median(again.count)
        for again, own, free in zip(repeats, squares, freedom, strict=True)
    ]


def beyond_end(study: Study, winner: Mapping[str, object]) -> int:
    """Returns how many trials `extend` adds where the winner lies near an end of its range; 0 if it
    lies elsewhere, or if the study was widened already."""
    if not study.search.is_even_sample:
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
    points: Sequence[Point],
    studies: Mapping[StudyKey, Study],
    luck: NDArray[np.float64] | None,
) -> list[KnownPoint]:
    steps = np.array([point.steps for point in points])
    rounding = rounding_variance(steps, np.array([point.resolution for point in points]))
    seeds = own_seed_variances([point.row.repeats if point.is_median else None for point in points])
    finite = [0.0] * len(points) if luck is None else np.diag(luck).tolist()
    return [
        KnownPoint(
            batch_size=point.batch_size,
            log2_steps=math.log2(point.steps),
            rounding=of_resolution,
            seeds=of_seeds,
            finite=of_trials,
            trials=study.trials,
            repeats=study.repeats if point.is_median else 0,
            repeated=study.repeat_best,
            beyond=beyond_end(study, point.row.params or {}),
        )
        for point, of_resolution, of_seeds, of_trials in zip(
            points, rounding.tolist(), seeds, finite, strict=True
        )
        for study in [studies[point.row.key]]
    ]


def _alike(points: Sequence[Point], luck: NDArray[np.float64] | None) -> float:
    """Returns the correlation of the errors from few trials at two batch sizes one doubling apart,
    estimated from neighbours."""
    if luck is None:
        return 0.0
    off = np.sqrt(np.maximum(np.diag(luck), 1e-300))
    of_neighbours = np.clip(np.diag(luck / np.outer(off, off), 1), 0, 1)
    doublings = np.diff([math.log2(point.batch_size) for point in points])
    return float((of_neighbours ** (1 / doublings)).mean())
