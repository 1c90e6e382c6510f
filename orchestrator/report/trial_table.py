"""Trials as rows, for a table and for parallel coordinates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.records import Choice, Range, Study
from orchestrator.report.figures.parallel import Axis, Lines
from orchestrator.report.figures.style import evenly, rounded
from orchestrator.report.trials import Tables, best_and_others
from orchestrator.results import column_of

MOST_LISTED = 8000
"""The most trials in the tables of a page; each takes about 80 bytes."""

MOST_LINES = 300
"""The most trials that reached the goal in parallel coordinates; more would cover each other."""

MOST_OTHER_LINES = 60
"""The most trials in parallel coordinates that did not reach the goal."""

MOST_AXES = 8
"""The most metaparameters in parallel coordinates."""


@dataclass(frozen=True, kw_only=True)
class Listed:
    """The trials of a recipe, or a selection of them."""

    recipe: str
    rows: Sequence[Mapping[str, Any]]
    """Batch size, trial, status, steps, steps to goal, best value and metaparameters, from the
    smallest batch size up and by steps to goal."""
    total: int
    reached: int
    """The number of all trials that reached the goal."""
    space: Mapping[str, Range | Choice]
    """The metaparameters that were searched: ranges and choices."""


def listed_of(recipe: str, studies: Sequence[Study], tables: Tables, most: int) -> Listed:
    """Returns the trials of one recipe, at most so many of each study."""
    rows: list[dict[str, Any]] = []
    total = reached = 0
    for study in studies:
        table = tables[study.key]
        total += len(table)
        reached += len(table) - table["steps_to_goal"].null_count
        ordered = best_and_others(table, most).sort_by(
            [("steps_to_goal", "ascending"), ("trial", "ascending")]
        )
        rows += [{"batch_size": study.batch_size, **row} for row in ordered.to_pylist()]
    space = {
        name: entry
        for study in studies
        for name, entry in study.space.items()
        if isinstance(entry, Range | Choice)
    }
    return Listed(recipe=recipe, rows=rows, total=total, reached=reached, space=space)


def columns_of(listed: Mapping[str, Listed], metric: str) -> dict[str, list[Any]]:
    """Returns the columns of a table of the trials of several recipes."""
    rows = [(one.recipe, row) for one in listed.values() for row in one.rows]
    names = dict.fromkeys(key for _, row in rows for key in row)
    titles = {
        "batch_size": "Batch size", "trial": "Trial", "status": "Status",
        "steps_to_goal": "Steps to goal", "steps": "Steps trained", "best": f"Best {metric}",
    }  # fmt: skip
    columns: dict[str, list[Any]] = {"Recipe": [recipe for recipe, _ in rows]}
    columns |= {title: [_short(row.get(key)) for _, row in rows] for key, title in titles.items()}
    prefix = column_of("")
    for name in names:
        if name.startswith(prefix):
            columns[name.removeprefix(prefix)] = [_short(row.get(name)) for _, row in rows]
    return columns


def lines_of(listed: Mapping[str, Listed]) -> Lines | None:
    """Returns the trials of all recipes, by batch size and all searched metaparameters; None if
    there is too little to draw."""
    rows = [{"recipe": one.recipe, **row} for one in listed.values() for row in one.rows]
    fewest: dict[tuple[str, int], int] = {}
    for row in rows:
        if row["steps_to_goal"]:
            study = row["recipe"], row["batch_size"]
            fewest[study] = min(row["steps_to_goal"], fewest.get(study, row["steps_to_goal"]))
    reached = evenly([row for row in rows if row["steps_to_goal"]], MOST_LINES)
    others = evenly([row for row in rows if not row["steps_to_goal"]], MOST_OTHER_LINES)
    rows = [*reached, *others]
    space = {name: entry for one in listed.values() for name, entry in one.space.items()}
    names = [name for name in space if len(_values(rows, name)) > 1][:MOST_AXES]
    if len(names) < 2 or len(reached) < 2:
        return None
    recipes = [row["recipe"] for row in rows]
    return Lines(
        sizes=[row["batch_size"] for row in rows],
        axes=[
            *([Axis(name="recipe", scale="options", values=recipes)] if len(listed) > 1 else []),
            *(_axis(name, space[name], rows) for name in names),
        ],
        steps=[row["steps_to_goal"] for row in rows],
        over_fewest=[
            row["steps_to_goal"] / fewest[row["recipe"], row["batch_size"]]
            if row["steps_to_goal"]
            else None
            for row in rows
        ],
    )


def _axis(name: str, entry: Range | Choice, rows: Sequence[Mapping[str, Any]]) -> Axis:
    values = [row.get(column_of(name)) for row in rows]
    if isinstance(entry, Choice) or any(isinstance(value, str) for value in values):
        return Axis(name=name, scale="options", values=values)
    return Axis(name=name, scale=entry.scale, values=values)


def _values(rows: Sequence[Mapping[str, Any]], name: str) -> set[Any]:
    return {row.get(column_of(name)) for row in rows} - {None}


def _short(value: Any) -> Any:
    """Formats a value as the table shows it."""
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, float):
        return rounded(value) if math.isfinite(value) else None
    return value
