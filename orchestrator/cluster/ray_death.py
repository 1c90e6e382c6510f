"""What follows when the Ray that a command started has died: the same command in a new process."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from functools import cache

from orchestrator.sweeping.interrupts import to_go_on

VARIABLE = "ORCHESTRATE_RAY_DIED"
"""The environment variable by which a process tells its successor why Ray died."""

MOST_DEATHS = 3
"""Number of times that Ray is started anew for one command."""


@dataclass(frozen=True, kw_only=True)
class RayDeath:
    """Why this process took the place of another one that ran the same command."""

    reason: str
    count: int
    """Number of times in a row that this has happened."""
    asked_to_end: bool
    to_go_on: bool
    """Whether the end had been asked for by then, and by SIGUSR1."""


@cache
def death_before() -> RayDeath | None:
    """The death that the process before this one reported, or None if there was no such process."""
    handed_on = os.environ.pop(VARIABLE, None)
    return None if handed_on is None else RayDeath(**json.loads(handed_on))


def begin_anew(reason: str, *, asked_to_end: bool) -> None:
    """Replaces this process by a new one that runs the same command, which continues the run. In
    the old process Ray's code would wait for ever for a part of Ray that is gone, or end the
    process without a message. May be called on any thread."""
    count = 1 + (before.count if (before := death_before()) else 0)
    death = RayDeath(
        reason=reason, count=count, asked_to_end=asked_to_end, to_go_on=to_go_on.is_set()
    )
    os.environ[VARIABLE] = json.dumps(asdict(death))
    if sys.stderr.isatty():
        os.write(sys.stderr.fileno(), b"\x1b[?25h\n")  # the cursor that a live table hides
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - the same command
