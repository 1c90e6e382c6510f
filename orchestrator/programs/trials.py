"""Trains trials by programs: starts each, hears its reports, ends it with its trial."""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import platform
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from urllib.parse import quote

from orchestrator.files.places import Place
from orchestrator.programs.commands import filled, values_of
from orchestrator.programs.hearing import Events, Hearing, Lines, ProgramFailed
from orchestrator.programs.starting import (
    CHANNEL,
    FILES,
    LOCK,
    PATIENCE,
    REPORTS,
    Devices,
    Exit,
    Running,
    start_program,
)
from orchestrator.records import (
    FinishedTrial,
    Goal,
    Measurement,
    Outcome,
    Source,
    Status,
    Trial,
    the_only,
    unknown,
)
from orchestrator.records.standing import Standing

LOOK_SECONDS = 0.02
"""Seconds between two looks at what a program has reported."""

UNHEARD: dict[Source, str] = {
    "report": "It must call orchestrator.report, or the workload needs `metrics`, which say where "
    "its numbers are",
    "stdout": "No line of its output fits the pattern of `metrics`",
    "jsonl": "`metrics` names the file {place}, which has no line with a step",
    "tensorboard": "`metrics` names the folder {place}, which has no scalars",
}
"""Where its numbers are looked for -> what is to be done about a program that reports none."""

Ending = Callable[[Mapping[Goal, int], int], Status | None]
"""The rule that may end a trial early; see `orchestrator.training.loop`."""


