"""A run is a folder of plain files; whatever is in them can be read without this project.

sweep.yaml        the sweep in full          provenance.json  versions, machine, commit
studies.json      the studies it comes to    log.txt          what Ray had to say
trials/ and measurements/                    Parquet, partitioned by study:
    workload=W/recipe=R/batch_size=B/trial-00007.parquet      each trial as it ends,
    workload=W/recipe=R/batch_size=B/study.parquet            and all together later on
frontier.parquet, frontier.csv, report.html  made from the above

The folder may be in a bucket. A trial's own file goes before its rows in study.parquet, so that
putting files together may be cut short anywhere.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from orchestrator.places import Place
from orchestrator.records import (
    BadInput,
    Choice,
    Divergence,
    EvaluationGrid,
    Extras,
    FinishedTrial,
    Goal,
    Range,
    SearchPlan,
    Study,
    StudyKey,
    When,
)
from orchestrator.results.tables import (
    MEASUREMENTS,
    TRIALS,
    finished_trial,
    joined,
    of_trial,
    read_table,
    read_trial,
    tables_of,
    write_measurements,
    write_table,
)
from orchestrator.yaml_files import parse_mapping, write_yaml

Item = TypeVar("Item")
Answer = TypeVar("Answer")

WHOLE_STUDY = "study.parquet"
"""All trials of a study."""

REQUESTS_AT_ONCE = 32
"""To a bucket, where waiting takes most of the time."""


class Run:
    """The folder that a sweep writes to."""

    def __init__(self, place: str | Path | Place) -> None:
        self.place = Place.at(place)

    @classmethod
    def open(cls, place: str | Path | Place) -> Run:
        """An existing run; refuses a folder that is none."""
        run = cls(place)
        try:
            exists = run.exists
        except OSError as error:
            raise BadInput(f"The run {run.place} can't be read: {error}.") from None
        if not exists:
            raise BadInput(
                f"{run.place} is not a run: it holds no sweep.yaml. `orchestrate sweep` makes one."
            )
        return run

    def create(
        self, sweep: Mapping[str, Any], studies: Iterable[Study], provenance: Mapping[str, Any]
    ) -> None:
        """Writes what the run is to be, before anything starts."""
        (self.place / "studies.json").write_text(_to_json([asdict(study) for study in studies]))
        (self.place / "provenance.json").write_text(_to_json(provenance))
        # Last, since it is what makes the folder a run.
        (self.place / "sweep.yaml").write_text(write_yaml(dict(sweep)))

    def check_writable(self) -> None:
        """Refuses a place where nothing can be written, before anything is paid for."""
        try:
            self.place.check_writable()
        except OSError as error:
            raise BadInput(
                f"The run folder {self.place} can't be written: {error.strerror or error}. "
                f"Name another one with --out."
            ) from None

    @property
    def exists(self) -> bool:
        return (self.place / "sweep.yaml").is_file()

    def sweep(self) -> dict[str, Any]:
        """The resolved sweep document."""
        file = self.place / "sweep.yaml"
        return parse_mapping(file.read_text(), str(file))

    def studies(self) -> list[Study]:
        file = self.place / "studies.json"
        try:
            return [study_from(entry) for entry in json.loads(file.read_text())]
        except (KeyError, TypeError, ValueError) as error:
            raise BadInput(
                f"{file} can't be understood ({type(error).__name__}: {error}). It was changed, or "
                f"another version of this project made it (see provenance.json)."
            ) from None

    def provenance(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.place / "provenance.json").read_text())
        return document

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Within, no other process writes to this run. The lock is the system's: it goes with its
        holder, however that ends. It holds for a bucket too, among the processes of one machine."""
        with self._lock_file().open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise BadInput(
                    f"{self.place} is being written to by another sweep ({file.read().strip()}). "
                    f"Wait for it to end, stop it, or name another folder with --out."
                ) from None
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
            file.flush()
            yield

    def writer(self) -> int | None:
        """The process of this machine that writes to this run; None if there is none. Raises
        `BadInput` where another machine's does."""
        try:
            with self._lock_file().open() as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return None
        except BlockingIOError:
            said = self._lock_file().read_text().split()
            if len(said) != 4:
                return None  # it has just begun
            if said[3] != socket.gethostname():
                raise BadInput(
                    f"{self.place} is being written to by {' '.join(said)}. Stop it there."
                ) from None
            return int(said[1])
        return None

    def _lock_file(self) -> Path:
        if (folder := self.place.local) is None:
            name = hashlib.blake2b(str(self.place).encode(), digest_size=16).hexdigest()
            folder = Path(tempfile.gettempdir()) / f"orchestrate-{os.getuid()}" / name
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder / ".lock"

    @contextmanager
    def log(self) -> Iterator[Path]:
        """The run's log, as a file on this machine to add to."""
        place = self.place / "log.txt"
        if place.local is not None:
            yield place.local
            return
        with tempfile.TemporaryDirectory(prefix="orchestrate-") as folder:
            file = Path(folder) / "log.txt"
            file.write_bytes(place.read() if place.is_file() else b"")
            try:
                yield file
            finally:
                place.write(file.read_bytes())

    @property
    def repeats(self) -> Run:
        """Where the winners' repeats are kept, in the same way: they are no part of the search."""
        return Run(self.place / "repeats")

    def write(self, finished: FinishedTrial) -> None:
        """Keeps a finished trial. Its row in `trials` comes last and says that it is complete."""
        trial = finished.trial
        run = self.repeats if trial.repeat else self
        repeat = f"-repeat-{trial.repeat}" if trial.repeat else ""
        name = f"trial-{trial.index:05d}{repeat}.parquet"
        row, measurements = tables_of(finished)
        write_table(run._folder("measurements", trial.study.key) / name, measurements)
        write_table(run._folder("trials", trial.study.key) / name, row)

    def finished(self, study: Study) -> Iterator[FinishedTrial]:
        """The finished trials of a study and their repeats, with all that was measured in them."""
        measurements = self.measurements(study.key).combine_chunks()
        for row in self.trials(study.key).to_pylist():
            yield finished_trial(study, row, of_trial(measurements, row["trial"]).to_pylist())
        for name in self.repeats._folder("trials", study.key).file_names():
            (row,) = read_table(self.repeats._folder("trials", study.key) / name).to_pylist()
            measured = read_table(self.repeats._folder("measurements", study.key) / name)
            yield finished_trial(study, row, measured.to_pylist())

    def sessions(self) -> list[dict[str, Any]]:
        """How well each `sweep` or `resume` of this run used its machines, oldest first."""
        file = self.place / "sessions.json"
        return json.loads(file.read_text()) if file.is_file() else []

    def add_session(self, session: Mapping[str, Any]) -> None:
        (self.place / "sessions.json").write_text(_to_json([*self.sessions(), dict(session)]))

    def write_study(self, key: StudyKey, trials: pa.Table, measurements: pa.Table) -> None:
        """Keeps all trials of a study at once, one file each. What says that they are complete
        comes last."""
        write_measurements(self._folder("measurements", key) / WHOLE_STUDY, measurements)
        write_table(self._folder("trials", key) / WHOLE_STUDY, trials)

    def compact(self, key: StudyKey) -> None:
        """Puts the files of a study's trials together, which are faster to read by far. Nothing
        else may write to the study meanwhile; who reads it may go on."""
        if _own(self._folder("trials", key).file_names()):
            self.write_study(key, self.trials(key), self.measurements(key))
        for kind in ("trials", "measurements"):
            folder = self._folder(kind, key)
            for name in _own(folder.file_names()):
                (folder / name).remove()

    def holds(self, key: StudyKey) -> bool:
        """Whether all of a study was kept at once."""
        return (self._folder("trials", key) / WHOLE_STUDY).is_file()

    @property
    def imported(self) -> bool:
        return bool(self.sweep().get("imported"))

    def trials(self, key: StudyKey) -> pa.Table:
        """The finished trials of a study, in order of index."""
        table = self._read("trials", key, None)
        return TRIALS.empty_table() if table is None else table

    def measurements(self, key: StudyKey, metrics: Collection[str] | None = None) -> pa.Table:
        """The measurements of a study's finished trials, in order of trial and step: all columns,
        or trial, step and those of `metrics` that there are."""
        table = self._read("measurements", key, metrics)
        return MEASUREMENTS.empty_table() if table is None else table

    def _read(self, kind: str, key: StudyKey, metrics: Collection[str] | None) -> pa.Table | None:
        folder = self._folder(kind, key)
        while True:
            # A trial is finished once it has a row, so these say what there is to read.
            names = self._folder("trials", key).file_names()
            try:
                whole = read_table(folder / WHOLE_STUDY, metrics) if WHOLE_STUDY in names else None
                own = [read_table(folder / name, metrics) for name in _own(names)]
                return joined(whole, own, [_trial_of(name) for name in _own(names)])
            except FileNotFoundError:
                # The files were put together just now. Otherwise one is missing indeed.
                if names == self._folder("trials", key).file_names():
                    raise

    def metrics(self, key: StudyKey) -> set[str]:
        """What was measured in a study, in any of its trials."""
        folder = self._folder("measurements", key)
        found: set[str] = set()
        for name in folder.file_names():
            with (folder / name).open() as source:
                found.update(column for column in pq.read_schema(source).names if "/" in column)
        return found

    def curve(self, key: StudyKey, trial: int) -> pa.Table:
        """All measurements of one finished trial."""
        folder = self._folder("measurements", key)
        if trial in map(_trial_of, _own(self._folder("trials", key).file_names())):
            return read_table(folder / f"trial-{trial:05d}.parquet")
        return read_trial(folder / WHOLE_STUDY, trial)

    def in_parallel(self, work: Callable[[Item], Answer], items: Iterable[Item]) -> list[Answer]:
        """On threads: reading, decoding and comparing columns go on outside of Python."""
        remote = self.place.local is None
        threads = REQUESTS_AT_ONCE if remote else len(os.sched_getaffinity(0))
        with ThreadPoolExecutor(threads) as pool:
            return [*pool.map(work, items)]

    def _folder(self, kind: str, key: StudyKey) -> Place:
        workload, recipe = quote(key.workload, safe=""), quote(key.recipe, safe="")
        path = f"workload={workload}/recipe={recipe}/batch_size={key.batch_size}"
        return self.place / kind / path


def _own(names: Iterable[str]) -> list[str]:
    """Files of a single trial, in its order."""
    return sorted((name for name in names if name.startswith("trial-")), key=_trial_of)


def _trial_of(name: str) -> int:
    return int(name.removesuffix(".parquet").split("-")[1])


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
