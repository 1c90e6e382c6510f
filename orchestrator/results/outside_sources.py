"""Reads what other programs write of their runs, as one table with a row per measurement."""

from __future__ import annotations

import codecs
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
from orchestrator.results.archive import holds_no, problem_at
from orchestrator.results.archive_documents import MOST_LETTERS, read_document
from orchestrator.results.curve_files import content_of, reason_of
from orchestrator.results.outside import Rows
from orchestrator.results.outside_mapping import has_step, is_setting, names_runs
from orchestrator.results.tables import as_number, column_from

MOST_BYTES = 2**33
"""Largest size of a table as a file: 20 times as much as 10 million rows take."""

MOST_BYTES_OF_RUN = 2**30

MOST_COLUMNS = 1_000
"""Largest number of columns of a table. More than a thousand metrics and settings nobody reads."""

MOST_VALUES = 2**28
"""Largest number of values of a table, each of which takes up to 8 bytes of memory."""

SOURCES = (
    "a table (.csv, .jsonl, .parquet), a folder of event files (*tfevents*), of W&B's offline runs "
    "(*.wandb) or of histories (.csv or .jsonl, with config.yaml or config.json beside each), a "
    "storage of Optuna (sqlite:///FILE, or a journal as a .log file), or an archive of folders "
    "[GROUP/]DATASET/MODEL/OPTIMIZER/BATCH_SIZE"
)

CONFIGS = ("config.yaml", "config.yml", "config.json", "hparams.yaml")

Row = dict[str, Any]

Runs = dict[str, tuple[Row, list[Row]]]
"""Name of a run -> its settings and its rows."""


def is_archive(source: str) -> bool:
    """Whether a source is a folder in the published layout."""
    known = {"study.json", "metadata.json", "measurements.csv"}
    return any(known & {*files} for _, _, files in os.walk(source))


def is_optuna(source: str) -> bool:
    return source.startswith("sqlite:") or Path(source).suffix in (".log", ".journal")


def read_source(source: str) -> Rows:
    """The rows of a source. Raises `BadInput` if none can be read."""
    path, flaws = Path(source), list[str]()
    name = escaped(path.resolve().stem) or "runs"
    tables = {".csv": _csv, ".jsonl": _json_lines, ".ndjson": _json_lines, ".parquet": _parquet}
    try:
        if path.is_dir():
            problems = list[str]()
            return joined(name, _runs_in(path, problems), problems)
        if path.suffix.lower() not in tables:
            raise BadInput(
                f"{escaped(source)} is no source that is known. A source is {SOURCES}.",
                code="unknown-source",
            )
        # Of an empty file, Arrow's threads may still begin while the command ends, which aborts it.
        if not 0 < (size := path.stat().st_size) <= MOST_BYTES or not path.is_file():
            raise ValueError(f"it is no file of 1 to {MOST_BYTES:,} bytes, but has {size:,}")
        table = _usable(tables[path.suffix.lower()](path, flaws), flaws)
    except BadInput:
        raise
    except (OSError, ValueError, pa.ArrowException) as error:
        raise unreadable(escaped(source), cut(escaped(str(error)), 500).rstrip(".")) from None
    return Rows(name=name, table=table, problems=[f"{name}: {one}" for one in flaws])


# Tables with a row per measurement


