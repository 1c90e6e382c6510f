"""The files of one study: one for each trial when it ends, and later study.parquet with them all.

The folders `trials` and `measurements` hold files of the same names. A trial's separate file takes
precedence over its rows in study.parquet, so that merging may be interrupted at any time. A
separate file that can't be used is left out with a warning, and its trial counts as not finished. A
study.parquet that can't be used is an error, since most of the study would be missing.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from threading import Lock
from typing import TypeVar

import pyarrow as pa

from orchestrator.files.places import Place
from orchestrator.records import BadInput
from orchestrator.results.tables import (
    MEASUREMENTS,
    SMALLEST,
    TRIALS,
    Damaged,
    Training,
    are_of,
    arrow_of,
    empty,
    joined,
    metrics_in,
    numbers,
    read_small,
    read_table,
    read_trial,
    write_measurements,
    write_table,
)

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")

WHOLE_STUDY = "study.parquet"
"""Name of the file with all trials of a study."""

_ONE_THREAD = Lock()
"""Held while many small files of this machine are read. Nearly all of that time is spent in Python
code, so two threads would take longer than one."""

OVER = b"over"
"""The note in a study.parquet that says that no more of the study was to be trained."""

OWN_FILE = re.compile(r"trial-([0-9]{5,9})(?:-repeat-([0-9]{1,9}))?\.parquet")


def own_file(trial: int, repeat: int = 0) -> str:
    """The name of the separate files of a trial."""
    return f"trial-{trial:05d}{f'-repeat-{repeat}' if repeat else ''}.parquet"


def trial_of(name: str) -> Training | None:
    """The trial and repeat whose separate file has this name; None if it is no such name."""
    match = OWN_FILE.fullmatch(name)
    found = match and (int(match[1]), int(match[2] or 0))
    return found if found and own_file(*found) == name else None


@dataclass(frozen=True)
class _Listing:
    """The files in a study's folder of `trials`, and which of them count."""

    names: list[str]
    counting: dict[str, Training]
    """Separate file -> its trial and repeat, in order."""
    outdated: list[str]
    """Separate files whose trial got further in study.parquet, as in a copy of a growing run."""


