"""The folder of a run, whose plain files can be read without this project.

studies.json      purpose of the run: its resolved sweep and the studies that follow from it
sweep.yaml        the sweep again, for people  provenance.json  versions, machine, commit
sessions.json     utilisation of the machines  log.txt          output of Ray
step_times.json   times of steps without stacking, for studies whose trials were stacked, and on
                  numbers of devices that `orchestrate plan --devices` has timed
trials/ and measurements/                      Parquet, partitioned by study (study_files.py):
    workload=W/recipe=R/batch_size=B/trials-1795734249123.parquet   trials that ended together
    workload=W/recipe=R/batch_size=B/study.parquet                  all trials, merged later
logs/             output of programs, a file per trial
frontier.parquet, frontier.csv, report.html    derived from the files above

The folder may be in a bucket, or packed in a ZIP file, to be read only.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import pyarrow as pa

from orchestrator.files.cores import cores
from orchestrator.files.places import Place
from orchestrator.records import BadInput, FinishedTrial, Study, StudyKey, unreadable
from orchestrator.results import lock
from orchestrator.results.purpose import KEY, STUDIES, Purpose, to_json, without_gone
from orchestrator.results.study_files import StudyFiles
from orchestrator.results.tables import finished_trial, of_trial, tables_of

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
Answer = TypeVar("Answer")

Progress = Callable[[int, int], None]
"""Is called with the number of studies that are done and the total."""

TIMED = "step_times.json"

REQUESTS_AT_ONCE = 32
"""Number of simultaneous requests to a bucket, where waiting takes most of the time."""


class RunFiles(Purpose):
    """The folder that a sweep writes to."""

    def __init__(self, place: str | Path | Place) -> None:
        super().__init__(Place.at(place))
        self._files: dict[StudyKey, StudyFiles] = {}
        self.check_place: Callable[[], None] = lambda: None
        """Raises `OSError` if this process has locked the run and what is at its place now is no
        longer this run."""

    def __reduce__(self) -> Any:
        return type(self), (self.place,)

    @classmethod
    def open(cls, place: str | Path | Place) -> RunFiles:
        """Opens an existing run. Raises `BadInput` for a folder that is not a run."""
        run = cls(place)
        try:
            exists = run.exists
        except OSError as error:
            raise unreadable(f"The run {run.place}", error) from None
        if not exists:
            raise BadInput(
                f"{run.place} is not a run: it holds neither studies.json nor sweep.yaml.",
                code="not-a-run",
            )
        return run

    def create(
        self, sweep: Mapping[str, Any], studies: Iterable[Study], provenance: Mapping[str, Any]
    ) -> None:
        """Writes the purpose of a new run, or of one that has grown, before any training."""
        before = self.sweep() if self.exists else None
        (self.place / "provenance.json").write_text(to_json(provenance))
        self.write_purpose(sweep, studies, grown_from=before)
        self.write_sweep_file()

    def write_sweep_file(self) -> None:
        """Writes the sweep to sweep.yaml, for people, unless the file holds it already."""
        from orchestrator.files.yaml_files import write_yaml

        if self.sweep_file() != self.sweep():
            (self.place / "sweep.yaml").write_text(write_yaml(self.sweep()))

    def check_writable(self) -> None:
        """Raises `BadInput` if trials can't be written to the run, before machines are paid for."""
        try:
            self.place.check_writable()
        except OSError as error:
            raise BadInput(
                f"The run folder {self.place} can't be written: {error.strerror or error}. "
                f"Change that, or name another one with --out.",
                code="unwritable",
            ) from None
        of_a_run = (self.place / STUDIES).is_file() or (self.place / "trials").is_folder()
        if (self.place / "sweep.yaml").is_file() and not of_a_run:
            raise BadInput(
                f"{self.place} holds a sweep.yaml that no run has written, and a run would replace "
                f"it. Name another folder with --out.",
                code="exists",
            )
        folders = [self.place / name for name in ("trials", "measurements", "repeats")]
        for path in (folder for folder in folders if folder.is_file()):
            raise BadInput(f"{path} is in the way of the run's files. Remove it.", code="exists")

    @property
    def exists(self) -> bool:
        return any((self.place / name).is_file() for name in (STUDIES, "sweep.yaml"))

    def is_for(self, sweep: Mapping[str, Any], studies: Iterable[Study]) -> bool:
        """Whether the run was made for exactly these."""
        return self.sweep() == sweep and self.studies() == [*studies]

    def sweep_file(self) -> dict[str, Any] | None:
        """The content of sweep.yaml, which people may have changed; None if it is missing."""
        from orchestrator.files.yaml_files import parse_mapping  # here, since answers do without it

        file = self.place / "sweep.yaml"
        try:
            sweep: dict[str, Any] = without_gone(parse_mapping(file.read_text(), str(file)))
            return sweep
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            why = f"{str(error).removesuffix('.')}. Remove it; it is written again from {STUDIES}"
            raise unreadable(file, why) from None

    def provenance(self) -> dict[str, Any]:
        """Versions and machine. Empty if the file can't be read, since no answer needs it."""
        return self._by_the_way("provenance.json", {})

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the lock of the run during the `with` block, so that no other process of this
        machine writes to it. This works for buckets, too."""
        with lock.held(self.place) as check:
            self.check_place = check
            try:
                yield
            finally:
                self.check_place = lambda: None

    def writer(self) -> int | None:
        """The process of this machine that writes to this run, or None. Raises `BadInput` for that
        of another machine or user."""
        return lock.holder(self.place)

    @contextmanager
    def log(self) -> Iterator[Path]:
        """The run's log, as a file on this machine to append to."""
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
    def checkpoints(self) -> Place:
        """The folder in which unfinished trials keep their state, and the states of a trunk."""
        return self.place / "checkpoints"

    @property
    def page(self) -> Place:
        """The report, which lies beside a run that is packed in one file."""
        packed = self.place.packed
        return self.place / "report.html" if packed is None else Place(str(packed)[:-4] + ".html")

    @property
    def logs(self) -> Place:
        """The folder with the output of programs, by trial."""
        return self.place / "logs"

    @cached_property
    def repeats(self) -> RunFiles:
        """The winners' repeats, in a folder of their own: they are no part of the search."""
        return RunFiles(self.place / "repeats")

    def write(self, *group: FinishedTrial) -> None:
        """Stores finished trials of one study, or repeats of them, all or none."""
        self.check_place()
        trial = group[0].trial
        run = self.repeats if trial.repeat else self
        run._of(trial.study.key).write(*tables_of(group))

    def finished(self, study: Study) -> Iterator[FinishedTrial]:
        """The finished trials of a study and their repeats, with all their measurements."""
        measurements = self.measurements(study.key).combine_chunks()
        for row in self.trials(study.key).to_pylist():
            yield finished_trial(study, row, of_trial(measurements, row["trial"]).to_pylist())
        repeats = self.repeats._of(study.key)
        for row in repeats.trials().to_pylist():
            measured = repeats.curve(row["trial"], row["repeat"])
            yield finished_trial(study, row, measured.to_pylist())

    def replace(self, study: Study, finished: Sequence[FinishedTrial]) -> None:
        """Replaces all stored trials and repeats of a study by these, at least one."""
        repeats = {(t.trial.index, t.trial.repeat) for t in finished if t.trial.repeat}
        self.repeats._of(study.key).keep_only(repeats)
        # Separate files would take precedence over the file that is written now.
        self._of(study.key).put_together(finished=False)
        self.write_study(study.key, *tables_of([t for t in finished if not t.trial.repeat]))

    def sessions(self) -> list[dict[str, Any]]:
        """How well each `sweep` or `resume` of this run used its machines, oldest first. Empty if
        the file can't be read, since no answer needs it."""
        sessions: list[Any] = self._by_the_way("sessions.json", [])
        return [each for each in sessions if isinstance(each, dict) and "busy_share" in each]

    def add_session(self, session: Mapping[str, Any]) -> None:
        (self.place / "sessions.json").write_text(to_json([*self.sessions(), dict(session)]))

    def timed(self) -> dict[tuple[StudyKey, int], float]:
        """Study and number of ranks -> seconds of a step without stacking. On one rank, for studies
        whose trials were stacked; on others, as `orchestrate plan --devices` has timed them."""
        return {
            (StudyKey(**{n: row[n] for n in KEY}), int(row.get("ranks", 1))): float(row["seconds"])
            for row in self._by_the_way(TIMED, list[Any]())
            if isinstance(row, dict) and {*KEY, "seconds"} <= row.keys()
        }

    def write_timed(self, timed: Mapping[tuple[StudyKey, int], float]) -> None:
        listed = [
            {**asdict(key), "ranks": ranks, "seconds": seconds}
            for (key, ranks), seconds in sorted(timed.items())
        ]
        (self.place / TIMED).write_text(to_json(listed))

    def _by_the_way(self, name: str, otherwise: Answer) -> Answer:
        """An optional JSON document, of the type of `otherwise`, which is returned if the document
        is missing, is of another type, or, with a warning, can't be read."""
        try:
            found = json.loads((self.place / name).read_text())
            return found if isinstance(found, type(otherwise)) else otherwise
        except FileNotFoundError:
            return otherwise
        except (OSError, ValueError, RecursionError) as error:
            logger.warning("%s can't be read and is left out: %s", self.place / name, error)
            return otherwise

    def write_study(
        self, key: StudyKey, trials: pa.Table, measurements: pa.Table, *, smallest: bool = False
    ) -> None:
        """Stores all trials of a study at once, in one file for each of the two tables. The
        `smallest` files take much longer to write."""
        self._of(key).write_whole(trials, measurements, smallest=smallest)

    def put_together(self, key: StudyKey, *, finished: bool) -> None:
        """Merges the separate files of a study's trials into one, and those of its repeats, which
        are much faster to read. Threads of this process may write and others may read meanwhile. If
        the study is `finished`, its paused trials become dominated, as they can't win any more."""
        self._of(key).put_together(finished=finished)
        self.repeats._of(key).put_together(finished=False)

    def loose(self, key: StudyKey) -> int:
        """Number of separate files with rows of trials or repeats of a study."""
        return self._of(key).separate_count() + self.repeats._of(key).separate_count()

    def left_out(self, key: StudyKey) -> tuple[str, ...]:
        """Messages about files of a study that could not be used when it was read last."""
        return self._of(key).flaws

    @property
    def imported(self) -> bool:
        return bool(self.sweep().get("imported"))

    def trials(self, key: StudyKey, columns: Collection[str] | None = None) -> pa.Table:
        """The finished trials of a study in order, with all columns or at least the given ones."""
        return self._of(key).trials(columns)

    def measurements(self, key: StudyKey, metrics: Collection[str] | None = None) -> pa.Table:
        """The measurements of a study's finished trials in order of trial and step, as far as the
        run holds them: all columns, or trial, step and those of `metrics` that were measured."""
        return self._of(key).measurements(metrics)

    def metrics(self, key: StudyKey) -> set[str]:
        """The metrics that were measured in any trial of a study."""
        return self._of(key).metrics()

    def curve(self, key: StudyKey, trial: int) -> pa.Table:
        """All measurements of one finished trial that the run holds."""
        return self._of(key).curve(trial)

    def in_parallel(
        self,
        work: Callable[[Item], Answer],
        items: Iterable[Item],
        progress: Progress = lambda done, of: None,
    ) -> list[Answer]:
        """Works on all items on threads: reading, writing and comparing columns release Python's
        lock."""
        threads = cores() if self.place.local else REQUESTS_AT_ONCE
        items, answers = [*items], list[Answer]()
        with ThreadPoolExecutor(threads) as pool:
            for answer in pool.map(work, items):
                answers.append(answer)
                progress(len(answers), len(items))
        return answers

    def _of(self, key: StudyKey) -> StudyFiles:
        workload, recipe = quote(key.workload, safe=""), quote(key.recipe, safe="")
        path = f"workload={workload}/recipe={recipe}/batch_size={key.batch_size}"
        folders = (self.place / kind / path for kind in ("trials", "measurements"))
        # All threads share one object per study, because it holds the locks.
        return self._files.setdefault(key, StudyFiles(*folders))


def confirmation_of(run: RunFiles) -> RunFiles:
    """The run in which the schedules of a run of branches are confirmed."""
    return RunFiles(run.place / "confirm")


def holds_branches(run: RunFiles) -> bool:
    """Whether a run holds branches of one training, and not the searches of a sweep."""
    return run.sweep().get("branch") is not None


def refuse_branches(run: RunFiles) -> None:
    """Raises `BadInput` for a run of branches, where a question needs searches."""
    if holds_branches(run):
        raise BadInput(
            f"{run.place} holds branches of one training, not the searches of a sweep, so it has "
            f"neither goals nor winners. `orchestrate report {run.place}` shows its answer.",
            code="holds-branches",
        )


def refuse_compact(run: RunFiles, question: str) -> None:
    """Raises `BadInput` if the run is compact, and so can't answer the question."""
    if run.is_compact:
        raise BadInput(
            f"{run.place} is a compact run and lacks {question}. Ask the run it was exported from.",
            code="compact-run",
        )
