"""Decides the answer of each study: the median of its winner's repeats, or the winner's steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.records import Value, grouped
from orchestrator.results import FrontierRow
from orchestrator.results.repeats import WinnerRepeats

ENOUGH_STEPS = 10
"""Smallest number of steps from which conclusions are drawn. With fewer, the answer may be wrong by
a tenth or more, depending on where between two steps the goal was passed, so it is only drawn."""


Names = tuple[str, str, str]
"""Workload, recipe and goal of a curve."""


@dataclass(frozen=True, kw_only=True)
class OfCurve:
    """Something that was found of one curve."""

    workload: str
    recipe: str
    goal: str

    @property
    def names(self) -> Names:
        return self.workload, self.recipe, self.goal

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """The steps to goal of one study, as used in tables, figures, fits, comparisons and advice.

    The winner of N trials was lucky, so its steps are too few by an unknown amount. The median of
    its repeats has no such bias. A curve never mixes the two."""

    row: FrontierRow
    steps: float
    resolution: int
    """Steps since the previous measurement; the goal was passed between the two."""
    again: WinnerRepeats | None = None
    """The repeats whose median it is; None for the fewest steps of any trial."""

    @property
    def is_median(self) -> bool:
        return self.again is not None

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
    def params(self) -> Mapping[str, Value]:
        chosen = self.row.answering[1] if self.is_median else self.row.params
        return chosen or {}

    @property
    def tells(self) -> bool:
        """Whether conclusions may be drawn from this point."""
        return self.row.finished and self.steps >= ENOUGH_STEPS


def curves_of(rows: Sequence[FrontierRow]) -> dict[Names, list[FrontierRow]]:
    """Maps the names of each curve to its rows of a frontier, from the smallest batch size up. Rows
    of trainings with a schedule of batch sizes are left out."""
    curves = grouped(without_growing(rows), lambda row: (row.workload, row.recipe, row.goal))
    return {names: sorted(curve, key=lambda row: row.batch_size) for names, curve in curves.items()}


def without_growing(rows: Iterable[FrontierRow]) -> list[FrontierRow]:
    """The rows of studies with a constant batch size."""
    return [row for row in rows if row.batch_schedule is None]


def points_of(rows: Sequence[FrontierRow]) -> list[CurvePoint]:
    """A point for each row with an answer, in their order. `rows` must hold whole curves: one has
    medians only if all its points that reached the goal have repeats."""
    in_medians = {names: has_medians(curve) for names, curve in curves_of(rows).items()}
    points = (
        _point(row, of_medians=in_medians[row.workload, row.recipe, row.goal])
        for row in without_growing(rows)
    )
    return [point for point in points if point is not None]


def _point(row: FrontierRow, *, of_medians: bool) -> CurvePoint | None:
    again = row.repeats if of_medians else None
    if row.censored:
        return None
    if again is not None and again.median is not None:
        return CurvePoint(row=row, steps=again.median, resolution=again.resolution, again=again)
    if of_medians or row.steps is None:
        return None
    return CurvePoint(row=row, steps=row.steps, resolution=row.resolution or 0)


def has_medians(curve: Sequence[FrontierRow]) -> bool:
    """Whether points of a curve reached the goal and all of these have repeats."""
    known = [row for row in curve if not row.censored]
    return any(row.repeats for row in known) and all(row.repeats for row in known if row.reached)


def beside_minima(curves: Mapping[str, Sequence[FrontierRow]]) -> str:
    """A sentence if these curves, by name, are some of medians and some of minima, else empty."""
    minima = [name for name, rows in curves.items() if not has_medians(rows) and points_of(rows)]
    if not minima or not any(map(has_medians, curves.values())):
        return ""
    return (
        f" Some curves show medians of repeats, but the curves of {', '.join(minima)} show minima "
        f"over trials, which are too low because the best trial was lucky."
    )


def trained_points(rows: Sequence[FrontierRow]) -> list[CurvePoint]:
    """The points that took at least one step, from the smallest batch size up. A goal that was
    passed before the first step costs nothing, and 0 steps have no logarithm."""
    found = [point for point in points_of(rows) if point.steps]
    return sorted(found, key=lambda point: point.batch_size)
