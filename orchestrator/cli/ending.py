"""How a sweep ends early: the user interrupts it, or the Ray that it started has died."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

VARIABLE = "ORCHESTRATE_RAY_DIED"
"""The environment variable by which a process tells its successor why Ray died."""

ERROR_FILE = "ORCHESTRATE_ERROR_FILE"
"""The environment variable that names a file; a failing command writes its error there, for the
process that started it."""

MOST_DEATHS = 3
"""Number of times that Ray is started anew for one command."""


def heed_termination() -> None:
    """Makes SIGTERM interrupt this process as Ctrl-C does. This works also where a shell has made
    the process ignore Ctrl-C, as shells do with background jobs of scripts. Without it, SIGTERM
    would end the process at once."""

    def interrupt(*told: Any) -> None:
        handler = signal.getsignal(signal.SIGINT)
        (handler if callable(handler) else signal.default_int_handler)(*told)

    signal.signal(signal.SIGTERM, interrupt)


@contextmanager
def heeding_interrupts(told: Callable[[], None]) -> Iterator[Callable[[], bool]]:
    """Turns the first interrupt in the `with` block into a request: `told` is called, and the
    function that is yielded returns True from then on. A second interrupt raises KeyboardInterrupt
    as usual."""
    asked = False
    if threading.current_thread() is not threading.main_thread():
        yield lambda: asked  # only the main thread gets interrupts
        return

    def ask(*_: object) -> None:
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, before)
        told()

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)


@dataclass(frozen=True, kw_only=True)
class RayDeath:
    """Why this process took the place of another one that ran the same command."""

    reason: str
    count: int
    """Number of times in a row that this has happened."""
    asked_to_end: bool
    """Whether the user had asked for the end by then."""

    @property
    def is_final(self) -> bool:
        return self.asked_to_end or self.count > MOST_DEATHS


@cache
def death_before() -> RayDeath | None:
    """The death that the process before this one reported, or None if there was no such process."""
    told = os.environ.pop(VARIABLE, None)
    return None if told is None else RayDeath(**json.loads(told))


def begin_anew(reason: str, *, asked_to_end: bool) -> None:
    """Replaces this process by a new one that runs the same command, which continues the run. In
    the old process Ray's code would wait for ever for a part of Ray that is gone, or end the
    process without a message. May be called on any thread."""
    before = death_before()
    count = 1 + (before.count if before else 0)
    death = RayDeath(reason=reason, count=count, asked_to_end=asked_to_end)
    os.environ[VARIABLE] = json.dumps(asdict(death))
    if sys.stderr.isatty():
        os.write(sys.stderr.fileno(), b"\x1b[?25h\n")  # the cursor that a live table hides
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - the same command
