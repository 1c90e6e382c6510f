"""Steps to goal against batch size: recipes, goals and workloads compared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from orchestrator.analysis import relative
from orchestrator.report.figures.style import (
    add_line,
    described,
    guide,
    log2_axis,
    mark,
    safe,
    styled,
)
from orchestrator.results import FrontierRow


def steps_to_goal(rows: Sequence[FrontierRow]) -> go.Figure:
    """Of one workload and goal: a line per recipe, and the line of perfect scaling through the
    point that needed the fewest examples."""
    return _lines({recipe: _of(rows, "recipe", recipe) for recipe in _names(rows, "recipe")})


def goals_compared(rows: Sequence[FrontierRow]) -> go.Figure:
    """Of one workload and recipe: a line per goal."""
    return _lines({goal: _of(rows, "goal", goal) for goal in _names(rows, "goal")}, perfect=False)


def small_steps(rows: Sequence[FrontierRow]) -> go.Figure:
    """The same, for a place beside others of its kind."""
    figure = steps_to_goal(rows)
    figure.update_layout(
        height=300, margin={"l": 55, "r": 10, "t": 10, "b": 45}, font={"size": 12},
        showlegend=len(_names(rows, "recipe")) > 1, hovermode="closest",
    )  # fmt: skip
    figure.update_traces(showlegend=False, selector={"name": "perfect scaling"})
    figure.update_xaxes(tickangle=0)
    for axis, most in ((figure.layout.xaxis, 4), (figure.layout.yaxis, 6)):
        keep = slice(None, None, math.ceil(len(axis.tickvals) / most))
        axis.tickvals, axis.ticktext = axis.tickvals[keep], axis.ticktext[keep]
    return figure


def relative_steps(curves: Mapping[str, Sequence[FrontierRow]], at: int | None) -> go.Figure:
    """Curves of different workloads or recipes, each divided by its steps at batch size `at`, or
    else at its own smallest."""
    figure = go.Figure()
    shares, sizes = [], []
    for number, (name, rows) in enumerate(curves.items()):
        found = relative(rows, at)
        if found is None:
            continue
        unit, points = found
        at_each = []
        for row, share in points:
            text = f"<b>{safe(name)}, batch size {row.batch_size:,}</b><br>{row.steps:,} steps, "
            text += f"{share:.3g} of those at {unit:,}"
            at_each.append((row.batch_size, share, text))
        add_line(figure, name, at_each, mark(number))
        shares += [share for _, share in points]
        sizes += [row.batch_size for row, _ in points]
    if at and shares:
        low, high = min(sizes) / at, min(max(sizes) / at, 1 / min(shares))
        figure.add_traces(guide([at * low, at * high], [1 / low, 1 / high], "perfect scaling"))
    styled(figure, "Batch size", "Steps to goal, relative")
    figure.update_xaxes(**log2_axis(sizes))
    figure.update_yaxes(**log2_axis(shares))
    return figure


def _lines(curves: Mapping[str, Sequence[FrontierRow]], *, perfect: bool = True) -> go.Figure:
    figure = go.Figure()
    reached = [row for rows in curves.values() for row in _reached(rows)]
    if reached and perfect:
        examples = min((row.steps or 0) * row.batch_size for row in reached)
        fewest = min(row.steps or 1 for row in reached)
        smallest = min(row.batch_size for row in reached)
        largest = min(max(row.batch_size for row in reached), 2 * examples / fewest)
        ends = [examples / smallest, examples / largest]
        figure.add_traces(guide([smallest, largest], ends, "perfect scaling"))
    for number, (name, rows) in enumerate(curves.items()):
        points = _reached(rows)
        at = [(row.batch_size, row.steps, _describe(name, row)) for row in points]
        add_line(figure, name, at, mark(number), error_y=_spread(points))
    styled(figure, "Batch size", "Steps to goal")
    figure.update_xaxes(**log2_axis(row.batch_size for row in reached))
    figure.update_yaxes(**log2_axis(row.steps or 1 for row in reached))
    return figure


def _spread(rows: Sequence[FrontierRow]) -> dict[str, object]:
    """From the lowest to the highest of where the median of repeats may lie."""
    ends = [
        (row.steps, row.repeats.low, row.repeats.high) if row.repeats else (row.steps, None, None)
        for row in rows
    ]
    return {
        "visible": any(row.repeats for row in rows), "symmetric": False, "thickness": 1,
        "array": [max((high or steps or 0) - (steps or 0), 0) for steps, _, high in ends],
        "arrayminus": [max((steps or 0) - (low or steps or 0), 0) for steps, low, _ in ends],
    }  # fmt: skip


def _describe(name: str, row: FrontierRow) -> str:
    return (
        f"<b>{safe(name)}, batch size {row.batch_size:,}</b><br>"
        f"{row.steps:,} steps (±{row.resolution}), trial {row.trial}<br>{described(row.params)}"
    )


def _reached(rows: Sequence[FrontierRow]) -> list[FrontierRow]:
    """A first measurement past the goal has no logarithm, and is no training."""
    return sorted(
        (row for row in rows if row.steps and not row.censored), key=lambda row: row.batch_size
    )


def _names(rows: Sequence[FrontierRow], field: str) -> list[str]:
    return list(dict.fromkeys(getattr(row, field) for row in rows))


def _of(rows: Sequence[FrontierRow], field: str, name: str) -> list[FrontierRow]:
    return [row for row in rows if getattr(row, field) == name]
