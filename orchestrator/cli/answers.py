"""The answers of the commands, as tables for a person to read."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from rich.cells import cell_len
from rich.console import Group
from rich.table import Table
from rich.text import Text

from orchestrator.analysis import (
    batch_sizes_of,
    curves_of,
    errors_in_words,
    growing_sentence,
    holding_in_words,
    holdings,
    median_of,
    on_medians,
    points_of,
    scalings,
    sentence,
    steps_of,
)
from orchestrator.cli.options import print_json
from orchestrator.cli.terminal import PlainConsole, printable, say
from orchestrator.records import StudyKey, mistake
from orchestrator.results import BestRow, FrontierRow, Run, unknown_of
from orchestrator.search import searched

Searched = Mapping[StudyKey, Collection[str]]
"""The metaparameters that each study searched."""

BARS = "▁▂▃▄▅▆▇█"

POINT = "Metaparameters"
DROPPED = ("Notes", "Examples", "±", "Trial", POINT)
"""The columns that the frontier leaves out on a narrow terminal, the first to be dropped first.
Notes are printed below the table instead."""


def frontier_table(
    rows: Sequence[FrontierRow], searched: Searched, without: Collection[str] = ()
) -> Table:
    """The frontier as a table. Of the winners' points it shows the metaparameters that were
    searched. A workload and goal that all rows share are in the title."""
    same = len({(row.workload, row.goal) for row in rows}) == 1
    repeated = ("Median",) if any(row.repeats for row in rows) else ()
    table = _winners(
        ("Recipe",) if same else ("Workload", "Goal", "Recipe"),
        ("Batch size", "Steps", "±", *repeated, "Examples", "Trial"),
        title=f"{rows[0].workload}, until {rows[0].goal}" if same else None,
        without=without,
    )
    for row in rows:
        cells = {
            "Workload": row.workload,
            "Goal": row.goal,
            "Recipe": row.recipe,
            "Batch size": batch_sizes_of(row),
            "Steps": steps_of(row),
            "±": "" if row.resolution is None else f"{row.resolution:,}",
            "Median": median_of(row),
            "Examples": "" if row.examples is None else f"{row.examples:,}",
            "Trial": "" if row.trial is None else str(row.answering[0]),
            POINT: _point(row.answering[1], searched[row.key]),
            "Notes": "; ".join(row.remarks()),
        }
        table.add_row(*(cells[str(column.header)] for column in table.columns))
    return table


def answers_table(rows: Sequence[FrontierRow]) -> Table:
    """The answer of each curve, with its shape before it and the errors behind it."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    curves, found_of_curves = curves_of(rows), scalings(rows)
    flattered = {one.names: one for one in holdings(rows, found_of_curves) if one.differs}
    for scaling in found_of_curves:
        curve = curves[scaling.names]
        found = {point.batch_size: point.steps for point in points_of(curve)}
        bars = sparkline([found.get(row.batch_size) for row in curve])
        where = f"{scaling.workload}, {scaling.goal}. " if len(curves) > 1 else ""
        table.add_row(bars, f"{where}{sentence(scaling)}")
        if said := errors_in_words(scaling):
            table.add_row("", said)
        if (one := flattered.get(scaling.names)) is not None:
            table.add_row("", f"Mind: {holding_in_words(one)}")
    for row in rows:
        if row.batch_schedule is not None:
            table.add_row("", growing_sentence(row))
    return table


def sparkline(values: Sequence[float | None]) -> str:
    """Draws a bar for each value, by its logarithm, and a gap for each missing value."""
    logs = [math.log(value) if value else None for value in values]
    known = [log for log in logs if log is not None]
    low, span = min(known, default=0), max(max(known, default=0) - min(known, default=0), 1e-9)
    return "".join(
        " " if log is None else BARS[round((log - low) / span * (len(BARS) - 1))] for log in logs
    )


