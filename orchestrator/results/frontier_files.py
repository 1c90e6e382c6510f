"""Writes frontiers as Parquet, and as CSV for programs that read tables."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict

import pyarrow as pa

from orchestrator.results.frontier import FrontierRow
from orchestrator.results.store import RunFiles
from orchestrator.results.tables import write_table

JSON_COLUMNS = ("batch_schedule", "cooldown", "params", "metrics", "trials", "leaders", "repeats")


def write_frontier(run: RunFiles, rows: Sequence[FrontierRow]) -> None:
    """Writes frontier.csv, which is equal byte for byte in identical runs, and frontier.parquet."""
    (run.place / "frontier.csv").write_text(to_csv(rows))
    documents = [asdict(row) for row in rows]
    for document in documents:
        document |= {name: json.dumps(document[name]) for name in JSON_COLUMNS}
    write_table(run.place / "frontier.parquet", pa.Table.from_pylist(documents or [{}]))


def to_csv(rows: Sequence[FrontierRow]) -> str:
    """The rows as CSV, without durations and counts by status, which depend on timing."""
    columns = [
        "workload", "recipe", "optimizer", "batch_size", "goal", "reached", "censored",
        "steps", "resolution", "trial", "seed", "params",
    ]  # fmt: skip
    if any(row.batch_schedule for row in rows):
        columns.insert(columns.index("batch_size") + 1, "batch_schedule")
    if any(row.cooldown for row in rows):
        columns.insert(columns.index("goal"), "cooldown")
    repeated = ["count", "reached", "median", "low", "high"] if any(r.repeats for r in rows) else []
    if any(row.repeats and row.repeats.trial != row.trial for row in rows if row.reached):
        repeated.insert(0, "trial")
    more = [
        {f"repeats_{name}": getattr(row.repeats, name, None) for name in repeated} for row in rows
    ]
    metrics = sorted({name for row in rows for name in row.metrics})
    text = io.StringIO()
    names = [*columns, *(more[0] if more else ()), *metrics]
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    for row, others in zip(rows, more, strict=True):
        fields = {name: getattr(row, name) for name in columns}
        fields["params"] = None if row.params is None else json.dumps(row.params)
        writer.writerow({**fields, **others, **row.metrics})
    return text.getvalue()
