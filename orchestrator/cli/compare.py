"""The command `compare`: it prints where two runs of one sweep differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.options import DIFFER, DONE, GoalOption, JsonOption, print_json
from orchestrator.cli.terminal import answer, print_table
from orchestrator.records import cut

MOST_LISTED = 20
"""Largest number of differences that are printed."""

if TYPE_CHECKING:
    from orchestrator.analysis.pairs import CurvePair, StudyPair
    from orchestrator.analysis.two_runs import TwoRuns


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
    from orchestrator.analysis.two_runs import compare_runs
    from orchestrator.results import RunFiles, parse_goals

    found = compare_runs(RunFiles.open(a), RunFiles.open(b), parse_goals(goal or []))
    if as_json:
        print_json(found.to_json())
    else:
        _print(found)
    return DIFFER if found.agreement.verdict == "differ" else DONE


def _print(found: TwoRuns) -> None:
    from orchestrator.analysis.two_runs import agreement_in_words, remarks_on
    from orchestrator.analysis.words import in_count, in_words

    agreement = found.agreement
    answer(agreement_in_words(agreement))
    if found.differences:
        answer("")
        _print_differences(found)
    answer("")
    steps = {
        pair: (
            f"{pair.batch_size:,}",
            *("" if of is None else in_words(of, in_count) for of in (pair.a, pair.b)),
        )
        for pair in agreement.studies
    }
    _print_pairs(steps, ("Batch size", "Steps in A", "Steps in B"))
    for remark in remarks_on(agreement):
        answer(remark)
    if any(pair.a or pair.b for pair in agreement.curves):
        answer("")
        bends = {
            pair: tuple(
                "none" if of is None else said
                for of, said in zip((pair.a, pair.b), pair.said, strict=True)
            )
            for pair in agreement.curves
        }
        _print_pairs(bends, ("+20 % examples in A at", "in B at"))


def _print_differences(found: TwoRuns) -> None:
    """Prints where the runs, and what may explain other results, differ."""
    rows = []
    for one in found.differences[:MOST_LISTED]:
        a, b = ("-" if value is None else cut(str(value)) for value in (one.a, one.b))
        rows.append({"Difference": one.what, "A": a, "B": b})
    if (more := len(found.differences) - MOST_LISTED) > 0:
        rows.append({"Difference": f"and {more} more, which --json lists", "A": "", "B": ""})
    print_table(rows)


def _print_pairs(
    rows: Mapping[StudyPair, tuple[str, ...]] | Mapping[CurvePair, tuple[str, ...]],
    headings: tuple[str, ...],
) -> None:
    """Prints pairs with their numbers as text, under a workload and goal that all share."""
    from orchestrator.analysis.pairs import StudyPair
    from orchestrator.analysis.words import factor_in_words

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
    print_table(cells, numbers=(*headings, "B / A"), shared=shared)