def leaders_table(rows: Sequence[FrontierRow]) -> Table:
    """The best trials of each study, as far as their ranks are certain."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("Workload", "Goal", "Recipe"):
        table.add_column(heading)
    for heading in ("Batch size", "Rank", "Steps", "±", "Trial"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        for rank, trial in enumerate(row.leaders, start=1):
            places = (rank, trial.steps, trial.resolution, trial.trial)
            numbers = (f"{number:,}" for number in places)
            table.add_row(row.workload, row.goal, row.recipe, batch_sizes_of(row), *numbers)
    return table


def jobs_table(jobs: Sequence[Mapping[str, str]]) -> Table:
    """The jobs that were submitted to a cluster."""
    table = Table(box=None, pad_edge=False)
    for name in ("run", "job", "status"):
        table.add_column(name.capitalize(), overflow="fold")
    for job in jobs:
        table.add_row(*(job[name] for name in ("run", "job", "status")))
    return table


def best_table(rows: Sequence[BestRow]) -> Table:
    """The best value of each study, as a table."""
    table = _winners(("Workload", "Recipe"), ("Batch size", "Within", "Best", "At step", "Trial"))
    for row in rows:
        notes = [] if row.trained_enough else ["no trial was trained that long"]
        if row.censored:
            notes.append("trials that ended early could have come to a better value")
        table.add_row(
            row.workload,
            row.recipe,
            f"{row.batch_size:,}",
            row.within or "its budget",
            "not measured" if row.value is None else f"{row.value:.6g}",
            "" if row.step is None else f"{row.step:,}",
            "" if row.trial is None else str(row.trial),
            _point(row.params),
            "; ".join(notes),
        )
    return table


def _winners(
    texts: Sequence[str],
    numbers: Sequence[str],
    title: str | None = None,
    without: Collection[str] = (),
) -> Table:
    """A table of trials with the given columns, followed by their metaparameters and notes."""
    table = Table(
        box=None, pad_edge=False, header_style="bold",
        title=title, title_justify="left", title_style="",
    )  # fmt: skip
    for heading in (*texts, *numbers, POINT, "Notes"):
        if heading not in without:
            number, style = heading in numbers, "yellow" if heading == "Notes" else None
            justify: Literal["left", "right"] = "right" if number else "left"
            table.add_column(heading, justify=justify, no_wrap=number, style=style)
    return table


def _fitted(table: Table, width: int) -> bool:
    """Gives each column the width that it needs. Metaparameters get the rest and are wrapped
    between words. False if the table is wider than `width`."""
    cells = {str(c.header): [str(c.header), *map(str, c.cells)] for c in table.columns}
    widths = {name: max(map(cell_len, texts)) for name, texts in cells.items()}
    room = width - 2 * (len(widths) - 1) - sum(widths.values())
    if room < 0 and POINT in cells:
        words = max(cell_len(word) for text in cells[POINT] for word in text.split())
        shorter = max(widths[POINT] + room, words)
        room, widths[POINT] = room + widths[POINT] - shorter, shorter
    for column in table.columns:
        column.width = widths[str(column.header)]
    return room >= 0


def _point(params: Mapping[str, object] | None, names: Collection[str] | None = None) -> str:
    shown = {n: value for n, value in (params or {}).items() if names is None or n in names}
    return ", ".join(f"{name} {_short(value)}" for name, value in shown.items())


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def what_next(rows: Sequence[FrontierRow], run: object) -> str:
    """A sentence that says what to do next: the one thing that most hinders an answer."""
    failed = [row for row in rows if row.trials.get("failed")]
    unfinished = [row for row in rows if not row.finished]
    short = [row for row in rows if not row.reached and row.finished]
    narrow = [row for row in rows if any("is near the" in warning for warning in row.warnings)]
    for found, todo in (
        (
            failed,
            f"find out why trials failed ({run}/log.txt; of programs: orchestrate logs {run}), "
            f"then orchestrate resume {run}",
        ),
        (unfinished, f"orchestrate resume {run}, which trains the missing trials"),
        (short, "raise the budget or widen the search space, since the goal was not reached"),
        (narrow, "widen the ranges, since the best points lie near their ends"),
    ):
        if found:
            same = [row for row in found if _of_one_curve(row, found[0])]
            sizes = ", ".join(f"{row.batch_size:,}" for row in same[:3])
            more = ", ..." if len(same) > 3 else ""
            rest = f"; and {len(found) - len(same)} more" if len(found) > len(same) else ""
            return f"Next: {todo} ({found[0].recipe} at {sizes}{more}{rest})."
    return f"Next: open {run}/report.html."


def _of_one_curve(row: FrontierRow, other: FrontierRow) -> bool:
    return (row.workload, row.recipe, row.goal) == (other.workload, other.recipe, other.goal)


def print_table(table: Table | Group) -> None:
    """Prints an answer to standard output. A file or pipe gets up to 240 columns."""
    _out().print(table)


def _out() -> PlainConsole:
    out = PlainConsole()
    return out if out.is_terminal else PlainConsole(width=240)


def print_frontier(run: Run, rows: Sequence[FrontierRow], as_json: bool) -> None:
    if as_json:
        print_json([row.to_json() for row in rows])
        return
    out, dropped = _out(), 0
    found = {study.key: searched(study.space) for study in run.studies()}
    table = frontier_table(rows, found)
    while not _fitted(table, out.width) and dropped < len(DROPPED):
        dropped += 1
        table = frontier_table(rows, found, without=DROPPED[:dropped])
    out.print(table)
    for said in filter(None, [on_medians(rows), unknown_of(run)]):
        out.print(said)
    if without := [name for name in DROPPED[:dropped] if name != "Notes"]:
        out.print(f"No room for: {', '.join(without)}. --json prints them.")
    if "Notes" in DROPPED[:dropped]:
        for row in rows:
            if remarks := row.remarks():
                out.print(f"{row.recipe} at {row.batch_size:,}: {'; '.join(remarks)}")
    print()
    try:
        answers = answers_table(rows)
    except Exception as error:  # what was measured is printed, whatever is said about it
        say(mistake("What the curves say", error))
    else:
        print_table(answers)


def status_table(studies: Sequence[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("Workload")
    table.add_column("Recipe")
    for heading in ("Batch size", "Trials", "Best steps"):
        table.add_column(heading, justify="right")
    table.add_column("By status")
    for study in studies:
        best = study["best_steps"]
        table.add_row(
            study["workload"],
            study["recipe"],
            f"{study['batch_size']:,}",
            f"{study['finished']} / {study['planned']}",
            "" if best is None else f"{best:,}",
            ", ".join(f"{count} {status}" for status, count in study["trials"].items()),
        )
    return table


def describe(entries: Sequence[dict[str, Any]]) -> Group:
    """Entries of a registry. Each begins with its first value; the others follow with their
    names."""
    blocks: list[Text | Table] = []
    for entry in entries:
        (_, name), *others = entry.items()
        lines = Table.grid(padding=(0, 2, 0, 0))
        lines.add_column()
        lines.add_column(overflow="fold")
        for key, value in others:
            if text := _lines(value):
                lines.add_row(Text(f"  {key}", style="dim"), text)
        blocks += [Text(printable(name), style="bold"), lines]
    return Group(*blocks)


def meanings(of: Mapping[str, str]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for name, meaning in of.items():
        table.add_row(name, meaning)
    return table


def _lines(value: Any) -> str:
    """A value as text. A list, or a mapping that holds mappings, takes one line per item."""
    if isinstance(value, dict):
        nested = any(isinstance(item, dict) for item in value.values())
        value = [f"{key}: {_flow(item)}" for key, item in value.items()]
        return ("\n" if nested else ", ").join(value)
    return "\n".join(value) if isinstance(value, list) else str(value)


def _flow(value: Any) -> str:
    if not isinstance(value, dict):
        return _short(value)
    return "{" + ", ".join(f"{key}: {_flow(item)}" for key, item in value.items()) + "}"
