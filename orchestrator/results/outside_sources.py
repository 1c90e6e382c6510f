"""Reads what other programs write of their runs, as one table with a row per measurement."""

from __future__ import annotations

import io
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pyarrow.types as pt

from orchestrator.files.event_files import events, hyperparameters, scalars, wandb_records
from orchestrator.files.yaml_files import parse_mapping
from orchestrator.records import BadInput, cut, escaped, unreadable
from orchestrator.results.archive import Problem
from orchestrator.results.archive_documents import MOST_LETTERS
from orchestrator.results.curve_files import content_of, reason_of
from orchestrator.results.outside import Rows
from orchestrator.results.outside_mapping import has_step

MOST_BYTES = 2**33
"""Largest size of a table as a file: 20 times as much as 10 million rows take."""

MOST_BYTES_OF_RUN = 2**30
"""Largest size of a file of one run."""

MOST_COLUMNS = 1_000
"""Largest number of columns of a table. More than a thousand metrics and settings nobody reads."""

MOST_VALUES = 2**28
"""Largest number of values of a table, each of which takes up to 8 bytes of memory."""

SOURCES = (
    "a table (.csv, .jsonl, .parquet), a folder of event files (*tfevents*), of W&B's offline runs "
    "(*.wandb) or of histories (.csv or .jsonl, with config.yaml or config.json beside each), or a "
    "storage of Optuna (sqlite:///FILE, or a journal as a .log file)"
)

CONFIGS = ("config.yaml", "config.yml", "config.json", "hparams.yaml")

Row = dict[str, Any]


def is_archive(source: str) -> bool:
    """Whether a source is a folder in the layout of published measurements, or holds nothing that
    is known."""
    found = False
    for folder, _, files in os.walk(source):
        if {"study.json", "metadata.json", "measurements.csv"} & {*files}:
            return True
        found = found or any(_reader(Path(folder, name)) for name in files)
    return os.path.isdir(source) and not found


def is_optuna(source: str) -> bool:
    return source.startswith("sqlite:") or Path(source).suffix in (".log", ".journal")


def read_source(source: str) -> Rows:
    """The rows of a source. Raises `BadInput` if none can be read."""
    path, problems = Path(source), list[Problem]()
    name = escaped(path.resolve().stem) or "runs"
    tables = {".csv": _csv, ".jsonl": _json_lines, ".ndjson": _json_lines, ".parquet": _parquet}
    try:
        if path.is_dir():
            return _joined(name, _runs_in(path, problems), problems)
        if path.suffix.lower() not in tables:
            raise BadInput(
                f"{escaped(source)} is no source that is known. A source is {SOURCES}.",
                code="unknown-source",
            )
        if (size := path.stat().st_size) > MOST_BYTES or not path.is_file():
            raise ValueError(f"is no file of up to {MOST_BYTES:,} bytes, but has {size:,}")
        table = tables[path.suffix.lower()](path, problems)
        return Rows(name=name, table=_usable(table, name, problems), problems=problems)
    except BadInput:
        raise
    except (OSError, ValueError, pa.ArrowException) as error:
        raise unreadable(escaped(source), cut(escaped(str(error)), 500)) from None


# Tables with a row per measurement


def _csv(source: Path | bytes, problems: list[Problem]) -> pa.Table:
    # Texts are few, however many rows they are in.
    options = pa_csv.ConvertOptions(
        auto_dict_encode=True, auto_dict_max_cardinality=2**20, strings_can_be_null=True,
        null_values=["", "NA", "N/A", "null", "None"],
    )  # fmt: skip
    try:
        file = io.BytesIO(source) if isinstance(source, bytes) else source
        return pa_csv.read_csv(file, convert_options=options)
    except pa.ArrowInvalid:
        content = source if isinstance(source, bytes) else source.read_bytes()
    lost = list[int]()

    def skip(row: pa_csv.InvalidRow) -> str:
        lost.append(row.actual_columns)
        return "skip"

    # Arrow can't tell of rows that are no UTF-8 without a traceback.
    file = io.BytesIO(content.decode(errors="replace").encode())
    parse = pa_csv.ParseOptions(invalid_row_handler=skip)
    table = pa_csv.read_csv(file, parse_options=parse, convert_options=options)
    if lost:
        reason = f"{len(lost):,} have other columns than the first"
        problems.append(Problem(path="rows", reason=reason))
    return table


