"""Figures of all trials by two of their metaparameters."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go
import pyarrow as pa
from plotly.subplots import make_subplots

from orchestrator.analysis import in_count
from orchestrator.records import Value
from orchestrator.report.figures.style import (
    CLOSE_TO_FAR,
    FARTHEST,
    GUIDE,
    exact,
    legend_once,
    log10_axis,
    rounded,
    safe,
    styled,
)
from orchestrator.results import column_of

LOOKS = {
    "unreached": (GUIDE, "circle-open", "not reached, or stopped early"),
    "diverged": ("#D55E00", "x-thin-open", "diverged"),
    "reached": (None, "circle", "reached the goal"),
}


def every_trial(
    panels: Sequence[tuple[str, pa.Table]], x: str, y: str, *, y_from_one: bool
) -> go.Figure:
    """Draws every trial by two metaparameters, with a panel for each (title, trials); the best
    trial is starred. With `y_from_one`, the axis shows 1 - y."""
    cells = [[_Cell(table=table, title=safe(title)) for title, table in panels]]
    return _scattered(cells, x, y, y_from_one)


def tried_within(
    outcomes: Sequence[tuple[int, pa.Table]], x: str, y: str, *, y_from_one: bool,
    examples: float, steps: float,
) -> go.Figure:  # fmt: skip
    """Draws the same panels for budgets: a trial counts as reaching the goal if it needed at most
    so many examples (first row) or steps (second row)."""
    cells = [
        [_Cell(table=of, title=f"B = {size:,}", limit=examples / size) for size, of in outcomes],
        [_Cell(table=table, title="", limit=steps) for _, table in outcomes],
    ]
    lines = [f"within {in_count(examples)} examples", f"within {in_count(steps)} steps"]
    return _scattered(cells, x, y, y_from_one, lines)


@dataclass(frozen=True, kw_only=True)
class _Cell:
    table: pa.Table
    title: str
    limit: float = math.inf
    """Steps by which a trial must have reached the goal."""

    def values(self, metaparameter: str) -> list[Any]:
        return [*self.table[column_of(metaparameter)].drop_null().to_pylist()]

    def kind(self, row: Mapping[str, Any]) -> str:
        steps = row["steps_to_goal"]
        if row["counted"] and steps is not None and steps <= self.limit:
            return "reached"
        diverged = row["status"] == "diverged" and row["steps"] <= self.limit
        return "diverged" if diverged else "unreached"


def _scattered(
    cells: Sequence[Sequence[_Cell]], x: str, y: str, y_from_one: bool, lines: Sequence[str] = ()
) -> go.Figure:
    wide = len(cells[0])
    figure = make_subplots(
        rows=len(cells), cols=wide, shared_yaxes=True, shared_xaxes=len(cells) > 1,
        horizontal_spacing=0.02, vertical_spacing=0.06,
        subplot_titles=[cell.title for line in cells for cell in line], row_titles=[*lines],
    )  # fmt: skip
    # All at once: plotly takes several times as long for one after the other.
    placed = [
        (trace, line, column)
        for line, row_of_cells in enumerate(cells, start=1)
        for column, cell in enumerate(row_of_cells, start=1)
        for trace in _traces(cell, (x, y, y_from_one))
    ]
    traces, rows, columns = zip(*placed, strict=True)
    figure.add_traces(legend_once(traces), rows=rows, cols=columns)
    # Their colours have a bar.
    figure.update_traces(showlegend=False, selector={"legendgroup": "reached"})
    rates, heights = (
        [value for line in cells for cell in line for value in cell.values(name)] for name in (x, y)
    )
    styled(figure, "", "", height=200 + 260 * len(cells))
    figure.update_layout(
        margin={"t": 60}, legend={"y": 1.1 if len(cells) == 1 else 1.05},
        coloraxis=_colours(1.06 if lines else 1.01),
    )  # fmt: skip
    figure.update_xaxes(**log10_axis(rates, most=max(2, 9 // wide)))
    figure.update_yaxes(**log10_axis(1 - value if y_from_one else value for value in heights))
    figure.update_xaxes(title=safe(x), row=len(cells), col=(wide + 1) // 2)
    figure.update_yaxes(title=f"1 - {safe(y)}" if y_from_one else safe(y), col=1)
    return figure


def _colours(x: float) -> dict[str, Any]:
    """Returns the colours of trials by their steps over the fewest, with a colour bar at `x`."""
    ticks = [*range(FARTHEST + 1)]
    names = [f"{2**tick}" for tick in ticks[:-1]]
    return {
        "colorscale": CLOSE_TO_FAR, "cmin": 0, "cmax": FARTHEST,
        "colorbar": {
            "title": {"text": "steps,<br>times the<br>fewest"}, "thickness": 12, "x": x,
            "tickvals": ticks, "ticktext": [*names, f"{2**FARTHEST} or more"],
        },
    }  # fmt: skip


def _traces(cell: _Cell, names: tuple[str, str, bool]) -> Iterator[dict[str, Any]]:
    x, y, y_from_one = column_of(names[0]), column_of(names[1]), names[2]
    rows = [row for row in cell.table.to_pylist() if row[x] is not None and row[y] is not None]
    for kind, (colour, symbol, name) in LOOKS.items():
        points = [row for row in rows if cell.kind(row) == kind]
        look: dict[str, Any] = {"color": colour, "symbol": symbol, "size": 7}
        if kind == "reached":
            fewest = min((row["steps_to_goal"] for row in points), default=1)
            far = [rounded(math.log2(row["steps_to_goal"] / fewest)) for row in points]
            look |= {"color": far, "coloraxis": "coloraxis"}
        elif kind == "unreached":
            look |= {"size": 6, "opacity": 0.6}
        yield {
            "type": "scatter", "mode": "markers", "name": name, "legendgroup": kind,
            "x": [rounded(row[x]) for row in points],
            "y": [rounded(1 - row[y] if y_from_one else row[y]) for row in points],
            "marker": look,
            "hovertext": None if cell.limit < math.inf else [_describe(row) for row in points],
            "hoverinfo": "text+x+y",
        }  # fmt: skip
    best = min((row for row in rows if cell.kind(row) == "reached"), key=_order, default=None)
    yield {
        "type": "scatter", "mode": "markers", "name": "the best", "legendgroup": "best",
        "x": [] if best is None else [best[x]],
        "y": [] if best is None else [1 - best[y] if y_from_one else best[y]],
        "marker": {"color": "#E69F00", "symbol": "star", "size": 15,
                   "line": {"color": "#000000", "width": 1}},
        "hoverinfo": "skip",
    }  # fmt: skip


def heat_maps(
    cells: Sequence[tuple[int, Mapping[tuple[Value, Value], float]]],
    axes: tuple[tuple[str, Sequence[Value]], tuple[str, Sequence[Value]]],
    shown: str,
    *,
    logs: bool,
) -> go.Figure:
    """Draws the results at the points of a grid, with a map for each batch size. Both axes are
    given as (name, values). With `logs`, colours follow the logarithm."""
    (x, xs), (y, ys) = axes
    figure = make_subplots(
        rows=1, cols=len(cells), shared_yaxes=True, horizontal_spacing=0.02,
        subplot_titles=[f"B = {size:,}" for size, _ in cells],
    )  # fmt: skip
    few = len(xs) * len(cells) <= 12
    for column, (_, values) in enumerate(cells, start=1):
        known = [[values.get((one, other)) for one in xs] for other in ys]
        z = [[v and math.log2(v) if logs else v for v in line] for line in known]
        figure.add_heatmap(
            x=[exact(value) for value in xs], y=[exact(value) for value in ys], z=z,
            coloraxis="coloraxis", xgap=1, ygap=1,
            text=[["" if v is None else f"{v:.4g}" for v in line] for line in known],
            texttemplate="%{text}" if few else None,
            hovertemplate=f"{safe(x)} %{{x}}<br>{safe(y)} %{{y}}<br>{safe(shown)} %{{text}}"
            "<extra></extra>",
            row=1, col=column,
        )  # fmt: skip
    styled(figure, "", "")
    bar = f"{safe(shown)},<br>in doublings" if logs else safe(shown)
    figure.update_layout(
        margin={"t": 70},
        coloraxis={"colorscale": "Viridis", "colorbar": {"title": {"text": bar}}},
    )
    figure.update_xaxes(type="category", showgrid=False, tickangle=-45)
    figure.update_yaxes(type="category", showgrid=False)
    figure.update_xaxes(title=safe(x), col=(len(cells) + 1) // 2)
    figure.update_yaxes(title=safe(y), col=1)
    return figure


def _order(row: dict[str, Any]) -> tuple[int, int]:
    return row["steps_to_goal"], row["trial"]


def _describe(row: dict[str, Any]) -> str:
    steps = row["steps_to_goal"]
    how = f"{row['status']}, {row['steps']:,} steps"
    return f"trial {row['trial']}: {safe(how if steps is None else f'goal at step {steps:,}')}"
