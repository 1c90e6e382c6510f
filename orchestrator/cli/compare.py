"""The commands `compare`, for two runs of one sweep, and `scale`, for laws over data and model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from orchestrator.cli.options import (
    DIFFER,
    DONE,
    GoalOption,
    JsonOption,
    MaximiseOption,
    print_json,
)
from orchestrator.cli.report import names_of
from orchestrator.cli.terminal import answer, table_of
from orchestrator.records import cut, unknown, wrong_value

MOST_LISTED = 20
"""Largest number of differences that are printed."""

if TYPE_CHECKING:
    from orchestrator.analysis import CurvePair, StudyPair, TwoRuns


def compare(
    a: Annotated[
        str, typer.Argument(metavar="A", help="Folder of a run, or a bucket: s3://BUCKET/FOLDER.")
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="Another run of the same sweep file.")],
    goal: GoalOption = None,
    as_json: JsonOption = False,
) -> int:
    """Show where two runs of one sweep file differ beyond their intervals. The exit code is 4 if
    they differ beyond chance."""
    from orchestrator.analysis import compare_runs
    from orchestrator.results import RunFiles, parse_goals

    found = compare_runs(RunFiles.open(a), RunFiles.open(b), parse_goals(goal or []))
    if as_json:
        print_json(found.to_json())
    else:
        _print(found)
    return DIFFER if found.agreement.verdict == "differ" else DONE


def _print(found: TwoRuns) -> None:
    from orchestrator.analysis import agreement_in_words, in_count, in_words, remarks_on
    from orchestrator.cli.answers import print_table

    agreement = found.agreement
    answer(agreement_in_words(agreement))
    if found.differences:
        answer("")
        print_table(differences_table(found))
    answer("")
    steps = {
        pair: (
            f"{pair.batch_size:,}",
            *("" if of is None else in_words(of, in_count) for of in (pair.a, pair.b)),
        )
        for pair in agreement.studies
    }
    print_table(pairs_table(steps, ("Batch size", "Steps in A", "Steps in B")))
    for remark in remarks_on(agreement):
        answer(remark)
    if any(pair.a or pair.b for pair in agreement.curves):
        answer("")
        bends = {
            pair: tuple("none" if of is None else in_words(of) for of in (pair.a, pair.b))
            for pair in agreement.curves
        }
        print_table(pairs_table(bends, ("+20 % examples in A at", "in B at")))


def differences_table(found: TwoRuns) -> Table:
    """What the runs were asked for, and what may explain other results, where these differ."""
    rows = []
    for one in found.differences[:MOST_LISTED]:
        a, b = ("-" if value is None else cut(str(value)) for value in (one.a, one.b))
        rows.append({"Difference": one.what, "A": a, "B": b})
    if (more := len(found.differences) - MOST_LISTED) > 0:
        rows.append({"Difference": f"and {more} more, which --json lists", "A": "", "B": ""})
    return table_of(rows)


def pairs_table(
    rows: Mapping[StudyPair, tuple[str, ...]] | Mapping[CurvePair, tuple[str, ...]],
    headings: tuple[str, ...],
) -> Table:
    """Pairs with their numbers as text. A workload and goal that all share are in the title."""
    from orchestrator.analysis import StudyPair, factor_in_words

    cells = []
    for pair, said in rows.items():
        reason = pair.reason if isinstance(pair, StudyPair) else ""
        of_pair = {
            "Workload": pair.workload,
            "Goal": pair.goal,
            "Recipe": pair.recipe,
            **dict(zip(headings, said, strict=True)),
            "B / A": "" if pair.ratio is None else factor_in_words(pair.ratio),
            "Verdict": pair.verdict
            + " beyond chance" * pair.beyond_chance
            + f": {reason}" * bool(reason),
        }
        cells.append(of_pair)
    shared = {"Workload": "{}", "Goal": "until {}"}
    return table_of(cells, numbers=(*headings, "B / A"), shared=shared)


def scale(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="RUN", help="Folders of runs, or buckets: s3://BUCKET/FOLDER."),
    ],
    metric: Annotated[
        str | None,
        typer.Option(help="Metric whose best value is asked for. Default: that of the first goal."),
    ] = None,
    maximise: MaximiseOption = None,
    within: Annotated[
        list[str] | None,
        typer.Option(
            metavar="UNIT=N",
            help="Amount of training: steps, examples, epochs or seconds, such as examples=1e9. "
            "Repeatable. Default: the whole budget.",
        ),
    ] = None,
    goal: GoalOption = None,
    at: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SCALE=N",
            help="Place for which the laws are told, such as --at data=1e12 --at model=7e9.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the batch size with the best value at a fixed amount of training, and how it and the
    critical batch size grow with data and model, over the workloads of one or several runs."""
    from orchestrator.analysis.best_batch import HEADS, rows_of
    from orchestrator.analysis.scale_laws import law_in_words, predicted_in_words, scale_answer
    from orchestrator.cli.answers import print_table
    from orchestrator.results import RunFiles, Within, parse_goals

    scales = _place(at or [])
    found = scale_answer(
        {name: RunFiles.open(path) for name, path in zip(names_of(paths), paths, strict=True)},
        metric,
        within=[Within.parse(text) for text in within or []],
        goals=parse_goals(goal or []),
        maximise=maximise,
    )
    laws = [(law, law.at(scales) if {*law.exponents} <= {*scales} else None) for law in found.laws]
    if scales and laws and not any(there for _, there in laws):
        names = {name for law in found.laws for name in law.exponents}
        raise unknown("place on the scales of the laws", ", ".join(scales), names)
    if as_json:
        laws_as_json = [{**law.to_json(), "at": there and asdict(there)} for law, there in laws]
        bests = [asdict(best) for best in found.bests]
        print_json({"best_batch_sizes": bests, "laws": laws_as_json, "notes": found.notes})
        return
    rows = [dict(zip(HEADS, row, strict=True)) for row in rows_of(found.bests)]
    print_table(table_of(rows, shared={"Recipe": "{}"}))
    for law, there in laws:
        first, *more = law_in_words(law)
        answer(f"\n{law.quantity}, {law.recipe}: {first}")
        for line in [*more, *([predicted_in_words(law, there)] if there else [])]:
            answer(f"  {line}")
    for note in found.notes:
        answer(f"\nLaws: {note}.")


def _place(texts: list[str]) -> dict[str, float]:
    scales: dict[str, float] = {}
    for text in texts:
        name, _, number = text.partition("=")
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not (name and 0 < value < math.inf) or name in scales:
            rule = "SCALE=N with N above 0, once for each scale, such as data=1e12"
            raise wrong_value("`--at`", rule, text)
        scales[name] = value
    return scales
