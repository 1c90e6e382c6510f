"""A run is a folder of plain files; whatever is in them can be read without this project.

sweep.yaml        the sweep in full          provenance.json  versions, machine, commit
studies.json      the studies it comes to    log.txt          what Ray had to say
trials/ and measurements/                    Parquet, one file per trial,
    workload=W/recipe=R/batch_size=B/trial-00007.parquet      partitioned by study;
                                                              study.parquet where it was imported
frontier.parquet, frontier.csv, report.html  made from the above
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import socket
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from orchestrator.records import (
    BadInput,
    Choice,
    Divergence,
    EvaluationGrid,
    Extras,
    FinishedTrial,
    Goal,
    Measurement,
    Outcome,
    Range,
    SearchPlan,
    Study,
    StudyKey,
    Trial,
    When,
)
from orchestrator.yaml_files import read_yaml, write_yaml

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
        pa.field("ranks", pa.int32(), nullable=False),
        pa.field("micro_batch", pa.int64()),  # null: each rank's whole slice
        pa.field("started", pa.float64()),  # seconds since the epoch
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
"""Followed by a float64 column for each metric; a metric may be null where it was not measured."""


WHOLE_STUDY = "study.parquet"
"""In place of a file per trial, where a study came into the run as a whole."""

ROWS_AT_ONCE = 16_384
"""Measurements in a row group: what is read to see one trial's."""


