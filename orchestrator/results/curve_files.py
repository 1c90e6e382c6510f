"""Files of measurements as the published archive has them: CSV, a row for each evaluation.

`step`, and a column for each metric; `seconds` where we wrote it. What is a number is used, what is
none is told of.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from orchestrator.results.tables import numbers

MOST_FILES = 2**17
"""Bytes: as much as most files have."""


def read_curves(files: Mapping[int, str]) -> tuple[pa.Table, dict[int, str]]:
    """The measurements of all trials, in their order, and what was wrong with which.

    Files with the same columns are read as one: most of the time would go into beginning anew.
    """
    alike: dict[bytes, list[tuple[int, bytes]]] = {}
    one_by_one: list[int] = []
    for index, path in files.items():
        try:
            header, _, body = content_of(path).partition(b"\n")
        except OSError:
            one_by_one.append(index)
            continue
        alike.setdefault(header.rstrip(b"\r"), []).append((index, body))
    tables = [_with_trial(pa.array([], pa.int32()), _no_curve())]
    for header, bodies in alike.items():
        table = _read_alike(header, bodies)
        if table is None:
            one_by_one += [index for index, _ in bodies]
        else:
            tables.append(table)
    flaws = {}
    for index in one_by_one:
        curve, its_flaws = read_curve(files[index])
        tables.append(_with_trial(pa.array([index] * len(curve), pa.int32()), curve))
        if its_flaws:
            flaws[index] = "; ".join(its_flaws)
    table = pa.concat_tables(tables, promote_options="default")
    if len(tables) > 2:  # the empty one and another
        table = table.take(np.argsort(numbers(table["trial"]), kind="stable"))
    return table, dict(sorted(flaws.items()))


def content_of(path: str) -> bytes:
    """In fewer calls to the system than `open` makes: an archive has hundreds of thousands of small
    files, and a third of the time to read them goes there."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = os.read(file, MOST_FILES)
        while len(content) % MOST_FILES == 0 and (more := os.read(file, MOST_FILES)):
            content += more
        return content
    finally:
        os.close(file)


def _read_alike(header: bytes, bodies: Sequence[tuple[int, bytes]]) -> pa.Table | None:
    """Many files as one; None where that takes a closer look at each."""
    names = header.decode(errors="replace").split(",")
    if not _is_plain(names):
        return None
    ended = [body if body.endswith(b"\n") or not body else body + b"\n" for _, body in bodies]
    try:
        curve = _parse(pa.BufferReader(b"".join([header, b"\n", *ended])), names)
    except pa.ArrowInvalid:
        return None
    lines = [body.count(b"\n") for body in ended]
    if len(curve) != sum(lines) or curve["step"].null_count:
        return None
    return _with_trial(pa.array(np.repeat([i for i, _ in bodies], lines), pa.int32()), curve)


def _with_trial(trial: pa.Array, curve: pa.Table) -> pa.Table:
    return curve.add_column(0, "trial", trial)


def _is_plain(names: Sequence[str]) -> bool:
    """Whether all columns are known kinds of numbers, and all that is needed is there."""
    return "step" in names and len(set(names)) == len(names) == len(_used(names))


def _parse(source: Any, names: Sequence[str]) -> pa.Table:
    """Columns of numbers, `step` first; whatever else is in there raises."""
    types = {name: pa.int64() if name == "step" else pa.float64() for name in names}
    table = pa_csv.read_csv(
        source,
        read_options=pa_csv.ReadOptions(use_threads=False),
        convert_options=pa_csv.ConvertOptions(column_types=types, null_values=[""]),
    )
    return table.select(["step", *(name for name in names if name != "step")])


def read_curve(path: str | Path) -> tuple[pa.Table, list[str]]:
    """The measurements in a CSV file: `step`, `seconds` if there, and a float64 column for each
    metric; in their order in the file. And what in it could not be used."""
    try:
        with open(path, "rb") as file:
            names = file.readline().decode().strip("\r\n").split(",")
        if _is_plain(names) and not (curve := _parse(path, names))["step"].null_count:
            return curve, []
    except FileNotFoundError:
        return _no_curve(), ["is missing"]
    except OSError as error:
        return _no_curve(), [error.strerror or str(error)]
    except (pa.ArrowInvalid, UnicodeDecodeError):
        pass
    return _read_flawed(path)


def _used(names: Iterable[str]) -> list[str]:
    return [name for name in names if "/" in name or name in ("step", "seconds")]


def _no_curve() -> pa.Table:
    return pa.table({"step": pa.array([], pa.int64())})


def _read_flawed(path: str | Path) -> tuple[pa.Table, list[str]]:
    """The same, cell by cell: whatever is a number is kept."""
    with open(path, encoding="utf-8", errors="replace", newline="") as file:
        lines = csv.reader(line.replace("\0", "") for line in file)
        try:
            names = next(lines, [])
            rows = [row for row in lines if row]
        except csv.Error as error:
            return _no_curve(), [str(error)]
    flaws = []
    if not names:
        return _no_curve(), ["is empty"]
    if "step" not in names:
        return _no_curve(), ["has no column `step`"]
    used = list(dict.fromkeys(_used(names)))
    unused = [name for name in dict.fromkeys(names) if name not in used]
    if unused:
        flaws.append(f"columns that are no split/metric: {', '.join(map(repr, unused))}")
    if repeated := sorted({name for name in used if names.count(name) > 1}):
        flaws.append(f"columns there twice, the first is taken: {', '.join(map(repr, repeated))}")
    places = [names.index(name) for name in used]
    columns: dict[str, list[Any]] = {name: [] for name in used}
    junk, lost = 0, 0
    for row in rows:
        step = _number(row[places[used.index("step")]] if len(row) > names.index("step") else "")
        if step is None or not step.is_integer() or abs(step) > 2**62:
            lost += 1
            continue
        for name, place in zip(used, places, strict=True):
            cell = row[place] if place < len(row) else ""
            number = _number(cell)
            junk += number is None and bool(cell.strip())
            columns[name].append(int(step) if name == "step" else number)
        junk += len(row) > len(names)
    if lost:
        flaws.append(f"{lost} rows have no whole number as their step")
    if junk:
        flaws.append(f"{junk} cells are no numbers")
    arrays = {
        name: pa.array(values, pa.int64() if name == "step" else pa.float64())
        for name, values in columns.items()
    }
    return pa.table({"step": arrays.pop("step"), **arrays}), flaws


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def write_curve(path: str, curve: pa.Table) -> None:
    """Every digit of every number."""
    kept = [name for name in curve.column_names if curve[name].null_count < len(curve)]
    with open(path, "wb") as file:
        file.write(",".join(kept or ["step"]).encode() + b"\n")
        if kept:
            pa_csv.write_csv(curve.select(kept), file, pa_csv.WriteOptions(include_header=False))
