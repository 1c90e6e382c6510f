"""Files of measurements in the layout of the published archive: CSV with a row per evaluation.

The columns are `step` and one for each metric. Cells that are numbers are used; other cells are
reported.
"""

from __future__ import annotations

import codecs
import csv
import errno
import io
import math
import os
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
from numpy.typing import ArrayLike

from orchestrator.records import MANY, shown
from orchestrator.results.tables import as_number, is_metric, numbers

MOST_BYTES = 32 * 2**20
"""Largest size of a file: about 300,000 measurements of six metrics. A file with flaws is read cell
by cell, which takes 25 times as much memory."""

MOST_BYTES_TOGETHER = 2**25
"""Largest total size of files that are read as one."""

MOST_BYTES_IN_LINE = 2**16

MOST_COLUMNS = 200
"""Largest number of columns of a study. A trial that lacks a metric has an empty column for it."""

MOST_VALUES = 2**25
"""Largest number of values of a study in memory: 30 times the average of a published study."""


def read_curves(files: Mapping[int, str]) -> tuple[pa.Table, dict[int, str]]:
    """The measurements of all trials in order, and trial -> what was wrong with its file. Raises
    ValueError if they would take too much memory."""
    tables, columns, rows = [_with_trial([], _no_curve())], set[str](), 0
    flaws: dict[int, str] = {}
    for table in _parsed(files, flaws):
        tables.append(table)
        columns.update(table.column_names)
        rows += len(table)
        if len(columns) > MOST_COLUMNS:
            raise ValueError(
                f"has {len(columns):,} columns in total; at most {MOST_COLUMNS} are read"
            )
        if (values := rows * len(columns)) > MOST_VALUES:
            raise ValueError(f"has {values:,} values or more; at most {MOST_VALUES:,} are read")
    curves = pa.concat_tables(tables, promote_options="default")
    if len(tables) > 2:  # more than the empty table and one other
        curves = curves.take(np.argsort(numbers(curves["trial"]), kind="stable"))
    return curves, dict(sorted(flaws.items()))


def _parsed(files: Mapping[int, str], flaws: dict[int, str]) -> Iterator[pa.Table]:
    """Yields measurements. Files with the same columns are parsed as one, because starting the
    parser takes most of the time of a small file."""
    for header, bodies in _alike(files, flaws):
        if (together := _read_alike(header, bodies)) is not None:
            yield together
            continue
        for index, body in bodies:
            curve = _read_alike(header, [(index, body)])
            if curve is None:
                curve, its_flaws = _read_cells(header + b"\n" + body)
                curve = _with_trial(np.full(len(curve), index), curve)
                if its_flaws:
                    flaws[index] = "; ".join(its_flaws)
            yield curve


def _alike(
    files: Mapping[int, str], flaws: dict[int, str]
) -> Iterator[tuple[bytes, list[tuple[int, bytes]]]]:
    """Yields each first line with the remaining content of files that begin with it, at most
    MOST_BYTES_TOGETHER at a time. Adds the reasons why files can't be read to `flaws`."""
    by_header: dict[bytes, list[tuple[int, bytes]]] = {}
    held = 0
    for index, path in files.items():
        try:
            content = content_of(path, MOST_BYTES)
        except OSError as error:
            flaws[index] = reason_of(error)
            continue
        header, _, body = content.removeprefix(codecs.BOM_UTF8).partition(b"\n")
        by_header.setdefault(header.rstrip(b"\r"), []).append((index, body))
        held += len(content)
        if held > MOST_BYTES_TOGETHER:
            yield from by_header.items()
            by_header, held = {}, 0
    yield from by_header.items()


def content_of(path: str, most_bytes: int) -> bytes:
    """The content of a file of at most `most_bytes`. It makes fewer system calls than `open`, which
    take a third of the time to read an archive of many small files."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(file).st_size
        if size > most_bytes:
            raise OSError(errno.EFBIG, f"has {size:,} bytes; at most {most_bytes:,} are read")
        content = os.read(file, size)
        while len(content) < size and (more := os.read(file, size - len(content))):
            content += more
        return content
    finally:
        os.close(file)


def reason_of(error: Exception) -> str:
    """The reason why a file or folder can't be read, as the end of a sentence about it."""
    if not isinstance(error, OSError):
        return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    if isinstance(error, FileNotFoundError):
        return "is missing"
    return error.strerror or str(error)


