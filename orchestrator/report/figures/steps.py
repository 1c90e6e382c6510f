"""Steps to goal against batch size: recipes, goals and workloads compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from orchestrator.report.figures.style import described, guide, log2_axis, mark, safe, styled
from orchestrator.results import FrontierRow


def steps_to_goal(rows: Sequence[FrontierRow]) -> go.Figure:
    """Of one workload and goal: a line per recipe, and the line of perfect scaling through the
    point that needed the fewest examples."""
    return _lines({recipe: _of(rows, "recipe", recipe) for recipe in _names(rows, "recipe")})


def goals_compared(rows: Sequence[FrontierRow]) -> go.Figure:
    """Of one workload and recipe: a line per goal."""
    return _lines({goal: _of(rows, "goal", goal) for goal in _names(rows, "goal")}, perfect=False)


def relative_steps(curves: Mapping[str, Sequence[FrontierRow]]) -> go.Figure:
    """Curves of different workloads or recipes, each divided by its steps at the smallest batch
    size that all of them reached their goal at; or else at its own smallest."""
    reached = {name: _reached(rows) for name, rows in curves.items()}
    reached = {name: rows for name, rows in reached.items() if rows}
    shared = set.intersection(*({row.batch_size for row in rows} for rows in reached.values()))
    figure = go.Figure()
    shares, sizes = [], []
    for number, (name, rows) in enumerate(reached.items()):
        at = min(shared) if shared else rows[0].batch_size
        unit = next(row.steps or 1 for row in rows if row.batch_size == at)
        x, y = [row.batch_size for row in rows], [(row.steps or 1) / unit for row in rows]
        figure.add_scatter(
            x=x, y=y, name=safe(name), mode="lines+markers", **mark(number),
            hovertext=[
                f"<b>{safe(name)}, batch size {row.batch_size:,}</b><br>{row.steps:,} steps, "
                f"{share:.3g} of those at {at:,}" for row, share in zip(rows, y, strict=True)
            ],
            hoverinfo="text",
        )  # fmt: skip
        shares += y
        sizes += x
    if reached:
        low = min(shared) if shared else min(sizes)
        figure.add_traces(guide([low, low / min(shares)], [1, min(shares)], "perfect scaling"))
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
        figure.add_scatter(
            x=[row.batch_size for row in points],
            y=[row.steps for row in points],
            name=safe(name),
            mode="lines+markers",
            **mark(number),
            hovertext=[_describe(name, row) for row in points],
            hoverinfo="text",
        )
    styled(figure, "Batch size", "Steps to goal")
    figure.update_xaxes(**log2_axis(row.batch_size for row in reached))
    figure.update_yaxes(**log2_axis(row.steps or 1 for row in reached))
    return figure


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
