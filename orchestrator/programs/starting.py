"""Starts the processes of a program, each in the care of a keeper, and ends them."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from orchestrator.files.own_code import BY_VALUE, hand_over
from orchestrator.programs.commands import arguments_of, search_path, values_of
from orchestrator.records import MANY, Trial

FILES, CHANNEL, REPORTS, LOCK = "files", "attempt-", "reports.jsonl", "lock-{rank}"
"""What is in a trial's folder: the folder of the program, which may be empty at first and do with
it what it likes, a folder for each attempt, with what it reports, and a file that is locked while
something of an attempt runs."""

KEEPER = Path(__file__).parent / "keeper.py"

PATIENCE = 10.0
"""Seconds that a program has to end itself once it is asked to, before it is killed."""

TELL_AT = "ORCHESTRATE_REPORTS"
"""Variable with the file for the reports of an attempt, by which its processes are known, too."""

SECRETS = ("RAY_", "ORCHESTRATE_", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")
"""Beginnings of the names of variables that are no business of a program: how to reach Ray, what
processes of a sweep tell each other, and Slurm's tasks, which are nodes here. Lightning and others
would take their numbers for ranks."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """What a keeper starts, in the current folder of whoever has it started."""

    command: list[str]
    environment: dict[str, str]
    """Variables beside those of the user where it is started: each rank sees GPUs of its own."""
    log: str
    reports: str
    lock: str
    """File that is locked while it runs: no other attempt may use the trial's folder by then."""
    pattern: str = ""
    patience: float = PATIENCE


@dataclass(frozen=True, kw_only=True)
class Exit:
    """How a program ended."""

    code: int
    last: tuple[str, ...] = ()
    """The last lines of its output."""

    @property
    def in_words(self) -> str:
        how = f"with code {self.code}" if self.code >= 0 else f"by signal {-self.code}"
        # The last line is what tables show: mostly the error itself.
        return "\n".join([f"the program ended {how}", *self.last])


class Kept:
    """A program on this machine."""

    def __init__(self, start: Start) -> None:
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", str(KEEPER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._keeper.stdin is not None
        assert self._keeper.stdout is not None
        self._in, self._out = self._keeper.stdin, self._keeper.stdout
        self._said = select.poll()  # unlike `select`, it takes files of any number
        self._said.register(self._out, select.POLLIN)
        self._mark = f"{TELL_AT}={start.reports}"
        self._tell(json.dumps(asdict(start) | {"environment": environment(start.environment)}))
        self._exit: Exit | None = None

    def ended(self, wait: float = 0.0) -> Exit | None:
        """How it ended; None if it has not within `wait` seconds."""
        if self._exit is None and self._said.poll(1000 * min(wait, 1e6)):
            answer = self._out.read()
            self._keeper.wait()
            if not answer:
                end_all_with(self._mark)
            found: dict[str, Any] = json.loads(answer or '{"code": -9, "last": []}')
            self._exit = Exit(code=found["code"], last=tuple(found["last"]))
            for pipe in (self._in, self._out):
                with suppress(BrokenPipeError):
                    pipe.close()
        return self._exit

    def end(self) -> None:
        """Asks it to end, and returns at once."""
        self._tell("end")

    def close(self) -> None:
        """Ends it and waits until nothing of it is left."""
        if self._exit is None:
            self.end()
            if self.ended(2 * PATIENCE) is None:  # its keeper is stopped
                self._keeper.kill()
                self.ended(PATIENCE)

    def _tell(self, line: str) -> None:
        with suppress(BrokenPipeError, ValueError):  # it has ended
            self._in.write(f"{line}\n".encode())
            self._in.flush()


def end_all_with(mark: str) -> None:
    """Ends all processes with this in their environment: what a keeper leaves that was killed."""
    left = True
    while left:
        left = False
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if mark.encode() in (folder / "environ").read_bytes():
                    os.kill(int(folder.name), signal.SIGKILL)
                    left = True


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment of a program: that of the user, without what is ours."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(SECRETS)}
    # Hydra ends with the error then, which is what tables show, and not with how to see it.
    plain = {"PATH": search_path(), "PYTHONUNBUFFERED": "1", "HYDRA_FULL_ERROR": "1"}
    return {**kept, **plain, **variables}


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


def start_program(trial: Trial, devices: Devices, own: Path, channel: Path) -> Running:
    """Starts the program of a trial whose folder is `own`. What it reports is in `channel`."""
    program = trial.study.the_program
    values = {**values_of(trial, devices.count, own / FILES), "params": dict(trial.params)}
    variables = {
        TELL_AT: str(channel / REPORTS),
        "ORCHESTRATE_STOP": str(channel / "stop"),
        "ORCHESTRATE_TRIAL": json.dumps(values),
        # Of each device: Ray's own value is for all that a command starts together.
        "OMP_NUM_THREADS": str(devices.threads),
        "ORCHESTRATE_PATIENCE": str(devices.hang_seconds or MANY),
    }
    # Functions that other processes can't import: those of the sweep, or one of this process.
    known = os.environ.get(BY_VALUE)
    own_code = channel / "function.pickle"
    variables |= {BY_VALUE: known} if known else hand_over([program.function], own_code)
    many = {"MASTER_ADDR": devices.host, "MASTER_PORT": str(free_port(devices.host))}
    many |= {"WORLD_SIZE": str(len(devices.starts)), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    command = arguments_of(trial, devices.count, own / FILES)
    running: list[Running] = []
    try:
        for rank, start in enumerate(devices.starts):
            its = {**variables, **(many | {"RANK": str(rank)} if program.launch == "ranks" else {})}
            order = Start(
                command=command,
                environment=its,
                log=str(channel / f"output-{rank}.txt"),
                reports=str(channel / REPORTS),
                pattern=program.heard.pattern if rank == 0 else "",
                lock=str(own / LOCK.format(rank=rank)),
            )
            running.append(start(order))
    except BaseException:
        for each in running:
            each.close()
        raise
    return running[0] if len(running) == 1 else _Together(running)


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


def free_port(host: str) -> int:
    """A port that no process of this machine uses at the moment."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
