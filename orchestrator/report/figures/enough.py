"""The figure of the fewest steps against the number of trials."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from orchestrator.analysis import BestOf, Estimate, in_words
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
    n trials, solid up to the number of trials that were made, and dotted beyond with 90 %
    intervals."""
    figure = go.Figure()
    ordered = evenly([one for one in sizes if one.medians], MOST_CURVES)
    for one, colour in zip(ordered, shades(len(ordered)), strict=True):
        beyond = [(n, found) for n, _ in one.beyond if (found := one.best_of(n)) is not None]
        figure.add_scatter(
            x=[n for n, _ in one.medians],
            y=[steps for _, steps in one.medians],
            name=f"{one.batch_size:,}",
            legendgroup=f"{one.batch_size}",
            mode="lines",
            line={"color": colour, "width": 2, "shape": "hv"},
            hovertext=[_of(one, n, Estimate(value=steps)) for n, steps in one.medians],
            hoverinfo="text",
        )
        last = [(n, Estimate(value=steps)) for n, steps in one.medians[-1:]]
        points = [*last, *beyond] if beyond else []
        figure.add_scatter(
            x=[n for n, _ in points],
            y=[found.value for _, found in points],
            legendgroup=f"{one.batch_size}",
            showlegend=False,
            mode="lines+markers",
            line={"color": colour, "width": 2, "dash": "dot"},
            marker={"size": 6},
            error_y={
                "type": "data",
                "symmetric": False,
                "thickness": 1,
                "array": [(found.high or found.value) - found.value for _, found in points],
                "arrayminus": [found.value - (found.low or found.value) for _, found in points],
            },
            hovertext=[_of(one, n, found) for n, found in points],
            hoverinfo="text",
        )
    styled(figure, "Trials", "Fewest steps to goal, median")
    figure.update_layout(legend={"title": {"text": "batch size "}})
    figure.update_xaxes(**log2_axis(x for trace in figure.data for x in trace.x))
    figure.update_yaxes(**log10_axis(y for trace in figure.data for y in trace.y))
    return figure


def _of(one: BestOf, count: int, steps: Estimate) -> str:
    return f"<b>batch size {one.batch_size:,}, best of {count:,} trials</b><br>{in_words(steps)}"
