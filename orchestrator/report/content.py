"""What a report shows, gathered from runs: answers, and the data of each figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from orchestrator.analysis import (
    Advice,
    Cost,
    Device,
    Gap,
    Largeness,
    Scaling,
    Tuned,
    advice,
    costs,
    devices_of,
    gaps,
    largeness,
    scalings,
    tuned,
)
from orchestrator.records import BadInput, Baseline, Goal, Study
from orchestrator.report.courses import curves_of_winners, schedules_of
from orchestrator.report.figures import Curve
from orchestrator.report.trials import (
    SIDE_BY_SIDE,
    Grid,
    Options,
    Tried,
    grid_of,
    options_of,
    outcomes,
    tried_of,
)
from orchestrator.results import (
    BestRow,
    FrontierRow,
    Run,
    StepTime,
    Within,
    best_of_studies,
    step_times,
)
from orchestrator.results.counting import Unit

MOST_TRIED = 30_000
"""Trials whose metaparameters are shown in all, the first ones of each study where there are more,
and the best."""

SHARES = (16, 8, 4, 2, 1)
"""Of a budget: what the best within is asked for."""

DISTANCE = "weights/distance"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a person wants to know besides."""

    baseline: Baseline | None = None
    """What a batch size is large or huge beside."""
    price_per_device_hour: float | None = None
    compare_at: int | None = None
    """The batch size that comparisons are relative to; None: the smallest they share."""

    @classmethod
    def of(cls, asked: Mapping[str, Any]) -> Settings:
        """From a sweep file's `report`."""
        given = {name: value for name, value in asked.items() if value is not None}
        if "baseline" in given:
            given["baseline"] = Baseline.parse(str(given["baseline"]))
        return cls(**given)


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One workload and goal."""

    workload: str
    goal: Goal
    rows: Sequence[FrontierRow]
    settings: Settings = Settings()
    devices: Mapping[str, Device] = field(default_factory=dict)
    """Recipe -> what a device does, where step times were measured."""
    curves: Mapping[str, Sequence[Curve]] = field(default_factory=dict)
    """Recipe -> the goal's metric of the best trial of each batch size."""
    distances: Mapping[str, Sequence[Curve]] = field(default_factory=dict)
    """Recipe -> how far its weights went."""
    schedules: Sequence[Curve] = ()
    tried: Mapping[str, Tried] = field(default_factory=dict)
    """Recipe -> every trial, where two metaparameters were searched."""
    grids: Mapping[str, Grid] = field(default_factory=dict)
    options: Mapping[str, Sequence[Options]] = field(default_factory=dict)
    quality: Mapping[str, Sequence[BestRow]] = field(default_factory=dict)
    """Recipe -> the best of the goal's metric within some budgets."""
    largeness: Largeness | str | None = None
    """Or why it isn't known; None where no baseline was given."""

    @property
    def recipes(self) -> list[str]:
        return list(dict.fromkeys(row.recipe for row in self.rows))

    @cached_property
    def scalings(self) -> list[Scaling]:
        return scalings(self.rows)

    @cached_property
    def costs(self) -> list[Cost]:
        return costs(self.rows, self.devices, self.settings.price_per_device_hour)

    @property
    def advice(self) -> Advice | None:
        return advice(self.costs)

    @property
    def advice_by_recipe(self) -> dict[str, Advice]:
        found = {
            recipe: advice([cost for cost in self.costs if cost.recipe == recipe])
            for recipe in self.recipes
        }
        return {recipe: one for recipe, one in found.items() if one is not None}

    @property
    def least(self) -> str:
        """The fewest steps and the fewest examples, in words."""
        if not self.costs:
            if any(row.censored for row in self.rows):
                return "Not known: trials were ended before they could reach this goal."
            return "The goal was never reached."
        steps = min(self.costs, key=lambda cost: cost.steps)
        examples = min(self.costs, key=lambda cost: cost.examples)
        return (
            f"Fewest steps: {steps.recipe}, {steps.steps:,} at batch size {steps.batch_size:,}. "
            f"Fewest examples: {examples.recipe}, {examples.examples:,} at "
            f"{examples.batch_size:,}."
        )

    @property
    def tuned(self) -> list[Tuned]:
        return tuned(self.rows)

    @cached_property
    def bests(self) -> list[BestRow]:
        """The best of each study within its recipe's whole budget, where that is known."""
        return [
            row
            for rows in self.quality.values()
            for row in rows
            if row.within == rows[-1].within and not any(one.censored for one in rows)
        ]

    @property
    def gaps(self) -> list[Gap]:
        """Of these; where none is known, of the winners as they reached the goal."""
        return gaps(self.bests or self.rows, self.goal)


