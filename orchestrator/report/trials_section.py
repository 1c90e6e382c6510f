"""All trials: by two metaparameters, on grids, as lines across all of them, and as a table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from zlib import crc32

from orchestrator.analysis import in_count
from orchestrator.records import Goal
from orchestrator.report.content import Panel
from orchestrator.report.figures.parallel import parallel_coordinates
from orchestrator.report.figures.tried import every_trial, heat_maps, tried_within
from orchestrator.report.sections import Show
from orchestrator.report.tables import short
from orchestrator.report.trial_table import columns_of, lines_of
from orchestrator.report.trials import Grid, Tried


def all_tried(panel: Panel, show: Show) -> str:
    shown = ""
    for recipe, tried in panel.tried.items():
        shown += show(
            every_trial(
                [(f"B = {size:,}", table) for size, table in tried.outcomes],
                tried.x, tried.y, y_from_one=tried.y_from_one,
            ),
            f"{recipe}: every trial by {tried.x} and {tried.y}",
            _counts(tried) + _sampled(tried),
            "Colours show how many times the fewest steps of that batch size a trial took. They "
            "tell how wide the good region is, where it moves as the batch grows, and how near it "
            "lies to an end of the ranges. The best trial is starred.",
        )  # fmt: skip
        shown += _within_budgets(panel, recipe, tried, show)
    return shown


def _within_budgets(panel: Panel, recipe: str, tried: Tried, show: Show) -> str:
    """Shows the trials within budgets twice as large as the best batch size needs. Trials that were
    ended because they could no longer win say nothing about that."""
    mine = [cost for cost in panel.costs if cost.recipe == recipe]
    if len(mine) < 2 or len(tried.outcomes) < 2 or tried.cut:
        return ""
    examples = 2 * min(cost.examples for cost in mine)
    steps = 2 * min(cost.steps for cost in mine)
    return show(
        tried_within(
            tried.outcomes, tried.x, tried.y, y_from_one=tried.y_from_one,
            examples=examples, steps=steps,
        ),
        f"{recipe}: the same within one budget for all batch sizes",
        f"Above: within {in_count(examples)} examples, twice the fewest that any batch size "
        f"needed. Below: within {in_count(steps)} steps, twice the fewest.",
        "With the same number of examples, the good region closes as the batch grows; with the "
        "same number of steps, it opens.",
    )  # fmt: skip


def _counts(tried: Tried) -> str:
    parts = [f"{reached} of {count} at {size:,}" for size, reached, count in tried.counts]
    more = (
        " Trials that could no longer win were stopped early, so more might have reached the goal."
    )
    return f"Trials that reached the goal, by batch size: {', '.join(parts)}.{more * tried.cut}"


def _sampled(tried: Tried) -> str:
    few, many = sum(len(table) for _, table in tried.outcomes), sum(n for _, _, n in tried.counts)
    if few == many:
        return ""
    return (
        f" {few:,} of {many:,} trials are drawn: at each batch size the trials that reached the "
        f"goal in the fewest steps, and an even sample of the others."
    )


def grids(panel: Panel, show: Show) -> str:
    return "".join(
        show(
            heat_maps(
                grid.cells, ((grid.x, grid.xs), (grid.y, grid.ys)), grid.shown, logs=grid.is_steps
            ),
            f"{recipe}: {grid.shown} by {grid.x} and {grid.y}",
            _best_cell(grid, panel.goal),
            "Each cell is the best trial with these two values. A cell is empty if no such trial "
            + (
                "reached the goal, or if all of them were stopped early."
                if grid.is_steps
                else "has a value."
            ),
        )
        for recipe, grid in panel.grids.items()
        if any(values for _, values in grid.cells)
    )


def _best_cell(grid: Grid, goal: Goal) -> str:
    size, values = [cell for cell in grid.cells if cell[1]][-1]
    best = max if goal.direction == ">" and not grid.is_steps else min
    x, y = best(values, key=lambda at: values[at])
    return (
        f"Best at batch size {size:,}: {values[x, y]:.4g} with {grid.x} {short(x)} and {grid.y} "
        f"{short(y)}."
    )


def parallel(panel: Panel, show: Show) -> str:
    """Draws each trial as a line across its metaparameters."""
    lines = lines_of(panel.listed)
    if lines is None:
        return ""
    return show(
        parallel_coordinates(lines),
        "Parallel coordinates of trials",
        f"{lines.count:,} of {sum(one.total for one in panel.listed.values()):,} trials.",
        "Each line is a trial. Its colour shows how many times the fewest steps of its study it "
        "took, from blue (the fewest) to yellow (8 times or more); a trial that did not reach the "
        "goal is grey. Drag along an axis to select the trials of that range; drag a name to move "
        "its axis.",
    )


def table_of_trials(panel: Panel, show: Show) -> str:
    """Returns an empty table; the page fills it and sorts it by the column that is clicked."""
    listed = panel.listed
    if not any(len(one.rows) for one in listed.values()):
        return ""
    columns = columns_of(listed, panel.goal.metric)
    name = f"trials-{crc32(f'{panel.workload} {panel.goal}'.encode()):x}"
    count, total = len(next(iter(columns.values()))), sum(one.total for one in listed.values())
    caption = f"All {total:,} trials." if count == total else (
        f"{count:,} of {total:,} trials: of each study those that reached the goal in the fewest "
        f"steps, and an even sample of the others."
    )  # fmt: skip
    return _skeleton(name, f"{caption} Click a name to sort by its column.", columns)


def _skeleton(name: str, caption: str, columns: Mapping[str, list[object]]) -> str:
    heads = "".join(
        f'<th scope="col" aria-sort="none" class="{_look(column)}"><button type="button">'
        f"{escape(title)}</button></th>"
        for title, column in columns.items()
    )
    data = json.dumps([*columns.values()], separators=(",", ":"), allow_nan=False)
    return (
        f'<h4>Every trial in a table</h4><p class="lead" id="{name}-says">{escape(caption)}</p>'
        f'<div class="scroll sorted" tabindex="0" role="region" aria-labelledby="{name}-says">'
        f'<table class="trials" id="{name}"><thead><tr>{heads}</tr></thead><tbody></tbody></table>'
        f'</div><button type="button" class="more" id="{name}-more" hidden>More rows</button>'
        f'<script type="application/json" id="{name}-data">'
        f"{data.replace('<', chr(92) + 'u003c')}</script>"
    )


def _look(column: list[object]) -> str:
    return "text" if any(isinstance(value, str) for value in column) else "number"


def trials_found(panel: Panel) -> str:
    total = sum(one.total for one in panel.listed.values())
    reached = sum(one.reached for one in panel.listed.values())
    return f"{reached:,} of {total:,} reached the goal" if total else "By their metaparameters"
