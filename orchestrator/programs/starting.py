"""Starts the processes of a program, and ends them."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from orchestrator.files.own_code import BY_VALUE, of_main
from orchestrator.programs import kept
from orchestrator.programs.commands import arguments_of, search_path, values_of
from orchestrator.programs.kept import Exit, Kept, Start, environment
from orchestrator.records import Study, Trial

CHANNEL, REPORTS, LOCK = ".orchestrate-", "reports.jsonl", ".lock-{rank}"
"""Files in a trial's folder: a folder for each attempt, with what it reports, and a file that is
locked while something of an attempt runs."""


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
            threads=cpus_per_rank,
            hang_seconds=hang_seconds,
        )


def start_program(trial: Trial, devices: Devices, own: Path, channel: Path) -> Running:
    """Starts the program of a trial in its folder `own`. What it reports is in `channel`."""
    program = trial.study.program
    assert program is not None
    values = {**values_of(trial, devices.count, own), "params": dict(trial.params)}
    told = {
        kept.REPORTS: str(channel / REPORTS),
        "ORCHESTRATE_STOP": str(channel / "stop"),
        "ORCHESTRATE_TRIAL": json.dumps(values),
        # Of each device: Ray's own value is for all that a command starts together.
        "OMP_NUM_THREADS": str(devices.threads),
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