class StudyFiles:
    """Reads, writes and merges the files of a study, as the methods of `Run` of these names say.
    Only one process writes, but its threads may write trials while another thread merges them.
    Other processes may read at any time."""

    def __init__(self, trials: Place, measurements: Place) -> None:
        self._trials, self._measurements = trials, measurements
        self._reading = _ONE_THREAD if trials.local else nullcontext()
        self._seen: _Listing | None = None
        self._flaws: dict[str, str] = {}
        """File -> the reason why it is left out."""
        self._suspect: set[str] = set()
        """Separate files whose measurements turned out to be damaged; they are read in full."""
        self._writing, self._merging = Lock(), Lock()
        self._written: set[str] = set()
        """Separate files written since `put_together` began."""

    @property
    def flaws(self) -> tuple[str, ...]:
        """The reasons why files were left out when the study was read last."""
        return tuple(self._flaws.values())

    def has_whole(self) -> bool:
        return (self._trials / WHOLE_STUDY).is_file()

    def own_count(self) -> int:
        """Number of trials that have separate files."""
        return len(_own(self._trials.file_names()))

    def write(self, name: str, row: pa.Table, measurements: pa.Table) -> None:
        """Stores a trial. Its row in `trials` is written last and marks it as complete."""
        with self._writing:
            self._written.add(name)
            write_table(self._measurements / name, measurements)
            write_table(self._trials / name, row)

    def keep_only(self, trainings: Collection[Training]) -> None:
        """Removes everything of other trials and repeats than these."""
        for name in _own(self._trials.file_names()):
            if trial_of(name) not in trainings:
                (self._trials / name).remove()
                (self._measurements / name).remove()
        for folder, schema in ((self._trials, TRIALS), (self._measurements, MEASUREMENTS)):
            table = self._of_whole(folder, folder.file_names(), schema, None)
            if table is not None and not (kept := are_of(table, trainings)).all():
                write_table(folder / WHOLE_STUDY, table.filter(arrow_of(kept)))

    def write_whole(
        self, trials: pa.Table, measurements: pa.Table, *, smallest: bool = False
    ) -> None:
        """Stores all trials in study.parquet. The file in `trials` is written last and marks them
        as complete. The `smallest` files take much longer to write."""
        options = SMALLEST if smallest else {}
        write_measurements(self._measurements / WHOLE_STUDY, measurements, **options)
        write_table(self._trials / WHOLE_STUDY, trials, **options)

    def trials(self, columns: Collection[str] | None = None) -> pa.Table:
        return self._look(columns)[0]

    def measurements(self, metrics: Collection[str] | None = None) -> pa.Table:
        columns = None if metrics is None else {"trial", "repeat", "step", *metrics}
        return self._steadily(lambda seen: self._measured(seen, columns))

    def curve(self, trial: int, repeat: int = 0) -> pa.Table:
        """All measurements of one finished trial."""
        return self._steadily(lambda seen: self._curve(seen, trial, repeat))

    def metrics(self) -> set[str]:
        return self._steadily(self._metrics)

    def put_together(self, *, over: bool) -> None:
        """Merges all trials into study.parquet, which is much faster to read. Files that can't be
        used stay where they are. If the study is `over`, its paused trials become dominated, and
        study.parquet gets a note that it is over."""
        with self._merging:
            with self._writing:
                self._written.clear()
                names = self._trials.file_names()
                rowless = set(_own(self._measurements.file_names())) - {*names}
            while True:
                trials, seen = self._look(None)
                settled = _settled(trials) if over and len(trials) else trials
                try:
                    measurements = self._measured(seen, None) if seen.counting else None
                    break
                except (FileNotFoundError, Damaged):
                    continue
            if measurements is not None:
                write_measurements(self._measurements / WHOLE_STUDY, measurements)
            if measurements is not None or settled is not trials:
                write_table(self._trials / WHOLE_STUDY, settled)
            for name in [*seen.counting, *seen.outdated, *rowless]:
                with self._writing:
                    if name not in self._written:
                        (self._trials / name).remove()
                        (self._measurements / name).remove()

    def _steadily(self, read: Callable[[_Listing], Answer]) -> Answer:
        """The result of `read` for the files that count. Reads again if they changed meanwhile."""
        while True:
            seen = self._seen
            if seen is None or seen.names != self._trials.file_names():
                seen = self._look(())[1]
            try:
                return read(seen)
            except (FileNotFoundError, Damaged):
                # The file was merged a moment ago, or is missing or damaged. Look again to tell.
                self._seen = None

    def _look(self, columns: Collection[str] | None) -> tuple[pa.Table, _Listing]:
        """The rows of all trials whose files are complete, and the list of these files."""
        wanted = None if columns is None else {"trial", "repeat", "status", "steps", *columns}
        while True:
            names = self._trials.file_names()
            measured = {*self._measurements.file_names()}
            whole = self._of_whole(self._trials, names, TRIALS, wanted)
            rows: dict[str, pa.Table] = {}
            flaws: dict[str, str] = {}
            missing = set()
            with self._reading:
                for name in names:
                    try:
                        if name != WHOLE_STUDY:
                            rows[name] = self._row(name, wanted, measured)
                    except FileNotFoundError:
                        missing.add(name)
                        flaws[name] = f"{self._measurements / name} is missing"
                    except Damaged as error:
                        flaws[name] = str(error)
            # Otherwise some files were merged a moment ago.
            if not missing or missing <= {*self._trials.file_names()}:
                break
        for name in flaws.keys() - self._flaws.keys():
            logger.warning("%s. The file is left out.", flaws[name])
        self._flaws = flaws
        in_whole = {} if whole is None or not rows else _how_far(whole)
        counting, outdated = {}, []
        for name in _own(rows):
            ((training, far),) = _how_far(rows[name]).items()
            if far >= in_whole.get(training, far):
                counting[name] = training
            else:
                outdated.append(name)
        self._seen = _Listing(names, counting, outdated)
        table = joined(whole, [rows[name] for name in counting], [*counting.values()])
        return (empty(TRIALS) if table is None else table), self._seen

    def _row(
        self, name: str, columns: Collection[str] | None, measured: Collection[str]
    ) -> pa.Table:
        """A trial's row. Raises `Damaged` unless it and the trial's measurements can be used."""
        place, found = self._trials / name, trial_of(name)
        if found is None:
            raise Damaged(f"{place} is not a file of this run")
        row = read_small(place, TRIALS, columns)
        if row["trial"].to_pylist() != [found[0]]:
            raise Damaged(f"{place} is not the row of trial {found[0]}")
        if name not in measured:
            raise FileNotFoundError
        self._measurements_in(name, None if name in self._suspect else {"trial"})
        return row

    def _measurements_in(self, name: str, columns: Collection[str] | None) -> pa.Table:
        """The measurements in a trial's separate file."""
        place = self._measurements / name
        try:
            table = read_small(place, MEASUREMENTS, columns)
            trial, _ = trial_of(name) or (None, 0)
            if (numbers(table["trial"]) != trial).any():
                raise Damaged(f"{place} holds measurements of other trials than {trial}")
        except Damaged:
            self._suspect.add(name)
            raise
        return table

    def _measured(self, seen: _Listing, columns: Collection[str] | None) -> pa.Table:
        with self._reading:
            separate = [self._measurements_in(name, columns) for name in seen.counting]
        whole = self._of_whole(self._measurements, seen.names, MEASUREMENTS, columns)
        table = joined(whole, separate, [*seen.counting.values()])
        return empty(MEASUREMENTS) if table is None else table

    def _curve(self, seen: _Listing, trial: int, repeat: int) -> pa.Table:
        name = own_file(trial, repeat)
        if name in seen.counting:
            return self._measurements_in(name, None)
        with _refusing(self._measurements / WHOLE_STUDY) as place:
            curves = read_trial(place, trial)
            return curves.filter(arrow_of(are_of(curves, [(trial, repeat)]))) if repeat else curves

    def _metrics(self, seen: _Listing) -> set[str]:
        found = {name for file in seen.counting for name in metrics_in(self._measurements / file)}
        if WHOLE_STUDY in seen.names:
            with _refusing(self._measurements / WHOLE_STUDY) as place:
                found |= metrics_in(place)
        return found

    def _of_whole(
        self,
        folder: Place,
        names: Iterable[str],
        schema: pa.Schema,
        columns: Collection[str] | None,
    ) -> pa.Table | None:
        if WHOLE_STUDY not in names:
            return None
        with _refusing(folder / WHOLE_STUDY) as place:
            return read_table(place, schema, columns)


