"""The files of one study: one per trial as it ends, and all of them together in study.parquet.

`trials` and `measurements` hold files of the same names. A trial's own file counts before its rows
in study.parquet, so that putting files together may be cut short anywhere. An own file that can't
be used is left out, with a warning: its trial has not finished. A study.parquet that can't be used
is refused, since most of the study would be missing.
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
import pyarrow.compute as pc

from orchestrator.files.places import Place
from orchestrator.records import BadInput
from orchestrator.results.tables import (
    MEASUREMENTS,
    TRIALS,
    Damaged,
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
"""All trials of a study."""

_ONE_THREAD = Lock()
"""Held while many small files of this machine are read. Nearly all of that is Python's own work:
two threads would take longer than one."""

OVER = b"over"
"""The note in a study.parquet after which nothing more of the study was to be trained."""

OWN_FILE = re.compile(r"trial-([0-9]{5,9})(?:-repeat-([0-9]{1,9}))?\.parquet")


def own_file(trial: int, repeat: int = 0) -> str:
    """The name of a single trial's files."""
    return f"trial-{trial:05d}{f'-repeat-{repeat}' if repeat else ''}.parquet"


def trial_of(name: str) -> tuple[int, int] | None:
    """The trial and repeat whose own file has this name; None if it is no trial's."""
    match = OWN_FILE.fullmatch(name)
    found = match and (int(match[1]), int(match[2] or 0))
    return found if found and own_file(*found) == name else None


@dataclass(frozen=True)
class _Listing:
    """What a study's folder in `trials` held, and what of it counts."""

    names: list[str]
    counting: dict[str, int]
    """Own file -> trial, in order."""
    outdated: list[str]
    """Own files whose trial got further in study.parquet: a copy of a growing run keeps such."""


