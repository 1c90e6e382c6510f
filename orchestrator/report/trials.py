"""The fold of all trials: by two metaparameters, and as a table."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa

from orchestrator.records import Goal, Range, Study, StudyKey, counted, grouped
from orchestrator.report.content import Listed, Panel, Tried
from orchestrator.report.sections import Show
from orchestrator.report.style import COLOURS, GUIDE, Drawing, evenly, log10_axis, rounded, safe
from orchestrator.results import RunFiles, column_of, outcomes_of
from orchestrator.results.tables import arrow_of

MOST_LISTED = 8000
"""The most trials in the tables and figures of a page; each takes about 200 bytes there."""

Tables = Mapping[StudyKey, pa.Table]
"""The outcomes of each study's trials."""


def outcomes(run: RunFiles, goal: Goal, studies: Sequence[Study]) -> Tables:
    tables = run.in_parallel(lambda study: outcomes_of(run, study, goal), studies)
    return {study.key: table for study, table in zip(studies, tables, strict=True)}


def best_and_others(table: pa.Table, most: int) -> pa.Table:
    """All trials by their steps to the goal, or where there are too many, half of `most` those that
    reached it first, and half evenly among the others."""
    order = [("steps_to_goal", "ascending"), ("trial", "ascending")]
    ordered, half = table.sort_by(order), most // 2
    if len(table) <= most:
        return ordered
    others = ordered.slice(half).sort_by("trial")
    shown = np.array(evenly(range(len(others)), most - half))
    return pa.concat_tables([ordered.slice(0, half), others.take(arrow_of(shown))]).sort_by(order)


def listed_of(studies: Sequence[Study], tables: Tables, most: int) -> Listed:
    rows: list[dict[str, Any]] = []
    for study in studies:
        listed = best_and_others(tables[study.key], most).to_pylist()
        rows += [{"batch_size": study.batch_size, **row} for row in listed]
    counts = {
        study.batch_size: (len(table) - int(table["steps_to_goal"].null_count), len(table))
        for study in studies
        for table in [tables[study.key]]
    }
    return Listed(rows=rows, counts=counts)


def table_of_trials(panel: Panel, show: Show) -> str:
    """An empty table; the page fills it and sorts it by the column that is clicked."""
    listed = panel.listed
    columns = _columns(listed, panel.goal.metric)
    count, total = len(columns["Recipe"]), sum(one.total for one in listed.values())
    if not count:
        return ""
    name = f"trials-{crc32(f'{panel.workload} {panel.goal}'.encode()):x}"
    caption = f"All trials: {total:,}." if count == total else (
        f"{count:,} of {total:,} trials: of each study those that reached the goal in the fewest "
        f"steps, and an even sample of the others."
    )  # fmt: skip
    heads = "".join(
        f'<th scope="col" aria-sort="none" class="{look}"><button type="button">{escape(title)}'
        f"</button></th>"
        for title, column in columns.items()
        for look in ["text" if any(isinstance(value, str) for value in column) else "number"]
    )
    data = json.dumps([*columns.values()], separators=(",", ":"), allow_nan=False)
    return (
        f'<h4>Every trial in a table</h4><p class="lead" id="{name}-says">{caption} Click a name '
        f'to sort by its column.</p><div class="scroll sorted" tabindex="0" role="region" '
        f'aria-labelledby="{name}-says"><table class="trials" id="{name}"><thead><tr>{heads}</tr>'
        f'</thead><tbody></tbody></table></div><button type="button" class="more" '
        f'id="{name}-more" hidden>More rows</button><script type="application/json" '
        f'id="{name}-data">{data.replace("<", chr(92) + "u003c")}</script>'
    )


def _columns(listed: Mapping[str, Listed], metric: str) -> dict[str, list[Any]]:
    rows = [(recipe, row) for recipe, one in listed.items() for row in one.rows]
    titles = {
        "batch_size": "Batch size", "trial": "Trial", "status": "Status",
        "steps_to_goal": "Steps to goal", "steps": "Steps trained", "best": f"Best {metric}",
    }  # fmt: skip
    prefix = column_of("")
    names = dict.fromkeys(key for _, row in rows for key in row if key.startswith(prefix))
    titles |= {name: name.removeprefix(prefix) for name in names}
    columns: dict[str, list[Any]] = {"Recipe": [recipe for recipe, _ in rows]}
    for key, title in titles.items():
        columns[title] = [_short(row.get(key)) for _, row in rows]
    return columns


def _short(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, float):
        return rounded(value) if math.isfinite(value) else None
    return value


EARLY = {"dominated", "paused"}  # these might have reached the goal

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


