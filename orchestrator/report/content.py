"""The content of a report: the answers, and the data of each figure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from orchestrator.analysis.cost import Advice, Cost, Device, advice, costs
from orchestrator.analysis.forecasts import Comparison, Forecast, compared
from orchestrator.analysis.holding import Holding, holdings
from orchestrator.analysis.points import points_of
from orchestrator.analysis.quality import Gap, gaps
from orchestrator.analysis.scaling import Scaling, scalings
from orchestrator.analysis.tuned import RuleCost
from orchestrator.analysis.words import in_count
from orchestrator.records import Goal, grouped
from orchestrator.results import BestRow, FrontierRow


@dataclass(frozen=True, kw_only=True)
class Curve:
    recipe: str
    batch_size: int
    trial: int
    steps: Sequence[int]
    values: Sequence[float]
    trained: float | None = None
    """If these are ends of cooldowns: steps that the trial trained, over those of its answer."""


@dataclass(frozen=True, kw_only=True)
class Tried:
    """How the trials of a recipe are drawn by two of its metaparameters."""

    x: str
    y: str
    y_from_one: bool
    """Whether 1 - y, not y, was searched evenly."""
    linear: Collection[str] = ()
    """Those of the two that were searched on a linear scale."""
    sizes: Sequence[int]
    """The batch sizes that are shown, at which both are numbers."""


@dataclass(frozen=True, kw_only=True)
class Listed:
    rows: Sequence[Mapping[str, Any]]
    """Batch size, trial, status, steps, steps to goal, best value and metaparameters, from the
    smallest batch size up and by steps to goal."""
    counts: Mapping[int, tuple[int, int]]
    """Batch size -> how many of all its trials reached the goal, and how many there are."""

    @property
    def reached(self) -> int:
        return sum(those for those, _ in self.counts.values())

    @property
    def total(self) -> int:
        return sum(count for _, count in self.counts.values())


@dataclass(frozen=True, kw_only=True)
class Panel:
    """All that the report shows of one workload and goal."""

    workload: str
    goal: Goal
    rows: Sequence[FrontierRow]
    growing: Sequence[FrontierRow] = ()
    """Frontier rows of trainings whose batch size grows; they belong to no curve."""
    detailed: Collection[str] | None = None
    """The recipes that figures show, if they do not show all."""
    price: float | None = None
    """Price of one device-hour."""
    devices: Mapping[str, Device] = field(default_factory=dict)
    """Recipe -> the step times of its devices, where they were measured."""
    doubts: Sequence[str] = ()
    """Which step times are not used, and why."""
    is_program: bool = False
    """Whether trials are trained by a program of the user."""
    is_imported: bool = False
    """Whether trials were trained elsewhere, by other rules than those of a sweep."""
    curves: Mapping[str, Sequence[Curve]] = field(default_factory=dict)
    """Recipe -> the goal's metric of the best trial of each batch size."""
    tried: Mapping[str, Tried] = field(default_factory=dict)
    """Recipe -> all trials, where two metaparameters were searched."""
    fixed: Mapping[str, Collection[str]] = field(default_factory=dict)
    """Recipe -> its metaparameters that were not searched in a range: options, rules and values."""
    listed: Mapping[str, Listed] = field(default_factory=dict)
    quality: Mapping[str, Sequence[BestRow]] = field(default_factory=dict)
    """Recipe -> the best value of the goal's metric within several budgets."""
    forecasts: Sequence[Forecast] = ()
    rules: Sequence[RuleCost] = ()

    @property
    def recipes(self) -> list[str]:
        return list(dict.fromkeys(row.recipe for row in self.rows))

    @cached_property
    def drawn(self) -> Panel:
        """The panel with only the recipes that figures show."""
        if self.detailed is None:
            return self
        rows = [row for row in self.rows if row.recipe in self.detailed]
        return replace(self, rows=rows, detailed=None)

    @cached_property
    def scalings(self) -> list[Scaling]:
        return scalings(self.rows)

    @cached_property
    def holdings(self) -> list[Holding]:
        return holdings(self.rows, self.scalings)

    @cached_property
    def comparisons(self) -> list[Comparison]:
        return [*compared(self.forecasts, self.scalings)]

    @cached_property
    def costs(self) -> list[Cost]:
        return costs(self.rows, self.devices, self.price)

    @property
    def advice(self) -> Advice | None:
        return advice(self.costs)

    @property
    def advice_by_recipe(self) -> dict[str, Advice]:
        by_recipe = grouped(self.costs, lambda cost: cost.recipe)
        found = {recipe: advice(mine) for recipe, mine in by_recipe.items()}
        return {recipe: one for recipe, one in found.items() if one is not None}

    @property
    def fewest_steps(self) -> dict[str, float]:
        points = grouped(points_of(self.rows), lambda point: point.recipe)
        return {recipe: min(point.steps for point in mine) for recipe, mine in points.items()}

    @property
    def least(self) -> str:
        if not self.costs:
            if any(row.steps_answered == 0 for row in self.rows):
                return "The goal was passed before the first step."
            if any(row.censored for row in self.rows):
                return "Not known: trials were ended before they could reach this goal."
            if not all(row.finished for row in self.rows):
                return "The goal was not reached yet: studies have not finished."
            return "The goal was never reached."
        steps = min(self.costs, key=lambda cost: cost.steps)
        examples = min(self.costs, key=lambda cost: cost.examples)
        return (
            f"Fewest steps: {steps.recipe}, {in_count(steps.steps)} at batch size "
            f"{steps.batch_size:,}. Fewest examples: {examples.recipe}, "
            f"{in_count(examples.examples)} at {examples.batch_size:,}."
        )

    @cached_property
    def bests(self) -> list[BestRow]:
        """The best value of each study within its recipe's whole budget, where it is known."""
        return [
            row
            for rows in self.quality.values()
            for row in rows
            if row.within == rows[-1].within and not any(one.censored for one in rows)
        ]

    @property
    def gaps(self) -> list[Gap]:
        """The gaps of the best values or, if none is known, of the winners at the goal."""
        return gaps(self.bests or self.rows, self.goal)