def _csv(source: Path | pa.Buffer, flaws: list[str]) -> pa.Table:
    with pa.input_stream(source) as file:
        head = file.read(2**20)
        names, _, rows = head.decode("utf-8-sig", "replace").partition("\n")
        if "\ufffd" in names:  # as Excel writes it
            wide = head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
            text = (head + file.read()).decode("utf-16" if wide else "latin-1", "replace")
            return _csv(pa.py_buffer(text.encode()), flaws)
    between = max(",;\t", key=names.count)
    # Where commas are decimal points, others stand between numbers.
    comma = between != "," and _has_decimal_commas(rows, between)
    titles = [title.strip('"\r') for title in names.split(between)]
    # Texts are few, however many rows they are in.
    options = pa_csv.ConvertOptions(
        column_types={title: pa.dictionary(pa.int32(), pa.string()) for title in titles
                      if names_runs(title)},
        auto_dict_encode=True, auto_dict_max_cardinality=2**20, strings_can_be_null=True,
        null_values=["", "NA", "N/A", "null", "None"], decimal_point="," if comma else ".",
    )  # fmt: skip
    parse, lost = pa_csv.ParseOptions(delimiter=between), list[int]()

    def skip(row: pa_csv.InvalidRow) -> str:
        lost.append(row.actual_columns)
        return "skip"

    try:
        with pa.input_stream(source) as file:
            table = pa_csv.read_csv(file, parse_options=parse, convert_options=options)
    except pa.ArrowInvalid:
        parse.invalid_row_handler = skip
        with pa.input_stream(source) as file:
            # Arrow can't tell of rows that are no UTF-8 without a traceback.
            content = io.BytesIO(file.read().decode(errors="replace").encode())
        table = pa_csv.read_csv(content, parse_options=parse, convert_options=options)
    if lost:
        flaws.append(f"rows with other columns than the first: {len(lost):,}")
    for at, column in enumerate(table.columns):
        if comma and pt.is_dictionary(column.type):  # 1.000 is a thousand, as 1,000 is elsewhere
            texts = pc.replace_substring_regex(column.cast(pa.string()), r"\.(\d{3})\b", r",\1")
            table = table.set_column(at, table.column_names[at], texts)
    return table


def _has_decimal_commas(rows: str, between: str) -> bool:
    """Whether numbers are written as 0,5 or 1.024,5. What may be 1,024 is such a number unless
    others are as 0.5 or 1,024.5."""

    def seen(number: str) -> bool:
        cell = rf'(?i:(?:^|{between})"?-?{number}(?:e[-+]?\d+|\s?%)?"?\s*(?:{between}|$))'
        return re.search(cell, rows, re.MULTILINE) is not None

    no_thousands = r"(?![1-9]\d{{0,2}}(?:\{}\d{{3}})+\b)".format
    return seen(no_thousands(",") + r"\d[\d.]*,\d+") or (
        seen(r"[\d.,]*,\d+") and not seen(no_thousands(".") + r"[\d,]*\.\d+")
    )


def _parquet(path: Path, flaws: list[str]) -> pa.Table:
    file = pq.ParquetFile(path)
    _refuse_many(file.metadata.num_rows, file.metadata.num_columns)
    return file.read()


def _json_lines(path: Path, flaws: list[str]) -> pa.Table:
    with path.open("rb") as lines:
        return _table([*_objects(lines, flaws)])


def _objects(lines: Iterable[bytes], flaws: list[str]) -> Iterator[Row]:
    lost = 0
    for line in lines:
        try:
            found = json.loads(line)
            yield _flat(found)
        except (ValueError, AttributeError, RecursionError):
            lost += bool(line.strip())
    if lost:
        flaws.append(f"rows that are no JSON objects: {lost:,}")


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
    return pa.table({name: column_from([row.get(name) for row in rows]) for name in names})


def _refuse_many(rows: int, columns: int) -> None:
    if columns > MOST_COLUMNS:
        raise ValueError(f"has {columns:,} columns; at most {MOST_COLUMNS:,} are read")
    if rows * columns > MOST_VALUES:
        raise ValueError(f"has {rows * columns:,} values; at most {MOST_VALUES:,} are read")


def _usable(table: pa.Table, flaws: list[str]) -> pa.Table:
    """The columns that hold whole numbers, numbers or texts, the latter as dictionaries."""
    while any(pt.is_struct(kind) for kind in table.schema.types):
        _refuse_many(len(table), table.num_columns)
        table = table.flatten()
    _refuse_many(len(table), table.num_columns)
    columns: dict[str, pa.ChunkedArray] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        title = re.sub(r"^/|[:<>]", "_", name.strip())  # so that a goal can name it
        if not title or not title.isprintable() or len(title) > MOST_LETTERS:
            reason = f"has no printable name of up to {MOST_LETTERS} characters"
        elif title in columns:
            reason = "is there twice; the first is used"
        elif (found := _plain(column, title)) is None:
            reason = f"holds {column.type}, which is neither numbers nor text"
        elif lost := found.null_count - column.null_count:
            columns[title], reason = found, f"has cells that are no numbers: {lost:,}"
        else:
            columns[title] = found
            continue
        flaws.append(escaped(f"column {cut(title)!r} {reason}"))
    return pa.table(columns)


