"""How much first passage flatters a curve: whether goals are lost again after they were passed, and
the answer with a goal that holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from orchestrator.analysis.points import curves_of
from orchestrator.analysis.scaling import Scaling, scalings
from orchestrator.analysis.words import headline, listed
from orchestrator.records import Goal
from orchestrator.results import FrontierRow


@dataclass(frozen=True, kw_only=True)
class Holding:
    """What the repeats of one curve tell that trained on after their goal. Their points were
    searched for the first passage; a search with the goal that holds may find others."""

    rows: tuple[FrontierRow, ...]
    """The rows with such repeats, from the smallest batch size up."""
    first: Scaling
    """The answer with the first passage, which is the curve's."""

    @cached_property
    def rows_held(self) -> list[FrontierRow]:
        """The rows with the goal that holds in place of the first passage, which no trial won."""
        goal = str(Goal.parse(self.first.goal).held)
        return [
            replace(row, goal=goal, trial=None, repeats=row.repeats and row.repeats.held)
            for row in self.rows
        ]

    @cached_property
    def held(self) -> Scaling:
        return scalings(self.rows_held)[0]

    @property
    def lost(self) -> tuple[int, int]:
        """How many repeats lost the goal again, of how many that had reached it."""
        found = [row.repeats for row in self.rows if row.repeats is not None]
        return sum(one.lost or 0 for one in found), sum(one.reached for one in found)

    @property
    def not_held(self) -> list[int]:
        """The batch sizes at which, in the median, the goal did not hold in time."""
        return [
            row.batch_size for row in self.rows_held if row.repeats and row.repeats.median is None
        ]

    @property
    def differs(self) -> bool:
        """Whether an answer of one goal lies outside the interval of the other, and vice versa."""
        first, held = self.first, self.held
        return any(
            a is not None and b is not None and not (b.holds(a.value) or a.holds(b.value))
            for a, b in (
                (first.fifth_more, held.fifth_more),
                (first.critical_batch_size, held.critical_batch_size),
            )
        )

    def to_json(self) -> dict[str, Any]:
        lost, reached = self.lost
        return {
            "lost": lost,
            "reached": reached,
            "not_held": self.not_held,
            "held": self.held.to_json(),
        }


def holdings(rows: Sequence[FrontierRow], known: Sequence[Scaling]) -> list[Holding]:
    """What is known of each curve, given its scaling, whose repeats stayed."""
    stayed = curves_of([row for row in rows if row.repeats is not None and row.repeats.held])
    return [
        Holding(rows=tuple(stayed[one.names]), first=one) for one in known if one.names in stayed
    ]


def holding_in_words(one: Holding) -> str:
    """Says how often the goal was lost, and the answer with a goal that holds."""
    lost, reached = one.lost
    said = f"{lost} of {reached} repeats lost the goal again"
    if not lost:
        return f"{one.first.recipe}: {said}."
    held = Goal.parse(one.held.goal)
    said += f". With a goal that holds for {held.measurements} measurements, "
    said += headline(one.held).removeprefix(f"{one.first.recipe}: ").rstrip(".")
    if one.not_held:
        sizes = listed([f"{size:,}" for size in one.not_held])
        plural = "s" * (len(one.not_held) > 1)
        said += f"; without batch size{plural} {sizes}, where it did not hold in time in the median"
    return f"{one.first.recipe}: {said}."
