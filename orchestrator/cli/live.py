"""Rewrites the report of a running sweep at intervals, in a separate process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from orchestrator.cli.terminal import repeating

if TYPE_CHECKING:
    import threading

    from orchestrator.results import RunFiles

EVERY_SECONDS = 30.0

PAUSE = 9.0
"""After writing the report, so many times as long is waited as writing took: a page of many studies
takes a core for many seconds, which trials could have."""


@contextmanager
def rewritten(run: RunFiles, every_seconds: float = EVERY_SECONDS) -> Iterator[None]:
    """Writes the run's report every `every_seconds` in the `with` block; the page makes browsers
    reload it. A separate process writes it, because this one hands out trials."""
    where = [str(run.place), str(every_seconds)]
    command = ["nice", "-n19", sys.executable, "-P", "-m", "orchestrator.cli.live", *where]

    def write(ended: threading.Event) -> None:
        # Ray gives the processes that train a niceness of 15, and this one gives way to them. An
        # error here is reported when the sweep writes its report.
        began = time.monotonic()
        with (
            suppress(OSError),  # the machine may have no room for another process now
            subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            ) as process,
        ):
            while process.poll() is None:
                if ended.wait(0.05):
                    process.kill()
        ended.wait(PAUSE * (time.monotonic() - began))

    with repeating(write, every_seconds):
        yield


def main() -> None:
    from orchestrator.analysis.branch_answer import answer_in
    from orchestrator.report import write_page_of
    from orchestrator.results import RunFiles, frontier_of, holds_branches

    path, seconds = sys.argv[1:]
    run = RunFiles.open(path)
    found = answer_in(run) if holds_branches(run) else frontier_of(run)
    write_page_of(run, found, run.page, reload_seconds=max(1, round(float(seconds))))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