def _plain(column: pa.ChunkedArray, title: str) -> pa.ChunkedArray | None:
    kind = column.type.value_type if pt.is_dictionary(column.type) else column.type
    if pt.is_string(kind):
        texts = column.dictionary_encode().unify_dictionaries()
        return texts if names_runs(title) else _numbers_in(texts, title)  # run 3.1 is not 3.10
    if pt.is_timestamp(kind):
        micros = column.cast(pa.timestamp("us", kind.tz), safe=False).cast(pa.int64())
        return pc.divide(micros.cast(pa.float64()), 1e6)
    if pt.is_boolean(kind) or pt.is_large_string(kind) or pt.is_string_view(kind):
        return _plain(column.cast(kind).cast(pa.string()), title)
    if not (pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind) or pt.is_null(kind)):
        return None
    whole = pt.is_integer(kind) and not pt.is_uint64(kind)
    if pt.is_float32(kind):
        column, kind = column.cast(kind).cast(pa.string()), pa.string()  # 0.6, not 0.60000002
    return column.cast(kind).cast(pa.int64() if whole else pa.float64())


def _numbers_in(column: pa.ChunkedArray, title: str) -> pa.ChunkedArray:
    """Texts as numbers, such as 1e-3 in YAML, 1,000 or 4.5 %, if nine in ten different ones are
    numbers, its title aside: a file that a program goes on to write has it twice."""
    texts = column.chunk(0).dictionary.to_pylist() if column.num_chunks else []
    plain = [text.strip().removesuffix("%") for text in texts]
    comma = re.compile(r"-?[1-9]\d{0,2}(,\d{3})+(\.\d*)?")
    plain = [text.replace(",", "") if comma.fullmatch(text) else text for text in plain]
    values = pa.array(map(as_number, plain), pa.float64())
    if not texts or values.null_count - (title in plain) > 0.1 * len(texts):
        return column
    return pa.chunked_array([values.take(chunk.indices) for chunk in column.chunks])


# Folders with files of single runs


def _runs_in(folder: Path, problems: list[str]) -> Runs:
    found: Runs = {}
    for where, inside, files in os.walk(folder):
        inside.sort()
        for name in sorted(files):
            path = Path(where, name)
            if (reader := _reader(path)) is None:
                continue
            relative, flaws = os.path.relpath(path, folder), list[str]()
            # TensorBoard begins a new file whenever a run goes on.
            run = os.path.dirname(relative) if reader is _tensorboard else relative
            settings, rows = Row(), list[Row]()
            try:
                settings |= _named_in(Path(relative)) | _config_beside(path, flaws)
                reader(content_of(str(path), MOST_BYTES_OF_RUN), settings, rows, flaws)
            except (OSError, ValueError, pa.ArrowException) as error:
                flaws.append(reason_of(error))
            if reader is _tensorboard:
                run, rows = _part_of_run(run, rows, found)
            earlier, before = found.setdefault(run, ({}, []))
            earlier |= settings
            before += rows
            problems += [problem_at(path, folder, each) for each in flaws]
    # The names of W&B's folders end in chance, and the first run of a point counts as its trial.
    return dict(sorted(found.items(), key=lambda of_run: _first_time(of_run[1][1])))


def _part_of_run(folder: str, rows: list[Row], runs: Runs) -> tuple[str, list[Row]]:
    """The run of a folder of event files, and its rows by their names in the run. Within that of a
    run, torch's add_hparams names a folder by the time of day, add_scalars by a metric; Keras
    writes the same metrics to train and to validation."""
    above, _, last = folder.rpartition("/")
    if above in runs and re.fullmatch(r"\d{9,}\.\d+", last):
        return above, rows
    tags = {name for row in rows for name in row} - {"step", "wall_time"}
    of_tag = above in runs and all(last.startswith(f"{t.replace('/', '_')}_") for t in tags)
    if not (of_tag or re.fullmatch("train|val|valid|validation|eval|test", last)):
        return folder, rows
    return above, [{f"{last}/{n}" if n in tags else n: row[n] for n in row} for row in rows]


def _first_time(rows: list[Row]) -> float:
    """When a run was first measured, if it says so."""
    times = [time for row in rows if isinstance(time := row.get("_timestamp"), int | float)]
    return min((time for time in times if math.isfinite(time)), default=0.0)


def _reader(path: Path) -> Callable[[bytes, Row, list[Row], list[str]], None] | None:
    if "tfevents" in path.name:
        return _tensorboard
    lines = dict.fromkeys((".csv", ".jsonl", ".ndjson"), _history)
    return {".wandb": _wandb, **lines}.get(path.suffix.lower())


