"""Finds workloads that can be compared, and brings curves to one scale."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orchestrator.analysis.points import Point, trained_points
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
    parts = {name: _parts(name) for name in workloads}
    found = []
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


def _parts(workload: str) -> tuple[str, str, str]:
    name, _, options = workload.partition("?")
    data, _, model = name.rpartition("/")
    return data, model, options


def relative(
    rows: Sequence[FrontierRow], at: int | None
) -> tuple[int, list[tuple[Point, float]]] | None:
    """(reference batch size, points with their steps relative to the reference) of one curve. The
    reference is `at`, or the smallest batch size that reached the goal. None if the goal was not
    reached there."""
    reached = trained_points(rows)
    unit = next((point for point in reached if at in (None, point.batch_size)), None)
    if unit is None:
        return None
    return unit.batch_size, [(point, point.steps / unit.steps) for point in reached]


def shared_size(curves: Iterable[Sequence[FrontierRow]]) -> int | None:
    """The smallest batch size at which all curves that have points reached their goals."""
    sizes = [{point.batch_size for point in trained_points(rows)} for rows in curves]
    return min(set.intersection(*filter(None, sizes)), default=None) if any(sizes) else None
