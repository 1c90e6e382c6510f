"""Metaparameters: the best ones against batch size, and all that were tried."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go
import pyarrow as pa
from plotly.subplots import make_subplots

from orchestrator.analysis import Tuned
from orchestrator.report.figures.style import (
    GUIDE,
    guide,
    log2_axis,
    log10_axis,
    mark,
    safe,
    styled,
)

LOOKS = {
    "reached": ("#0072B2", "circle", "reached the goal"),
    "unreached": (GUIDE, "circle-open", "did not, or was ended early"),
    "diverged": ("#D55E00", "x-thin-open", "diverged"),
}


RULES = ((1.0, "linear rule", "dash"), (0.5, "square root rule", "dot"))


def best_values(curves: Sequence[Tuned], recipes: Sequence[str]) -> go.Figure:
    """The best values of one metaparameter, a line per recipe; of a learning rate also what the
    usual rules make of the first point of the first. `recipes` are all there are, in their order.
    """
    figure = go.Figure()
    first = curves[0]
    for exponent, name, dash in RULES if first.is_rate else ():
        sizes, values = zip(*first.rule(exponent), strict=True)
        figure.add_traces(guide(list(sizes), list(values), name, dash))
    for curve in curves:
        number = recipes.index(curve.recipe)
        sizes, values = zip(*curve.points, strict=True)
        figure.add_scatter(
            x=sizes, y=values, name=safe(curve.recipe), mode="lines+markers", **mark(number),
            hovertext=[
                f"<b>{safe(curve.recipe)}, batch size {size:,}</b><br>"
                f"{safe(curve.name)} {value:.4g}"
                for size, value in curve.points
            ],
            hoverinfo="text",
        )  # fmt: skip
    styled(figure, "Batch size", f"Best {safe(first.name)}")
    figure.update_xaxes(**log2_axis(size for curve in curves for size, _ in curve.points))
    seen = [value for curve in curves for _, value in curve.points]
    figure.update_yaxes(**log10_axis(seen))
    return figure


def tried(
    outcomes: Sequence[tuple[int, pa.Table]], x: str, y: str, *, y_from_one: bool
) -> go.Figure:
    """Every trial by two metaparameters, a panel for each batch size; the best is starred. With
    `y_from_one`, 1 - y is shown."""
    figure = make_subplots(
        rows=1, cols=len(outcomes), shared_yaxes=True, horizontal_spacing=0.02,
        subplot_titles=[f"B = {size:,}" for size, _ in outcomes],
    )  # fmt: skip
    for column, (_, table) in enumerate(outcomes, start=1):
        rows = [row for row in table.to_pylist() if row[x] is not None and row[y] is not None]
        for kind, (colour, symbol, name) in LOOKS.items():
            points = [row for row in rows if _kind(row) == kind]
            figure.add_scatter(
                x=[_short(row[x]) for row in points],
                y=[_short(1 - row[y] if y_from_one else row[y]) for row in points],
                mode="markers", name=name, legendgroup=kind, showlegend=column == 1,
                marker={"color": colour, "symbol": symbol, "size": 7},
                hovertext=[_describe(row) for row in points], hoverinfo="text+x+y",
                row=1, col=column,
            )  # fmt: skip
        best = min((row for row in rows if _kind(row) == "reached"), key=_order, default=None)
        figure.add_scatter(
            x=[] if best is None else [best[x]],
            y=[] if best is None else [1 - best[y] if y_from_one else best[y]],
            mode="markers", name="the best", legendgroup="best", showlegend=column == 1,
            marker={"color": "#E69F00", "symbol": "star", "size": 15,
                    "line": {"color": "#000000", "width": 1}},
            hoverinfo="skip", row=1, col=column,
        )  # fmt: skip
    styled(figure, "", "")
    figure.update_layout(margin={"t": 60}, legend={"y": 1.1})
    points = [row for _, table in outcomes for row in table.select([x, y]).to_pylist()]
    rates = [row[x] for row in points if row[x] is not None]
    figure.update_xaxes(**log10_axis(rates, most=max(3, 12 // len(outcomes))))
    heights = [row[y] for row in points if row[y] is not None]
    figure.update_yaxes(**log10_axis(1 - value if y_from_one else value for value in heights))
    figure.update_xaxes(title=safe(x), col=(len(outcomes) + 1) // 2)
    figure.update_yaxes(title=f"1 - {safe(y)}" if y_from_one else safe(y), col=1)
    return figure


def _kind(row: dict[str, Any]) -> str:
    if row["counted"] and row["steps_to_goal"] is not None:
        return "reached"
    return "diverged" if row["status"] == "diverged" else "unreached"


def _order(row: dict[str, Any]) -> tuple[int, int]:
    return row["steps_to_goal"], row["trial"]


def _describe(row: dict[str, Any]) -> str:
    steps = row["steps_to_goal"]
    how = f"{row['status']}, {row['steps']:,} steps"
    return f"trial {row['trial']}: {safe(how if steps is None else f'goal at step {steps:,}')}"


def _short(number: float) -> float:
    """As exact as it can be drawn."""
    return float(f"{number:.4g}")
