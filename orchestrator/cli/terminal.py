"""Prints to the terminal: messages, one live table while a sweep runs, and answers.

All text for a person goes through here. Names and errors hold text that others wrote. It is printed
literally: control characters, which a terminal would obey, are escaped, and the markup of `rich` is
off.
"""

from __future__ import annotations

import math
import os
import shlex
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from orchestrator.records import BadInput, escaped
from orchestrator.sweeping.progress import Progress, StudyProgress

ERROR_FILE = "ORCHESTRATE_ERROR_FILE"
"""Names a file to which a failing command writes its error, for who started it."""

PLAIN_INTERVAL_SECONDS = 30
REFRESHES_PER_SECOND = 2


def printable(text: str) -> str:
    """The text with its control characters escaped as in Python, except newlines and tabs."""
    return escaped(text, but="\n\t")


class PlainConsole(Console):
    """Prints text literally. Cells of tables are passed as `str`, and escaped, too."""

    def __init__(self, **settings: Any) -> None:
        # In Jupyter, rich would show each line as a separate output and bypass redirect_stdout.
        super().__init__(
            highlight=False, markup=False, emoji=False, force_jupyter=False, **settings
        )

    def render_str(self, text: str, **settings: Any) -> Text:
        return super().render_str(printable(text), **settings)


console = PlainConsole(stderr=True)
"""The console for all output that is not an answer, on standard error."""


