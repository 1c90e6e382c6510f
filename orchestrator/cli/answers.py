"""The answers of the commands, as tables for a person to read."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rich.table import Table

from orchestrator.analysis import (
    batch_sizes_of,
    cooled_sentences,
    curves_of,
    errors_in_words,
    frontier_cells,
    growing_sentence,
    holding_in_words,
    holdings,
    listed,
    on_medians,
    rule_costs,
    scalings,
    sentence,
    tables_of_rules,
)
from orchestrator.cli.options import print_json
from orchestrator.cli.terminal import PlainConsole, answer, say, table_of
from orchestrator.records import StudyKey, mistake
from orchestrator.results import BestRow, FrontierRow, Run, unknown_of
from orchestrator.search import searched

Searched = Mapping[StudyKey, Collection[str]]
"""The metaparameters that each study searched."""

POINT = "Metaparameters"
DROPPED = ("Examples", "±", "Trial", POINT)
"""The columns that the frontier leaves out on a narrow terminal, the first to be dropped first."""


def frontier_table(
    rows: Sequence[FrontierRow], searched: Searched, without: Collection[str] = ()
) -> Table:
    """The frontier as a table, with those metaparameters that were searched, wrapped between words.
    A workload and goal that all rows share are in the title."""
    cells = [
        {
            "Workload": row.workload,
            "Goal": row.goal,
            **frontier_cells(row),
            POINT: _point(row.answering[1], searched[row.key]),
        }
        for row in rows
    ]
    table = table_of(
        [{name: text for name, text in row.items() if name not in without} for row in cells],
        numbers=("Batch size", "Steps", "±", "Median", "Examples", "Trial"),
        shared={"Workload": "{}", "Goal": "until {}"},
    )
    for column in table.columns:
        column.no_wrap = column.header != POINT
    return table


def answers_in_words(rows: Sequence[FrontierRow]) -> list[str]:
    """The answer of each curve, with the errors behind it."""
    curves, found = curves_of(rows), scalings(rows)
    flattered = {one.first.names: one for one in holdings(rows, found) if one.differs}
    lines = []
    for scaling in found:
        where = f"{scaling.workload}, {scaling.goal}. " if len(curves) > 1 else ""
        lines.append(f"{where}{sentence(scaling)}")
        if said := errors_in_words(scaling):
            lines.append(f"  {said}")
        if (one := flattered.get(scaling.names)) is not None:
            lines.append(f"  Mind: {holding_in_words(one)}")
    lines += cooled_sentences(rows)
    return lines + [growing_sentence(row) for row in rows if row.batch_schedule is not None]


def leaders_table(rows: Sequence[FrontierRow]) -> Table:
    """The best trials of each study, as far as their ranks are certain."""
    ranked = [
        {
            "Workload": row.workload,
            "Goal": row.goal,
            "Recipe": row.recipe,
            "Batch size": batch_sizes_of(row),
            "Rank": str(rank),
            "Steps": f"{trial.steps:,}",
            "±": f"{trial.resolution:,}",
            "Trial": f"{trial.trial:,}",
        }
        for row in rows
        for rank, trial in enumerate(row.leaders, start=1)
    ]
    return table_of(ranked, numbers=("Batch size", "Rank", "Steps", "±", "Trial"))


def best_table(rows: Sequence[BestRow]) -> Table:
    """The best value of each study, as a table."""
    cells = []
    for row in rows:
        notes = [] if row.trained_enough else ["no trial was trained that long"]
        if row.censored:
            notes.append("trials that ended early could have come to a better value")
        of_row = {
            "Workload": row.workload,
            "Recipe": row.recipe,
            "Batch size": f"{row.batch_size:,}",
            "Within": row.within or "its budget",
            "Best": "not measured" if row.value is None else f"{row.value:.6g}",
            "At step": "" if row.step is None else f"{row.step:,}",
            "Trial": "" if row.trial is None else str(row.trial),
            POINT: _point(row.params),
            "Notes": "; ".join(notes),
        }
        cells.append(of_row)
    return table_of(cells, numbers=("Batch size", "Within", "Best", "At step", "Trial"))


def _point(params: Mapping[str, object] | None, names: Collection[str] | None = None) -> str:
    shown = {n: value for n, value in (params or {}).items() if names is None or n in names}
    texts = {n: f"{v:.4g}" if isinstance(v, float) else str(v) for n, v in shown.items()}
    return ", ".join(f"{name} {text}" for name, text in texts.items())


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
            studies = listed([f"{row.recipe} at {row.batch_size:,}" for row in found], 3)
            return f"Next: {todo} ({studies})."
    return f"Next: open {run}/report.html."


def print_table(table: Table) -> None:
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
    unbounded = out.options.update(width=10_000)
    table = frontier_table(rows, found)
    while dropped < len(DROPPED) and out.measure(table, options=unbounded).minimum > out.width:
        dropped += 1
        table = frontier_table(rows, found, without=DROPPED[:dropped])
    out.print(table)
    for said in filter(None, [on_medians(rows), unknown_of(run)]):
        out.print(said)
    if dropped:
        out.print(f"No room for: {', '.join(DROPPED[:dropped])}. --json prints them.")
    several = len({row.workload for row in rows}) > 1
    for row in rows:
        if remarks := row.remarks():
            where = f"{row.workload}, " * several
            out.print(f"{where}{row.recipe} at {row.batch_size:,}: {'; '.join(remarks)}")
    print()
    try:
        answers = answers_in_words(rows)
    except Exception as error:  # what was measured is printed, whatever is said about it
        say(mistake("What the curves say", error))
    else:
        for line in answers:
            out.print(line)


def print_rules(run: Run, rows: Sequence[FrontierRow], as_json: bool) -> None:
    costs = rule_costs(run, rows)
    if as_json:
        print_json([cost.to_json() for cost in costs])
    elif not costs:
        print(
            "No recipe whose metaparameters follow a rule stands beside one of the same optimizer "
            "that was tuned at each batch size."
        )
    for about, heads, cells in () if as_json else tables_of_rules(costs):
        answer(about)
        print_table(table_of([dict(zip(heads, row, strict=True)) for row in cells]))


def status_table(studies: Sequence[dict[str, Any]]) -> Table:
    cells = [
        {
            "Workload": study["workload"],
            "Recipe": study["recipe"],
            "Batch size": f"{study['batch_size']:,}",
            "Trials": f"{study['finished']} / {study['planned']}",
            "Best steps": "" if study["best_steps"] is None else f"{study['best_steps']:,}",
            "By status": ", ".join(f"{count} {name}" for name, count in study["trials"].items()),
        }
        for study in studies
    ]
    return table_of(cells, numbers=("Batch size", "Trials", "Best steps"))
