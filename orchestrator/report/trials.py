"""The fold of all trials: by two metaparameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
import pyarrow as pa
from plotly.subplots import make_subplots

from orchestrator.records import Range, Study
from orchestrator.report.content import Panel, Tried, grouped
from orchestrator.report.sections import Show
from orchestrator.report.style import (
    COLOURS,
    GUIDE,
    evenly,
    legend_once,
    log10_axis,
    rounded,
    safe,
    styled,
)
from orchestrator.report.trial_table import Tables, best_and_others, reached
from orchestrator.results import column_of

SIDE_BY_SIDE = 6
"""The most batch sizes at which trials are shown."""

LOOKS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "unreached": (
        "not reached, or stopped early",
        {"color": GUIDE, "symbol": "circle-open", "size": 6, "opacity": 0.6},
    ),
    "diverged": ("diverged", {"color": COLOURS[1], "symbol": "x-thin-open", "size": 7}),
    "reached": ("reached the goal", {"coloraxis": "coloraxis", "symbol": "circle", "size": 7}),
    "best": (
        "the best",
        {"color": COLOURS[4], "symbol": "star", "size": 15, "line": {"color": "#000", "width": 1}},
    ),
}

CLOSE_TO_FAR = [(0.0, "#0A6EBD"), (0.35, "#35A79C"), (0.7, "#9CBF5A"), (1.0, "#E3C34B")]
"""The colours of trials from the best on, all visible on white and on black."""

FARTHEST = 3
"""The colour scale of trials ends at this many doublings of the fewest steps."""


def tried_of(studies: Sequence[Study], tables: Tables, most: int) -> Tried | None:
    """The trials of one recipe, at most `most` of each batch size, smallest size first."""
    scales = {n: entry.scale for n, entry in studies[0].space.items() if isinstance(entry, Range)}
    if len(scales) < 2:
        return None
    x, y, *_ = sorted(scales, key=lambda name: scales[name] == "linear")
    whole = [
        (study.batch_size, tables[study.key])
        for study in evenly(studies, SIDE_BY_SIDE)
        if {column_of(x), column_of(y)} <= _numbers(tables[study.key])
    ]
    if not whole:
        return None
    columns = ["trial", "status", "counted", "steps", "steps_to_goal", column_of(x), column_of(y)]
    return Tried(
        x=x,
        y=y,
        y_from_one=scales[y] == "reverse_log",
        linear=[name for name in (x, y) if scales[name] == "linear"],
        outcomes=[(size, best_and_others(table.select(columns), most)) for size, table in whole],
        counts=[(size, reached(table), len(table)) for size, table in whole],
        cut=any({"dominated", "paused"} & {*table["status"].to_pylist()} for _, table in whole),
    )


def _numbers(table: pa.Table) -> set[str]:
    """The columns of numbers; in an archive, one study's range may be another's text."""
    return {
        field.name
        for field in table.schema
        if pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
    }


def all_tried(panel: Panel, show: Show) -> str:
    return "".join(
        show(
            _every_trial(tried),
            f"{recipe}: every trial by {tried.x} and {tried.y}",
            _counts(tried) + _sampled(tried),
            "Colours show how many times the fewest steps of that batch size a trial took. They "
            "tell how wide the good region is, where it moves as the batch grows, and how near it "
            "lies to an end of the ranges. The best trial is starred.",
        )
        for recipe, tried in panel.tried.items()
    )


def _counts(tried: Tried) -> str:
    parts = [f"{those} of {count} at {size:,}" for size, those, count in tried.counts]
    more = (
        " Trials that could no longer win were stopped early, so more might have reached the goal."
    )
    return f"Trials that reached the goal, by batch size: {', '.join(parts)}.{more * tried.cut}"


def _sampled(tried: Tried) -> str:
    few, many = sum(len(table) for _, table in tried.outcomes), sum(n for _, _, n in tried.counts)
    if few == many:
        return ""
    return (
        f" {few:,} of {many:,} trials are drawn: at each batch size the trials that reached the "
        f"goal in the fewest steps, and an even sample of the others."
    )


def found(panel: Panel) -> str:
    total = sum(one.total for one in panel.listed.values())
    those = sum(one.reached for one in panel.listed.values())
    return f"{those:,} of {total:,} reached the goal" if total else "By their metaparameters"


def _every_trial(tried: Tried) -> go.Figure:
    """Every trial by two metaparameters, a panel for each batch size; the best is starred."""
    wide = len(tried.outcomes)
    figure = make_subplots(
        rows=1, cols=wide, shared_yaxes=True, horizontal_spacing=0.02,
        subplot_titles=[f"B = {size:,}" for size, _ in tried.outcomes],
    )  # fmt: skip
    # All at once: plotly takes several times as long for one after the other.
    placed = [
        (trace, column)
        for column, (_, table) in enumerate(tried.outcomes, start=1)
        for trace in _traces(tried, table)
    ]
    traces, columns = zip(*placed, strict=True)
    figure.add_traces(legend_once(traces), rows=[1] * len(traces), cols=columns)
    # Their colours have a bar.
    figure.update_traces(showlegend=False, selector={"legendgroup": "reached"})
    styled(figure, "", "")
    figure.update_layout(margin={"t": 60}, legend={"y": 1.1}, coloraxis=_colours())
    xs, ys = ([value for trace in traces for value in trace[axis]] for axis in ("x", "y"))
    plain = {"type": "linear"}
    figure.update_xaxes(**plain if tried.x in tried.linear else log10_axis(xs, max(2, 9 // wide)))
    figure.update_yaxes(**plain if tried.y in tried.linear else log10_axis(ys))
    figure.update_xaxes(title=safe(tried.x), col=(wide + 1) // 2)
    figure.update_yaxes(title="1 - " * tried.y_from_one + safe(tried.y), col=1)
    return figure


def _colours() -> dict[str, Any]:
    """The colours of trials by their steps over the fewest, with a colour bar."""
    ticks = [*range(FARTHEST + 1)]
    names = [f"{2**tick}" for tick in ticks[:-1]]
    return {
        "colorscale": CLOSE_TO_FAR, "cmin": 0, "cmax": FARTHEST,
        "colorbar": {
            "title": {"text": "steps,<br>times the<br>fewest"}, "thickness": 12, "x": 1.01,
            "tickvals": ticks, "ticktext": [*names, f"{2**FARTHEST} or more"],
        },
    }  # fmt: skip


def _traces(tried: Tried, table: pa.Table) -> list[dict[str, Any]]:
    """The trials of each kind as marks, and a star for the best."""
    x, y = column_of(tried.x), column_of(tried.y)
    rows = [row for row in table.to_pylist() if row[x] is not None and row[y] is not None]
    kinds = grouped(rows, _kind)
    goals = sorted(kinds.get("reached", []), key=lambda row: (row["steps_to_goal"], row["trial"]))
    kinds["best"] = goals[:1]
    traces = []
    for kind, (name, look) in LOOKS.items():
        points = kinds.get(kind, [])
        traces.append({
            "type": "scatter", "mode": "markers", "name": name, "legendgroup": kind,
            "x": [rounded(row[x]) for row in points],
            "y": [rounded(1 - row[y] if tried.y_from_one else row[y]) for row in points],
            "marker": look | ({"color": _far(points)} if kind == "reached" else {}),
            "hovertext": [_describe(row) for row in points],
            "hoverinfo": "skip" if kind == "best" else "text+x+y",
        })  # fmt: skip
    return traces


def _kind(row: Mapping[str, Any]) -> str:
    if row["counted"] and row["steps_to_goal"] is not None:
        return "reached"
    return "diverged" if row["status"] == "diverged" else "unreached"


def _far(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """How many doublings of the fewest steps each of the trials took."""
    fewest = min((row["steps_to_goal"] for row in rows), default=1)
    return [rounded(math.log2(row["steps_to_goal"] / fewest)) for row in rows]


def _describe(row: Mapping[str, Any]) -> str:
    steps = row["steps_to_goal"]
    how = f"{row['status']}, {row['steps']:,} steps"
    return f"trial {row['trial']}: {safe(how if steps is None else f'goal at step {steps:,}')}"
