"""The data of figures that show all trials: by two metaparameters, on grids, by option and in
time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from orchestrator.analysis import OptionPoint, by_option
from orchestrator.records import Choice, Goal, Range, Study, StudyKey, Value
from orchestrator.report.figures.course import Span
from orchestrator.report.figures.style import evenly
from orchestrator.results import Run, column_of, outcomes_of
from orchestrator.results.counting import stopped_early

SIDE_BY_SIDE = 6
"""The most batch sizes at which trials are shown."""

MOST_CELLS = 40
"""On each side of a heat map."""

Tables = Mapping[StudyKey, pa.Table]
"""The outcomes of each study's trials."""


@dataclass(frozen=True, kw_only=True)
class Tried:
    """All trials of a recipe by two of its metaparameters."""

    x: str
    y: str
    y_from_one: bool
    """Whether 1 - y, not y, was searched evenly."""
    outcomes: Sequence[tuple[int, pa.Table]]
    """(batch size, trials); where there are too many, the best trials and a selection of the
    others."""
    counts: Sequence[tuple[int, int, int]]
    """(batch size, number that reached the goal, number of trials), over all trials."""
    cut: bool
    """Whether any trials were ended because they could no longer win."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The results at the points of a grid of two metaparameters."""

    x: str
    y: str
    xs: Sequence[Value]
    ys: Sequence[Value]
    shown: str
    """The name of the values: the goal's metric, or `steps to goal` if trials were ended early."""
    is_steps: bool
    cells: Sequence[tuple[int, Mapping[tuple[Value, Value], float]]]
    """(batch size, (x, y) -> the best value over all other metaparameters)."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The results of each option of a metaparameter."""

    name: str
    points: Sequence[OptionPoint]


def outcomes(run: Run, goal: Goal, studies: Sequence[Study]) -> Tables:
    tables = run.in_parallel(lambda study: outcomes_of(run, study, goal), studies)
    return {study.key: table for study, table in zip(studies, tables, strict=True)}


def tried_of(studies: Sequence[Study], tables: Tables, most: int) -> Tried | None:
    """Returns the trials of one recipe, at most `most` of each batch size, smallest size first."""
    ranges = {
        name: entry
        for name, entry in studies[0].space.items()
        if isinstance(entry, Range) and entry.scale in ("log", "reverse_log")
    }
    if len(ranges) < 2:
        return None
    x, y = [*ranges][:2]
    whole = [
        (study.batch_size, tables[study.key])
        for study in evenly(studies, SIDE_BY_SIDE)
        if {column_of(x), column_of(y)} <= _numbers(tables[study.key])
    ]
    if not whole:
        return None
    return Tried(
        x=x,
        y=y,
        y_from_one=ranges[y].scale == "reverse_log",
        outcomes=[(size, _shown(table, (x, y), most)) for size, table in whole],
        counts=[
            (size, len(table) - table["steps_to_goal"].null_count, len(table))
            for size, table in whole
        ],
        cut=any({"dominated", "paused"} & {*table["status"].to_pylist()} for _, table in whole),
    )


def _numbers(table: pa.Table) -> set[str]:
    """Returns the columns that hold numbers; in an archive, one study's range may be another's
    text."""
    return {
        field.name
        for field in table.schema
        if pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
    }


def _shown(table: pa.Table, names: tuple[str, str], most: int) -> pa.Table:
    """Returns the trials that are shown, in the columns that are shown."""
    columns = ["trial", "status", "counted", "steps", "steps_to_goal", *map(column_of, names)]
    return best_and_others(table.select(columns), most)