class Course:
    """The course of one trial, from what its program reports."""

    def __init__(
        self, trial: Trial, devices: int, ending: Ending | None, channel: Path, earlier: list[Path]
    ) -> None:
        self._trial, self._ending, own = trial, ending, channel.parent
        study, program = trial.study, trial.study.the_program
        self._resumes, self._heard = program.resumes, program.heard
        self._budget, self._channel, self._log = study.budget_steps, channel, own / "measured.jsonl"
        known = self._known() if self._resumes else []
        self._standing = Standing(study, stays=trial.stays)
        for measurement in known:
            self._standing.add(measurement)
        self._hearing = Hearing(study, known)
        self.status: Status | None = self._standing.status or (self._cut() if known else None)
        for old in earlier:
            # What it reported while it was ended, or its driver was gone.
            for _ in self._hear(Lines(old / REPORTS), 1):
                pass
            self._hearing.again()
        known = self._standing.measurements
        self._earlier, self._attempts = len(known), earlier
        self._resumed = known[-1] if known else Measurement(step=0, seconds=0.0, metrics={})
        self._source: Lines | Events = Lines(channel / REPORTS)
        if self._heard.place:
            # A relative place is that which the program itself would write to.
            path = Path(filled(self._heard.place, values_of(trial, devices, own / FILES)))
            self._source = Lines(path) if self._heard.source == "jsonl" else Events(path)
        self._began = time.time()

    def is_over(self) -> bool:
        return self.status is not None

    def gives_up(self, failed: ProgramFailed) -> bool:
        """Whether it failed twice in a row before it reported anything new: what it has saved may
        be cut off, since it was ended while it saved. Once may have another cause."""
        stuck = len(self._standing.measurements) == self._earlier and not failed.died
        if stuck:
            (self._channel / "stuck").touch()
        return stuck and any((old / "stuck").exists() for old in self._attempts[-1:])

    def follow(self, running: Running, hang_seconds: float | None) -> Iterator[Measurement | None]:
        """Hears the program until its trial has ended, whose status is known then."""
        silent, looked, longest = 0.0, time.monotonic(), hang_seconds or math.inf
        while not self.is_over():
            exit_ = running.ended(LOOK_SECONDS)
            now = time.monotonic()
            # Time in which this process was stopped, as a queue stops whole jobs, is no silence.
            silent, looked = silent + min(now - looked, longest / 2), now
            for measurement in self._hear(self._source, None if exit_ is None else exit_.code):
                silent = 0.0
                yield measurement
            if self.is_over():
                return
            if exit_ is not None:
                self.status = self._after(exit_)
            elif (cut := self._cut()) is not None:
                self.status = cut  # by what other trials have reached in the meantime
            elif silent > longest:
                raise ProgramFailed(
                    f"the program reported nothing for {longest:g} seconds "
                    f"(faults.hang_seconds) and was ended",
                    died=True,
                )
            else:
                yield None

    def _hear(self, source: Lines | Events, exited: int | None) -> Iterator[Measurement]:
        """The new measurements up to the trial's end, by the time that the program has exited with
        this code, or runs. If it has ended well, what it has reported in part is all there is."""
        for measurement in self._new(source, exited):
            if self.is_over():
                return
            if self._take(measurement):
                yield measurement

    def _new(self, source: Lines | Events, exited: int | None) -> Iterator[Measurement]:
        hearing = self._hearing
        for report in source.new(exited):
            yield from hearing.line(report) if isinstance(report, bytes) else hearing.report(report)
        if exited == 0:
            yield from hearing.rest()

    def _take(self, measurement: Measurement) -> bool:
        """Whether a measurement lies within the budget. A later one ends the trial."""
        if measurement.step > self._budget:
            if not self._standing.measurements:
                raise ProgramFailed(
                    f"its first report was that of step {measurement.step:,}, after its budget of "
                    f"{self._budget:,} steps"
                )
            self.status = "reached" if self._standing.all_reached else "exhausted"
            return False
        self._standing.add(measurement)
        if self._resumes:  # written before anyone hears of it
            with self._log.open("a") as file:
                file.write(json.dumps(asdict(measurement)) + "\n")
        self.status = self._standing.status or self._cut()
        return True

    def _cut(self) -> Status | None:
        if self._ending is None or self._standing.staying:
            return None
        return self._ending(self._standing.unmet, self._standing.upcoming)

    def _after(self, exit_: Exit) -> Status:
        """The status of a trial whose program has ended by itself."""
        if exit_.code:
            raise ProgramFailed(exit_.in_words, died=exit_.code < 0)
        if not self._standing.measurements:
            todo = UNHEARD[self._heard.source].format(place=self._heard.place)
            silent = f"the program ended without a report. {todo}"
            raise ProgramFailed("\n".join([*exit_.last, silent]))
        return "reached" if self._standing.all_reached else "exhausted"

    def end(self, running: Running) -> Iterator[None]:
        """Ends the program, which may do so itself if it asks."""
        (self._channel / "stop").touch()
        asked, until = False, time.monotonic() + (PATIENCE if self._heard.asks else 0)
        while True:
            if not asked and time.monotonic() >= until:
                asked = True
                running.end()
            if running.ended(LOOK_SECONDS) is not None:
                return
            yield None

    def check(self) -> None:
        """Refuses a trial that has trained to its end and never measured a goal, whose name may be
        misspelt."""
        measured = {name for each in self._standing.measurements for name in each.metrics}
        missing = {goal.metric for goal in self._trial.study.goals} - measured
        if self.status == "exhausted" and missing:
            reason = unknown("metric", min(missing), measured)
            raise ProgramFailed(f"the program never reported what a goal is about. {reason}")

    def finished(self, devices: int) -> FinishedTrial:
        assert self.status is not None
        measurements = self._standing.measurements
        last = measurements[-1] if measurements else self._resumed
        took = time.time() - self._began
        return FinishedTrial(
            trial=self._trial,
            outcome=Outcome(
                status=self.status,
                steps=last.step,
                seconds=last.seconds,
                # All else that the program took: its start, and its end.
                evaluation_seconds=max(took - (last.seconds - self._resumed.seconds), 0.0),
                resumed_steps=self._resumed.step,
                resumed_seconds=self._resumed.seconds,
            ),
            measurements=tuple(measurements),
            ranks=devices,
            started=self._began,
            where=f"{platform.node()}:{os.getpid()}",
        )

    def _known(self) -> list[Measurement]:
        """What the program had reported when it was last ended. A line may be cut off."""
        found = []
        with suppress(FileNotFoundError):
            whole, _, _ = self._log.read_text().rpartition("\n")
            self._log.write_text(f"{whole}\n" if whole else "")
            found = [Measurement(**json.loads(line)) for line in whole.splitlines()]
        return found


