"""The trials of each study: which of them are shown, and the table that lists them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa

from orchestrator.records import Goal, Study, StudyKey
from orchestrator.report.content import Listed, Panel
from orchestrator.report.sections import Show
from orchestrator.report.style import evenly, rounded
from orchestrator.results import Run, column_of, outcomes_of
from orchestrator.results.tables import arrow_of

MOST_LISTED = 8000
"""The most trials in the tables and figures of a page; each takes about 200 bytes there."""

Tables = Mapping[StudyKey, pa.Table]
"""The outcomes of each study's trials."""


def outcomes(run: Run, goal: Goal, studies: Sequence[Study]) -> Tables:
    tables = run.in_parallel(lambda study: outcomes_of(run, study, goal), studies)
    return {study.key: table for study, table in zip(studies, tables, strict=True)}


def best_and_others(table: pa.Table, most: int) -> pa.Table:
    """All trials, or where there are too many, half of `most` those that reached the goal first,
    and half evenly among the others."""
    if len(table) <= most:
        return table
    by_steps = table.append_column("place", arrow_of(np.arange(len(table)))).sort_by(
        [("steps_to_goal", "ascending"), ("trial", "ascending")]
    )
    places = by_steps["place"].to_pylist()
    best, others = places[: most // 2], sorted(places[most // 2 :])
    return table.take(arrow_of(np.array(sorted([*best, *evenly(others, most - len(best))]))))


def listed_of(studies: Sequence[Study], tables: Tables, most: int) -> Listed:
    """The trials of one recipe, at most so many of each study."""
    rows: list[dict[str, Any]] = []
    for study in studies:
        ordered = best_and_others(tables[study.key], most).sort_by(
            [("steps_to_goal", "ascending"), ("trial", "ascending")]
        )
        rows += [{"batch_size": study.batch_size, **row} for row in ordered.to_pylist()]
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
    """Formats a value as the table shows it."""
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, float):
        return rounded(value) if math.isfinite(value) else None
    return value
