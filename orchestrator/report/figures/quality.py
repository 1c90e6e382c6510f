"""The best that each batch size came to within budgets of steps and of epochs."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from orchestrator.report.figures.style import log2_axis, safe, shades, styled
from orchestrator.results import BestRow


def best_within(rows: Sequence[BestRow]) -> go.Figure:
    """Of one recipe: a line per budget, small (dark) to large (bright), budgets in steps on the
    left and in epochs on the right."""
    units = [unit for unit in ("steps", "epochs") if any(_unit(row) == unit for row in rows)]
    figure = make_subplots(
        rows=1, cols=len(units), shared_yaxes=True, horizontal_spacing=0.04,
        subplot_titles=[f"within so many {unit}" for unit in units],
    )  # fmt: skip
    for column, unit in enumerate(units, start=1):
        budgets = dict.fromkeys(row.within or "" for row in rows if _unit(row) == unit)
        for budget, colour in zip(budgets, shades(len(budgets)), strict=True):
            points = sorted(
                (row for row in rows if row.within == budget and row.value is not None),
                key=lambda row: row.batch_size,
            )
            figure.add_scatter(
                x=[row.batch_size for row in points],
                y=[row.value for row in points],
                name=budget.replace("=", " "), mode="lines+markers",
                line={"color": colour, "width": 2}, marker={"size": 8},
                hovertext=[
                    f"<b>batch size {row.batch_size:,}</b><br>{row.value:.4g} "
                    f"at step {row.step:,}, trial {row.trial}" for row in points
                ],
                hoverinfo="text", row=1, col=column,
            )  # fmt: skip
    styled(figure, "Batch size", "")
    figure.update_layout(margin={"t": 60}, legend={"y": 1.1})
    figure.update_xaxes(**log2_axis(row.batch_size for row in rows))
    figure.update_yaxes(title=f"Best {safe(rows[0].metric)}", col=1)
    return figure


def _unit(row: BestRow) -> str:
    return (row.within or "").partition("=")[0]
