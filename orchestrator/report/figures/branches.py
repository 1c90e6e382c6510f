"""Figures along one training: how large the batch may be, and the branches that show it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from orchestrator.analysis import Estimate
from orchestrator.report.figures.style import (
    COLOURS,
    SYMBOLS,
    guide,
    log2_axis,
    log10_axis,
    safe,
    shades,
    styled,
)

APART = 1 / 75
"""Distance between marks at the same examples, which stand side by side, as a share of the axis."""

FURTHEST = 8
"""An interval is drawn up to this many times the largest value, and down to the smallest value
divided by it."""


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A batch size at one point of a training."""

    at_examples: int
    batch_size: Estimate
    bound: float
    """A lower bound, drawn where the value is infinite."""
    said: str
    """The text that appears on hovering."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """Batch sizes of one kind along a training."""

    name: str
    marks: Sequence[Mark]
    line: Sequence[tuple[int, float]] = ()
    """(examples, batch size) along the line that joins the marks."""


@dataclass(frozen=True, kw_only=True)
class Stairs:
    """A schedule: (examples, the batch size from there on, what appears on hovering)."""

    name: str
    stages: Sequence[tuple[int, int, str]]


@dataclass(frozen=True, kw_only=True)
class BranchCurve:
    """The loss of branches from one point at one batch size, as the mean over seeds."""

    at_examples: int
    batch_size: int
    factor: int
    """The batch size of these branches over the trunk's."""
    seeds: int
    rate: float
    """Learning rate of these branches over the trunk's."""
    examples: Sequence[float]
    """Examples since the beginning of the trunk."""
    losses: Sequence[float]


def batch_sizes_along(
    series: Sequence[Series], schedules: Sequence[Stairs], *, trunk: int, largest: int, until: int
) -> go.Figure:
    """Draws each series as marks with intervals, schedules as steps, and lines at the smallest (the
    trunk's) and the largest batch size that was measured."""
    found = [mark for one in series for mark in one.marks]
    beginnings = [x for one in series for x, _ in one.line] + [mark.at_examples for mark in found]
    first = min((x for x in beginnings if x > 0), default=1) / 1.3
    edges = _edges(series, schedules, trunk, largest)
    figure = go.Figure()
    for name, size, dash in (
        ("trunk's batch size", trunk, "dash"),
        ("largest measured", largest, "dot"),
    ):
        figure.add_traces(guide([first, until], [size, size], name, dash))
    for stairs, colour, dash, width in zip(
        schedules, COLOURS[2:4], ("solid", "dash"), (4, 2.5), strict=False
    ):
        look = {"color": colour, "dash": dash, "width": width, "shape": "hv"}
        figure.add_scatter(**_steps(stairs, first, until), mode="lines", line=look)
    for number, one in enumerate(series):
        colour = (COLOURS[0], COLOURS[4], COLOURS[1])[number % 3]
        for trace in _traces(
            one, (until / first) ** (APART * (number - 1)), colour, SYMBOLS[number % 3], edges
        ):
            figure.add_scatter(**trace)
    styled(figure, "Examples seen", "Batch size", height=520)
    figure.update_xaxes(**log10_axis([first, until]))
    figure.update_yaxes(**log2_axis(edges))
    return figure


def _edges(
    series: Sequence[Series], schedules: Sequence[Stairs], trunk: int, largest: int
) -> tuple[float, float]:
    """Returns the smallest and the largest batch size of the axis. It covers all values except
    those far from the measured range, and intervals as far as they do not extend much beyond it."""
    marks = [mark for one in series for mark in one.marks]
    values = [y for one in series for _, y in one.line]
    values += [size for stairs in schedules for _, size, _ in stairs.stages]
    values += [_value(mark) for mark in marks]
    within = [y for y in values if 1 / 2 <= y <= largest * FURTHEST]
    low, high = min([trunk, *within]), max([largest, *within])
    ends = [
        end
        for mark in marks
        for end in (mark.batch_size.low, mark.batch_size.high)
        if end is not None and low / FURTHEST <= end <= high * FURTHEST
    ]
    ends = [low, high, *ends]
    return 2 ** math.floor(math.log2(min(ends))), 2 ** math.ceil(math.log2(max(ends)))


def _value(mark: Mark) -> float:
    return mark.batch_size.value if math.isfinite(mark.batch_size.value) else mark.bound


def _steps(stairs: Stairs, first: float, until: int) -> dict[str, Any]:
    stages = [*stairs.stages, (until, *stairs.stages[-1][1:])]
    return {
        "x": [max(examples, first) for examples, _, _ in stages],
        "y": [size for _, size, _ in stages],
        "name": safe(stairs.name),
        "hovertext": [text for _, _, text in stages],
        "hoverinfo": "text",
    }


