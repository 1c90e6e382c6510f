"""The two tables of a run, trials and measurements: their columns and their Parquet files."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from orchestrator.files.places import Place
from orchestrator.records import FinishedTrial, Measurement, Outcome, Study, Trial
from orchestrator.records.errors import escaped, unreadable

TRIALS = pa.schema(
    [
        pa.field("trial", pa.int32(), nullable=False),
        pa.field("optimizer", pa.string(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("steps", pa.int64(), nullable=False),
        pa.field("params", pa.string(), nullable=False),  # JSON
        pa.field("seed", pa.int64(), nullable=False),
        pa.field("seconds", pa.float64(), nullable=False),
        pa.field("evaluation_seconds", pa.float64(), nullable=False),
        pa.field("resumed_steps", pa.int64(), nullable=False),  # before `started`
        pa.field("resumed_seconds", pa.float64(), nullable=False),  # training and evaluation before
        pa.field("ranks", pa.int32(), nullable=False),
        pa.field("micro_batch", pa.int64()),  # null: each rank's whole slice
        pa.field("memory", pa.int64()),  # peak of a rank, in bytes
        pa.field("width", pa.int32()),  # slots of its stack; null in older runs: 1
        pa.field("open_from", pa.int64()),  # null unless a cooldown might have ended there
        pa.field("started", pa.float64()),  # seconds since the epoch
        pa.field("where", pa.string()),  # machine:process
        pa.field("error", pa.string()),
    ]
)

MEASUREMENTS = pa.schema(
    [
        pa.field("trial", pa.int32(), nullable=False),
        pa.field("step", pa.int64(), nullable=False),
        pa.field("examples", pa.int64(), nullable=False),
        pa.field("seconds", pa.float64(), nullable=False),
    ]
)
"""Columns of measurements. Metrics follow, in float64, null where not measured."""

OF_OUTCOME = (
    "status", "steps", "seconds", "evaluation_seconds", "resumed_steps", "resumed_seconds",
    "micro_batch", "memory", "width", "open_from", "error",
)  # fmt: skip
"""The columns of trials that are fields of an outcome."""

REPEAT = pa.field("repeat", pa.int32(), nullable=False)
"""A column that follows `trial` in both tables of repeats."""


def is_metric(column: str) -> bool:
    """Whether a column of measurements is that of a metric, and none of ours."""
    return column not in MEASURED


MEASURED = frozenset({*MEASUREMENTS.names, REPEAT.name})

Training = tuple[int, int]
"""A trial and its repeat, which is 0 for the trial of the search."""

ROWS_AT_ONCE = 16_384
"""Measurements in a row group, which is the least that is read to see one trial's."""

SMALL = {"use_dictionary": False, "write_statistics": False}
"""Options for files with few rows, which are read whole. Dictionaries of them are larger than their
columns, and take longer to read."""


def tables_of(group: Sequence[FinishedTrial]) -> tuple[pa.Table, pa.Table]:
    """The rows and measurements of trials of one study: all of the search, or all repeats."""
    study, repeated = group[0].trial.study, group[0].trial.repeat > 0
    # The ends of cooldowns are measured in another order.
    in_order = [sorted(finished.measurements, key=lambda m: m.step) for finished in group]
    measured = [measurement for of_trial in in_order for measurement in of_trial]
    metrics = tuple(sorted({name for measurement in measured for name in measurement.metrics}))
    rows = {
        "trial": [finished.trial.index for finished in group],
        "repeat": [finished.trial.repeat for finished in group],
        "optimizer": [study.optimizer] * len(group),
        "params": [json.dumps(dict(finished.trial.params)) for finished in group],
        "seed": [finished.trial.seed for finished in group],
        "ranks": [finished.ranks for finished in group],
        "started": [finished.started for finished in group],
        "where": [finished.where for finished in group],
        **{name: [getattr(finished.outcome, name) for finished in group] for name in OF_OUTCOME},
    }
    lengths = [len(finished.measurements) for finished in group]
    steps = np.array([measurement.step for measurement in measured], np.int64)
    # Trials of a study are measured at the same steps.
    distinct, positions = np.unique(steps, return_inverse=True)
    examples = np.array([study.examples(step) for step in distinct.tolist()], np.int64)
    columns = {
        "trial": np.repeat(np.array(rows["trial"], np.int32), lengths),
        "repeat": np.repeat(np.array(rows["repeat"], np.int32), lengths),
        "step": steps,
        "examples": examples[positions],
        "seconds": [measurement.seconds for measurement in measured],
        **{name: [m.metrics.get(name) for m in measured] for name in metrics},
    }
    schemas = _schema(TRIALS, repeated), _schema(MEASUREMENTS, repeated, metrics)
    trials, measurements = map(pa.Table.from_pydict, (rows, columns), schemas)
    return trials, measurements


