"""What a report shows, gathered from a run: answers, and the data of each figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import pyarrow as pa

from orchestrator.analysis import Advice, Cost, Scaling, Tuned, advice, costs, scalings, tuned
from orchestrator.records import Goal, Range, Study
from orchestrator.report.figures import Curve, Span
from orchestrator.results import BestRow, FrontierRow, Run, Within, best_of_studies, outcomes_of
from orchestrator.results.counting import Unit, columns

MOST_POINTS = 160
"""Of a training curve; the frontier is never thinned out."""

MOST_SPANS = 4000
"""Trials in the timeline, the longest ones where there are more."""

MOST_TRIED = 40_000
"""Trials whose metaparameters are shown in all, the first ones of each study where there are more,
and the best."""

SIDE_BY_SIDE = 6
"""Batch sizes at which they are shown."""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One workload and goal."""

    workload: str
    goal: Goal
    rows: Sequence[FrontierRow]
    curves: Mapping[str, Sequence[Curve]]
    """Recipe -> the best trial of each batch size."""
    tried: Mapping[str, Tried]
    """Recipe -> every trial, where two metaparameters were searched."""
    quality: Mapping[str, Sequence[BestRow]]
    """Recipe -> the best of the goal's metric within some budgets."""

    @property
    def recipes(self) -> list[str]:
        return list(dict.fromkeys(row.recipe for row in self.rows))

    @property
    def scalings(self) -> list[Scaling]:
        return scalings(self.rows)

    @property
    def advice(self) -> Advice | None:
        found = advice(self.rows)
        return found[0] if found else None

    @property
    def costs(self) -> list[Cost]:
        return costs(self.rows)

    @property
    def tuned(self) -> list[Tuned]:
        return tuned(self.rows)


@dataclass(frozen=True, kw_only=True)
class Tried:
    """All trials of a recipe by two of its metaparameters."""

    x: str
    y: str
    y_from_one: bool
    """Whether 1 - y is what was searched evenly."""
    outcomes: Sequence[tuple[int, pa.Table]]
    """(batch size, trials)."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A run, and the frontier that is asked of it."""

    run: Run
    rows: Sequence[FrontierRow]
    label: str = ""
    """What sets its recipes apart from those of other runs on the page."""

    @cached_property
    def studies(self) -> list[Study]:
        return self.run.studies()

    def name(self, recipe: str) -> str:
        return f"{self.label}: {recipe}" if self.label else recipe