def _named_in(path: Path) -> Row:
    """The settings that a path names, as in lr=0.1,seed=3/events."""
    parts = str(path.with_suffix("")).replace("/", ",").split(",")
    pairs = [part.partition("=") for part in parts]
    return {name.strip(): value.strip() for name, equals, value in pairs if equals}


def _config_beside(path: Path, flaws: list[str]) -> Row:
    for name in CONFIGS:
        if not (file := path.with_name(name)).is_file():
            continue
        try:
            if file.suffix == ".json":
                config = read_document(str(file))
            else:
                config = parse_mapping(content_of(str(file), 2**20).decode(), name)
        except (OSError, ValueError) as error:
            known = isinstance(error, BadInput)  # which names the file and the line
            flaws.append(str(error) if known else f"{name}: {reason_of(error)}")
            continue
        # As W&B writes it: NAME: {desc: ..., value: VALUE}.
        return {
            key: value["value"] if isinstance(value, dict) and "value" in value else value
            for key, value in config.items()
        }
    return {}


def _tensorboard(content: bytes, settings: Row, rows: list[Row], flaws: list[str]) -> None:
    by_step: dict[int, Row] = {}
    file = io.BytesIO(content)
    try:
        for event in events(file, len(content)):
            if found := dict(scalars(event)):
                row = by_step.setdefault(event.step, {"wall_time": event.wall_time})
                by_step[event.step] = found | row  # the first value counts
            else:
                settings |= hyperparameters(event)
        if file.tell() < len(content):
            flaws.append("ends within a record")
    finally:
        rows += [{"step": step, **row} for step, row in by_step.items()]


def _wandb(content: bytes, settings: Row, rows: list[Row], flaws: list[str]) -> None:
    if not content.startswith(b":W&B"):
        raise ValueError("is no file of W&B")
    settings["state"] = "running"
    for record in wandb_records(content):
        for item in [*record.run.config.update, *record.config.update]:
            settings[".".join(item.nested_key) or item.key] = json.loads(item.value_json)
        if record.HasField("exit"):
            settings["state"] = "crashed" if record.exit.exit_code else "finished"
        if items := record.history.item:
            values = {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in items}
            rows.append({"_step": record.history.step.num, **_flat(values)})


def _history(content: bytes, settings: Row, rows: list[Row], flaws: list[str]) -> None:
    if content.removeprefix(codecs.BOM_UTF8).lstrip()[:1] == b"{":
        found = [*_objects(content.splitlines(), flaws)]
        # The first line may hold the settings.
        if found and not has_step(found[0]):
            settings |= found.pop(0)
    else:
        found = _csv(pa.py_buffer(content), flaws).to_pylist()
    rows += found


def joined(name: str, runs: Runs, problems: list[str]) -> Rows:
    """One table of the rows of all runs. A setting is the same in all rows of its run."""
    table, flaws = _table([row for _, rows in runs.values() for row in rows]), list[str]()
    if not table.num_columns:
        raise holds_no(f"measurement. A source is {SOURCES}", name, problems)
    # A setting called `run` is often the same in all runs.
    flat = [{**_flat(settings), "run": run} for run, (settings, _) in runs.items()]
    settings = _table([{n: row[n] for n in row if not n.startswith("_")} for row in flat])
    of_row = np.repeat(np.arange(len(runs)), [len(rows) for _, rows in runs.values()])
    tables = _usable(table, flaws), _usable(settings, flaws).take(pa.array(of_row))
    measured, set_ = (dict(zip(t.column_names, t.columns, strict=True)) for t in tables)
    texts = [{n for n in of if pt.is_dictionary(of[n].type)} for of in (measured, set_)]
    # A rate that a schedule logs is a setting; a step, or a loss beside its name, was measured.
    for each in measured.keys() & set_.keys() - {"run"}:
        if has_step([each]) or each in texts[1] - texts[0]:
            del set_[each]
    free = measured.keys() - set_.keys()
    set_ |= {each: measured[each] for each in free if is_setting(each, measured[each], of_row)}
    problems += [f"{name}: {each}" for each in flaws]
    return Rows(
        name=name, table=pa.table(measured | set_), settings=frozenset(set_), problems=problems
    )