def _read_alike(header: bytes, bodies: Sequence[tuple[int, bytes]]) -> pa.Table | None:
    """Parses many files as one; None if one of them has to be read by itself."""
    names = _plain_names(header)
    if names is None:
        return None
    ended = [body if body.endswith(b"\n") or not body else body + b"\n" for _, body in bodies]
    lines = [body.count(b"\n") for body in ended]
    curve = _parse(b"".join([header, b"\n", *ended]), names)
    if curve is None or len(curve) != sum(lines):
        return None
    return _with_trial(np.repeat([i for i, _ in bodies], lines), curve)


def _with_trial(trial: ArrayLike, curve: pa.Table) -> pa.Table:
    return curve.add_column(0, "trial", pa.array(np.asarray(trial, np.int32)))


def _plain_names(header: bytes) -> list[str] | None:
    """The columns of a file; None if they have flaws or are quoted."""
    flaws = list[str]()
    try:
        names = header.decode().split(",")
        _indices(names, flaws)
    except ValueError:
        return None
    return None if flaws or b'"' in header or len(header) > MOST_BYTES_IN_LINE else names


def _parse(content: bytes, names: Sequence[str]) -> pa.Table | None:
    """Columns of numbers, `step` first; None if there are other cells, or steps out of range."""
    types = {name: pa.int64() if name == "step" else pa.float64() for name in names}
    try:
        table = pa_csv.read_csv(
            pa.BufferReader(content),
            read_options=pa_csv.ReadOptions(use_threads=False),
            convert_options=pa_csv.ConvertOptions(column_types=types, null_values=[""]),
        )
    except pa.ArrowException:
        return None
    step = table["step"]
    if step.null_count or (
        len(step) and not 0 <= pc.min(step).as_py() <= pc.max(step).as_py() <= MANY
    ):
        return None
    return table.select(["step", *(name for name in names if name != "step")])


def _read_cells(content: bytes) -> tuple[pa.Table, list[str]]:
    """The measurements in a file with flaws, in their order, and which cells are no numbers."""
    lines, flaws = csv.reader(_lines_of(content)), list[str]()
    try:
        header = next(lines, [])
        indices = _indices(header, flaws)
        return _read_rows(lines, indices, len(header), flaws), flaws
    except (csv.Error, ValueError) as error:
        return _no_curve(), [str(error)]


def _no_curve() -> pa.Table:
    return pa.table({"step": pa.array([], pa.int64())})


def _lines_of(content: bytes) -> Iterator[str]:
    for line in io.TextIOWrapper(io.BytesIO(content), "utf-8", errors="replace", newline=""):
        if len(line) > MOST_BYTES_IN_LINE:
            raise csv.Error(
                f"has a line of {len(line):,} characters; at most {MOST_BYTES_IN_LINE:,} are read"
            )
        yield line


def _indices(names: Sequence[str], flaws: list[str]) -> dict[str, int]:
    """Column -> its index in a row, for the columns that are used."""
    if not names:
        raise ValueError("is empty")
    if "step" not in names:
        raise ValueError("has no column `step`")
    indices: dict[str, int] = {}
    for index, name in enumerate(names):
        indices.setdefault(name, index)
    used = {
        name: at
        for name, at in indices.items()
        if name == "step" or (name and name.isprintable() and is_metric(name))
    }
    if len(used) > MOST_COLUMNS:
        raise ValueError(f"has {len(used):,} columns; at most {MOST_COLUMNS} are read")
    if unused := [name for at, name in enumerate(names) if name not in used or at != indices[name]]:
        flaws.append(
            f"columns that are no metric, or are there twice, are left out: {shown(unused)}"
        )
    return used


def _read_rows(
    lines: Iterable[Sequence[str]], indices: Mapping[str, int], width: int, flaws: list[str]
) -> pa.Table:
    columns, junk, lost = {name: array("d") for name in indices}, 0, 0
    for row in filter(None, lines):
        step = as_number(row[indices["step"]]) if len(row) > indices["step"] else None
        if step is None or not step.is_integer() or not 0 <= step <= MANY:
            lost += 1
            continue
        for name, index in indices.items():
            cell = row[index] if index < len(row) else ""
            value = as_number(cell)
            junk += value is None and bool(cell.strip())
            columns[name].append(math.nan if value is None else value)
        junk += len(row) > width
    if lost:
        flaws.append(f"rows whose step is no whole number from 0 to {MANY:,}: {lost}")
    if junk:
        flaws.append(f"cells that are no numbers: {junk}")
    steps = pa.array(np.asarray(columns.pop("step"), np.int64))
    values = {n: pa.array(np.asarray(c), from_pandas=True) for n, c in columns.items()}
    return pa.table({"step": steps, **values})
