"""Figures: data in, figure out."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

import plotly.graph_objects as go

from orchestrator.results import FrontierRow

# Okabe and Ito's palette tells colours apart for every kind of colour vision; shapes do without.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
SYMBOLS = ["circle", "square", "diamond", "triangle-up", "x", "star", "triangle-down"]


def steps_to_goal(rows: Sequence[FrontierRow]) -> go.Figure:
    """Steps to goal against batch size for one workload and goal: a line per recipe, and the line
    of perfect scaling through the point that needed the fewest examples."""
    reached = [row for row in rows if row.steps and not row.censored]
    figure = go.Figure()
    if reached:
        _add_perfect_scaling(figure, reached)
    for number, recipe in enumerate(dict.fromkeys(row.recipe for row in rows)):
        points = sorted((r for r in reached if r.recipe == recipe), key=lambda r: r.batch_size)
        figure.add_scatter(
            x=[row.batch_size for row in points],
            y=[row.steps for row in points],
            name=html.escape(recipe),
            mode="lines+markers",
            line={"color": COLOURS[number % len(COLOURS)], "width": 2.5},
            marker={"symbol": SYMBOLS[number % len(SYMBOLS)], "size": 10},
            hovertext=[_describe(row) for row in points],
            hoverinfo="text",
        )
    _style(figure, reached)
    return figure


def _add_perfect_scaling(figure: go.Figure, reached: Sequence[FrontierRow]) -> None:
    examples = min((row.steps or 0) * row.batch_size for row in reached)
    fewest = min(row.steps or 1 for row in reached)
    smallest = min(row.batch_size for row in reached)
    largest = min(max(row.batch_size for row in reached), 2 * examples / fewest)
    figure.add_scatter(
        x=[smallest, largest],
        y=[examples / smallest, examples / largest],
        name="perfect scaling",
        mode="lines",
        line={"color": "#767676", "dash": "dash", "width": 1.5},
        hoverinfo="skip",
    )


def _describe(row: FrontierRow) -> str:
    params = "<br>".join(
        f"{html.escape(name)} = {value:.4g}" if isinstance(value, float) else
        f"{html.escape(name)} = {html.escape(str(value))}"
        for name, value in (row.params or {}).items()
    )  # fmt: skip
    return (
        f"<b>{html.escape(row.recipe)}, batch size {row.batch_size:,}</b><br>"
        f"{row.steps:,} steps (±{row.resolution}), trial {row.trial}<br>{params}"
    )


def _style(figure: go.Figure, reached: Sequence[FrontierRow]) -> None:
    figure.update_layout(
        template="plotly_white",
        font={"family": "system-ui, sans-serif", "size": 14},
        margin={"l": 70, "r": 20, "t": 20, "b": 60},
        height=480,
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        hoverlabel={"align": "left"},
    )
    sizes = [row.batch_size for row in reached] or [1]
    steps = [row.steps or 1 for row in reached] or [1]
    figure.update_xaxes(title="Batch size", **_log2_axis(min(sizes), max(sizes)))
    figure.update_yaxes(title="Steps to goal", **_log2_axis(min(steps), max(steps)))


def _log2_axis(low: float, high: float) -> dict[str, object]:
    """A logarithmic axis with ticks at powers of two, at most about ten of them."""
    first, last = math.floor(math.log2(low)), math.ceil(math.log2(high))
    stride = max(1, math.ceil((last - first) / 9))
    ticks = [2**power for power in range(first, last + 1, stride)]
    margin = 0.04 * max(last - first, 1)
    edges = [math.log10(2) * (first - margin), math.log10(2) * (last + margin)]
    return {
        "type": "log",
        "tickvals": ticks,
        "ticktext": [f"{tick:,}" for tick in ticks],
        "range": edges,
    }
