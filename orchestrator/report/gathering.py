"""Gathers the content of a report from runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, TypeVar

from orchestrator.analysis.cost import devices_of, doubts_about, doubts_between
from orchestrator.analysis.forecasts import Forecast, forecast_by, noise_courses
from orchestrator.analysis.points import without_growing
from orchestrator.analysis.tuned import rule_costs
from orchestrator.records import Goal, Study, grouped
from orchestrator.report.content import Curve, Panel
from orchestrator.report.metaparameters import fixed_in
from orchestrator.report.quality import best_within_budgets
from orchestrator.report.training import curves_of_winners
from orchestrator.report.trials import MOST_LISTED, listed_of, outcomes, tried_of
from orchestrator.results import BestRow, FrontierRow, RunFiles, StepTime, step_times

MOST_IN_DETAIL = 40
"""The most recipes, over all workloads and goals, whose figures are drawn. Each recipe has about
five figures, and a browser draws about 15 a second."""

MOST_STUDIES = 2000
"""The most studies of these recipes, each of which is a point in up to ten figures."""

Row = TypeVar("Row", FrontierRow, BestRow, Curve, StepTime)


@dataclass(frozen=True, kw_only=True)
class Source:
    """A run, and the frontier that the page asks of it."""

    run: RunFiles
    rows: Sequence[FrontierRow]
    label: str = ""
    """A label that distinguishes its recipes from those of other runs on the page."""

    @cached_property
    def studies(self) -> list[Study]:
        return sorted(self.run.studies(), key=lambda study: study.batch_size)

    @cached_property
    def _by_panel(self) -> dict[tuple[str, str], list[FrontierRow]]:
        return grouped(self.rows, lambda row: (row.workload, row.goal))

    @cached_property
    def _step_times(self) -> list[StepTime]:
        return step_times(self.run, self.studies)

    def name(self, recipe: str) -> str:
        return f"{self.label}: {recipe}" if self.label else recipe

    def answers(self, price: float | None) -> list[Panel]:
        """What is known of each workload and goal without reading single trials."""
        found = []
        for (workload, goal), mine in self._by_panel.items():
            rows = self._named(mine)
            times = self._named([one for one in self._step_times if one.workload == workload])
            found.append(
                Panel(
                    workload=workload,
                    goal=Goal.parse(goal),
                    rows=without_growing(rows),
                    growing=[row for row in rows if row.batch_schedule],
                    price=price,
                    devices=devices_of(times),
                    doubts=doubts_about(times),
                    rules=[
                        replace(cost, recipe=self.name(cost.recipe), tuned=self.name(cost.tuned))
                        for cost in rule_costs(self.run, mine)
                    ],
                    is_program=any(s.program and s.workload == workload for s in self.studies),
                    is_imported=self.run.imported,
                )
            )
        return found

    def panel(self, answer: Panel, most: int) -> Panel:
        """The whole panel, with at most so many trials of each study in figures and in tables."""
        goal, workload, run = answer.goal, answer.workload, self.run
        asked = without_growing(self._by_panel[workload, str(goal)])
        drawn = set(answer.drawn.recipes)
        rows = [row for row in asked if self.name(row.recipe) in drawn]
        keys = {row.key for row in rows}
        studies = [study for study in self.studies if study.key in keys]
        tables = outcomes(run, goal, studies)
        by_recipe = grouped(studies, lambda study: self.name(study.recipe))
        tried = {name: tried_of(mine, tables) for name, mine in by_recipe.items()}
        return replace(
            answer,
            tried={name: one for name, one in tried.items() if one is not None},
            listed={name: listed_of(mine, tables, most) for name, mine in by_recipe.items()},
            fixed={name: fixed_in(mine) for name, mine in by_recipe.items()},
            curves=self._by_name(curves_of_winners(run, goal.metric, rows)),
            quality=self._by_name(best_within_budgets(run, goal, studies)),
            forecasts=self._forecasts(rows),
        )

    def _by_name(self, found: Mapping[str, Sequence[Row]]) -> dict[str, list[Row]]:
        return {self.name(recipe): self._named(rows) for recipe, rows in found.items()}

    def _forecasts(self, rows: Sequence[FrontierRow]) -> list[Forecast]:
        return [
            replace(forecast_by(key, courses), recipe=self.name(key.recipe))
            for key, courses in noise_courses(self.run, self.studies, rows).items()
        ]

    def _named(self, rows: Sequence[Row]) -> list[Row]:
        return [replace(row, recipe=self.name(row.recipe)) for row in rows]


def panels_of(sources: Sequence[Source], price: float | None = None) -> list[Panel]:
    """A panel for each workload and goal of the frontiers, in their order."""
    found = [(one, panel) for one in sources for panel in one.answers(price)]
    found = [*zip((one for one, _ in found), _detailed([panel for _, panel in found]), strict=True)]
    studies = sum(len(answer.drawn.rows) for _, answer in found)
    panels: dict[tuple[str, Goal], Panel] = {}
    for source, answer in found:
        panel = source.panel(answer, max(MOST_LISTED // max(studies, 1), 2))
        key = (panel.workload, panel.goal)
        panels[key] = _joined(panels[key], panel) if key in panels else panel
    return [_timed_alike(panel) for panel in panels.values()]


def _detailed(answers: Sequence[Panel]) -> list[Panel]:
    """Chooses the recipes that figures show: first the recipe with the fewest steps of each
    workload and goal, then the next best of each, as far as the page has room."""
    studies = [Counter(row.recipe for row in answer.rows) for answer in answers]
    turns: list[tuple[int, int, str]] = []
    for number, answer in enumerate(answers):
        fewest = answer.fewest_steps
        ranked = sorted(answer.recipes, key=lambda recipe: fewest.get(recipe, math.inf))
        turns += [(position, number, recipe) for position, recipe in enumerate(ranked)]
    chosen: list[set[str]] = [set() for _ in answers]
    room = MOST_STUDIES
    for _, number, recipe in sorted(turns)[:MOST_IN_DETAIL]:
        if studies[number][recipe] <= room or not any(chosen):
            chosen[number].add(recipe)
            room -= studies[number][recipe]
    return [
        answer if len(some) == len(answer.recipes) else replace(answer, detailed=some)
        for answer, some in zip(answers, chosen, strict=True)
    ]


def _joined(one: Panel, other: Panel) -> Panel:
    """Joins the fields of two runs, whose recipes have different names."""
    parts: dict[str, Any] = {}
    for field in fields(Panel):
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        if isinstance(mine, Mapping):
            parts[field.name] = {**mine, **theirs}
        elif isinstance(mine, list | tuple):
            parts[field.name] = [*mine, *theirs]
        elif isinstance(mine, bool):
            parts[field.name] = mine or theirs
    if not (one.detailed is other.detailed is None):
        parts["detailed"] = {*one.drawn.recipes, *other.drawn.recipes}
    return replace(one, **parts)


def _timed_alike(panel: Panel) -> Panel:
    """Without step times if they can't be compared, as of runs on different machines."""
    doubts = doubts_between(panel.devices)
    return replace(panel, devices={}, doubts=[*panel.doubts, *doubts]) if doubts else panel
