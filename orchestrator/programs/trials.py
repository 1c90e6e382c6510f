"""Trains trials by programs: starts each, hears its reports, and ends it as soon as its trial has
ended."""

from __future__ import annotations

import fcntl
import json
import math
import os
import platform
import shutil
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from orchestrator.files.own_code import BY_VALUE, of_main
from orchestrator.files.places import Place
from orchestrator.programs import kept
from orchestrator.programs.commands import arguments_of, filled, search_path, values_of
from orchestrator.programs.hearing import Events, Hearing, Lines, Unheard
from orchestrator.programs.kept import PATIENCE, Exit, Kept, Start, environment
from orchestrator.records import (
    FinishedTrial,
    Goal,
    Measurement,
    Outcome,
    Source,
    Status,
    Study,
    Trial,
)
from orchestrator.records.standing import Standing

CHANNEL, REPORTS, LOCK = ".orchestrate-", "reports.jsonl", ".lock-{rank}"
"""Files in a trial's folder: a folder for each attempt, with what it reports, and a file that is
locked while something of an attempt runs."""

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


class ProgramFailed(Exception):
    """Raised if a program can't train its trial. `died` says that another attempt may succeed."""

    def __init__(self, reason: str, *, died: bool = False) -> None:
        super().__init__(reason)
        self.died = died


class Running(Protocol):
    """A program that runs, here or on another machine."""

    def ended(self, wait: float = 0.0) -> Exit | None: ...

    def end(self) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Devices:
    """What a program may use, and how its processes are started."""

    count: int = 1
    starts: Sequence[Callable[[Start], Running]] = (Kept,)
    """For each process that is started: how."""
    host: str = "127.0.0.1"
    """Address of the first process for the others."""
    threads: int = 1
    hang_seconds: float | None = None

    @classmethod
    def here(
        cls, study: Study, count: int, cpus_per_rank: int, hang_seconds: float | None
    ) -> Devices:
        """So many of this machine."""
        ranks = study.program is not None and study.program.launch == "ranks"
        return cls(
            count=count,
            starts=(Kept,) * (count if ranks else 1),
            threads=cpus_per_rank * (1 if ranks else count),
            hang_seconds=hang_seconds,
        )


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
        course = _Course(commission, own, channel, earlier)
        status = course.status
        if status is None:
            running = _started(commission, devices, own, channel)
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