@contextmanager
def _refusing(place: Place) -> Iterator[Place]:
    """Raises `BadInput` for a study.parquet that can't be used: without it there is no answer."""
    try:
        yield place
    except FileNotFoundError:
        problem = f"{place} is missing"
    except Damaged as error:
        problem = str(error)
    else:
        return
    raise BadInput(
        f"{problem}. It holds many trials, so put back a copy. Or remove {WHOLE_STUDY} of this "
        f"study from both `trials` and `measurements`: `orchestrate resume` then trains it again.",
        code="damaged-run",
    ) from None


def _own(names: Iterable[str]) -> list[str]:
    """The separate files of trials among `names`, in order of trial."""
    return sorted((name for name in names if trial_of(name)), key=lambda name: trial_of(name) or ())


def _how_far(trials: pa.Table) -> dict[Training, tuple[bool, int]]:
    """Trial and repeat -> whether it did not fail, its steps. The greater record is later."""
    repeated = "repeat" in trials.column_names
    repeats = trials["repeat"].to_pylist() if repeated else [0] * len(trials)
    columns = (trials[name].to_pylist() for name in ("trial", "status", "steps"))
    return {
        (trial, repeat): (status != "failed", steps or 0)
        for repeat, trial, status, steps in zip(repeats, *columns, strict=True)
    }


def _settled(trials: pa.Table) -> pa.Table:
    """The trials with the paused ones as dominated, for a study that is over."""
    import pyarrow.compute as pc  # here, since answers do without it

    if is_noted_over(trials):
        return trials
    place = trials.column_names.index("status")
    paused = pc.equal(trials["status"], "paused")
    settled = pc.if_else(paused, "dominated", trials["status"])
    table = trials.set_column(place, trials.schema.field("status"), settled)
    return table.replace_schema_metadata({**(trials.schema.metadata or {}), OVER: b"true"})


def is_noted_over(trials: pa.Table) -> bool:
    """Whether the study was over when its rows were merged into study.parquet."""
    return OVER in (trials.schema.metadata or {})