def panels_of(sources: Sequence[Source]) -> list[Panel]:
    """A panel for each workload and goal of the frontiers, in their order."""
    rows = [row for source in sources for row in source.rows]
    recipes = len({(row.workload, row.goal, row.recipe) for row in rows}) * len(sources)
    most = max(40, MOST_TRIED // (SIDE_BY_SIDE * max(recipes, 1)))
    return [
        _panel(sources, workload, goal, most)
        for workload, goal in dict.fromkeys((row.workload, row.goal) for row in rows)
    ]


def _panel(sources: Sequence[Source], workload: str, text: str, most: int) -> Panel:
    goal = Goal.parse(text)
    rows: list[FrontierRow] = []
    curves: dict[str, list[Curve]] = {}
    tried: dict[str, Tried] = {}
    quality: dict[str, Sequence[BestRow]] = {}
    for source in sources:
        mine = [row for row in source.rows if (row.workload, row.goal) == (workload, text)]
        keys = {row.key for row in mine}
        studies = [study for study in source.studies if study.key in keys]
        rows += [replace(row, recipe=source.name(row.recipe)) for row in mine]
        for recipe, found in _curves(source.run, goal, mine).items():
            curves[source.name(recipe)] = found
        for recipe, outcomes in _tried(source.run, goal, studies, most).items():
            tried[source.name(recipe)] = outcomes
        for recipe, bests in _quality(source.run, goal, studies).items():
            quality[source.name(recipe)] = bests
    return Panel(
        workload=workload, goal=goal, rows=rows, curves=curves, tried=tried, quality=quality
    )


def _curves(run: Run, goal: Goal, rows: Sequence[FrontierRow]) -> dict[str, list[Curve]]:
    found: dict[str, list[Curve]] = {}
    for row, curve in zip(
        rows, run.in_parallel(lambda row: _curve(run, goal, row), rows), strict=True
    ):
        if curve is not None:
            found.setdefault(row.recipe, []).append(curve)
    return found


def _curve(run: Run, goal: Goal, row: FrontierRow) -> Curve | None:
    if row.trial is None:
        return None
    _, step, value = columns(run.curve(row.key, row.trial), goal.metric)
    # The axis is logarithmic.
    drawn = np.isfinite(value) & (step > 0)
    step, value = step[drawn], value[drawn]
    if not len(step):
        return None
    # Evenly in the logarithm, as it is drawn.
    wanted = np.geomspace(1, len(step), MOST_POINTS).astype(int) - 1
    kept = (
        np.unique(wanted[wanted < len(step)]) if len(step) > MOST_POINTS else np.arange(len(step))
    )
    return Curve(
        recipe=row.recipe,
        batch_size=row.batch_size,
        trial=row.trial,
        steps=step[kept].tolist(),
        values=[float(f"{each:.6g}") for each in value[kept].tolist()],
    )


def _tried(run: Run, goal: Goal, studies: Sequence[Study], most: int) -> dict[str, Tried]:
    found = {}
    for recipe in dict.fromkeys(study.recipe for study in studies):
        mine = sorted(
            (study for study in studies if study.recipe == recipe),
            key=lambda study: study.batch_size,
        )
        ranges = {
            name: entry
            for name, entry in mine[0].space.items()
            if isinstance(entry, Range) and entry.scale in ("log", "reverse_log")
        }
        if len(ranges) < 2:
            continue
        x, y = [*ranges][:2]
        shown = [mine[place] for place in _spread(len(mine))]
        tables = run.in_parallel(partial(_outcomes, run, goal, (x, y), most), shown)
        found[recipe] = Tried(
            x=x,
            y=y,
            y_from_one=ranges[y].scale == "reverse_log",
            outcomes=[
                (study.batch_size, table)
                for study, table in zip(shown, tables, strict=True)
                if table is not None
            ],
        )
    return {recipe: tried for recipe, tried in found.items() if tried.outcomes}


def _spread(count: int) -> list[int]:
    """Places from the first to the last, at even distances."""
    if count <= SIDE_BY_SIDE:
        return [*range(count)]
    return [round(n * (count - 1) / (SIDE_BY_SIDE - 1)) for n in range(SIDE_BY_SIDE)]


def _outcomes(
    run: Run, goal: Goal, names: tuple[str, str], most: int, study: Study
) -> pa.Table | None:
    """The trials that are shown, in columns that are."""
    table = outcomes_of(run, study, goal)
    if not set(names) <= set(table.column_names):
        return None
    table = table.select(["trial", "status", "counted", "steps", "steps_to_goal", *names])
    by_steps = table.append_column("place", pa.array(range(len(table)))).sort_by(
        [("steps_to_goal", "ascending"), ("trial", "ascending")]
    )
    best = by_steps["place"].slice(0, 1).to_pylist()
    return table.take(sorted({*range(min(most, len(table))), *best}))


def _quality(run: Run, goal: Goal, studies: Sequence[Study]) -> dict[str, Sequence[BestRow]]:
    """Within the largest budgets that all studies of a recipe had, a quarter and a sixteenth."""
    found: dict[str, Sequence[BestRow]] = {}
    for recipe in dict.fromkeys(study.recipe for study in studies):
        mine = [study for study in studies if study.recipe == recipe]
        if len(mine) < 2 or not all(study.budget_steps for study in mine):
            continue
        budgets: list[tuple[Unit, int]] = [("steps", min(study.budget_steps for study in mine))]
        if size := mine[0].train_size:
            epochs = min(study.budget_steps * study.batch_size // size for study in mine)
            budgets.append(("epochs", epochs))
        within = [
            Within(amount=amount // part, unit=unit)
            for unit, amount in budgets
            for part in (16, 4, 1)
            if amount // part
        ]
        found[recipe] = best_of_studies(
            run, mine, goal.metric, maximise=goal.direction == ">", within=within
        )
    return found


def spans_of(run: Run) -> list[Span]:
    """When each trial was trained, or the last part of it; as far as that is known."""
    found = []
    studies = run.studies()
    tables = run.in_parallel(lambda study: run.trials(study.key), studies)
    for study, trials in zip(studies, tables, strict=True):
        for row in trials.to_pylist():
            if row["started"] is not None and row["seconds"] is not None:
                seconds = row["seconds"] + row["evaluation_seconds"] - row["resumed_seconds"]
                found.append((row["started"], seconds, str(study.key), row))
    first = min((started for started, *_ in found), default=0.0)
    longest = sorted(found, key=lambda one: -one[1])[:MOST_SPANS]
    return [
        Span(
            study=study,
            trial=row["trial"],
            status=row["status"],
            started=round(started - first, 3),
            seconds=round(seconds, 3),
        )
        for started, seconds, study, row in sorted(longest, key=lambda one: one[0])
    ]
