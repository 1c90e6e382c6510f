"""The fold of all trials: by two metaparameters, and on grids."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import plotly.graph_objects as go
import pyarrow as pa
from plotly.subplots import make_subplots

from orchestrator.records import Choice, Goal, Range, Study, Value
from orchestrator.report.content import Grid, Panel, Tried, grouped
from orchestrator.report.sections import Show
from orchestrator.report.style import (
    COLOURS,
    GUIDE,
    evenly,
    exact,
    legend_once,
    log10_axis,
    rounded,
    safe,
    styled,
)
from orchestrator.report.trial_table import Tables, best_and_others, reached
from orchestrator.results import column_of
from orchestrator.results.counting import stopped_early

SIDE_BY_SIDE = 6
"""The most batch sizes at which trials are shown."""

MOST_CELLS = 40
"""On each side of a heat map."""

LOOKS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "unreached": (
        "not reached, or stopped early",
        {"color": GUIDE, "symbol": "circle-open", "size": 6, "opacity": 0.6},
    ),
    "diverged": ("diverged", {"color": COLOURS[1], "symbol": "x-thin-open", "size": 7}),
    "reached": ("reached the goal", {"coloraxis": "coloraxis", "symbol": "circle", "size": 7}),
    "best": (
        "the best",
        {"color": COLOURS[4], "symbol": "star", "size": 15, "line": {"color": "#000", "width": 1}},
    ),
}

CLOSE_TO_FAR = [(0.0, "#0A6EBD"), (0.35, "#35A79C"), (0.7, "#9CBF5A"), (1.0, "#E3C34B")]
"""The colours of trials, from the best to those far from it; all are visible on white and on
black."""

FARTHEST = 3
"""The colour scale of trials ends at this many doublings of the fewest steps."""


def tried_of(studies: Sequence[Study], tables: Tables, most: int) -> Tried | None:
    """Returns the trials of one recipe, at most `most` of each batch size, smallest size first."""
    ranges = {
        name: entry
        for name, entry in studies[0].space.items()
        if isinstance(entry, Range) and entry.scale in ("log", "reverse_log")
    }
    if len(ranges) < 2:
        return None
    x, y = [*ranges][:2]
    whole = [
        (study.batch_size, tables[study.key])
        for study in evenly(studies, SIDE_BY_SIDE)
        if {column_of(x), column_of(y)} <= _numbers(tables[study.key])
    ]
    if not whole:
        return None
    columns = ["trial", "status", "counted", "steps", "steps_to_goal", column_of(x), column_of(y)]
    return Tried(
        x=x,
        y=y,
        y_from_one=ranges[y].scale == "reverse_log",
        outcomes=[(size, best_and_others(table.select(columns), most)) for size, table in whole],
        counts=[(size, reached(table), len(table)) for size, table in whole],
        cut=any({"dominated", "paused"} & {*table["status"].to_pylist()} for _, table in whole),
    )


def _numbers(table: pa.Table) -> set[str]:
    """Returns the columns that hold numbers; in an archive, one study's range may be another's
    text."""
    return {
        field.name
        for field in table.schema
        if pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
    }


def grid_of(studies: Sequence[Study], tables: Tables, goal: Goal) -> Grid | None:
    """Returns the grid of one recipe, if its first two varying metaparameters form one."""
    chosen = evenly(studies, SIDE_BY_SIDE)
    rows = {study.batch_size: tables[study.key].to_pylist() for study in chosen}
    names = [name for name, entry in studies[0].space.items() if isinstance(entry, Range | Choice)]
    points = [
        {name: row.get(column_of(name)) for name in names}
        for of_study in rows.values()
        for row in of_study
    ]
    varying = [name for name in names if len({point[name] for point in points} - {None}) > 1]
    if len(varying) < 2:
        return None
    x, y = varying[:2]
    pairs = {(point[x], point[y]) for point in points if None not in (point[x], point[y])}
    # Numbers come before words.
    in_order = partial(sorted, key=lambda value: (isinstance(value, str), value))
    xs, ys = (in_order({pair[n] for pair in pairs}) for n in (0, 1))
    filled = 4 * len(pairs) >= 3 * len(xs) * len(ys)
    if not filled or min(len(xs), len(ys)) < 2 or max(len(xs), len(ys)) > MOST_CELLS:
        return None
    cut = any(stopped_early(study, row) for study in chosen for row in rows[study.batch_size])
    column = "steps_to_goal" if cut else "best"
    better = max if goal.direction == ">" and not cut else min
    cells: list[tuple[int, Mapping[tuple[Value, Value], float]]] = []
    for size, of_study in rows.items():
        best: dict[tuple[Value, Value], float] = {}
        for row in of_study:
            value, at = row[column], (row.get(column_of(x)), row.get(column_of(y)))
            if row["counted"] and None not in (value, *at) and value == value:  # noqa: PLR0124
                best[at] = better(value, best.get(at, value))
        cells.append((size, best))
    shown = "steps to goal" if cut else f"best {goal.metric}"
    return Grid(x=x, y=y, xs=xs, ys=ys, shown=shown, is_steps=cut, cells=cells)


def all_tried(panel: Panel, show: Show) -> str:
    return "".join(
        show(
            _every_trial(tried),
            f"{recipe}: every trial by {tried.x} and {tried.y}",
            _counts(tried) + _sampled(tried),
            "Colours show how many times the fewest steps of that batch size a trial took. They "
            "tell how wide the good region is, where it moves as the batch grows, and how near it "
            "lies to an end of the ranges. The best trial is starred.",
        )
        for recipe, tried in panel.tried.items()
    )


def _counts(tried: Tried) -> str:
    parts = [f"{those} of {count} at {size:,}" for size, those, count in tried.counts]
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
            _heat_maps(grid),
            f"{recipe}: {grid.shown} by {grid.x} and {grid.y}",
            "",
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


def found(panel: Panel) -> str:
    total = sum(one.total for one in panel.listed.values())
    those = sum(one.reached for one in panel.listed.values())
    return f"{those:,} of {total:,} reached the goal" if total else "By their metaparameters"


def _every_trial(tried: Tried) -> go.Figure:
    """Draws every trial by two metaparameters, with a panel for each batch size; the best trial is
    starred."""
    wide = len(tried.outcomes)
    figure = make_subplots(
        rows=1, cols=wide, shared_yaxes=True, horizontal_spacing=0.02,
        subplot_titles=[f"B = {size:,}" for size, _ in tried.outcomes],
    )  # fmt: skip
    # All at once: plotly takes several times as long for one after the other.
    placed = [
        (trace, column)
        for column, (_, table) in enumerate(tried.outcomes, start=1)
        for trace in _traces(tried, table)
    ]
    traces, columns = zip(*placed, strict=True)
    figure.add_traces(legend_once(traces), rows=[1] * len(traces), cols=columns)
    # Their colours have a bar.
    figure.update_traces(showlegend=False, selector={"legendgroup": "reached"})
    styled(figure, "", "")
    figure.update_layout(margin={"t": 60}, legend={"y": 1.1}, coloraxis=_colours())
    xs, ys = ([value for trace in traces for value in trace[axis]] for axis in ("x", "y"))
    figure.update_xaxes(**log10_axis(xs, most=max(2, 9 // wide)))
    figure.update_yaxes(**log10_axis(ys))
    figure.update_xaxes(title=safe(tried.x), col=(wide + 1) // 2)
    figure.update_yaxes(title="1 - " * tried.y_from_one + safe(tried.y), col=1)
    return figure


def _colours() -> dict[str, Any]:
    """Returns the colours of trials by their steps over the fewest, with a colour bar."""
    ticks = [*range(FARTHEST + 1)]
    names = [f"{2**tick}" for tick in ticks[:-1]]
    return {
        "colorscale": CLOSE_TO_FAR, "cmin": 0, "cmax": FARTHEST,
        "colorbar": {
            "title": {"text": "steps,<br>times the<br>fewest"}, "thickness": 12, "x": 1.01,
            "tickvals": ticks, "ticktext": [*names, f"{2**FARTHEST} or more"],
        },
    }  # fmt: skip


def _traces(tried: Tried, table: pa.Table) -> list[dict[str, Any]]:
    """Returns the trials of each kind as marks, and a star for the best."""
    x, y = column_of(tried.x), column_of(tried.y)
    rows = [row for row in table.to_pylist() if row[x] is not None and row[y] is not None]
    kinds = grouped(rows, _kind)
    goals = sorted(kinds.get("reached", []), key=lambda row: (row["steps_to_goal"], row["trial"]))
    kinds["best"] = goals[:1]
    traces = []
    for kind, (name, look) in LOOKS.items():
        points = kinds.get(kind, [])
        traces.append({
            "type": "scatter", "mode": "markers", "name": name, "legendgroup": kind,
            "x": [rounded(row[x]) for row in points],
            "y": [rounded(1 - row[y] if tried.y_from_one else row[y]) for row in points],
            "marker": look | ({"color": _far(points)} if kind == "reached" else {}),
            "hovertext": [_describe(row) for row in points],
            "hoverinfo": "skip" if kind == "best" else "text+x+y",
        })  # fmt: skip
    return traces


def _kind(row: Mapping[str, Any]) -> str:
    if row["counted"] and row["steps_to_goal"] is not None:
        return "reached"
    return "diverged" if row["status"] == "diverged" else "unreached"


def _far(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Returns how many doublings of the fewest steps each of the trials took."""
    fewest = min((row["steps_to_goal"] for row in rows), default=1)
    return [rounded(math.log2(row["steps_to_goal"] / fewest)) for row in rows]