class Run:
    """The folder that a sweep writes to."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def open(cls, path: Path) -> Run:
        """An existing run; refuses a folder that is none."""
        if not (path / "sweep.yaml").is_file():
            raise BadInput(
                f"{path} is not a run: it holds no sweep.yaml. `orchestrate sweep` makes one."
            )
        return cls(path)

    def create(
        self, sweep: Mapping[str, Any], studies: Iterable[Study], provenance: Mapping[str, Any]
    ) -> None:
        """Writes what the run is to be, before anything starts."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_text(self.path / "studies.json", _to_json([asdict(study) for study in studies]))
        write_text(self.path / "provenance.json", _to_json(provenance))
        # Last, since it is what makes the folder a run.
        write_text(self.path / "sweep.yaml", write_yaml(dict(sweep)))

    def check_writable(self) -> None:
        """Refuses a place where nothing can be written, before anything is paid for."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path):
                pass
        except OSError as error:
            raise BadInput(
                f"The run folder {self.path} can't be written: {error.strerror}. "
                f"Name another one with --out."
            ) from None

    @property
    def exists(self) -> bool:
        return (self.path / "sweep.yaml").is_file()

    def sweep(self) -> dict[str, Any]:
        """The resolved sweep document."""
        return read_yaml(self.path / "sweep.yaml")

    def studies(self) -> list[Study]:
        return [study_from(entry) for entry in json.loads((self.path / "studies.json").read_text())]

    def provenance(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.path / "provenance.json").read_text())
        return document

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Within, no other process writes to this run. The lock is the system's: it goes with its
        holder, however that ends."""
        path = self.path / ".lock"
        with path.open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise BadInput(
                    f"{self.path} is being written to by another sweep ({file.read().strip()}). "
                    f"Wait for it to end, stop it, or name another folder with --out."
                ) from None
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
            file.flush()
            yield

    @property
    def repeats(self) -> Run:
        """Where the winners' repeats are kept, in the same way: they are no part of the search."""
        return Run(self.path / "repeats")

    def write(self, finished: FinishedTrial) -> None:
        """Keeps a finished trial. Its row in `trials` comes last and says that it is complete."""
        trial = finished.trial
        if trial.repeat:
            self.repeats._write(finished, f"trial-{trial.index:05d}-repeat-{trial.repeat}.parquet")
        else:
            self._write(finished, f"trial-{trial.index:05d}.parquet")

    def _write(self, finished: FinishedTrial, name: str) -> None:
        trial = finished.trial
        write_table(
            self._folder("measurements", trial.study.key) / name, _measurement_table(finished)
        )
        row = {
            "trial": trial.index,
            "repeat": trial.repeat,
            "optimizer": trial.study.optimizer,
            "status": finished.outcome.status,
            "steps": finished.outcome.steps,
            "params": json.dumps(dict(trial.params)),
            "seed": trial.seed,
            "seconds": finished.outcome.seconds,
            "evaluation_seconds": finished.outcome.evaluation_seconds,
            "ranks": finished.ranks,
            "micro_batch": finished.outcome.micro_batch,
            "started": finished.started,
            "error": finished.outcome.error,
        }
        schema = _with_repeat(TRIALS) if trial.repeat else TRIALS
        table = pa.Table.from_pylist([row], schema=schema)
        write_table(self._folder("trials", trial.study.key) / name, table)

    def finished(self, study: Study) -> Iterator[FinishedTrial]:
        """The finished trials of a study and their repeats, with all that was measured in them."""
        for run in (self, self.repeats):
            for path in sorted(run._folder("trials", study.key).glob("trial-*.parquet")):
                (row,) = _read(path).to_pylist()
                measured = _read(run._folder("measurements", study.key) / path.name)
                yield _finished_trial(study, row, measured.to_pylist())

    def sessions(self) -> list[dict[str, Any]]:
        """How well each `sweep` or `resume` of this run used its machines, oldest first."""
        path = self.path / "sessions.json"
        return json.loads(path.read_text()) if path.is_file() else []

    def add_session(self, session: Mapping[str, Any]) -> None:
        write_text(self.path / "sessions.json", _to_json([*self.sessions(), dict(session)]))

    def write_study(self, key: StudyKey, trials: pa.Table, measurements: pa.Table) -> None:
        """Keeps all trials of a study at once, one file each. What says that they are complete
        comes last."""
        path = self._folder("measurements", key) / WHOLE_STUDY
        write_table(path, measurements, row_group_size=ROWS_AT_ONCE, **_encodings(measurements))
        write_table(self._folder("trials", key) / WHOLE_STUDY, trials)

    def holds(self, key: StudyKey) -> bool:
        """Whether all of a study was kept at once."""
        return (self._folder("trials", key) / WHOLE_STUDY).is_file()

    @property
    def imported(self) -> bool:
        return bool(self.sweep().get("imported"))

    def trials(self, key: StudyKey) -> pa.Table:
        """The finished trials of a study, in order of index."""
        if self.holds(key):
            return _read(self._folder("trials", key) / WHOLE_STUDY)
        tables = _read_all(self._folder("trials", key))
        return pa.concat_tables(tables) if tables else TRIALS.empty_table()

    def measurements(self, key: StudyKey, metrics: Collection[str] | None = None) -> pa.Table:
        """The measurements of a study's finished trials, in order of trial and step: all columns,
        or trial, step and those of `metrics` that there are."""
        if self.holds(key):
            return _read(self._folder("measurements", key) / WHOLE_STUDY, metrics)
        names = {path.name for path in self._folder("trials", key).glob("trial-*.parquet")}
        tables = _read_all(self._folder("measurements", key), names, metrics)
        if not tables:
            return MEASUREMENTS.empty_table()
        return pa.concat_tables(tables, promote_options="default")

    def metrics(self, key: StudyKey) -> set[str]:
        """What was measured in a study, in any of its trials."""
        schemas = map(pq.read_schema, self._folder("measurements", key).glob("*.parquet"))
        return {name for schema in schemas for name in schema.names if "/" in name}

    def curve(self, key: StudyKey, trial: int) -> pa.Table:
        """All measurements of one finished trial."""
        folder = self._folder("measurements", key)
        if not self.holds(key):
            return _read(folder / f"trial-{trial:05d}.parquet")
        file = pq.ParquetFile(folder / WHOLE_STUDY)
        groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
        spans = [group.column(0).statistics for group in groups]
        some = [n for n, span in enumerate(spans) if span.min <= trial <= span.max]
        table = file.read_row_groups(some, use_threads=False)
        return of_trial(table, trial)

    def _folder(self, kind: str, key: StudyKey) -> Path:
        return (
            self.path
            / kind
            / f"workload={quote(key.workload, safe='')}"
            / f"recipe={quote(key.recipe, safe='')}"
            / f"batch_size={key.batch_size}"
        )


def _measurement_table(finished: FinishedTrial) -> pa.Table:
    measurements, trial = finished.measurements, finished.trial
    names = sorted({name for measurement in measurements for name in measurement.metrics})
    columns = {
        "trial": [trial.index] * len(measurements),
        "repeat": [trial.repeat] * len(measurements),
        "step": [measurement.step for measurement in measurements],
        "examples": [measurement.step * trial.study.batch_size for measurement in measurements],
        "seconds": [measurement.seconds for measurement in measurements],
        **{name: [m.metrics.get(name) for m in measurements] for name in names},
    }
    schema = _with_repeat(MEASUREMENTS) if trial.repeat else MEASUREMENTS
    fields = [*schema, *(pa.field(name, pa.float64()) for name in names)]
    return pa.Table.from_pydict(
        {field.name: columns[field.name] for field in fields}, schema=pa.schema(fields)
    )


