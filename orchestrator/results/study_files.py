"""The files of one study: separate ones for trials that ended at about the same time, and later
study.parquet with them all.

The folders `trials` and `measurements` hold files of the same names. The latest separate file with
a trial takes precedence over others and over its rows in study.parquet, so that merging may be
interrupted at any time. A separate file that can't be used is left out with a warning, and its
trials count as not finished. A study.parquet that can't be used is an error, since most of the
study would be missing.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from threading import Lock
from typing import TypeVar

import numpy as np
import pyarrow as pa

from orchestrator.files.places import Place
from orchestrator.records import BadInput
from orchestrator.results.tables import (
    MEASUREMENTS,
    SMALL,
    SMALLEST,
    TRIALS,
    Damaged,
    Training,
    are_of,
    arrow_of,
    empty,
    metrics_in,
    read_small,
    read_table,
    read_trial,
    training_numbers,
    write_measurements,
    write_table,
)

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")

WHOLE_STUDY = "study.parquet"

_ONE_THREAD = Lock()
"""Held while many small files of this machine are read. Nearly all of that time is spent in Python
code, so two threads would take longer than one."""

OVER = b"over"
"""The note in a study.parquet that says that no more of the study was to be trained."""

SEPARATE = re.compile(r"trials-([0-9]{13,18})\.parquet")
"""Names of separate files, each with a number that grows: milliseconds since 1970, mostly."""


def _number(name: str) -> int | None:
    """The number by which a separate file is later than others; None for other files."""
    match = SEPARATE.fullmatch(name)
    return int(match[1]) if match else None


def _separate(names: Iterable[str]) -> list[str]:
    """The separate files among `names`, the earliest first."""
    return sorted((n for n in names if _number(n) is not None), key=lambda n: (_number(n), n))


@dataclass(frozen=True)
class _Listing:
    """The files in a study's folder of `trials`, and which of them count."""

    names: list[str]
    counting: Mapping[str, Sequence[Training]]
    """Separate file -> those of its trials and repeats that count, the earliest file first. Others
    are in a later file, or got further in study.parquet, as in a copy of a growing run."""
    held: Mapping[str, Collection[Training]]
    """Separate file -> all of its trials and repeats."""
    reached: Sequence[int]
    """The trials and repeats in study.parquet that reached their goals, as `training_numbers`."""