class Unheard:
    """A stream of messages that may be lost: a sweep goes on if nobody reads them any more, or if
    the disk with its log is full."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def command(*words: object) -> str:
    """A command of `orchestrate` that can be pasted into a shell."""
    return shlex.join(["orchestrate", *map(str, words)])


def say(message: str) -> None:
    """Prints a message, without wrapping it, so that paths in it can be copied."""
    console.print(message, soft_wrap=True)


def complain(error: object) -> None:
    """Prints the error that ended a command, also with --quiet. Keeps it in the file that
    ERROR_FILE names, for callers from Python: first a line with its code, if it has one."""
    code = error.code if isinstance(error, BadInput) else ""
    if file := os.environ.get(ERROR_FILE):
        with suppress(OSError):  # on a full disk it is still printed
            Path(file).write_text(f"{code}\n{error}")
    quiet, console.quiet = console.quiet, False
    say(f"error[{code}]: {error}" if code else f"error: {error}")
    console.quiet = quiet


debugging = False
"""Whether errors are shown with their full traceback (--debug)."""


def answer(text: object) -> None:
    """Prints lines of an answer to standard output."""
    print(printable(str(text)), flush=True)


def answer_entries(*entries: Mapping[str, Any]) -> None:
    """Prints entries of a registry, with mappings and lists as a file may have them."""
    from orchestrator.files.yaml_files import write_yaml

    for entry in entries:
        for key, value in entry.items():
            nested = isinstance(value, (dict, list))
            answer(write_yaml({key: value}, flow=None).rstrip() if nested else f"{key}: {value}")
        answer("")


def table_of(
    rows: Sequence[Mapping[str, str]],
    *,
    numbers: Collection[str] = (),
    shared: Mapping[str, str] | None = None,
) -> Table:
    """A table of rows, each of which has its texts under their headings. Columns without any text
    are left out. Columns of `numbers` are flush right and are not wrapped. A text that all rows
    have under a heading of `shared` stands in the title instead, as its pattern there says it."""
    texts = {heading: {row[heading] for row in rows} for heading in (rows[0] if rows else ())}
    said = {
        heading: pattern.format(*texts[heading])
        for heading, pattern in (shared or {}).items()
        if len(texts.get(heading, ())) == 1 and texts[heading] != {""}
    }
    table = Table(
        box=None, pad_edge=False, header_style="bold",
        title=", ".join(said.values()) or None, title_justify="left", title_style="",
    )  # fmt: skip
    headings = [each for each in texts if each not in said and texts[each] != {""}]
    for heading in headings:
        if heading in numbers:
            table.add_column(heading, justify="right", no_wrap=True)
        else:
            table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*(row[heading] for heading in headings))
    return table


def print_table(
    rows: Sequence[Mapping[str, str]],
    *,
    numbers: Collection[str] = (),
    shared: Mapping[str, str] | None = None,
) -> None:
    """Prints rows to standard output as `table_of` has them."""
    output().print(table_of(rows, numbers=numbers, shared=shared))


def output() -> PlainConsole:
    """A console for tables of an answer. A file or pipe gets up to 240 columns."""
    out = PlainConsole()
    return out if out.is_terminal or "COLUMNS" in os.environ else PlainConsole(width=240)


@contextmanager
def counting(what: str) -> Iterator[Callable[[int, int], None]]:
    """Shows a progress bar on a terminal. Call what it yields with the done and the total."""
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn(what), TimeRemainingColumn())
    with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)


@contextmanager
def showing(progress: Progress) -> Iterator[None]:
    """Shows `progress` until the end: as a live table on a terminal, else as lines."""
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

    printed = 0

    def print_line(_: threading.Event | None = None) -> None:
        nonlocal printed
        for line in (*progress.notes[printed:], _line(progress)):
            print(printable(line), file=sys.stderr, flush=True)
        printed = len(progress.notes)

    try:
        with repeating(print_line, PLAIN_INTERVAL_SECONDS):
            yield
    finally:
        print_line()


@contextmanager
def repeating(act: Callable[[threading.Event], None], every_seconds: float) -> Iterator[None]:
    """Calls `act` on a thread at intervals until the block ends, when the event is set."""
    ended = threading.Event()

    def work() -> None:
        while not ended.wait(every_seconds):
            act(ended)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _line(progress: Progress) -> str:
    finished = sum(study.left == 0 for study in progress.studies.values())
    left = progress.seconds_left()
    return (
        f"{progress.done:,} of {'up to ' if progress.may_repeat else ''}"
        f"{progress.planned + progress.may_repeat:,} trials, "
        f"{finished} of {len(progress.studies)} studies, {progress.running} running, "
        f"{f'{progress.paused} paused, ' if progress.paused else ''}"
        f"{_duration(time.monotonic() - progress.began)} so far"
        f"{'' if math.isnan(left) else f', about {_duration(left)} left'}"
    )


def _table(progress: Progress) -> Group:
    """The studies in their order. If the terminal is too low for all, running studies are shown
    first, then waiting ones, then finished ones."""
    ordered = sorted(progress.studies.values(), key=lambda p: (p.left == 0, p.running == 0))
    room = max(3, console.height - 6)
    keys = {study.study.key for study in ordered[:room]}
    shown = [study for study in progress.studies.values() if study.study.key in keys]
    table = table_of(
        [_cells(study) for study in shown],
        numbers=("Batch size", "Trials", "Running", "Best steps"),
        shared={"Workload": "{}"},
    )
    for row, study in zip(table.rows, shown, strict=True):
        row.style = "" if study.left else "dim"
    hidden = len(ordered) - room
    more = [Text(f"... and {hidden} more studies", style="dim")] if hidden > 0 else []
    notes = map(Text, map(printable, progress.notes))
    bar = Table.grid(padding=(0, 1))
    line = Text(_line(progress))
    width = min(40, max(10, console.width - len(line) - 2))
    total = max(progress.planned + progress.may_repeat, 1)
    bar.add_row(ProgressBar(total=total, completed=progress.done, width=width), line)
    return Group(table, *more, *notes, Text(), bar)


def _cells(study: StudyProgress) -> dict[str, str]:
    return {
        "Workload": study.study.workload,
        "Recipe": study.study.recipe,
        "Batch size": f"{study.study.batch_size:,}",
        "Trials": f"{study.done} / {study.planned}",
        "Running": str(study.running or ""),
        "Best steps": "" if study.best_steps is None else f"{study.best_steps:,}",
    }


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