def _with_repeat(schema: pa.Schema) -> pa.Schema:
    return schema.insert(1, pa.field("repeat", pa.int32(), nullable=False))


def _finished_trial(
    study: Study, row: Mapping[str, Any], measurements: Iterable[Mapping[str, Any]]
) -> FinishedTrial:
    return FinishedTrial(
        trial=Trial(
            study=study,
            index=row["trial"],
            seed=row["seed"],
            params=json.loads(row["params"]),
            repeat=row.get("repeat", 0),
        ),
        outcome=Outcome(
            **{
                name: row[name]
                for name in (
                    "status",
                    "steps",
                    "seconds",
                    "evaluation_seconds",
                    "error",
                    "micro_batch",
                )
            }
        ),
        measurements=tuple(
            Measurement(
                step=measured["step"],
                seconds=measured["seconds"],
                metrics={n: v for n, v in measured.items() if "/" in n and v is not None},
            )
            for measured in measurements
        ),
        ranks=row["ranks"],
        started=row["started"],
    )


def _read_all(
    folder: Path, names: set[str] | None = None, metrics: Collection[str] | None = None
) -> list[pa.Table]:
    paths = sorted(folder.glob("trial-*.parquet"))
    return [_read(path, metrics) for path in paths if names is None or path.name in names]


def _read(path: Path, metrics: Collection[str] | None = None) -> pa.Table:
    file = pq.ParquetFile(path)
    names = file.schema_arrow.names
    columns = [n for n in names if metrics is None or n in ("trial", "step") or n in metrics]
    return file.read(columns, use_threads=False)


def numbers(column: pa.ChunkedArray) -> NDArray[Any]:
    """A column for numpy, null as NaN. Arrow's own `to_numpy` would import pandas first, as would
    comparing a column with a number: a tenth of the time that a large archive takes."""
    if column.null_count:
        column = pc.fill_null(column, math.nan)
    array: NDArray[Any] = np.from_dlpack(column.combine_chunks())
    return array


def of_trial(measurements: pa.Table, trial: int) -> pa.Table:
    """Those of one trial, of measurements in order of trial."""
    first, end = np.searchsorted(numbers(measurements["trial"]), [trial, trial + 1])
    return measurements.slice(first, end - first)


def write_table(path: Path, table: pa.Table, **options: Any) -> None:
    with replacing(path) as unfinished:
        pq.write_table(table, unfinished, compression="zstd", **options)


def _encodings(table: pa.Table) -> dict[str, Any]:
    """Numbers as the densest of Parquet's encodings has them: half the size of the default's."""
    few, encodings = [], {}
    some = table.slice(0, ROWS_AT_ONCE)
    for name in table.column_names:
        if pa.types.is_integer(table.schema.field(name).type):
            encodings[name] = "DELTA_BINARY_PACKED"
        elif pc.count_distinct(some[name]).as_py() < len(some) / 3:
            few.append(name)
        else:
            encodings[name] = "BYTE_STREAM_SPLIT"
    return {"use_dictionary": few, "column_encoding": encodings}


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A place to write what shall be at `path`, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A leading dot hides an unfinished file from every Parquet reader.
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    yield unfinished
    unfinished.replace(path)


def write_text(path: Path, text: str) -> None:
    with replacing(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def _to_json(document: Any) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def study_from(entry: Mapping[str, Any]) -> Study:
    """What `asdict` made of a study, and JSON of that."""
    space = {name: _space_entry(value) for name, value in entry["space"].items()}
    goals = tuple(Goal(**goal) for goal in entry["goals"])
    grid = EvaluationGrid(**entry["grid"])
    parts = {
        "space": space,
        "goals": goals,
        "grid": grid,
        "extras": Extras(**entry["extras"]),
        "divergence": Divergence(**entry["divergence"]),
        "search": SearchPlan(**{**entry["search"], "points": tuple(entry["search"]["points"])}),
    }
    return Study(**{**entry, **parts})


def _space_entry(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    parts = {**value, "when": _when(value["when"])}
    if "options" in value:
        return Choice(**{**parts, "options": tuple(value["options"])})
    return Range(**{**parts, "limits": tuple(value["limits"])})


def _when(when: Mapping[str, Any] | None) -> When | None:
    return None if when is None else {name: tuple(values) for name, values in when.items()}
