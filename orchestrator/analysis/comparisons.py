"""Workloads to compare, curves on one scale, and which of two recipes scales further."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.analysis.curve import ratio_of_draws
from orchestrator.analysis.estimates import Estimate, Floats
from orchestrator.analysis.points import Point, trained_points
from orchestrator.analysis.scaling import CRITICAL_TOLERANCE, Scaling
from orchestrator.results import FrontierRow


@dataclass(frozen=True, kw_only=True)
class Group:
    """Workloads that differ in one thing."""

    by: str
    """What differs: "model", "data set", or "version" for the options of a workload, such as the
    share of a data set to train on."""
    of: str
    """The part of the name that the workloads share."""
    members: tuple[tuple[str, str], ...]
    """(the part that differs, workload) for each workload."""


def groups_of(workloads: Iterable[str]) -> list[Group]:
    """The groups of at least two workloads. A workload's name is DATA SET/MODEL?OPTIONS."""
    parts, found = {}, []
    for name in workloads:
        path, _, options = name.partition("?")
        data, _, model = path.rpartition("/")
        parts[name] = data, model, options
    for place, by in ((1, "model"), (0, "data set"), (2, "version")):
        alike: dict[tuple[str, ...], list[tuple[str, str]]] = {}
        for name, part in parts.items():
            shared = tuple(text for n, text in enumerate(part) if n != place)
            alike.setdefault(shared, []).append((part[place] or "all of it", name))
        found += [
            Group(by=by, of=", ".join(filter(None, shared)), members=tuple(members))
            for shared, members in alike.items()
            if len(members) > 1
        ]
    return found


def relative(
    rows: Sequence[FrontierRow], at: int | None
) -> tuple[int, list[tuple[Point, float]]] | None:
    """(reference batch size, points with their steps relative to those there) of one curve, at `at`
    or the smallest batch size that reached the goal. None if the goal was not reached there."""
    reached = trained_points(rows)
    unit = next((point for point in reached if at in (None, point.batch_size)), None)
    if unit is None:
        return None
    return unit.batch_size, [(point, point.steps / unit.steps) for point in reached]


def shared_size(curves: Iterable[Sequence[FrontierRow]]) -> int | None:
    """The smallest batch size at which all curves that have points reached their goals."""
    sizes = [{point.batch_size for point in trained_points(rows)} for rows in curves]
    return min(set.intersection(*filter(None, sizes)), default=None) if any(sizes) else None


def compared_with(one: Scaling, other: Scaling) -> tuple[Estimate, Estimate]:
    """Two ratios of a recipe to another one: of the batch sizes that take a fifth more examples,
    and of the fewest steps of any tested batch size."""
    assert one.curves is not None
    assert other.curves is not None
    fifths = (2 ** each.log_within(CRITICAL_TOLERANCE) for each in (one.curves, other.curves))
    return ratio_of_draws(*fifths), ratio_of_draws(_fewest(one), _fewest(other))


def fewest_steps(one: Scaling) -> float:
    """The fewest steps of any tested batch size, in the median of all curves."""
    return float(np.median(_fewest(one)))


def _fewest(one: Scaling) -> Floats:
    assert one.curves is not None
    fewest: Floats = 2 ** one.curves.log_steps(one.curves.places).min(axis=1)
    return fewest
