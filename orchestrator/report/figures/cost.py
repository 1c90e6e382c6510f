"""What a batch size costs."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from orchestrator.analysis import Cost
from orchestrator.report.figures.style import log2_axis, mark, safe, styled


def examples_against_steps(costs: Sequence[Cost], recipes: Sequence[str]) -> go.Figure:
    """Each batch size of each recipe; the filled ones are not beaten in both by any other.
    `recipes` are all there are, in their order."""
    figure = go.Figure()
    for recipe in dict.fromkeys(cost.recipe for cost in costs):
        points = sorted((c for c in costs if c.recipe == recipe), key=lambda c: c.batch_size)
        look = mark(recipes.index(recipe))
        symbol = look["marker"]["symbol"]
        look["marker"]["symbol"] = [symbol if c.pareto else f"{symbol}-open" for c in points]
        figure.add_scatter(
            x=[cost.steps for cost in points],
            y=[cost.examples for cost in points],
            name=safe(recipe),
            mode="lines+markers",
            **{**look, "line": {**look["line"], "width": 1}},
            hovertext=[_describe(cost) for cost in points],
            hoverinfo="text",
        )
    styled(figure, "Steps to goal", "Examples")
    figure.update_xaxes(**log2_axis(cost.steps for cost in costs))
    figure.update_yaxes(**log2_axis(cost.examples for cost in costs))
    return figure


def _describe(cost: Cost) -> str:
    measured = "" if cost.seconds is None else f"<br>{cost.seconds:.3g} s of training as measured"
    return (
        f"<b>{safe(cost.recipe)}, batch size {cost.batch_size:,}</b><br>{cost.steps:,} steps, "
        f"{cost.examples:,} examples{measured}"
    )
