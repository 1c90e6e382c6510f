"""Figures of metaparameters: the best values against batch size, and the results of options."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from orchestrator.analysis import OptionPoint, Tuned
from orchestrator.records import Goal
from orchestrator.report.figures.style import (
    GUIDE,
    exact,
    legend_once,
    log2_axis,
    log10_axis,
    mark,
    safe,
    styled,
    value_axis,
)

RULES = ((1.0, "linear rule", "dash"), (0.5, "square-root rule", "dot"))

PANEL_HEIGHT = 250
"""Height of the panel of each metaparameter, in pixels."""


def best_values(found: Mapping[str, Sequence[Tuned]], recipes: Sequence[str]) -> go.Figure:
    """Draws the best values of metaparameters, with a panel for each and a line per recipe. For a
    learning rate it adds the linear and square-root rules through the first point of the first
    recipe. `recipes` are all recipes of the page, in their order."""
    across = min(3, len(found))
    down = math.ceil(len(found) / across)
    figure = make_subplots(
        rows=down, cols=across, horizontal_spacing=0.24 / across, vertical_spacing=0.32 / down,
        subplot_titles=[safe(name) for name in found],
    )  # fmt: skip
    placed = [
        (trace, 1 + number // across, 1 + number % across)
        for number, curves in enumerate(found.values())
        for trace in (*_rules(curves[0]), *(_best(c, recipes.index(c.recipe)) for c in curves))
    ]
    traces, rows, columns = zip(*placed, strict=True)
    figure.add_traces(legend_once(traces), rows=rows, cols=columns)
    height = 110 + PANEL_HEIGHT * down
    styled(figure, "", "", height=height)
    figure.update_layout(margin={"t": 80}, legend={"y": 1 + 46 / (height - 140)}, font={"size": 13})
    figure.update_annotations(font={"size": 13})
    for number, curves in enumerate(found.values()):
        place = {"row": 1 + number // across, "col": 1 + number % across}
        points = [point for curve in curves for point in curve.points]
        figure.update_xaxes(**log2_axis((size for size, _ in points), most=5), **place)
        figure.update_yaxes(**log10_axis([value for _, value in points], most=6), **place)
        if number >= len(found) - across:
            figure.update_xaxes(title_text="Batch size", **place)
    return figure


def _rules(first: Tuned) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for exponent, name, dash in RULES if first.is_rate else ():
        sizes, values = zip(*first.rule(exponent), strict=True)
        found.append({
            "type": "scatter", "x": list(sizes), "y": list(values), "name": name, "mode": "lines",
            "line": {"color": GUIDE, "dash": dash, "width": 1.2}, "hoverinfo": "skip",
            "legendgroup": name,
        })  # fmt: skip
    return found


def _best(curve: Tuned, number: int) -> dict[str, object]:
    look = mark(number)
    look["line"]["width"], look["marker"]["size"] = 1.8, 7
    label = safe(curve.recipe), safe(curve.name)
    return {
        "type": "scatter", "mode": "lines+markers", "name": label[0],
        "legendgroup": f"recipe {curve.recipe}", "hoverinfo": "text",
        "x": [size for size, _ in curve.points], "y": [value for _, value in curve.points],
        "hovertext": [
            f"<b>{label[0]}, batch size {size:,}</b><br>{label[1]} {value:.4g}"
            for size, value in curve.points
        ],
        **look,
    }  # fmt: skip


def options(points: Sequence[OptionPoint], name: str, goal: Goal) -> go.Figure:
    """Draws, for each option of a metaparameter, the fewest steps to goal and, on the right, the
    best value that its trials reached."""
    titles = ["steps to goal", f"best {safe(goal.metric)}"]
    figure = make_subplots(rows=1, cols=2, horizontal_spacing=0.12, subplot_titles=titles)
    traces, columns = [], []
    for number, option in enumerate(dict.fromkeys(point.option for point in points)):
        mine = [point for point in points if point.option == option]
        for column, what in ((1, "steps"), (2, "best")):
            there = [point for point in mine if getattr(point, what) is not None]
            columns.append(column)
            traces.append({
                "type": "scatter", "mode": "lines+markers", "legendgroup": str(number),
                "x": [point.batch_size for point in there],
                "y": [getattr(point, what) for point in there],
                "name": f"{safe(name)} = {exact(option)}", **mark(number),
            })  # fmt: skip
    figure.add_traces(legend_once(traces), rows=[1] * len(traces), cols=columns)
    styled(figure, "Batch size", "")
    figure.update_layout(margin={"t": 60}, legend={"y": 1.1})
    figure.update_xaxes(**log2_axis(point.batch_size for point in points))
    figure.update_yaxes(**log2_axis(p.steps for p in points if p.steps is not None), col=1)
    values = [point.best for point in points if point.best is not None]
    figure.update_yaxes(**value_axis(values, goal), col=2)
    return figure
