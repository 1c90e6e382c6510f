"""The report of a run that is being made: written anew now and then, by a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import threading

    from orchestrator.results import Run

EVERY_SECONDS = 30.0


@contextmanager
def rewritten(run: Run, every_seconds: float = EVERY_SECONDS) -> Iterator[None]:
    """Within, the run's report is written every so many seconds, and asks browsers to reload it.
    Elsewhere than in this process, which has trials to hand out."""
    from orchestrator.cli.terminal import repeating

    where = [str(run.place), str(every_seconds)]
    command = ["nice", sys.executable, "-P", "-m", "orchestrator.cli.live", *where]

    def write(over: threading.Event) -> None:
        # Training goes first; what goes wrong here will be told at the end.
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            while process.poll() is None:
                if over.wait(0.05):
                    process.kill()

    with repeating(write, every_seconds):
        yield


def main() -> None:
    from orchestrator.cli.branching import answer_in, write_page
    from orchestrator.report import write_report_of
    from orchestrator.results import Run, frontier_of, holds_branches

    place, seconds = sys.argv[1:]
    run = Run.open(place)
    page, reload_seconds = run.place / "report.html", max(1, round(float(seconds)))
    if holds_branches(run):
        write_page(run, answer_in(run), page, reload_seconds=reload_seconds)
    else:
        rows = frontier_of(run)
        write_report_of({"": (run, rows)}, page, reload_seconds=reload_seconds)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
