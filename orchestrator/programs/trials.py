"""Trains trials by programs: starts each, hears its reports, and ends it as soon as its trial has
ended."""

from __future__ import annotations

import fcntl
import math
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Generator, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from orchestrator.files.places import Place
from orchestrator.programs.course import LOOK_SECONDS, Course, Ending, ProgramFailed
from orchestrator.programs.starting import CHANNEL, LOCK, Devices, start_program
from orchestrator.records import FinishedTrial, Measurement, Outcome, Status, Trial


@dataclass(frozen=True, kw_only=True)
class Commission:
    """A trial for a program."""

    trial: Trial
    folder: Path
    """Folder on this machine that holds the folders of trials."""
    log: Place | None = None
    """Where the output of the program is kept."""
    ending: Ending | None = None

    @property
    def own(self) -> Path:
        """The trial's folder. It is found again only by programs that go on from it."""
        resumes = self.trial.study.program is not None and self.trial.study.program.resumes
        again = "" if resumes else f"-{uuid.uuid4().hex[:8]}"
        return self.folder / f"{self.trial.file_name}{again}"


Event = tuple[Trial, Measurement | FinishedTrial | None]


def train_programs(
    commissions: Iterable[Commission],
    devices: Devices,
    begun: Callable[[Trial], None] = lambda trial: None,
) -> Generator[Event, None, None]:
    """Trains one trial after another. Yields each measurement, each trial when it has ended, and,
    while there is no news, None several times a second."""
    for commission in commissions:
        begun(commission.trial)
        with closing(_train(commission, devices)) as events:
            yield from events


def _train(commission: Commission, devices: Devices) -> Generator[Event, None, None]:
    trial, program = commission.trial, commission.trial.study.program
    assert program is not None
    if not program.resumes:  # attempts that were killed have left theirs
        for old in commission.folder.glob(f"{trial.file_name}-*"):
            shutil.rmtree(old, ignore_errors=True)
    own = commission.own
    own.mkdir(parents=True, mode=0o700, exist_ok=True)
    began, lock = time.monotonic(), own / LOCK.format(rank=0)
    while _is_locked(lock):  # an earlier attempt ends, and may report
        if time.monotonic() - began > (devices.hang_seconds or math.inf):
            raise ProgramFailed("an earlier attempt at this trial does not end", died=True)
        yield trial, None
        time.sleep(LOOK_SECONDS)
    earlier = sorted(own.glob(f"{CHANNEL}*"))
    channel = own / f"{CHANNEL}{len(earlier):06d}-{uuid.uuid4().hex[:8]}"
    channel.mkdir(mode=0o700)
    status: Status | None = None
    try:
        course = Course(trial, commission.ending, own, channel, earlier)
        status = course.status
        if status is None:
            running = start_program(trial, devices, own, channel)
            try:
                for measurement in course.follow(running, devices.hang_seconds):
                    yield trial, measurement
                status = course.status
                for _ in course.end(running):
                    yield trial, None
            finally:
                running.close()
                _keep_log(commission, channel)
        yield trial, course.finished(devices.count)
    finally:
        if status not in (None, "paused") or not program.resumes:
            shutil.rmtree(own, ignore_errors=True)


def train_alone(
    trial: Trial, devices: Devices, folder: Path
) -> Generator[Measurement, None, tuple[Outcome, list[int]]]:
    """Trains one trial in `folder`. Yields the measurements; returns the outcome, and no process
    ids, since its program starts its processes itself."""
    commission = Commission(trial=trial, folder=folder, log=Place.at(str(folder / "output.txt")))
    with closing(train_programs([commission], devices)) as events:
        for _, event in events:
            if isinstance(event, FinishedTrial):
                return event.outcome, []
            if event is not None:
                yield event
    raise AssertionError("a trial ends with an outcome")


def _is_locked(place: Path) -> bool:
    with place.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # storage without locks
            return False
    return False


def _keep_log(commission: Commission, channel: Path) -> None:
    """Moves the output into the run. It is the program's, not a result: storage that refuses it
    stops nothing."""
    if commission.log is None:
        return
    with suppress(OSError):
        parts = [file.read_bytes() for file in sorted(channel.glob("output-*.txt"))]
        commission.log.write(b"".join(parts))


def unshared_folder() -> Path:
    """A folder of this machine for the folders of trials, where a run is in a bucket."""
    return Path(tempfile.gettempdir()) / f"orchestrate-programs-{os.getuid()}"


def log_name(trial: Trial) -> str:
    """The file with the output of a trial, below the folder of logs."""
    key = trial.study.key
    parts = [quote(part, safe="") for part in (key.workload, key.recipe, str(key.batch_size))]
    again = f"-{trial.repeat}" if trial.repeat else ""
    return "/".join([*parts, f"{trial.index}{again}.txt"])