class _Course:
    """The course of one trial, from what its program reports."""

    def __init__(
        self, commission: Commission, own: Path, channel: Path, earlier: Sequence[Path]
    ) -> None:
        self._trial, self._ending = commission.trial, commission.ending
        study, program = self._trial.study, self._trial.study.program
        assert program is not None
        self._resumes, self._asks = program.resumes, program.heard.asks
        self._budget, self._channel, self._log = study.budget_steps, channel, own / "measured.jsonl"
        known = self._known() if self._resumes else []
        self._standing = Standing(study, stays=self._trial.stays)
        for measurement in known:
            self._standing.add(measurement)
        self._hearing = Hearing(study, known)
        self.status: Status | None = self._standing.status or (self._cut() if known else None)
        for old in earlier:
            # What it reported while it was ended, or its driver was gone.
            for _ in self._hear(Lines(old / REPORTS)):
                pass
            self._hearing.again()
        known = self._standing.measurements
        self._resumed = known[-1] if known else Measurement(step=0, seconds=0.0, metrics={})
        self._source = _source(self._trial, own, channel)
        self._began = time.time()

    def is_over(self) -> bool:
        return self.status is not None

    def follow(self, running: Running, hang_seconds: float | None) -> Iterator[Measurement | None]:
        """Hears the program until its trial has ended, whose status is known then."""
        heard = time.monotonic()
        while not self.is_over():
            exit_ = running.ended(LOOK_SECONDS)
            for measurement in self._hear(self._source, over=exit_ is not None and not exit_.code):
                heard = time.monotonic()
                yield measurement
            if self.is_over():
                return
            if exit_ is not None:
                self.status = self._after(exit_)
            elif (cut := self._cut()) is not None:
                self.status = cut  # by what other trials have reached in the meantime
            elif hang_seconds is not None and time.monotonic() - heard > hang_seconds:
                raise ProgramFailed(
                    f"the program reported nothing for {hang_seconds:g} seconds "
                    f"(faults.hang_seconds) and was ended",
                    died=True,
                )
            else:
                yield None

    def _hear(self, source: Lines | Events, *, over: bool = False) -> Iterator[Measurement]:
        """The new measurements up to the trial's end. With `over`, the program has ended well, so
        that what it has reported in part is all there is."""
        try:
            for measurement in self._new(source, over=over):
                if self.is_over():
                    return
                if self._take(measurement):
                    yield measurement
        except Unheard as error:
            raise ProgramFailed(str(error)) from None

    def _new(self, source: Lines | Events, *, over: bool) -> Iterator[Measurement]:
        hearing = self._hearing
        for report in source.new(over=over):
            yield from hearing.line(report) if isinstance(report, bytes) else hearing.report(report)
        if over:
            yield from hearing.rest()

    def _take(self, measurement: Measurement) -> bool:
        """Whether a measurement lies within the budget. A later one ends the trial."""
        if measurement.step > self._budget:
            if not self._standing.measurements:
                raise Unheard(
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
            raise ProgramFailed("\n".join([*exit_.last, self._unheard()]))
        return "reached" if self._standing.all_reached else "exhausted"

    def _unheard(self) -> str:
        assert self._trial.study.program is not None
        heard = self._trial.study.program.heard
        return f"the program ended without a report. {UNHEARD[heard.source]}".format(
            place=heard.place
        )

    def end(self, running: Running) -> Iterator[None]:
        """Ends the program, which may do so itself if it asks."""
        (self._channel / "stop").touch()
        asked, until = not self._asks, time.monotonic() + PATIENCE
        if asked:
            running.end()
        while running.ended(LOOK_SECONDS) is None:
            if not asked and time.monotonic() > until:
                asked = True
                running.end()
            yield None

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


def _is_locked(place: Path) -> bool:
    with place.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # storage without locks
            return False
    return False


def _source(trial: Trial, own: Path, channel: Path) -> Lines | Events:
    program = trial.study.program
    assert program is not None
    heard = program.heard
    if heard.source in ("report", "stdout"):
        return Lines(channel / REPORTS)
    # A relative place is that which the program itself would write to.
    place = Path(filled(heard.place, values_of(trial, 1, own)))
    return Lines(place) if heard.source == "jsonl" else Events(place)


def _started(commission: Commission, devices: Devices, own: Path, channel: Path) -> Running:
    trial, program = commission.trial, commission.trial.study.program
    assert program is not None
    values = {**values_of(trial, devices.count, own), "params": dict(trial.params)}
    told = {
        kept.REPORTS: str(channel / REPORTS),
        "ORCHESTRATE_STOP": str(channel / "stop"),
        "ORCHESTRATE_TRIAL": json.dumps(values),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(devices.threads)),
    }
    if devices.hang_seconds is not None:
        told["ORCHESTRATE_PATIENCE"] = str(devices.hang_seconds)
    if by_value := _by_value(program.function, channel):
        told[BY_VALUE] = by_value
    many = {"MASTER_ADDR": devices.host, "MASTER_PORT": str(_free_port(devices.host))}
    many |= {"WORLD_SIZE": str(len(devices.starts)), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    command = arguments_of(trial, devices.count, own)
    running: list[Running] = []
    try:
        for rank, start in enumerate(devices.starts):
            more = {**told, **(many | {"RANK": str(rank)} if program.launch == "ranks" else {})}
            running.append(
                start(
                    Start(
                        command=command,
                        environment=environment(search_path(), more),
                        cwd=str(Path.cwd()),
                        log=str(channel / f"output-{rank}.txt"),
                        reports=str(channel / REPORTS),
                        pattern=program.heard.pattern if rank == 0 else "",
                        lock=str(own / LOCK.format(rank=rank)),
                    )
                )
            )
    except BaseException:
        for each in running:
            each.close()
        raise
    return running[0] if len(running) == 1 else _Together(running)


def _by_value(function: str, channel: Path) -> str | None:
    """The file with the functions that other processes can't import: that of the sweep, or one with
    this function, if this process has defined it."""
    if (known := os.environ.get(BY_VALUE)) is not None:
        return known
    if not (found := of_main([function])):
        return None
    import cloudpickle

    file = channel / "function.pickle"
    file.write_bytes(cloudpickle.dumps(found))
    return str(file)


class _Together:
    """The processes of a program that was started once for each device."""

    def __init__(self, running: Sequence[Running]) -> None:
        self._running = running

    def ended(self, wait: float = 0.0) -> Exit | None:
        """The first failure, after which the others are ended, or the end of all."""
        exits = [each.ended() for each in self._running]
        if wait and None in exits and not any(found and found.code for found in exits):
            self._running[exits.index(None)].ended(wait)
            return self.ended()
        failed = [(found, rank) for rank, found in enumerate(exits) if found and found.code]
        if failed:
            # One that was killed comes first: others fail since they miss it.
            found, rank = min(failed, key=lambda each: each[0].code)
            self.close()
            return Exit(code=found.code, last=(f"rank {rank}:", *found.last))
        return None if None in exits else exits[0]

    def end(self) -> None:
        for each in self._running:
            each.end()

    def close(self) -> None:
        self.end()
        for each in self._running:
            each.close()


def _free_port(host: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


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