class StudyFiles:
    """Reads, writes and puts together. Only one process writes, but its threads may write trials
    while another one puts them together; other processes may read at any time."""

    def __init__(self, trials: Place, measurements: Place) -> None:
        self._trials, self._measurements = trials, measurements
        self._reading = _ONE_THREAD if trials.local else nullcontext()
        self._seen: _Listing | None = None
        self._flaws: dict[str, str] = {}
        """File -> why it is left out."""
        self._suspect: set[str] = set()
        """Own files whose measurements turned out to be damaged: they are looked at in full."""
        self._writing, self._merging = Lock(), Lock()
        self._written: set[str] = set()
        """Own files written since `put_together` began."""

    @property
    def flaws(self) -> tuple[str, ...]:
        """Why files were left out when the study was read last."""
        return tuple(self._flaws.values())

    def has_whole(self) -> bool:
        return (self._trials / WHOLE_STUDY).is_file()

    def own_count(self) -> int:
        """How many trials have files of their own."""
        return len(_own(self._trials.file_names()))

    def write(self, name: str, row: pa.Table, measurements: pa.Table) -> None:
        """Keeps a trial. Its row in `trials` comes last and says that it is complete."""
        with self._writing:
            self._written.add(name)
            write_table(self._measurements / name, measurements)
            write_table(self._trials / name, row)

    def keep_only(self, names: Collection[str]) -> None:
        """Removes the files of single trials but for those of these names."""
        for name in set(_own(self._trials.file_names())) - {*names}:
            (self._trials / name).remove()
            (self._measurements / name).remove()

    def write_whole(self, trials: pa.Table, measurements: pa.Table) -> None:
        """Keeps all trials at once. What says that they are complete comes last."""
        write_measurements(self._measurements / WHOLE_STUDY, measurements)
        write_table(self._trials / WHOLE_STUDY, trials)

    def trials(self, columns: Collection[str] | None = None) -> pa.Table:
        """The finished trials, in order: all columns, or at least these."""
        return self._look(columns)[0]

    def measurements(self, metrics: Collection[str] | None = None) -> pa.Table:
        """All columns, or trial, step and those of `metrics` that there are; of finished trials."""
        columns = None if metrics is None else {"trial", "step", *metrics}
        return self._steadily(lambda seen: self._measured(seen, columns))

    def curve(self, trial: int, repeat: int = 0) -> pa.Table:
        """All measurements of one finished trial."""
        return self._steadily(lambda seen: self._curve(seen, trial, repeat))

    def metrics(self) -> set[str]:
        """What was measured, in any trial."""
        return self._steadily(self._metrics)

    def put_together(self, *, over: bool) -> None:
        """Moves all trials into study.parquet, which is faster to read by far; files that can't be
        used stay where they are. Paused trials of a study that is `over` are dominated; it is noted
        with them."""
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
        """What `read` makes of the files that count; again if they changed meanwhile."""
        while True:
            seen = self._seen
            if seen is None or seen.names != self._trials.file_names():
                seen = self._look(())[1]
            try:
                return read(seen)
            except (FileNotFoundError, Damaged):
                # Put together just now, missing or damaged: looking again tells.
                self._seen = None

    def _look(self, columns: Collection[str] | None) -> tuple[pa.Table, _Listing]:
        """The rows of all trials that are there in full, and their files."""
        wanted = None if columns is None else {"trial", "status", "steps", *columns}
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
            # Otherwise some were put together just now.
            if not missing or missing <= {*self._trials.file_names()}:
                break
        for name in flaws.keys() - self._flaws.keys():
            logger.warning("%s: left out.", flaws[name])
        self._flaws = flaws
        in_whole = {} if whole is None or not rows else _how_far(whole)
        counting, outdated = {}, []
        for name in _own(rows):
            ((trial, far),) = _how_far(rows[name]).items()
            if far >= in_whole.get(trial, far):
                counting[name] = trial
            else:
                outdated.append(name)
        self._seen = _Listing(names, counting, outdated)
        table = joined(whole, [rows[name] for name in counting], [*counting.values()])
        return (empty(TRIALS) if table is None else table), self._seen

    def _row(
        self, name: str, columns: Collection[str] | None, measured: Collection[str]
    ) -> pa.Table:
        """A trial's row, if that and its measurements can be used."""
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
        """The measurements in a trial's own file."""
        place = self._measurements / name
        try:
            table = read_small(place, MEASUREMENTS, columns)
            trial, _ = trial_of(name) or (None, 0)
            if (numbers(table["trial"]) != trial).any():
                raise Damaged(f"{place} is not of trial {trial}")
        except Damaged:
            self._suspect.add(name)
            raise
        return table

    def _measured(self, seen: _Listing, columns: Collection[str] | None) -> pa.Table:
        with self._reading:
            own = [self._measurements_in(name, columns) for name in seen.counting]
        whole = self._of_whole(self._measurements, seen.names, MEASUREMENTS, columns)
        table = joined(whole, own, [*seen.counting.values()])
        return empty(MEASUREMENTS) if table is None else table

    def _curve(self, seen: _Listing, trial: int, repeat: int) -> pa.Table:
        name = own_file(trial, repeat)
        if name in seen.counting:
            return self._measurements_in(name, None)
        with _refusing(self._measurements / WHOLE_STUDY) as place:
            return read_trial(place, trial)

    def _metrics(self, seen: _Listing) -> set[str]:
        found = {name for own in seen.counting for name in metrics_in(self._measurements / own)}
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
    """Refuses a study.parquet that can't be used: without it there is no answer."""
    try:
        yield place
    except FileNotFoundError:
        problem = f"{place} is missing"
    except Damaged as error:
        problem = str(error)
    else:
        return
    raise BadInput(
        f"{problem}. It holds many trials of a study, so there is no answer without it. Put back a "
        f"copy; or remove {WHOLE_STUDY} of this study from both `trials` and `measurements`, and "
        f"its trials count as not finished: `orchestrate resume` trains them again."
    ) from None


def _own(names: Iterable[str]) -> list[str]:
    """Files of single trials, in order of trial."""
    return sorted((name for name in names if trial_of(name)), key=lambda name: trial_of(name) or ())


def _how_far(trials: pa.Table) -> dict[int, tuple[bool, int]]:
    """Trial -> whether it did not fail, and its steps: of two records, the greater is the later."""
    columns = (trials[name].to_pylist() for name in ("trial", "status", "steps"))
    return {
        trial: (status != "failed", steps or 0)
        for trial, status, steps in zip(*columns, strict=True)
    }


def _settled(trials: pa.Table) -> pa.Table:
    """Those of a study that is over."""
    if is_noted_over(trials):
        return trials
    place = trials.column_names.index("status")
    paused = pc.equal(trials["status"], "paused")
    settled = pc.if_else(paused, "dominated", trials["status"])
    table = trials.set_column(place, trials.schema.field("status"), settled)
    return table.replace_schema_metadata({**(trials.schema.metadata or {}), OVER: b"true"})


def is_noted_over(trials: pa.Table) -> bool:
    """Whether nothing more was to be trained when the rows of a study were put together."""
    return OVER in (trials.schema.metadata or {})