Event = tuple[Trial, Measurement | FinishedTrial | None]


def train_program(
    trial: Trial,
    devices: Devices,
    folder: Path,
    *,
    log: Place | None = None,
    ending: Ending | None = None,
) -> Generator[Event, None, None]:
    """Trains a trial in `folder`, which holds the folders of trials on this machine. Yields each
    measurement, the trial when it has ended, and, while there is no news, None several times a
    second. The output of the program is kept at `log`."""
    program = trial.study.the_program
    own = folder / trial.file_name  # is found again by programs that go on from it
    if not program.resumes:
        for old in folder.glob(f"{own.name}-*"):  # of attempts that were killed
            shutil.rmtree(old, ignore_errors=True)
        own = own.with_name(f"{own.name}-{uuid.uuid4().hex[:8]}")
    for needed in (own, own / FILES):
        needed.mkdir(parents=True, mode=0o700, exist_ok=True)
    for _ in _until_free(own / LOCK.format(rank=0), devices.hang_seconds or math.inf):
        yield trial, None
    earlier = sorted(own.glob(f"{CHANNEL}*"))
    channel = own / f"{CHANNEL}{len(earlier):06d}-{uuid.uuid4().hex[:8]}"
    channel.mkdir(mode=0o700)
    status: Status | None = None
    broken = False
    try:
        course = Course(trial, devices.count, ending, channel, earlier)
        status = course.status
        if status is None:
            running = start_program(trial, devices, own, channel)
            try:
                for measurement in course.follow(running, devices.hang_seconds):
                    yield trial, measurement
                for _ in course.end(running):
                    yield trial, None
                course.check()
                status = course.status
            except ProgramFailed as failed:
                broken = course.gives_up(failed)
                raise
            finally:
                running.close()
                if log is not None:
                    _keep_log(log, channel)
        yield trial, course.finished(devices.count)
    finally:
        if broken or status not in (None, "paused") or not program.resumes:
            shutil.rmtree(own, ignore_errors=True)


def train_alone(
    trial: Trial, devices: Devices, folder: Path
) -> Generator[Measurement, None, Outcome]:
    """Trains one trial in `folder`. Yields the measurements; returns the outcome."""
    return the_only(train_program(trial, devices, folder))


def _until_free(lock: Path, longest: float) -> Iterator[None]:
    """Waits for the end of an earlier attempt, which may report until then."""
    until = time.monotonic() + longest
    while _is_locked(lock):
        if time.monotonic() > until:
            raise ProgramFailed("an earlier attempt at this trial does not end", died=True)
        yield
        time.sleep(LOOK_SECONDS)


def _is_locked(path: Path) -> bool:
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # storage without locks
            return False
    return False


def _keep_log(log: Place, channel: Path) -> None:
    """Moves the output into the run. It is no result, so storage that refuses it stops nothing."""
    with suppress(OSError):
        parts = [file.read_bytes() for file in sorted(channel.glob("output-*.txt"))]
        log.write(b"".join(parts))


def unshared_folder(run: Place) -> Path:
    """A folder of this machine for the folders of the trials of a run that is in a bucket. Other
    runs may have the same trials, and other users of the machine may not enter."""
    folder = Path(tempfile.gettempdir()) / f"orchestrate-programs-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.lstat().st_uid != os.getuid():
        raise ProgramFailed(f"{folder} belongs to another user; set TMPDIR to another folder")
    return folder / hashlib.blake2b(str(run).encode(), digest_size=8).hexdigest()


def log_name(trial: Trial) -> str:
    """The file with the output of a trial, below the folder of logs."""
    key = trial.study.key
    parts = [quote(part, safe="") for part in (key.workload, key.recipe, str(key.batch_size))]
    again = f"-{trial.repeat}" if trial.repeat else ""
    return "/".join([*parts, f"{trial.index}{again}.txt"])