def tried_of(studies: Sequence[Study], tables: Tables) -> Tried | None:
    """By which metaparameters the trials of one recipe are drawn; None if there are no two."""
    scales = {n: entry.scale for n, entry in studies[0].space.items() if isinstance(entry, Range)}
    if len(scales) < 2:
        return None
    x, y, *_ = sorted(scales, key=lambda name: scales[name] == "linear")
    shown = [
        study
        for study in evenly(studies, SIDE_BY_SIDE)
        if {column_of(x), column_of(y)} <= _numbers(tables[study.key])
    ]
    if not shown:
        return None
    return Tried(
        x=x,
        y=y,
        y_from_one=scales[y] == "reverse_log",
        linear=[name for name in (x, y) if scales[name] == "linear"],
        sizes=[study.batch_size for study in shown],
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
            _every_trial(tried, panel.listed[recipe].rows),
            f"{recipe}: every trial by {tried.x} and {tried.y}",
            _counts(tried, panel.listed[recipe]),
            "Colours show how many times the fewest steps of that batch size a trial took. They "
            "tell how wide the good region is, where it moves as the batch grows, and how near it "
            "lies to an end of the ranges. The best trial is starred.",
        )
        for recipe, tried in panel.tried.items()
    )


def _counts(tried: Tried, listed: Listed) -> str:
    shown = {size: listed.counts[size] for size in tried.sizes}
    parts = [f"{those:,} of {every:,} at {size:,}" for size, (those, every) in shown.items()]
    count, total = len(shown), len(listed.counts)
    which = "by batch size" if count == total else f"at {count:,} of {total:,} batch sizes"
    drawn = [row for row in listed.rows if row["batch_size"] in shown]
    open_ = any(row["steps_to_goal"] is None and row["status"] in EARLY for row in drawn)
    more = " Some trials ended early, so more might have reached the goal." * open_
    if len(drawn) < (every := sum(of_size for _, of_size in shown.values())):
        more += f" {len(drawn):,} of these {every:,} trials are drawn."
    return f"Trials that reached the goal, {which}: {', '.join(parts)}.{more}"


def finding(panel: Panel) -> str:
    total = sum(one.total for one in panel.listed.values())
    those = sum(one.reached for one in panel.listed.values())
    return f"{those:,} of {total:,} reached the goal" if total else "By their metaparameters"


def _every_trial(tried: Tried, rows: Sequence[Mapping[str, Any]]) -> Drawing:
    """Every trial by two metaparameters, a panel for each batch size; the best is starred."""
    wide, of_sizes = len(tried.sizes), grouped(rows, lambda row: row["batch_size"])
    figure = Drawing([f"B = {size:,}" for size in tried.sizes], gaps=(0.2 / wide, 0), one_y=True)
    for panel, size in enumerate(tried.sizes):
        figure.add(*_traces(tried, of_sizes[size]), panel=panel)
    figure.legend_once()
    for trace in figure.data:
        if trace["legendgroup"] == "reached":  # their colours have a bar
            trace["showlegend"] = False
    figure.styled("", "", margin={"t": 60}, legend={"y": 1.1}, coloraxis=_colours())
    xs, ys = ([value for trace in figure.data for value in trace[axis]] for axis in ("x", "y"))
    few, plain = max(2, 9 // wide), {"type": "linear"}
    figure.x_axes(**plain | {"nticks": few} if tried.x in tried.linear else log10_axis(xs, few))
    figure.y_axes(**plain if tried.y in tried.linear else log10_axis(ys))
    figure.x_axes((wide - 1) // 2, title={"text": safe(tried.x)})
    figure.y_axes(0, title={"text": "1 - " * tried.y_from_one + safe(tried.y)})
    return figure


def _colours() -> dict[str, Any]:
    names = [f"{2**tick}" for tick in range(FARTHEST)]
    return {
        "colorscale": CLOSE_TO_FAR, "cmin": 0, "cmax": FARTHEST,
        "colorbar": {
            "title": {"text": "steps,<br>times the<br>fewest"}, "thickness": 12, "x": 1.01,
            "tickvals": [*range(FARTHEST + 1)], "ticktext": [*names, f"{2**FARTHEST} or more"],
        },
    }  # fmt: skip


def _traces(tried: Tried, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The trials of each kind as marks, and a star for the best."""
    x, y = column_of(tried.x), column_of(tried.y)
    rows = [row for row in rows if row.get(x) is not None and row.get(y) is not None]
    kinds = grouped(rows, _kind)
    kinds["best"] = kinds.get("reached", [])[:1]  # they are in order
    traces = []
    for kind, (name, look) in LOOKS.items():
        points = kinds.get(kind, [])
        traces.append({
            "mode": "markers", "name": name, "legendgroup": kind,
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
    steps = [max(row["steps_to_goal"], 1) for row in rows]  # some pass before their first step
    return [rounded(math.log2(each / min(steps))) for each in steps]


def _describe(row: Mapping[str, Any]) -> str:
    steps = row["steps_to_goal"]
    how = f"{row['status']}, {counted(row['steps'], 'step')}"
    return f"trial {row['trial']}: {safe(how if steps is None else f'goal at step {steps:,}')}"
