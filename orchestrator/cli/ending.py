"""How a sweep ends before its time: somebody asks for it, or the Ray that it started has died."""

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
"""By which a process tells the one that takes its place."""

ERROR_FILE = "ORCHESTRATE_ERROR_FILE"
"""The variable with the file in which another process wants to find the error of this one."""

MOST_DEATHS = 3
"""So often Ray is started anew."""


def heed_termination() -> None:
    """From here on SIGTERM is what Ctrl-C is, also where shells have the latter ignored: by what
    scripts start in the background. Left alone, it would end this process at once."""

    def interrupt(*told: Any) -> None:
        handler = signal.getsignal(signal.SIGINT)
        (handler if callable(handler) else signal.default_int_handler)(*told)

    signal.signal(signal.SIGTERM, interrupt)


@contextmanager
def heeding_interrupts(told: Callable[[], None]) -> Iterator[Callable[[], bool]]:
    """Within, the first interrupt is a wish: `told` is called, and what is given here says that
    somebody has asked for the end. A second one is a KeyboardInterrupt, as it is elsewhere."""
    asked = False
    if threading.current_thread() is not threading.main_thread():
        yield lambda: asked  # interrupts are the main thread's
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
    """How often that has happened in a row."""
    asked_to_end: bool
    """Somebody had asked for the end by then."""

    @property
    def is_final(self) -> bool:
        return self.asked_to_end or self.count > MOST_DEATHS


@cache
def death_before() -> RayDeath | None:
    """What this process was told by the one whose place it took, if it took one's."""
    told = os.environ.pop(VARIABLE, None)
    return None if told is None else RayDeath(**json.loads(told))


def begin_anew(reason: str, *, asked_to_end: bool) -> None:
    """Lets the same command take the place of this process. In this one, Ray's code would wait for
    ever for a part of Ray that is gone, or end the process without a word; and the same command
    goes on with the run. May be called on any thread."""
    before = death_before()
    count = 1 + (before.count if before else 0)
    death = RayDeath(reason=reason, count=count, asked_to_end=asked_to_end)
    os.environ[VARIABLE] = json.dumps(asdict(death))
    if sys.stderr.isatty():
        os.write(sys.stderr.fileno(), b"\x1b[?25h\n")  # the cursor that a live table hides
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - the same command
