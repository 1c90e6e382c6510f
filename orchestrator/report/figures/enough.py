"""The figure of the fewest steps against the number of trials."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from orchestrator.analysis import BestOf, in_count
from orchestrator.report.figures.style import (
    MOST_CURVES,
    evenly,
    log2_axis,
    log10_axis,
    shades,
    styled,
)


def best_of_trials(sizes: Sequence[BestOf]) -> go.Figure:
    """Draws a line per batch size, from small (dark) to large (bright): the median fewest steps of
    n trials, up to the number of trials that were made."""
    figure = go.Figure()
    ordered = evenly([one for one in sizes if one.medians], MOST_CURVES)
    for one, colour in zip(ordered, shades(len(ordered)), strict=True):
        figure.add_scatter(
            x=[n for n, _ in one.medians],
            y=[steps for _, steps in one.medians],
            name=f"{one.batch_size:,}",
            mode="lines",
            line={"color": colour, "width": 2, "shape": "hv"},
            hovertext=[
                f"<b>batch size {one.batch_size:,}, best of {n:,} trials</b><br>{in_count(steps)}"
                for n, steps in one.medians
            ],
            hoverinfo="text",
        )
    styled(figure, "Trials", "Fewest steps to goal, median")
    figure.update_layout(legend={"title": {"text": "batch size "}})
    figure.update_xaxes(**log2_axis(x for trace in figure.data for x in trace.x))
    figure.update_yaxes(**log10_axis(y for trace in figure.data for y in trace.y))
    return figure