def _describe(row: Mapping[str, Any]) -> str:
    steps = row["steps_to_goal"]
    how = f"{row['status']}, {row['steps']:,} steps"
    return f"trial {row['trial']}: {safe(how if steps is None else f'goal at step {steps:,}')}"


def _heat_maps(grid: Grid) -> go.Figure:
    """Draws the results at the points of a grid, with a map for each batch size. Colours of steps
    follow the logarithm."""
    figure = make_subplots(
        rows=1, cols=len(grid.cells), shared_yaxes=True, horizontal_spacing=0.02,
        subplot_titles=[f"B = {size:,}" for size, _ in grid.cells],
    )  # fmt: skip
    few = len(grid.xs) * len(grid.cells) <= 12
    for column, (_, values) in enumerate(grid.cells, start=1):
        known = [[values.get((one, other)) for one in grid.xs] for other in grid.ys]
        z = [[v and math.log2(v) if grid.is_steps else v for v in line] for line in known]
        figure.add_heatmap(
            x=[exact(value) for value in grid.xs], y=[exact(value) for value in grid.ys], z=z,
            coloraxis="coloraxis", xgap=1, ygap=1,
            text=[["" if v is None else f"{v:.4g}" for v in line] for line in known],
            texttemplate="%{text}" if few else None,
            hovertemplate=f"{safe(grid.x)} %{{x}}<br>{safe(grid.y)} %{{y}}<br>{safe(grid.shown)} "
            "%{text}<extra></extra>",
            row=1, col=column,
        )  # fmt: skip
    styled(figure, "", "")
    bar = f"{safe(grid.shown)},<br>in doublings" if grid.is_steps else safe(grid.shown)
    figure.update_layout(
        margin={"t": 70},
        coloraxis={"colorscale": "Viridis", "colorbar": {"title": {"text": bar}}},
    )
    figure.update_xaxes(type="category", showgrid=False, tickangle=-45)
    figure.update_yaxes(type="category", showgrid=False)
    figure.update_xaxes(title=safe(grid.x), col=(len(grid.cells) + 1) // 2)
    figure.update_yaxes(title=safe(grid.y), col=1)
    return figure