@cache
def _schema(schema: pa.Schema, repeated: bool, metrics: tuple[str, ...] = ()) -> pa.Schema:
    """The columns of a table, with the one of repeats and those of metrics."""
    fields = [*(schema.insert(1, REPEAT) if repeated else schema)]
    return pa.schema([*fields, *(pa.field(name, pa.float64()) for name in metrics)])


def finished_trial(
    study: Study, row: Mapping[str, Any], measurements: Iterable[Mapping[str, Any]]
) -> FinishedTrial:
    """The finished trial from which `tables_of` made the two tables."""
    outcome = {name: row[name] for name in OF_OUTCOME}
    return FinishedTrial(
        trial=Trial(
            study=study,
            index=row["trial"],
            seed=row["seed"],
            params=json.loads(row["params"]),
            repeat=row.get("repeat", 0),
        ),
        outcome=Outcome(**{**outcome, "width": row["width"] or 1}),
        measurements=tuple(
            Measurement(
                step=measured["step"],
                seconds=measured["seconds"],
                metrics={n: v for n, v in measured.items() if is_metric(n) and v is not None},
            )
            for measured in measurements
        ),
        ranks=row["ranks"],
        started=row["started"],
        where=row["where"],
    )


class Damaged(ValueError):
    """Raised if a file does not have the expected content. The message names the file."""


def read_table(place: Place, schema: pa.Schema, columns: Collection[str] | None = None) -> pa.Table:
    """Reads a table of this `schema`: all columns, or those of `columns` that it has."""
    with _damage_told(place), place.open() as source:
        # With pre_buffer, neighbouring columns are read from a bucket in one request.
        return _read(source, schema, columns, pre_buffer=place.local is None)


def read_small(place: Place, schema: pa.Schema, columns: Collection[str] | None = None) -> pa.Table:
    """The same as `read_table`, from a file that is fetched whole. Only bad content counts as
    damage: a failure of the storage, which may be temporary, raises `BadInput`."""
    try:
        content = place.read()
    except FileNotFoundError:
        raise
    except OSError as error:
        if isinstance(error, PermissionError) or not place.is_file():
            raise Damaged(f"{place} can't be read ({error})") from None
        raise unreadable(place, error) from None
    with _damage_told(place):
        table = _read(pa.BufferReader(content), schema, columns)
        required = [field.name for field in schema if not field.nullable]
        if gaps := [n for n in table.column_names if n in required and table[n].null_count]:
            raise ValueError(f"column {gaps[0]} has gaps")
        return table


def read_trial(place: Place, trial: int) -> pa.Table:
    """The measurements of one trial, read from a file with many trials in order."""
    with _damage_told(place), place.open() as source:
        file, _ = _opened(source, MEASUREMENTS)
        groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
        spans = [group.column(0).statistics for group in groups]
        # A group without rows has no statistics: no trial of the study was measured.
        some = [n for n, span in enumerate(spans) if span and span.min <= trial <= span.max]
        return of_trial(file.read_row_groups(some, use_threads=False), trial)


def metrics_in(place: Place) -> set[str]:
    """The metrics that a file of measurements has columns for."""
    with _damage_told(place), place.open() as source:
        return {name for name in _opened(source, MEASUREMENTS)[1] if is_metric(name)}


def _read(
    source: Any, schema: pa.Schema, columns: Collection[str] | None, **options: Any
) -> pa.Table:
    file, names = _opened(source, schema, **options)
    table = file.read([n for n in names if columns is None or n in columns], use_threads=False)
    for field in schema:
        if field.name not in names and (columns is None or field.name in columns):
            # Runs of an older version lack this column.
            table = table.append_column(field, pa.nulls(len(table), field.type))
    return table


def _opened(
    source: Any, schema: pa.Schema, **options: Any
) -> tuple[pq.ParquetFile, Collection[str]]:
    """Opens the file. Also returns its column names: Arrow builds the schema anew each time."""
    file = pq.ParquetFile(source, page_checksum_verification=True, **options)
    types = {field.name: field.type for field in file.schema_arrow}
    measured = types if "step" in schema.names else ()  # and not the trials themselves
    metrics = [pa.field(name, pa.float64()) for name in measured if is_metric(name)]
    for field in [*schema, *metrics]:
        if field.nullable and field.name not in types:
            continue
        if types.get(field.name) != field.type:
            raise ValueError(f"column {field.name} is {types.get(field.name)}, not {field.type}")
    return file, types


@contextmanager
def _damage_told(place: Place) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise Damaged(f"{place} is damaged ({reason.rstrip('.')})") from None


def write_table(place: Place, table: pa.Table, **options: Any) -> None:
    place.write(_parquet(table, **options))


def _parquet(table: pa.Table, **options: Any) -> pa.Buffer:
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer, write_page_checksum=True, **{"compression": "lz4", **options})
    return buffer.getvalue()