def _parquet(path: Path, problems: list[Problem]) -> pa.Table:
    file = pq.ParquetFile(path)
    _refuse_many(file.metadata.num_rows, file.metadata.num_columns)
    return file.read()


def _json_lines(path: Path, problems: list[Problem]) -> pa.Table:
    return _table([*_objects(path.open("rb"), problems)])


def _objects(lines: Iterable[bytes], problems: list[Problem]) -> Iterator[Row]:
    lost = 0
    for line in lines:
        try:
            found = json.loads(line)
            yield _flat(found)
        except (ValueError, AttributeError, RecursionError):
            lost += bool(line.strip())
    if lost:
        problems.append(Problem(path="rows", reason=f"{lost:,} are no JSON objects"))


def _flat(document: Mapping[str, Any], prefix: str = "") -> Row:
    """Nested settings by names with dots; what is neither number nor text as JSON."""
    found: Row = {}
    for key, value in document.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            found |= _flat(value, f"{name}.") if prefix.count(".") < 5 else {}
        elif isinstance(value, list | dict):
            found[name] = cut(json.dumps(value, default=str), MOST_LETTERS)
        else:
            found[name] = value
    return found


def _table(rows: Sequence[Row]) -> pa.Table:
    names = dict.fromkeys(name for row in rows for name in row)
    _refuse_many(len(rows), len(names))
    return pa.table({name: _column([row.get(name) for row in rows]) for name in names})


def _column(values: Sequence[Any]) -> pa.Array:
    if any(isinstance(value, str) for value in values):
        values = [value if value is None else str(value) for value in values]
    elif any(isinstance(value, float) or abs(value or 0) > 2**62 for value in values):
        values = [value if value is None else _as_float(value) for value in values]
    return pa.array(values)


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _refuse_many(rows: int, columns: int) -> None:
    if columns > MOST_COLUMNS:
        raise ValueError(f"has {columns:,} columns; at most {MOST_COLUMNS:,} are read")
    if rows * columns > MOST_VALUES:
        raise ValueError(f"has {rows * columns:,} values; at most {MOST_VALUES:,} are read")


def _usable(table: pa.Table, name: str, problems: list[Problem]) -> pa.Table:
    """The columns that hold whole numbers, numbers or texts, the latter as dictionaries."""
    while any(pt.is_struct(kind) for kind in table.schema.types):
        _refuse_many(len(table), table.num_columns)
        table = table.flatten()
    _refuse_many(len(table), table.num_columns)
    columns: dict[str, pa.ChunkedArray] = {}
    for title, column in zip(table.column_names, table.columns, strict=True):
        if not title or not title.isprintable() or len(title) > MOST_LETTERS:
            reason = f"has no printable name of up to {MOST_LETTERS} characters"
        elif title in columns:
            reason = "is there twice; the first is used"
        elif (found := _plain(column)) is None:
            reason = f"holds {column.type}, which is neither numbers nor text"
        elif lost := found.null_count - column.null_count:
            columns[title], reason = found, f"has {lost:,} cells that are no numbers"
        else:
            columns[title] = found
            continue
        told = escaped(f"column {cut(title)!r} {reason}")
        problems.append(Problem(path=name, reason=told))
    return pa.table(columns)


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    kind = column.type
    if pt.is_dictionary(kind):
        kind = kind.value_type
        if not pt.is_string(kind):
            column = column.cast(kind)
    if pt.is_timestamp(kind):
        micros = column.cast(pa.timestamp("us", kind.tz), safe=False).cast(pa.int64())
        return pc.divide(micros.cast(pa.float64()), 1e6)
    if pt.is_integer(kind) and not pt.is_uint64(kind):
        return column.cast(pa.int64())
    if pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind) or pt.is_null(kind):
        return column.cast(pa.float64())
    if pt.is_boolean(kind) or pt.is_large_string(kind) or pt.is_string_view(kind):
        column, kind = column.cast(pa.string()), pa.string()
    if not pt.is_string(kind):
        return None
    if not pt.is_dictionary(column.type):
        column = column.dictionary_encode()
    return _numbers_in(column.unify_dictionaries())


