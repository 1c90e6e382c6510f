"""Reads what other programs write of their runs, as one table with a row per measurement."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pyarrow.types as pt

from orchestrator.records import BadInput, cut, escaped, unreadable
from orchestrator.results.archive import Problem
from orchestrator.results.archive_documents import MOST_LETTERS
from orchestrator.results.outside import Rows

MOST_BYTES = 2**33
"""Largest size of a table as a file: 20 times as much as 10 million rows take."""

MOST_COLUMNS = 1_000
"""Largest number of columns of a table. A thousand metrics and settings are more than anyone logs."""

MOST_VALUES = 2**28
"""Largest number of values of a table, each of which takes up to 8 bytes of memory."""


def is_archive(source: str) -> bool:
    """Whether a source is a folder in the layout of published measurements, or nothing else."""
    found = False
    for folder, _, files in os.walk(source):
        if {"study.json", "metadata.json", "measurements.csv"} & {*files}:
            return True
        found = found or any(_kind(Path(folder, name)) for name in files)
    return os.path.isdir(source) and not found


def read_source(source: str) -> Rows:
    """The rows of a source. Raises `BadInput` if none can be read."""
    path = Path(source)
    name = escaped(path.resolve().stem) or "runs"
    problems: list[Problem] = []
    try:
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise ValueError(f"has {size:,} bytes; at most {MOST_BYTES:,} are read")
        table = _READ[path.suffix.lower()](path, problems)
        return Rows(name=name, table=_usable(table, name, problems), problems=problems)
    except KeyError:
        raise BadInput(
            f"{source} is no source that is known. A source is {SOURCES}.", code="unknown-source"
        ) from None
    except (OSError, ValueError, pa.ArrowException) as error:
        raise unreadable(source, cut(escaped(str(error)), 500)) from None


SOURCES = "a table (.csv, .jsonl, .parquet)"


def _csv(path: Path, problems: list[Problem]) -> pa.Table:
    lost = 0

    def skip(row: pa_csv.InvalidRow) -> str:
        nonlocal lost
        lost += 1
        return "skip"

    table = pa_csv.read_csv(
        path,
        parse_options=pa_csv.ParseOptions(invalid_row_handler=skip),
        # Texts are few, however many rows they are in.
        convert_options=pa_csv.ConvertOptions(
            auto_dict_encode=True, auto_dict_max_cardinality=2**20, strings_can_be_null=True,
            null_values=["", "NA", "N/A", "null", "None"],
        ),
    )  # fmt: skip
    if lost:
        problems.append(Problem(path=path.name, reason=f"{lost:,} rows have other columns"))
    return table


def _parquet(path: Path, problems: list[Problem]) -> pa.Table:
    file = pq.ParquetFile(path)
    if (values := file.metadata.num_rows * file.metadata.num_columns) > MOST_VALUES:
        raise ValueError(f"has {values:,} values; at most {MOST_VALUES:,} are read")
    return file.read()


_READ = {".csv": _csv, ".parquet": _parquet, ".pq": _parquet}


def _kind(path: Path) -> str | None:
    """The suffix by which a file is known as a source."""
    return path.suffix.lower() if path.suffix.lower() in _READ else None


def _usable(table: pa.Table, name: str, problems: list[Problem]) -> pa.Table:
    """The columns that hold whole numbers, numbers or texts, the latter as dictionaries."""
    while any(pt.is_struct(kind) for kind in table.schema.types):
        table = table.flatten()
        if table.num_columns > MOST_COLUMNS:
            break
    if table.num_columns > MOST_COLUMNS:
        raise ValueError(f"has {table.num_columns:,} columns; at most {MOST_COLUMNS:,} are read")
    if table.num_columns * len(table) > MOST_VALUES:
        raise ValueError(
            f"has {table.num_columns * len(table):,} values; at most {MOST_VALUES:,} are read"
        )
    columns: dict[str, pa.ChunkedArray] = {}
    for title, column in zip(table.column_names, table.columns, strict=True):
        reason = None
        if not title or not title.isprintable() or len(title) > MOST_LETTERS:
            reason = f"has no printable name of up to {MOST_LETTERS} characters"
        elif title in columns:
            reason = "is there twice; the first is used"
        elif (found := _plain(column)) is None:
            reason = f"holds {column.type}, which is neither numbers nor text"
        else:
            columns[title] = found
        if reason:
            shown = escaped(cut(title, 60))
            problems.append(Problem(path=name, reason=escaped(f"column {shown!r} {reason}")))
    return pa.table(columns)


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    kind = column.type
    if pt.is_dictionary(kind):
        column = column.unify_dictionaries()
        if not (pt.is_string(kind.value_type) or pt.is_large_string(kind.value_type)):
            return _plain(column.cast(kind.value_type))
        return _numbers_in(column)
    if pt.is_null(kind):
        return column.cast(pa.float64())
    if pt.is_boolean(kind):
        return column.cast(pa.string()).dictionary_encode()
    if pt.is_integer(kind):
        return column.cast(pa.float64() if pt.is_uint64(kind) else pa.int64())
    if pt.is_floating(kind) or pt.is_decimal(kind):
        return column.cast(pa.float64())
    if pt.is_timestamp(kind):
        micros = column.cast(pa.timestamp("us", kind.tz), safe=False).cast(pa.int64())
        return pc.divide(micros.cast(pa.float64()), 1e6)
    if pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind):
        return _numbers_in(column.cast(pa.string()).dictionary_encode())
    return None


def _numbers_in(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Texts, as numbers if all of them are, such as 1e-3 in YAML."""
    for chunk in column.chunks[:1]:
        try:
            values = pa.array([float(text) for text in chunk.dictionary.to_pylist()], pa.float64())
        except (TypeError, ValueError):
            return column
        return pa.chunked_array([values.take(each.indices) for each in column.chunks])
    return column