@dataclass(frozen=True, kw_only=True)
class Source:
    """A run, and the frontier that is asked of it."""

    run: Run
    rows: Sequence[FrontierRow]
    label: str = ""
    """What sets its recipes apart from those of other runs on the page."""

    @cached_property
    def studies(self) -> list[Study]:
        return sorted(self.run.studies(), key=lambda study: study.batch_size)

    @cached_property
    def _step_times(self) -> list[StepTime]:
        return step_times(self.run, self.studies)

    def name(self, recipe: str) -> str:
        return f"{self.label}: {recipe}" if self.label else recipe

    def answers(self, settings: Settings) -> list[Panel]:
        """What is known of each workload and goal without looking at single trials."""
        return [
            Panel(
                workload=workload,
                goal=Goal.parse(goal),
                rows=[self._named(row) for row in self._of(workload, goal)],
                settings=settings,
                devices=self._devices(workload),
            )
            for workload, goal in dict.fromkeys((row.workload, row.goal) for row in self.rows)
        ]

    def panel(self, answer: Panel, most: int) -> Panel:
        """All of it, with at most so many trials of each study by their metaparameters."""
        goal, workload, run = answer.goal, answer.workload, self.run
        rows = self._of(workload, str(goal))
        keys = {row.key for row in rows}
        studies = [study for study in self.studies if study.key in keys]
        tables = outcomes(run, goal, studies)
        quality = {
            self.name(recipe): self._named_bests(some)
            for recipe, some in _quality(run, goal, studies).items()
        }
        tried, grids, options = {}, {}, {}
        curves = curves_of_winners(run, goal.metric, rows)
        far = [row for row in rows if DISTANCE in row.metrics]
        distances = curves_of_winners(run, DISTANCE, far)
        schedules = (
            []
            if run.imported
            else schedules_of(rows, {s.key: s for s in studies}, answer.settings.compare_at)
        )
        for recipe in dict.fromkeys(study.recipe for study in studies):
            mine, name = [s for s in studies if s.recipe == recipe], self.name(recipe)
            if (some := tried_of(mine, tables, most)) is not None:
                tried[name] = some
            if (grid := grid_of(mine, tables, goal)) is not None:
                grids[name] = grid
            if found := options_of(mine, tables, goal):
                options[name] = found
        return replace(
            answer,
            curves={self.name(recipe): some for recipe, some in curves.items()},
            distances={self.name(recipe): some for recipe, some in distances.items()},
            schedules=[replace(curve, recipe=self.name(curve.recipe)) for curve in schedules],
            tried=tried,
            grids=grids,
            options=options,
            quality=quality,
            largeness=self._largeness(answer, studies),
        )

    def _largeness(self, answer: Panel, studies: Sequence[Study]) -> Largeness | str | None:
        """None where no baseline is given, or it is one of another run."""
        baseline = answer.settings.baseline
        if baseline is None or baseline.recipe not in {study.recipe for study in studies}:
            return None
        base = next((s for s in studies if (s.recipe, s.batch_size) == baseline.key), None)
        if base is None:
            return f"{baseline.recipe} was not searched at batch size {baseline.batch_size:,}"
        # The fewest that come to as many steps as the baseline's budget has.
        examples = (base.budget_steps - 1) * base.batch_size + 1
        metric, maximise = answer.goal.metric, answer.goal.direction == ">"
        rows = best_of_studies(
            self.run, studies, metric, maximise=maximise,
            within=[Within(amount=examples, unit="examples")],
        )  # fmt: skip
        key = self.name(base.recipe), base.batch_size
        try:
            return largeness(self._named_bests(rows), key, answer.goal, base.train_size)
        except BadInput as error:
            return str(error)

    def _named_bests(self, rows: Sequence[BestRow]) -> list[BestRow]:
        return [replace(row, recipe=self.name(row.recipe)) for row in rows]

    def _of(self, workload: str, goal: str) -> list[FrontierRow]:
        return [row for row in self.rows if (row.workload, row.goal) == (workload, goal)]

    def _named(self, row: FrontierRow) -> FrontierRow:
        return replace(row, recipe=self.name(row.recipe))

    def _devices(self, workload: str) -> dict[str, Device]:
        found = devices_of(time for time in self._step_times if time.workload == workload)
        return {self.name(recipe): device for recipe, device in found.items()}


def panels_of(sources: Sequence[Source], settings: Settings | None = None) -> list[Panel]:
    """A panel for each workload and goal of the frontiers, in their order."""
    rows = [row for source in sources for row in source.rows]
    recipes = len({(row.workload, row.goal, row.recipe) for row in rows}) * len(sources)
    most = max(40, MOST_TRIED // (SIDE_BY_SIDE * max(recipes, 1)))
    panels: dict[tuple[str, Goal], Panel] = {}
    for source in sources:
        for answer in source.answers(settings or Settings()):
            panel = source.panel(answer, most)
            key = (panel.workload, panel.goal)
            panels[key] = _joined(panels[key], panel) if key in panels else panel
    return [*panels.values()]


def _joined(one: Panel, other: Panel) -> Panel:
    """Those of two runs, whose recipes have different names."""
    return replace(
        one,
        rows=[*one.rows, *other.rows],
        devices={**one.devices, **other.devices},
        curves={**one.curves, **other.curves},
        distances={**one.distances, **other.distances},
        schedules=[*one.schedules, *other.schedules],
        tried={**one.tried, **other.tried},
        grids={**one.grids, **other.grids},
        options={**one.options, **other.options},
        quality={**one.quality, **other.quality},
        largeness=one.largeness or other.largeness,
    )


def _quality(run: Run, goal: Goal, studies: Sequence[Study]) -> dict[str, Sequence[BestRow]]:
    """Within the largest budgets that all studies of a recipe had, and parts of them."""
    found: dict[str, Sequence[BestRow]] = {}
    for recipe in dict.fromkeys(study.recipe for study in studies):
        mine = [study for study in studies if study.recipe == recipe]
        if not all(study.budget_steps for study in mine):
            continue
        budgets: list[tuple[Unit, int]] = [("steps", min(study.budget_steps for study in mine))]
        if size := mine[0].train_size:
            epochs = min(study.budget_steps * study.batch_size // size for study in mine)
            budgets.append(("epochs", epochs))
        within = [
            Within(amount=amount // part, unit=unit)
            for unit, amount in budgets
            for part in SHARES
            if amount // part
        ]
        found[recipe] = best_of_studies(
            run, mine, goal.metric, maximise=goal.direction == ">", within=within
        )
    return found
