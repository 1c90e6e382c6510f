"""The command `scale`: best batch sizes for amounts of training, and laws over data and model."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.options import GoalOption, JsonOption, print_json
from orchestrator.cli.terminal import answer
from orchestrator.records import BadInput, unknown, wrong_value

if TYPE_CHECKING:
    from orchestrator.analysis.scale_laws import Law


def scale(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="RUN", help="Folders of runs, or buckets: s3://BUCKET/FOLDER."),
    ],
    metric: Annotated[
        str | None,
        typer.Option(help="Metric whose best value is asked for. Default: that of the first goal."),
    ] = None,
    maximise: Annotated[
        bool | None,
        typer.Option(
            "--maximise/--minimise",
            help="Whether the largest or the smallest value is best. Default: as in the run's "
            "goals, else the smallest.",
        ),
    ] = None,
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
    from rich.table import Table

    from orchestrator.analysis.best_batch import best_in_words, notes_on
    from orchestrator.analysis.scale_laws import law_in_words, predicted_in_words, scale_answer
    from orchestrator.cli.answers import print_table
    from orchestrator.results import Run, Within, parse_goals

    place = _place(at or [])
    found = scale_answer(
        [Run.open(path) for path in paths],
        metric,
        within=[Within.parse(text) for text in within or []],
        goals=parse_goals(goal or []),
        maximise=maximise,
    )
    asked = {n: law.at(place) for n, law in enumerate(found.laws) if _is_at(law, place)}
    if place and found.laws and not asked:
        names = {name for law in found.laws for name in law.exponents}
        raise unknown("place on the scales of the laws", ", ".join(place), names)
    if as_json:
        told = {n: asdict(one) for n, one in asked.items()}
        laws = [{**law.to_json(), "at": told.get(n)} for n, law in enumerate(found.laws)]
        bests = [best.to_json() for best in found.bests]
        print_json({"best_batch_sizes": bests, "laws": laws, "notes": found.notes})
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("Workload", "Recipe", "Within", "Best batch size", "Notes"):
        table.add_column(heading, overflow="fold")
    for best in found.bests:
        said = best_in_words(best), "; ".join(notes_on(best))
        table.add_row(best.workload, best.recipe, best.within, *said)
    print_table(table)
    for n, law in enumerate(found.laws):
        first, *more = law_in_words(law)
        answer(f"\n{first}")
        for line in [*more, *([predicted_in_words(law, asked[n])] if n in asked else [])]:
            answer(f"  {line}")
    for note in found.notes:
        answer(f"No law: {note}." if not found.laws else f"Left out of the laws: {note}.")


def _place(texts: list[str]) -> dict[str, float]:
    place: dict[str, float] = {}
    for text in texts:
        name, _, number = text.partition("=")
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not (name and 0 < value < math.inf):
            raise wrong_value("`--at`", "SCALE=N with N above 0, such as data=1e12", text)
        if name in place:
            raise BadInput(f"`--at {name}` is given twice.", code="given-twice")
        place[name] = value
    return place


def _is_at(law: Law, place: dict[str, float]) -> bool:
    return law.exponents.keys() <= place.keys()
