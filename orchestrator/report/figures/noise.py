"""Figures of the gradient noise scale along trainings, and of its forecasts beside the
measurements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from orchestrator.analysis import Comparison, Estimate, NoisePoint, in_words
from orchestrator.report.figures.style import (
    MOST_CURVES,
    evenly,
    guide,
    log2_axis,
    log10_axis,
    mark,
    safe,
    shades,
    styled,
)


@dataclass(frozen=True, kw_only=True)
class NoiseLine:
    """The noise scale along the trainings of one point."""

    batch_size: int
    points: Sequence[NoisePoint]


def noise_along(lines: Sequence[NoiseLine]) -> go.Figure:
    """Draws a line per batch size, from small (dark) to large (bright), against examples."""
    figure = go.Figure()
    ordered = evenly(sorted(lines, key=lambda line: line.batch_size), MOST_CURVES)
    for line, colour in zip(ordered, shades(len(ordered)), strict=True):
        # Both axes are logarithmic: before the first step there were no examples.
        points = [p for p in line.points if p.step and math.isfinite(p.scale.value)]
        figure.add_scatter(
            x=[point.step * line.batch_size for point in points],
            y=[point.scale.value for point in points],
            name=f"{line.batch_size:,}",
            mode="lines+markers",
            line={"color": colour, "width": 2},
            marker={"size": 6},
            error_y=_whiskers([point.scale for point in points], thickness=1, width=0),
            hovertext=[
                f"<b>batch size {line.batch_size:,}, step {point.step:,}</b><br>"
                f"{in_words(point.scale)}, by {point.trainings} trainings"
                for point in points
            ],
            hoverinfo="text",
        )
    styled(figure, "Examples", "Noise scale, in examples")
    figure.update_layout(legend={"title": {"text": "batch size "}})
    found = [trace for trace in figure.data if trace.x]
    figure.update_xaxes(**log10_axis(x for trace in found for x in trace.x))
    figure.update_yaxes(**log10_axis(y for trace in found for y in trace.y))
    return figure


def forecast_against_measured(comparisons: Sequence[Comparison]) -> go.Figure:
    """Draws a point for each curve; on the dashed line, forecast and measurement are equal."""
    figure = go.Figure()
    names = dict.fromkeys(one.workload for one in comparisons)
    ends: list[float] = []
    for number, name in enumerate(names):
        mine = [one for one in comparisons if one.workload == name and one.measured]
        measured = [one.measured for one in mine if one.measured]
        forecasts = [one.forecast for one in mine]
        values = [e.value for e in (*measured, *forecasts)]
        bounds = [end for e in (*measured, *forecasts) for end in (e.low, e.high)]
        ends += [end for end in (*values, *bounds) if end and math.isfinite(end)]
        figure.add_scatter(
            x=[estimate.value for estimate in measured],
            y=[estimate.value for estimate in forecasts],
            error_x=_whiskers(measured),
            error_y=_whiskers(forecasts),
            name=safe(name),
            mode="markers",
            marker=mark(number)["marker"] | {"size": 11},
            hovertext=[
                f"<b>{safe(one.workload)}, {safe(one.recipe)}, {safe(one.goal)}</b><br>"
                f"forecast {in_words(one.forecast)}<br>"
                f"measured {'' if one.measured is None else in_words(one.measured)}"
                for one in mine
            ],
            hoverinfo="text",
        )
    low, high = min(ends, default=1.0), max(ends, default=2.0)
    figure.add_traces(guide([low, high], [low, high], "the same"))
    styled(figure, "B_crit as measured", "Forecast by the noise scale", height=520)
    figure.update_xaxes(**log2_axis(ends))
    figure.update_yaxes(**log2_axis(ends))
    return figure


def _whiskers(estimates: Sequence[Estimate], **look: object) -> dict[str, object]:
    """Returns intervals about values; an interval without an end is drawn up to a factor of
    1000."""
    up, down = [], []
    for estimate in estimates:
        value, low, high = estimate.value, estimate.low, estimate.high
        up.append(0.0 if high is None else min(high, 1000 * value) - value)
        down.append(0.0 if low is None else value - max(low, value / 1000))
    return {"type": "data", "symmetric": False, "array": up, "arrayminus": down, **look}
