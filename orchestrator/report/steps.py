"""The figure of steps to goal against batch size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from orchestrator.analysis import Curves, Estimate, Point, errors_of, in_count, trained_points
from orchestrator.report.content import grouped
from orchestrator.report.sections import short
from orchestrator.report.style import add_line, guide, log2_axis, mark, of_size, safe, styled
from orchestrator.results import FrontierRow

PLACES_DRAWN = 41
"""The number of batch sizes at which a fitted curve is drawn."""


def steps_to_goal(
    rows: Sequence[FrontierRow], fitted: Mapping[str, Curves] | None = None
) -> go.Figure:
    """Draws one workload and goal: for each recipe a line, the curves that its points allow, and
    perfect scaling from the point that needed the fewest examples. Batch sizes that never reached
    the goal are marked at the top."""
    curves = grouped(rows, lambda row: row.recipe)
    figure = _lines(curves)
    for number, name in enumerate(curves):
        if (found := (fitted or {}).get(name)) is not None:
            figure.add_traces(_band(number, name, found))
    return figure


def _band(number: int, name: str, found: Curves) -> list[dict[str, Any]]:
    """Draws the curve in the middle of all that the points allow, and where nine tenths of them
    lie."""
    logs = np.linspace(found.log_sizes[0], found.log_sizes[-1], PLACES_DRAWN)
    sizes = (2**logs).tolist()
    middle, low, high = (line.tolist() for line in found.band(logs))
    colour = mark(number)["line"]["color"]
    same = {"type": "scatter", "mode": "lines", "showlegend": False, "hoverinfo": "skip"}
    around = {
        **same, "x": [*sizes, *sizes[::-1]], "y": [*high, *low[::-1]], "fill": "toself",
        "name": f"{safe(name)}, 90 %", "fillcolor": colour, "line": {"width": 0}, "opacity": 0.15,
    }  # fmt: skip
    line = {"color": colour, "width": 1.5, "dash": "dot"}
    return [around, {**same, "x": sizes, "y": middle, "name": f"{safe(name)}, bend", "line": line}]


def goals_compared(rows: Sequence[FrontierRow]) -> go.Figure:
    """Draws one workload and recipe, with a line per goal."""
    return _lines(grouped(rows, lambda row: row.goal), perfect=False)


def _lines(curves: Mapping[str, Sequence[FrontierRow]], *, perfect: bool = True) -> go.Figure:
    figure = go.Figure()
    reached = [point for rows in curves.values() for point in trained_points(rows)]
    drawn = {name: trained_points(rows) for name, rows in curves.items()}
    spread = {name: errors_of(points).intervals(points) for name, points in drawn.items()}
    ends = [end for of_name in spread.values() for one in of_name for end in (one.low, one.high)]
    # All of where a point may lie is to be seen.
    seen = [*(end for end in ends if end), *(point.steps for point in reached)]
    if reached and perfect:
        figure.add_traces(guide([None], [None], "perfect scaling"))
        figure.add_traces(
            [_perfect(n, drawn[name]) for n, name in enumerate(curves) if drawn[name]]
        )
    for number, (name, rows) in enumerate(curves.items()):
        points = _with_gaps(rows)
        if not drawn[name]:
            continue
        at = [(size, p and p.steps, "" if p is None else _describe(name, p)) for size, p in points]
        of_size = dict(zip([p.batch_size for p in drawn[name]], spread[name], strict=True))
        whiskers = [of_size.get(size) for size, _ in points]
        add_line(figure, name, at, mark(number), error_y=_spread(whiskers))
    styled(figure, "Batch size", "Steps to goal")
    figure.update_xaxes(**log2_axis(row.batch_size for rows in curves.values() for row in rows))
    axis = log2_axis(seen)
    figure.update_yaxes(**axis)
    missing = [_missing(n, name, rows, 10 ** axis["range"][1]) for n, (name, rows) in
               enumerate(curves.items())]  # fmt: skip
    figure.add_traces([trace for trace in missing if trace["x"]])
    return figure


def _perfect(number: int, points: Sequence[Point]) -> dict[str, Any]:
    """Draws perfect scaling over the batch sizes of a curve, through the point that needed the
    fewest examples."""
    examples = min(point.examples for point in points)
    fewest = min(point.steps for point in points)
    smallest = min(point.batch_size for point in points)
    largest = min(max(point.batch_size for point in points), 2 * examples / fewest)
    return {
        "type": "scatter", "mode": "lines", "x": [smallest, largest],
        "y": [examples / smallest, examples / largest], "name": "perfect scaling",
        "line": {"color": mark(number)["line"]["color"], "width": 1.2, "dash": "dash"},
        "opacity": 0.6, "showlegend": False, "hoverinfo": "skip",
    }  # fmt: skip


def _missing(number: int, name: str, rows: Sequence[FrontierRow], top: float) -> dict[str, Any]:
    """Draws batch sizes without a point as crosses at the top, a little lower for each recipe."""
    known = {point.batch_size for point in trained_points(rows)}
    missing = [row for row in rows if row.batch_size not in known]
    return {
        "type": "scatter", "mode": "markers", "x": [row.batch_size for row in missing],
        "y": [top / 1.06 ** (number + 1)] * len(missing), "name": f"{safe(name)}, not reached",
        "showlegend": False, "hoverinfo": "text", "cliponaxis": False,
        "marker": {"color": mark(number)["line"]["color"], "symbol": "x-thin-open", "size": 10,
                   "line": {"width": 2}},
        "hovertext": [_why(name, row) for row in missing],
    }  # fmt: skip


def _why(name: str, row: FrontierRow) -> str:
    """Says why a batch size has no point."""
    ended = ", ".join(f"{count} {safe(status)}" for status, count in row.trials.items())
    if row.censored:
        why = "not known: trials were ended at other goals"
    elif row.repeats is not None and row.steps is not None:
        why = "too few of the winner's repeats reached the goal"
    else:
        why = "the goal was not reached" if row.finished else "not finished yet"
    said = of_size(row.batch_size, name) + why
    return f"{said}<br>trials: {ended}" if ended else said


def _with_gaps(rows: Sequence[FrontierRow]) -> list[tuple[int, Point | None]]:
    """Returns the points of a curve by batch size, with None where the goal was not reached, so
    that no line leads through there."""
    points: dict[int, Point | None] = {row.batch_size: None for row in rows}
    points |= {point.batch_size: point for point in trained_points(rows)}
    return sorted(points.items(), key=lambda at: at[0])


def _spread(intervals: Sequence[Estimate | None]) -> dict[str, object]:
    """Returns the range in which each point may lie."""
    return {
        "visible": True, "symmetric": False, "thickness": 1,
        "array": [one and (one.high or one.value) - one.value for one in intervals],
        "arrayminus": [one and one.value - (one.low or one.value) for one in intervals],
    }  # fmt: skip


def _describe(name: str, point: Point) -> str:
    row, lines = point.row, []
    if row.repeats is not None and point.is_median:
        low, high = (f"{end:,}" if end else "never" for end in (point.low, point.high))
        lines.append(
            f"{in_count(point.steps)} steps, the median of {row.repeats.count} repeats "
            f"({low} to {high}, {point.confidence:.0%})"
        )
    if row.steps is not None:
        lines.append(f"{row.steps:,} steps (±{row.resolution}) in trial {row.trial}")
    lines += [f"{safe(key)} = {safe(short(value))}" for key, value in (row.params or {}).items()]
    return of_size(point.batch_size, name) + "<br>".join(lines)