class StudyFiles:
    """Reads, writes and merges the files of a study, as the methods of `RunFiles` of these names
    say. Only one process writes, but its threads may write trials while another thread merges
    them. Other processes may read at any time."""

    def __init__(self, trials: Place, measurements: Place) -> None:
        self._trials, self._measurements = trials, measurements
        self._reading = _ONE_THREAD if trials.local else nullcontext()
        self._seen: _Listing | None = None
        self._flaws: dict[str, str] = {}
        """File -> the reason why it is left out."""
        self._suspect: set[str] = set()
        """Separate files whose measurements turned out to be damaged; they are read in full."""
        self._writing, self._merging = Lock(), Lock()
        self._latest: int | None = None
        """Number of the latest separate file; None if that is not known yet."""

    @property
    def flaws(self) -> tuple[str, ...]:
        return tuple(self._flaws.values())

    def separate_count(self) -> int:
        return len(_separate(self._trials.file_names()))

    def write(self, rows: pa.Table, measurements: pa.Table) -> None:
        """Stores trials in a separate file. The one in `trials` is written last and marks them as
        complete."""
        with self._writing:
            if self._latest is None:
                names = {*self._trials.file_names(), *self._measurements.file_names()}
                self._latest = max((_number(name) or 0 for name in names), default=0)
            # The clock may have been set back. No name is used twice, even if this attempt fails.
            self._latest = max(self._latest + 1, time.time_ns() // 10**6)
            name = f"trials-{self._latest:013d}.parquet"
            try:
                write_table(self._measurements / name, measurements, **SMALL)
                write_table(self._trials / name, rows, **SMALL)
            except OSError:
                for folder in (self._trials, self._measurements):
                    with suppress(OSError):  # more attempts may follow
                        (folder / name).remove()
                raise

    def keep_only(self, trainings: Collection[Training]) -> None:
        """Removes everything of other trials and repeats than these."""
        self.put_together(finished=False)
        for folder, schema in ((self._trials, TRIALS), (self._measurements, MEASUREMENTS)):
            table = self._of_whole(folder, folder.file_names(), schema, None)
            if table is not None and not (kept := are_of(table, trainings)).all():
                write_table(folder / WHOLE_STUDY, table.filter(arrow_of(kept)))

    def write_whole(
        self, trials: pa.Table, measurements: pa.Table, *, smallest: bool = False
    ) -> None:
        """Stores all trials in study.parquet, the file in `trials` last, as `write` does."""
        write_measurements(self._measurements / WHOLE_STUDY, measurements, smallest=smallest)
        write_table(self._trials / WHOLE_STUDY, trials, **(SMALLEST if smallest else {}))

    def trials(self, columns: Collection[str] | None = None) -> pa.Table:
        return self._look(columns)[0]

    def measurements(self, metrics: Collection[str] | None = None) -> pa.Table:
        columns = None if metrics is None else {"trial", "repeat", "step", *metrics}
        return self._steadily(lambda seen: self._measured(seen, columns))

    def curve(self, trial: int, repeat: int = 0) -> pa.Table:
        return self._steadily(lambda seen: self._curve(seen, trial, repeat))

    def metrics(self) -> set[str]:
        return self._steadily(self._metrics)

    def put_together(self, *, finished: bool) -> None:
        """Merges all trials into study.parquet. Files that can't be used stay where they are. If
        the study is `finished`, study.parquet gets a note that it is over."""
        with self._merging:
            with self._writing:  # which makes no file under a name that was there before
                names = self._trials.file_names()
                rowless = {*_separate(self._measurements.file_names())} - {*names}
            while True:
                trials, seen = self._look(None)
                settled = _settled(trials) if finished and len(trials) else trials
                try:
                    more = any(seen.counting.values())
                    measurements = self._measured(seen, None) if more else None
                    break
                except (FileNotFoundError, Damaged):
                    continue
            if measurements is not None:
                write_measurements(self._measurements / WHOLE_STUDY, measurements)
            if measurements is not None or settled is not trials:
                write_table(self._trials / WHOLE_STUDY, settled)
            for name in [*seen.held, *rowless, *self._replaced(settled)]:
                (self._trials / name).remove()
                (self._measurements / name).remove()

    def _replaced(self, trials: pa.Table) -> Iterator[str]:
        """Damaged separate files whose trials, as far as they name them, were trained again."""
        trained = _how_far(trials).keys()
        for name in _separate(self._flaws):
            for folder, schema in ((self._trials, TRIALS), (self._measurements, MEASUREMENTS)):
                with suppress(FileNotFoundError, Damaged):
                    if (folder / name).is_file():
                        table = read_small(folder / name, schema, ("trial", "repeat"))
                        if are_of(table, trained).all():
                            yield name
                        break

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
                            rows[name] = self._rows(name, wanted, measured)
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
        latest: dict[Training, str] = {}
        held = {name: _how_far(rows[name]) for name in _separate(rows)}
        for name, trainings in held.items():
            for training, far in trainings.items():
                if far >= in_whole.get(training, far):
                    latest[training] = name
        counting = {name: [t for t in held[name] if latest.get(t) == name] for name in held}
        won = [] if whole is None else [s == "reached" for s in whole["status"].to_pylist()]
        reached = training_numbers(whole)[won].tolist() if any(won) else []
        self._seen = seen = _Listing(names, counting, held, reached)
        return _joined(whole, TRIALS, seen, rows), seen

    def _rows(
        self, name: str, columns: Collection[str] | None, measured: Collection[str]
    ) -> pa.Table:
        """The rows in a separate file. Raises `Damaged` unless they and the measurements of their
        trials can be used."""
        place = self._trials / name
        if _number(name) is None:
            raise Damaged(f"{place} is not a file of this run")
        rows = read_small(place, TRIALS, columns)
        trainings = _trainings(rows)
        if name not in measured:
            raise FileNotFoundError
        of_trials = {"trial", "repeat"}
        self._measurements_in(name, trainings, None if name in self._suspect else of_trials)
        return rows

    def _measurements_in(
        self, name: str, trainings: Collection[Training], columns: Collection[str] | None
    ) -> pa.Table:
        """The measurements in a separate file with the rows of these trials."""
        place = self._measurements / name
        try:
            table = read_small(place, MEASUREMENTS, columns)
            if not are_of(table, trainings).all():
                raise Damaged(
                    f"{place} holds measurements of other trials than {self._trials / name}"
                )
        except Damaged:
            self._suspect.add(name)
            raise
        return table

    def _measured(self, seen: _Listing, columns: Collection[str] | None) -> pa.Table:
        with self._reading:
            separate = {n: self._measurements_in(n, seen.held[n], columns) for n in seen.held}
        whole = self._of_whole(self._measurements, seen.names, MEASUREMENTS, columns)
        if whole is not None and not np.isin(seen.reached, training_numbers(whole)).all():
            with _refusing(self._measurements / WHOLE_STUDY) as place:
                raise Damaged(f"{place} lacks trials that `trials` holds, as if copied in a merge")
        return _joined(whole, MEASUREMENTS, seen, separate)

    def _curve(self, seen: _Listing, trial: int, repeat: int) -> pa.Table:
        for name, counting in seen.counting.items():
            if (trial, repeat) in counting:
                table = self._measurements_in(name, seen.held[name], None)
                return table.filter(arrow_of(are_of(table, [(trial, repeat)])))
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


def _joined(
    whole: pa.Table | None, schema: pa.Schema, seen: _Listing, separate: Mapping[str, pa.Table]
) -> pa.Table:
    """A table in order of trial and repeat: what counts of the `separate` files, and the rows of
    `whole` for all other trials and repeats."""
    if not seen.counting:
        return empty(schema) if whole is None else whole
    tables = []
    if whole is not None:
        trainings = [t for counting in seen.counting.values() for t in counting]
        tables.append(whole.filter(arrow_of(~are_of(whole, trainings))))
    for name, counting in seen.counting.items():
        complete = len(counting) == len(seen.held[name])
        rows = None if complete else arrow_of(are_of(separate[name], counting))
        tables.append(separate[name] if complete else separate[name].filter(rows))
    table = pa.concat_tables(tables, promote_options="default")
    table = table.replace_schema_metadata()  # its notes applied to `whole` alone
    return table.take(arrow_of(np.argsort(training_numbers(table), kind="stable")))


def _trainings(trials: pa.Table) -> list[Training]:
    """The trial and repeat of each row."""
    repeated = "repeat" in trials.column_names
    repeats = trials["repeat"].to_pylist() if repeated else [0] * len(trials)
    return [*zip(trials["trial"].to_pylist(), repeats, strict=True)]


def _how_far(trials: pa.Table) -> dict[Training, tuple[bool, bool, int]]:
    """Trial and repeat -> whether it did not fail, whether it has come to its own end, its steps.
    The greater record is later. Trained anew on another machine, a trial may end sooner."""
    columns = (trials[name].to_pylist() for name in ("status", "steps"))
    return {
        training: (status != "failed", status not in ("paused", "dominated"), steps or 0)
        for training, status, steps in zip(_trainings(trials), *columns, strict=True)
    }


def _settled(trials: pa.Table) -> pa.Table:
    """The trials with the paused ones as dominated, for a study that is over."""
    import pyarrow.compute as pc  # here, since answers do without it

    if is_noted_over(trials):
        return trials
    column = trials.column_names.index("status")
    paused = pc.equal(trials["status"], "paused")
    settled = pc.if_else(paused, "dominated", trials["status"])
    table = trials.set_column(column, trials.schema.field("status"), settled)
    return table.replace_schema_metadata({**(trials.schema.metadata or {}), OVER: b"true"})


def is_noted_over(trials: pa.Table) -> bool:
    """Whether the study was over when its rows were merged into study.parquet."""
    return OVER in (trials.schema.metadata or {})