def _numbers_in(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Texts as numbers, such as 1e-3 in YAML, if nine in ten different ones are numbers."""
    texts = column.chunk(0).dictionary.to_pylist() if column.num_chunks else []
    values = pa.array([_number(text) for text in texts], pa.float64())
    if not texts or values.null_count > 0.1 * len(texts):
        return column
    return pa.chunked_array([values.take(chunk.indices) for chunk in column.chunks])


# Folders with files of single runs


def _runs_in(folder: Path, problems: list[Problem]) -> Iterator[tuple[str, Row, list[Row]]]:
    """The name of each run, its settings and its rows."""
    found: dict[str, tuple[Row, list[Row]]] = {}
    for where, inside, files in os.walk(folder):
        inside.sort()
        for name in sorted(files):
            path = Path(where, name)
            if (reader := _reader(path)) is None:
                continue
            place, told = os.path.relpath(path, folder), list[Problem]()
            settings: Row = {}
            rows: list[Row] = []
            try:
                settings = _named_in(Path(place)) | _config_beside(path, told)
                reader(content_of(str(path), MOST_BYTES_OF_RUN), settings, rows, told)
            except (OSError, ValueError, pa.ArrowException) as error:
                reason = reason_of(error) if isinstance(error, OSError) else str(error)
                told.append(Problem(path="", reason=reason))
            problems += [Problem.at(path, folder, each.reason) for each in told]
            # TensorBoard begins a new file whenever a run goes on.
            run = os.path.dirname(place) if reader is _tensorboard else place
            # torch's add_hparams writes to a folder of its own, named by the time of day.
            above, _, last = run.rpartition("/")
            run = above if above in found and re.fullmatch(r"\d{9,}\.\d+", last) else run
            before, known = found.setdefault(run, ({}, []))
            before |= settings
            known += rows
    yield from ((run, settings, rows) for run, (settings, rows) in found.items())


def _reader(path: Path) -> Callable[[bytes, Row, list[Row], list[Problem]], None] | None:
    if "tfevents" in path.name:
        return _tensorboard
    return {".wandb": _wandb, ".csv": _history, ".jsonl": _history}.get(path.suffix.lower())


def _named_in(place: Path) -> Row:
    """The settings that a path names, as in lr=0.1,seed=3/events."""
    pairs = [
        part.partition("=") for part in str(place.with_suffix("")).replace("/", ",").split(",")
    ]
    return {name.strip(): value.strip() for name, equals, value in pairs if equals}


def _config_beside(path: Path, told: list[Problem]) -> Row:
    for name in CONFIGS:
        if not (file := path.with_name(name)).is_file():
            continue
        try:
            config = parse_mapping(content_of(str(file), 2**20).decode(), name)
            # As W&B writes it: NAME: {desc: ..., value: VALUE}.
            plain = {
                key: value["value"] if isinstance(value, dict) and "value" in value else value
                for key, value in config.items()
            }
            return _settings(plain)
        except (OSError, ValueError) as error:
            told.append(Problem(path=name, reason=f"{name}: {error}"))
    return {}


def _settings(config: Mapping[str, Any]) -> Row:
    return {name: value for name, value in _flat(config).items() if not name.startswith("_")}


def _tensorboard(content: bytes, settings: Row, rows: list[Row], told: list[Problem]) -> None:
    by_step: dict[int, Row] = {}
    file = io.BytesIO(content)
    try:
        for event in events(file, len(content)):
            found = dict(scalars(event))
            if found:
                row = by_step.setdefault(event.step, {"wall_time": event.wall_time})
                by_step[event.step] = found | row  # the first value counts
            else:
                settings |= _settings(hyperparameters(event))
        if file.tell() < len(content):
            told.append(Problem(path="", reason="ends within a record"))
    finally:
        rows += [{"step": step, **row} for step, row in by_step.items()]


def _wandb(content: bytes, settings: Row, rows: list[Row], told: list[Problem]) -> None:
    if not content.startswith(b":W&B"):
        raise ValueError("is no file of W&B")
    state, config = "running", dict[str, Any]()
    try:
        for record in wandb_records(content):
            for item in [*record.run.config.update, *record.config.update]:
                config[".".join(item.nested_key) or item.key] = json.loads(item.value_json)
            if record.HasField("exit"):
                state = "crashed" if record.exit.exit_code else "finished"
            if items := record.history.item:
                values = {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in items}
                rows.append({"_step": record.history.step.num, **_flat(values)})
    finally:
        settings |= {"state": state, **_settings(config)}


def _history(content: bytes, settings: Row, rows: list[Row], told: list[Problem]) -> None:
    if content.lstrip()[:1] == b"{":
        found = [*_objects(content.splitlines(), told)]
        # The first line may hold the settings.
        if found and not has_step(found[0]):
            settings |= found.pop(0)
    else:
        found = _csv(content, told).to_pylist()
    rows += found


def _joined(name: str, runs: Iterable[tuple[str, Row, list[Row]]], problems: list[Problem]) -> Rows:
    """One table of the rows of all runs. A setting is the same in all rows of its run."""
    tables, settings = list[pa.Table](), list[Row]()
    lengths, values = list[int](), 0
    for run, of, rows in runs:
        columns = dict.fromkeys(n for row in rows for n in row if n not in of)
        values += len(rows) * len(columns)
        _refuse_many(values, 1)
        tables.append(pa.table({n: _measured([row.get(n) for row in rows]) for n in columns}))
        settings.append({"run": run, **of})
        lengths.append(len(rows) if columns else 0)
    if not sum(lengths):
        raise _nothing(name, problems)
    measured = pa.concat_tables([t for t in tables if t.num_columns], promote_options="default")
    of_row = pa.array(np.repeat(np.arange(len(lengths)), lengths))
    titles = dict.fromkeys(title for of in settings for title in of)
    table = pa.table(
        {title: _column([of.get(title) for of in settings]).take(of_row) for title in titles}
        | {title: measured[title] for title in measured.column_names if title not in titles}
    )
    usable = _usable(table, name, problems)
    return Rows(name=name, table=usable, settings=frozenset(titles), problems=problems)


def joined_trials(name: str, trials: Iterable[Mapping[str, Any]]) -> Rows:
    """The rows of trials as `search.optuna_storage` reads them."""
    listed = [*trials]
    runs = (
        (
            f"{t['study']}/{t['number']}",
            {"state": t["state"], **_settings(t["settings"])},
            t["rows"],
        )
        for t in listed
    )
    return _joined(name, runs, [])


def _measured(values: Sequence[Any]) -> pa.Array:
    """What was measured, where it is a number, which JSON writes as text if it is not finite."""
    return pa.array([None if value is None else _number(value) for value in values], pa.float64())


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        return None


def _nothing(name: str, problems: Sequence[Problem]) -> BadInput:
    first = f" The first of {len(problems)} problems: {problems[0]}." if problems else ""
    return BadInput(f"{name} holds no measurement. A source is {SOURCES}.{first}", code="no-study")
