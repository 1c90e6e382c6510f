"""A program that runs, in the care of its keeper."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

KEEPER = Path(__file__).parent / "keeper.py"

LOG_BYTES = 1_000_000
"""Largest size of the log of a program."""

PATIENCE = 10.0
"""Seconds that a program has to end itself once it is asked to, before it is killed."""

REPORTS = "ORCHESTRATE_REPORTS"
"""Variable with the file for the reports of an attempt, by which its processes are known, too."""

SECRETS = ("RAY_", "ORCHESTRATE_")
"""Beginnings of the names of variables that are no business of a program: how to reach Ray, and
what processes of a sweep tell each other."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """What a keeper starts."""

    command: list[str]
    environment: dict[str, str]
    cwd: str
    log: str
    reports: str
    lock: str
    """File that is locked while it runs: no other attempt may use the trial's folder by then."""
    pattern: str = ""
    log_bytes: int = LOG_BYTES
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
        self._said = select.poll()  # unlike `select`, it takes files of any number
        assert self._keeper.stdout is not None
        self._said.register(self._keeper.stdout, select.POLLIN)
        self._mark = f"{REPORTS}={start.reports}"
        self._tell(json.dumps(asdict(start)))
        self._exit: Exit | None = None

    def ended(self, wait: float = 0.0) -> Exit | None:
        """How it ended; None if it has not within `wait` seconds."""
        out = self._keeper.stdout
        assert out is not None
        if self._exit is None and self._said.poll(1000 * wait):
            told = out.read()
            self._keeper.wait()
            if not told:
                end_all_with(self._mark)
            found: dict[str, Any] = json.loads(told or '{"code": -9, "last": []}')
            self._exit = Exit(code=found["code"], last=tuple(found["last"]))
            self._close()
        return self._exit

    def end(self) -> None:
        """Asks it to end, and returns at once."""
        self._tell("end")

    def close(self) -> None:
        """Ends it and waits until nothing of it is left."""
        if self._exit is None:
            self.end()
            self.ended(2 * PATIENCE)
            self._close()

    def _tell(self, line: str) -> None:
        assert self._keeper.stdin is not None
        with suppress(BrokenPipeError, ValueError):  # it has ended
            self._keeper.stdin.write(f"{line}\n".encode())
            self._keeper.stdin.flush()

    def _close(self) -> None:
        for pipe in (self._keeper.stdin, self._keeper.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()


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


def environment(path: str, more: Mapping[str, str]) -> dict[str, str]:
    """The environment of a program: that of the user, without what is ours."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(SECRETS)}
    return {**kept, "PATH": path, "PYTHONUNBUFFERED": "1", **more}