def _traces(
    one: Series, apart: float, colour: str, symbol: str, edges: tuple[float, float]
) -> list[dict[str, Any]]:
    """Returns the line of a series, its marks (hollow if they are only a bound), and arrows where
    an interval continues beyond the figure."""
    group = {"name": safe(one.name), "legendgroup": one.name, "hoverinfo": "text"}
    line = {
        **group, "showlegend": False, "hoverinfo": "skip", "mode": "lines",
        "line": {"color": colour, "width": 1, "dash": "dot"},
        "x": [x for x, _ in one.line], "y": [y for _, y in one.line],
    }  # fmt: skip
    heights = [_within(_value(mark), edges) for mark in one.marks]
    ends = [_ends(mark, edges) for mark in one.marks]
    marks = {
        **group, "x": [mark.at_examples * apart for mark in one.marks], "y": heights,
        "mode": "markers", "hovertext": [mark.said for mark in one.marks],
        "marker": {
            "color": colour, "size": 11, "line": {"width": 2, "color": colour},
            "symbol": [
                symbol if mark.batch_size.value == height else f"{symbol}-open"
                for mark, height in zip(one.marks, heights, strict=True)
            ],
        },
        "error_y": {
            "type": "data", "symmetric": False, "thickness": 1.5, "width": 3, "color": colour,
            "array": [high - y for (_, high), y in zip(ends, heights, strict=True)],
            "arrayminus": [y - low for (low, _), y in zip(ends, heights, strict=True)],
        },
    }  # fmt: skip
    beyond = [(mark, *arrow) for mark in one.marks for arrow in _beyond(mark, edges)]
    arrows = {
        **group, "showlegend": False, "mode": "markers",
        "x": [mark.at_examples * apart for mark, _, _ in beyond],
        "y": [edge for _, edge, _ in beyond],
        "hovertext": [mark.said for mark, _, _ in beyond],
        "marker": {"color": colour, "size": 10, "symbol": [shape for _, _, shape in beyond]},
    }  # fmt: skip
    return [trace for trace in (line, marks, arrows) if trace["x"]]


def _within(value: float, edges: tuple[float, float]) -> float:
    return min(max(value, edges[0]), edges[1])


def _ends(mark: Mark, edges: tuple[float, float]) -> tuple[float, float]:
    """Returns the ends of an interval, as far as it is drawn."""
    at = _value(mark)
    ends = at, mark.batch_size.low, mark.batch_size.high
    drawn = [_within(end, edges) for end in ends if end is not None]
    return min(drawn), max(drawn)


def _beyond(mark: Mark, edges: tuple[float, float]) -> Iterator[tuple[float, str]]:
    """Returns the edge beyond which an interval continues, and the arrow that shows it."""
    low, high = mark.batch_size.low, mark.batch_size.high
    if low is not None and low < edges[0]:
        yield edges[0], "triangle-down"
    if high is not None and high > edges[1]:
        yield edges[1], "triangle-up"


def trunk_and_branches(
    trunk: Sequence[tuple[float, float]],
    points: Sequence[float],
    curves: Sequence[BranchCurve],
    metric: str,
) -> go.Figure:
    """Draws the loss along the trunk with its points marked, and the branches: blue at the trunk's
    batch size, the others from small (dark) to large (bright) batch sizes."""
    figure = go.Figure()
    for trace in _branches(curves):
        figure.add_scatter(mode="lines", opacity=0.8, **trace)
    drawn = [(x, y) for x, y in trunk if x > 0 and math.isfinite(y)]
    marked = [(x, y) for x, y in drawn if x in points]
    for name, some, look, text in (
        ("trunk", drawn, {"mode": "lines", "line": {"width": 2.5}}, "trunk"),
        (
            "points", marked, {"mode": "markers", "marker": {"size": 11, "symbol": "diamond"}},
            "branches go on from here",
        ),
    ):  # fmt: skip
        hover = f"<b>{text}</b><br>%{{x:,}} examples: %{{y:.4g}}<extra></extra>"
        x, y = ([at[axis] for at in some] for axis in (0, 1))
        figure.add_scatter(x=x, y=y, name=name, hovertemplate=hover, **look)
    figure.update_traces(marker_color=COLOURS[1], selector={"name": "points"})
    figure.update_traces(line_color=COLOURS[1], selector={"name": "trunk"})
    styled(figure, "Examples seen", safe(metric))
    values = [y for _, y in drawn] + [y for curve in curves for y in curve.losses]
    seen = [x for x, _ in drawn] + [x for curve in curves for x in curve.examples]
    figure.update_xaxes(**log10_axis(seen))
    if values and min(values) > 0 and max(values) > 10 * min(values):
        figure.update_yaxes(**log10_axis(values))
    return figure


def _branches(curves: Sequence[BranchCurve]) -> Iterator[dict[str, Any]]:
    sizes = sorted({curve.batch_size for curve in curves})
    # The trunk's own batch is what others are held to; the darkest shade can't be seen on black.
    colours = dict(zip(sizes, [COLOURS[0], *shades(len(sizes))[1:]], strict=True)) if sizes else {}
    seen: set[int] = set()
    for curve in sorted(curves, key=lambda curve: (curve.batch_size, curve.at_examples)):
        size = curve.batch_size
        yield {
            "x": curve.examples, "y": curve.losses, "name": f"batch size {size:,}",
            "line": {"color": colours[size], "width": 2 if curve.factor == 1 else 1},
            "legendgroup": str(size), "showlegend": size not in seen,
            "hovertemplate": f"<b>batch size {size:,}, from {curve.at_examples:,} examples on</b>"
            f"<br>learning rate x{curve.rate:.3g}, {curve.seeds} seeds<br>"
            "%{x:,} examples: %{y:.4g}<extra></extra>",
        }  # fmt: skip
        seen.add(size)
