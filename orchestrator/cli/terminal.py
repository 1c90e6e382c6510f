"""What the terminal shows: messages, one live table while a sweep runs, and answers.

All text for a person goes through here. Names and errors hold what others wrote, so it is shown as
it is: without control characters, which terminals obey, and without the markup of `rich`.
"""

from __future__ import annotations

import math
import os
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from orchestrator.cli.ending import ERROR_FILE
from orchestrator.cluster.progress import Progress, StudyProgress
from orchestrator.records import escaped

PLAIN_INTERVAL_SECONDS = 30
REFRESHES_PER_SECOND = 2


def printable(text: str) -> str:
    """The text with each control character as Python would escape it; its lines stay lines."""
    return escaped(text, but="\n\t")


class PlainConsole(Console):
    """Shows text as it is. Cells of tables are given as `str`, which come by here."""

    def __init__(self, **settings: Any) -> None:
        # In Jupyter, rich would show each line as an output of its own, past redirect_stdout.
        super().__init__(
            highlight=False, markup=False, emoji=False, force_jupyter=False, **settings
        )

    def render_str(self, text: str, **settings: Any) -> Text:
        return super().render_str(printable(text), **settings)


console = PlainConsole(stderr=True)
"""For all that is no answer."""


def say(message: str) -> None:
    """A message to whoever watches; never wrapped, so that paths in it can be copied."""
    console.print(message, soft_wrap=True)


def complain(error: object) -> None:
    """Why a command did not do what it was to do."""
    errors.append(str(error))
    if file := os.environ.get(ERROR_FILE):
        Path(file).write_text(str(error))
    quiet, console.quiet = console.quiet, False
    say(f"error: {error}")
    console.quiet = quiet


errors: list[str] = []
"""What was complained of."""

debugging = False
"""Whether somebody wants to see how code that raises was called, in full."""


def frames_of_user(error: BaseException) -> str:
    """The exception as Python shows it, with the frames of the user's own code alone; nothing where
    there are none, so that it is our mistake."""
    libraries = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
    ours = [Path(__file__).parent.parent, (Path(__file__).parent.parent / "workloads").resolve()]
    known = [place.resolve() for place in [*map(Path, libraries), *ours]]
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not any(Path(frame.filename).resolve().is_relative_to(place) for place in known)
        and Path(frame.filename).is_file()
        and Path(frame.filename).stem != "orchestrate"
    ]
    if not frames:
        return ""
    return "".join(
        [*traceback.format_list(frames), *traceback.format_exception_only(error)]
    ).rstrip()


def answer(text: object) -> None:
    """Lines of an answer, on standard output."""
    print(printable(str(text)), flush=True)


@contextmanager
def counting(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal, moved by calls with what is done and of how much."""
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn(what), TimeRemainingColumn())
    with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)


@contextmanager
def showing(progress: Progress) -> Iterator[None]:
    """Shows `progress` until the end: a live table on a terminal, else a line now and then."""
    if console.quiet:
        yield
        return
    if console.is_terminal:
        live = Live(
            get_renderable=lambda: _table(progress),
            console=console,
            refresh_per_second=REFRESHES_PER_SECOND,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        with live:
            yield
        return

    told = 0

    def print_line(_: threading.Event | None = None) -> None:
        nonlocal told
        for line in (*progress.notes[told:], _line(progress)):
            print(printable(line), file=sys.stderr, flush=True)
        told = len(progress.notes)

    try:
        with repeating(print_line, PLAIN_INTERVAL_SECONDS):
            yield
    finally:
        print_line()


@contextmanager
def repeating(act: Callable[[threading.Event], None], every_seconds: float) -> Iterator[None]:
    """Within, `act` is called every so many seconds, on a thread; what it is given says when that
    is over."""
    over = threading.Event()

    def work() -> None:
        while not over.wait(every_seconds):
            act(over)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _line(progress: Progress) -> str:
    finished = sum(study.left == 0 for study in progress.studies.values())
    return (
        f"{progress.done} of {progress.planned} trials, "
        f"{finished} of {len(progress.studies)} studies, {progress.running} running, "
        f"{_duration(time.monotonic() - progress.began)} so far, "
        f"about {_duration(progress.seconds_left())} left"
    )


def _table(progress: Progress) -> Group:
    """The studies, in their order. Where there isn't room for all, those in progress come before
    those to come, and these before those done."""
    several = len({study.study.workload for study in progress.studies.values()}) > 1
    table = Table(box=None, pad_edge=False, header_style="bold")
    if several:
        table.add_column("Workload")
    table.add_column("Recipe")
    for heading in ("Batch size", "Trials", "Running", "Best steps", "Left"):
        table.add_column(heading, justify="right")
    ordered = sorted(progress.studies.values(), key=lambda p: (p.left == 0, p.running == 0))
    room = max(3, console.height - 6)
    shown = {study.study.key for study in ordered[:room]}
    for study in (study for study in progress.studies.values() if study.study.key in shown):
        table.add_row(*_cells(study, progress, several), style="dim" if not study.left else "")
    bar = Table.grid(padding=(0, 1))
    line = Text(_line(progress))
    width = min(40, max(10, console.width - len(line) - 2))
    bar.add_row(
        ProgressBar(total=max(progress.planned, 1), completed=progress.done, width=width), line
    )
    hidden = len(ordered) - room
    more = [Text(f"... and {hidden} more studies", style="dim")] if hidden > 0 else []
    return Group(table, *more, *map(Text, map(printable, progress.notes)), Text(), bar)


def _cells(study: StudyProgress, progress: Progress, with_workload: bool) -> list[str]:
    cells = [
        study.study.recipe,
        f"{study.study.batch_size:,}",
        f"{study.done} / {study.planned}",
        str(study.running or ""),
        "" if study.best_steps is None else f"{study.best_steps:,}",
        _duration(progress.seconds_left(study)) if study.left else "done",
    ]
    return [study.study.workload, *cells] if with_workload else cells


def _duration(seconds: float) -> str:
    if math.isnan(seconds):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