SMALLEST = {"compression": "zstd", "compression_level": 22, "write_statistics": ["trial"]}
"""Options for files that take much longer to write and less space. The spans of trials are all that
is ever read of the statistics."""


def write_measurements(place: Place, table: pa.Table, *, smallest: bool = False) -> None:
    """Writes the measurements of many trials, with the densest of Parquet's encodings of numbers,
    which takes half the size of the default one. If `smallest`, they are found by trying."""
    encodings = {name: _dense(table[name]) for name in table.column_names}
    if smallest:
        for name, dense in encodings.items():
            column = table.select([name])
            sizes = {
                how: _parquet(column, **_encoded({name: how}), **SMALLEST).size
                for how in (dense, "PLAIN", None)
            }
            encodings[name] = min(sizes, key=sizes.__getitem__)
    options = {**_encoded(encodings), **(SMALLEST if smallest else {})}
    write_table(place, table, row_group_size=ROWS_AT_ONCE, **options)


def _encoded(encodings: Mapping[str, str | None]) -> dict[str, Any]:
    return {
        "use_dictionary": [name for name, how in encodings.items() if how is None],
        "column_encoding": {name: how for name, how in encodings.items() if how is not None},
    }


def _dense(column: pa.ChunkedArray) -> str | None:
    """The encoding of a column that is likely to be the densest; None: a dictionary."""
    if pa.types.is_integer(column.type):
        return "DELTA_BINARY_PACKED"
    # A sample of 1,024 values shows cheaply whether hardly any value occurs twice.
    few = _distinct(column, 1024) < 0.98 and _distinct(column, ROWS_AT_ONCE) < 0.33
    return None if few else "BYTE_STREAM_SPLIT"


def _distinct(column: pa.ChunkedArray, rows: int) -> float:
    """The share of distinct values among those of the first `rows` of a column."""
    import pyarrow.compute as pc  # here, since answers do without it

    first = column.slice(0, rows).drop_null()
    return float(pc.count_distinct(first).as_py() / max(len(first), 1))


def are_of(table: pa.Table, trainings: Collection[Training]) -> NDArray[np.bool_]:
    """Which rows belong to these trainings."""
    asked = [(trial << 32) + repeat for trial, repeat in trainings]
    return np.isin(training_numbers(table), asked)


def training_numbers(table: pa.Table) -> NDArray[np.int64]:
    """For each row, one number for its trial and repeat, which sorts by trial first."""
    repeats = numbers(table["repeat"]) if "repeat" in table.column_names else np.int64(0)
    return np.asarray((numbers(table["trial"]).astype(np.int64) << 32) + repeats)


def numbers(column: pa.ChunkedArray) -> NDArray[Any]:
    """A column as a numpy array, with NaN for null. Where Arrow itself turns Python's or numpy's
    values into its own, or back, it imports pandas first, which takes half a second."""
    array = column.combine_chunks()
    if not column.null_count:
        return np.asarray(np.from_dlpack(array))
    whole = pa.Array.from_buffers(
        array.type, len(array), [None, array.buffers()[1]], offset=array.offset
    )
    bits = np.unpackbits(np.frombuffer(array.buffers()[0], np.uint8), bitorder="little")
    known = bits[array.offset : array.offset + len(array)] == 1
    return np.where(known, np.from_dlpack(whole), math.nan)


def arrow_of(values: NDArray[Any], known: NDArray[np.bool_] | None = None) -> pa.Array:
    """The way back from `numbers`, with null where a value is not `known`."""
    kind = pa.from_numpy_dtype(values.dtype)
    data, valid = (
        each if each is None or each.dtype != bool else np.packbits(each, bitorder="little")
        for each in (np.ascontiguousarray(values), known)
    )
    buffers = [valid if valid is None else pa.py_buffer(valid), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(values), buffers)


def as_number(value: Any) -> float | None:
    """What a text or another value says as a number; None if it says none."""
    try:
        return float(value)
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        return None


def column_from(values: list[Any]) -> pa.Array:
    """An Arrow column; values of different types, or too large for Arrow, are converted to text."""
    if {*map(type, values)} == {float}:
        return arrow_of(np.array(values))
    try:
        return pa.array(values)
    except (pa.ArrowException, ValueError, OverflowError):
        return pa.array([None if value is None else escaped(str(value)) for value in values])


def empty(schema: pa.Schema) -> pa.Table:
    """A table of this schema without rows. Arrow's `empty_table` would import pandas."""
    return pa.Table.from_batches([], schema=schema)


def of_trial(measurements: pa.Table, trial: int) -> pa.Table:
    """The measurements of one trial, from measurements that are in order of trial."""
    first, end = np.searchsorted(numbers(measurements["trial"]), [trial, trial + 1])
    return measurements.slice(first, end - first)
