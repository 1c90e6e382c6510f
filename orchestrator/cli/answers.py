"""The answers of the commands, as tables for a person to read."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Literal

from rich.cells import cell_len

from orchestrator.analysis import Scaling, scalings, sentence
from orchestrator.analysis.holding import holding_in_words, holdings
from orchestrator.analysis.points import curves_of
from orchestrator.analysis.tuned import rule_costs, tables_of_rules
from orchestrator.analysis.words import (
    bend_cells,
    cooled_sentences,
    errors_in_words,
    fifth_in_words,
    frontier_cells,
    growing_sentence,
    listed,
    on_medians,
    remarks_on,
)
from orchestrator.cli.options import print_json
from orchestrator.cli.terminal import answer, command, output, print_table, say, table_of
from orchestrator.records import Value, counted, mistake, point_text, searched
from orchestrator.results import BestRow, FrontierRow, RunFiles, unknown_of

POINT = "Metaparameters"
DROPPED = ("Examples", "±", "At step", "Trial", POINT)
"""The columns that tables leave out on a narrow terminal, the first to be dropped first."""

Format = Literal["latex", "markdown", "csv"]

LATEX = str.maketrans(
    {**{each: f"\\{each}" for each in "&%$#_{}"}, **{each: f"${each}$" for each in "<>"}}
    | {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}"}
)
"""Characters that LaTeX takes for something else, and that names may have."""

MOST_CURVES = 8
"""Largest number of curves whose answers stand above the frontier."""


def _print_fitting(
    rows: Sequence[Mapping[str, str]], numbers: Collection[str], shared: Mapping[str, str]
) -> None:
    """Prints a table in which only metaparameters are wrapped, between words. Leaves out columns
    for which there is no room. If even the others are too wide, the terminal breaks the lines."""
    out, gone = output(), list[str]()
    unbounded = out.options.update(width=10_000)
    while True:
        cells = [{name: text for name, text in row.items() if name not in gone} for row in rows]
        table = table_of(cells, numbers=numbers, shared=shared)
        for column in table.columns:
            if column.header != POINT:
                column.no_wrap = True
                # rich measures by words, also what may not be wrapped.
                texts = (column.header, *column.cells)
                column.min_width = max(cell_len(str(text)) for text in texts)
        left = [name for name in DROPPED if cells and name in cells[0]]
        if not left or out.measure(table, options=unbounded).minimum <= out.width:
            break
        gone.append(left[0])
    out.print(table, crop=False)
    if gone:
        out.print(f"No room for: {', '.join(gone)}. --json prints them.")


def answer_cells(found: Sequence[Scaling], rows: Sequence[FrontierRow]) -> list[dict[str, str]]:
    """The numbers of the answer of each curve."""
    held = {one.first.names: one.held for one in holdings(rows, found)}
    return [
        {
            "Workload": one.workload,
            "Goal": one.goal,
            **bend_cells(one),
            # Where the goal passed first gives no answer, one reason is enough.
            "if it must hold": fifth_in_words(held[one.names])
            if one.names in held and one.fifth_more is not None
            else "",
        }
        for one in found
    ]


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
    growing = [row for row in rows if row.batch_schedule is not None]
    several = len({(row.workload, row.goal) for row in growing}) > 1
    return lines + [
        f"{row.workload}, {row.goal}. " * several + growing_sentence(row) for row in growing
    ]


def print_best(rows: Sequence[BestRow]) -> None:
    """Prints the best value of each study, and what is to be said of several below."""
    cells, notes = [], dict[str, list[str]]()
    workloads, budgets = len({row.workload for row in rows}), len({row.within for row in rows})
    for row in rows:
        study = f"{row.workload}, " * (workloads > 1) + f"{row.recipe} at {row.batch_size:,}"
        study += f" within {row.within}" * (budgets > 1)
        if not row.trained_enough:
            notes.setdefault("No trial was trained that long", []).append(study)
        if row.censored:
            note = "Trials that ended early could have come to a better value"
            notes.setdefault(note, []).append(study)
        of_row = {
            "Workload": row.workload,
            "Recipe": row.recipe,
            "Batch size": f"{row.batch_size:,}",
            "Within": row.within or "its budget",
            "Best": "not measured" if row.value is None else f"{row.value:.6g}",
            "At step": "" if row.step is None else f"{row.step:,}",
            "Trial": "" if row.trial is None else str(row.trial),
            POINT: _point(row.params),
        }
        cells.append(of_row)
    numbers = ("Batch size", "Within", "Best", "At step", "Trial")
    _print_fitting(cells, numbers=numbers, shared={"Workload": "{}", "Within": "within {}"})
    for note, studies in notes.items():
        answer(f"{note}: {listed(studies, 3)}.")


def _point(params: Mapping[str, Value] | None, names: Collection[str] | None = None) -> str:
    return point_text({n: v for n, v in (params or {}).items() if names is None or n in names})


def what_next(rows: Sequence[FrontierRow], run: object) -> str:
    """A sentence that says what to do next: the one thing that most hinders an answer."""
    failed = [row for row in rows if row.trials.get("failed")]
    unfinished = [row for row in rows if not row.finished]
    short = [row for row in rows if not row.reached and row.finished]
    narrow = [row for row in rows if any("is near the" in warning for warning in row.warnings)]
    for found, todo in (
        (
            failed,
            f"find out why trials failed ({run}/log.txt; of programs: {run}/logs), "
            f"then {command('resume', run)}",
        ),
        (unfinished, f"{command('resume', run)}, which trains the missing trials"),
        (short, "raise the budget or widen the search space, since the goal was not reached"),
        (narrow, "widen the ranges, since the best points lie near their ends"),
    ):
        if found:
            studies = dict.fromkeys(f"{row.recipe} at {row.batch_size:,}" for row in found)
            return f"Next: {todo} ({listed([*studies], 3)})."
    return f"Next: open {run}/report.html."


def print_frontier(run: RunFiles, rows: Sequence[FrontierRow], as_json: bool) -> None:
    if as_json:
        print_json([asdict(row) for row in rows])
        return
    out, found = output(), list[Scaling]()
    answers: list[str] = []
    try:
        found, answers = scalings(rows), answers_in_words(rows)
        cells = answer_cells(found[:MOST_CURVES], rows)
        out.print(table_of(cells, shared={"Workload": "{}", "Goal": "until {}"}))
    except OSError:
        raise  # of the output
    except Exception as error:  # what was measured is printed, whatever is said about it
        say(mistake("What the curves say", error))
    if (more := len(found) - MOST_CURVES) > 0:
        out.print(f"... and {counted(more, 'more curve')}, below.")
    print()
    known = {study.key: searched(study.space) for study in run.studies()}
    cells = [
        {
            "Workload": row.workload,
            "Goal": row.goal,
            **frontier_cells(row),
            POINT: _point(row.answering[1], known[row.key]),
        }
        for row in rows
    ]
    _print_fitting(
        cells,
        numbers=("Batch size", "Steps", "±", "Median", "Examples", "Trial"),
        shared={"Workload": "{}", "Goal": "until {}"},
    )
    for said in filter(None, [on_medians(rows), unknown_of(run), *remarks_on(rows)]):
        out.print(said)
    print()
    for line in answers:
        out.print(line)


def print_rules(run: RunFiles, rows: Sequence[FrontierRow], as_json: bool) -> None:
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
        print_table([dict(zip(heads, row, strict=True)) for row in cells])


def in_format(rows: Sequence[Mapping[str, str]], format_: Format) -> str:
    """The rows as a table, to be pasted."""
    heads = [name for name in (rows[0] if rows else ()) if any(row[name] for row in rows)]
    lines = [heads, *([row[name] for name in heads] for row in rows)]
    if format_ == "csv":
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(lines)
        return text.getvalue().rstrip()
    if format_ == "markdown":
        lines.insert(1, ["---"] * len(heads))
        escaped = ((cell.replace("|", r"\|") for cell in line) for line in lines)
        return "\n".join(f"| {' | '.join(line)} |" for line in escaped)
    first, *rest = (" & ".join(cell.translate(LATEX) for cell in line) for line in lines)
    body = "".join(f"{line} \\\\\n" for line in rest)
    return (
        f"\\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}\n\\toprule\n{first} \\\\\n\\midrule\n"
        f"{body}\\bottomrule\n\\end{{tabular}}"
    )