def best_and_others(table: pa.Table, most: int) -> pa.Table:
    """All trials, or where there are too many, half of `most` those that reached the goal first,
    and half evenly among the others."""
    if len(table) <= most:
        return table
    by_steps = table.append_column("place", pa.array(range(len(table)))).sort_by(
        [("steps_to_goal", "ascending"), ("trial", "ascending")]
    )
    places = by_steps["place"].to_pylist()
    best, others = places[: most // 2], sorted(places[most // 2 :])
    return table.take(sorted([*best, *evenly(others, most - len(best))]))


def grid_of(studies: Sequence[Study], tables: Tables, goal: Goal) -> Grid | None:
    """Returns the grid of one recipe, if its first two varying metaparameters form one."""
    chosen = evenly(studies, SIDE_BY_SIDE)
    names = [name for name, entry in studies[0].space.items() if isinstance(entry, Range | Choice)]
    points = [
        {name: row.get(column_of(name)) for name in names}
        for study in chosen
        for row in tables[study.key].to_pylist()
    ]
    varying = [name for name in names if len({point[name] for point in points} - {None}) > 1]
    if len(varying) < 2:
        return None
    x, y = varying[:2]
    pairs = {(point[x], point[y]) for point in points if None not in (point[x], point[y])}
    xs, ys = (sorted({pair[n] for pair in pairs}, key=_rank) for n in (0, 1))
    filled = 4 * len(pairs) >= 3 * len(xs) * len(ys)
    if not filled or min(len(xs), len(ys)) < 2 or max(len(xs), len(ys)) > MOST_CELLS:
        return None
    cut = any(
        stopped_early(study, row) for study in chosen for row in tables[study.key].to_pylist()
    )
    column = "steps_to_goal" if cut else "best"
    better = max if goal.direction == ">" and not cut else min
    cells: list[tuple[int, Mapping[tuple[Value, Value], float]]] = []
    for study in chosen:
        best: dict[tuple[Value, Value], float] = {}
        for row in tables[study.key].to_pylist():
            value, at = row[column], (row.get(column_of(x)), row.get(column_of(y)))
            if row["counted"] and None not in (value, *at) and value == value:  # noqa: PLR0124
                best[at] = better(value, best.get(at, value))
        cells.append((study.batch_size, best))
    shown = "steps to goal" if cut else f"best {goal.metric}"
    return Grid(x=x, y=y, xs=xs, ys=ys, shown=shown, is_steps=cut, cells=cells)


def _rank(value: Any) -> tuple[bool, Any]:
    """Sorts numbers before words."""
    return (True, str(value)) if isinstance(value, str) else (False, value)


def options_of(studies: Sequence[Study], tables: Tables, goal: Goal) -> list[Options]:
    """Returns the options of one recipe, for each metaparameter that is a choice."""
    return [
        Options(
            name=name,
            points=[
                point
                for study in studies
                for point in by_option(study, tables[study.key], name, goal)
            ],
        )
        for name, entry in studies[0].space.items()
        if isinstance(entry, Choice) and 1 < len(entry.options) < 8
    ]


@dataclass(frozen=True, kw_only=True)
class Course:
    """How the trials of a run ended, and when they were trained."""

    statuses: Mapping[str, int]
    """(ending, number of trials), the most frequent first."""
    seconds: float | None
    """Seconds from the start of the first trial to the end of the last; None if unknown."""
    spans: Sequence[Span]
    """The time in which each trial, or its last part, was trained, in order of start, as far as it
    is known."""


def course_of(run: Run) -> Course:
    keys = [study.key for study in run.studies()]
    tables = run.in_parallel(lambda key: run.trials(key).to_pylist(), keys)
    rows = [(key, row) for key, some in zip(keys, tables, strict=True) for row in some]
    timed = [(key, row) for key, row in rows if _is_timed(row)]
    first = min((row["started"] for _, row in timed), default=0.0)
    spans = _spans(timed, first)
    return Course(
        statuses=dict(Counter(row["status"] for _, row in rows).most_common()),
        seconds=max((span.started + span.seconds for span in spans), default=None),
        spans=spans,
    )


def _spans(timed: Sequence[tuple[StudyKey, dict[str, Any]]], first: float) -> list[Span]:
    """Returns the spans in order of start. Trials that were trained together are drawn one after
    another, each as long as its share."""
    spans, ends = list[Span](), dict[str, float]()
    for key, row in sorted(timed, key=lambda one: one[1]["started"]):
        started, where = row["started"] - first, row.get("where") or ""
        if (row["width"] or 1) > 1:
            started = max(started, ends.get(where, started))
            ends[where] = started + _seconds(row)
        spans.append(
            Span(
                study=str(key),
                trial=row["trial"],
                status=row["status"],
                started=round(started, 3),
                seconds=round(_seconds(row), 3),
                where=where,
            )
        )
    return sorted(spans, key=lambda span: span.started)


def _is_timed(row: Mapping[str, Any]) -> bool:
    return row["started"] is not None and row["seconds"] is not None


def _seconds(row: Mapping[str, Any]) -> float:
    """Returns the seconds since `started`."""
    return float(row["seconds"] + row["evaluation_seconds"] - row["resumed_seconds"])
