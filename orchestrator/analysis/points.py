"""What each study's answer is taken to be: the median of its winner's repeats, or the winner."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.results import FrontierRow

ENOUGH_STEPS = 10
"""A winner of fewer is off by a tenth or more, wherever it passed the goal: it is drawn, and
no more."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """The steps to goal of one study that are headlined, drawn, fitted, compared and recommended.

    The winner of N trials was lucky, so its own steps are too few by an unknown amount. The median
    of its repeats is free of that. A curve never mixes the two."""

    row: FrontierRow
    steps: float
    is_median: bool
    low: int | None = None
    high: int | None = None
    """Of a median: where the true one lies with `confidence`; None above: perhaps never."""
    confidence: float | None = None
    resolution: int
    """Steps since the measurement before: the goal was passed somewhere in between."""

    @property
    def recipe(self) -> str:
        return self.row.recipe

    @property
    def batch_size(self) -> int:
        return self.row.batch_size

    @property
    def examples(self) -> float:
        return self.steps * self.batch_size

    @property
    def tells(self) -> bool:
        """Whether anything may be concluded from it."""
        return self.row.finished and self.steps >= ENOUGH_STEPS


def curves_of(rows: Sequence[FrontierRow]) -> dict[tuple[str, str, str], list[FrontierRow]]:
    """(workload, recipe, goal) -> the rows of a frontier, from the smallest batch size up. Those of
    trainings whose batches grow have no place there."""
    curves: dict[tuple[str, str, str], list[FrontierRow]] = {}
    for row in without_growing(rows):
        curves.setdefault((row.workload, row.recipe, row.goal), []).append(row)
    return {names: sorted(curve, key=lambda row: row.batch_size) for names, curve in curves.items()}


def without_growing(rows: Iterable[FrontierRow]) -> list[FrontierRow]:
    """The rows of one batch size each."""
    return [row for row in rows if row.batch_schedule is None]


def points_of(rows: Sequence[FrontierRow]) -> list[Point]:
    """One for each row that has an answer, in their order; `rows` holds whole curves. A curve has
    medians only if all its points that reached the goal have repeats."""
    in_medians = {names: has_medians(curve) for names, curve in curves_of(rows).items()}
    points = (
        _median(row) if in_medians[row.workload, row.recipe, row.goal] else _minimum(row)
        for row in without_growing(rows)
    )
    return [point for point in points if point is not None]


def has_medians(curve: Sequence[FrontierRow]) -> bool:
    """Whether all points of a curve that reached the goal have repeats, and any has."""
    known = [row for row in curve if not row.censored]
    return any(row.repeats for row in known) and all(row.repeats for row in known if row.reached)


def beside_minima(curves: Mapping[str, Sequence[FrontierRow]]) -> str:
    """What is to be said where some curves are of medians and others are not; by their names."""
    minima = [name for name, rows in curves.items() if not has_medians(rows) and points_of(rows)]
    if not minima or not any(map(has_medians, curves.values())):
        return ""
    return (
        f" Medians of repeats stand beside minima over trials, which are lucky: those of "
        f"{', '.join(minima)}."
    )


def _minimum(row: FrontierRow) -> Point | None:
    if row.steps is None or row.censored:
        return None
    return Point(row=row, steps=row.steps, is_median=False, resolution=row.resolution or 0)


def _median(row: FrontierRow) -> Point | None:
    again = row.repeats
    if again is None or again.median is None or row.censored:
        return None
    return Point(
        row=row,
        steps=again.median,
        is_median=True,
        low=again.low,
        high=again.high,
        confidence=again.confidence,
        resolution=again.resolution,
    )


def trained_points(rows: Sequence[FrontierRow]) -> list[Point]:
    """Those that took training, from the smallest batch size up: a goal that was passed before the
    first step has no logarithm, and costs nothing."""
    found = [point for point in points_of(rows) if point.steps]
    return sorted(found, key=lambda point: point.batch_size)
