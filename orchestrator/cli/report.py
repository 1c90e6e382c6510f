"""The command `report`: it writes a page about runs, or prints its answers as JSON."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from orchestrator.cli.options import GoalOption, JsonOption, PriceOption, print_json, refuse_both
from orchestrator.cli.terminal import answer
from orchestrator.records import BadInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.cli.answers import Format
    from orchestrator.report import Source
    from orchestrator.results import FrontierRow, GoalOf, RunFiles


def report(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="RUN", help="Folders of runs; several are compared on one page."),
    ],
    goal: GoalOption = None,
    output: Annotated[
        str | None,
        typer.Option("-o", "--output", help="File of the page. Default: RUN/report.html."),
    ] = None,
    price: PriceOption = None,
    methods: Annotated[
        bool,
        typer.Option("--methods", help="Print instead what was done, in sentences for a paper."),
    ] = False,
    table: Annotated[
        Literal["latex", "markdown", "csv"] | None,
        typer.Option(help="Print instead the answer of each curve, as a table for a paper."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write one HTML page about runs, or print its answers: as JSON, or for a paper."""
    from orchestrator.files.places import Place
    from orchestrator.report import Source, write_page_of, write_report_of
    from orchestrator.results import RunFiles, holds_branches, parse_goals

    page, paper = {"output": output}, {"methods": methods, "table": table}
    refuse_both({"json": as_json}, {**page, **paper})
    refuse_both(paper, page)
    names = names_of(paths)
    goals = parse_goals(goal or [])
    opened = {name: RunFiles.open(path) for name, path in zip(names, paths, strict=True)}
    if branches := [str(run.place) for run in opened.values() if holds_branches(run)]:
        wrong = [
            f"--{name}" for name, value in {"goal": goal, "price": price, **paper}.items() if value
        ]
        if len(opened) > 1 or wrong:
            raise BadInput(
                f"A report on branches of one training, as {', '.join(branches)} holds, is about "
                f"this run alone, and takes no {' or '.join(wrong or ['other run'])}.",
                code="holds-branches",
            )
        from orchestrator.analysis.branch_answer import answer_in

        found = answer_in(opened[names[0]])
        if as_json:
            print_json(found.to_json())
            return
        write = partial(write_page_of, found.run, found)
    else:
        rows = _frontiers([*opened.values()], goals)
        many = len(opened) > 1
        sources = [
            Source(run=run, rows=of_run, label=name if many else "")
            for (name, run), of_run in zip(opened.items(), rows, strict=True)
        ]
        if as_json:
            print_json(_answers(sources, price))
            return
        if methods or table:
            _for_paper(sources, table, methods=methods)
            return
        if output is None and many:
            raise BadInput("A page about several runs needs -o FILE.html.", code="missing-option")
        write = partial(write_report_of, sources, price=price)
    place = Place.at(output) if output else opened[names[0]].page
    try:
        write(place)
    except OSError as error:
        reason = error.strerror or error
        raise BadInput(f"{place} can't be written: {reason}.", code="unwritable") from None
    answer(place)


def _for_paper(sources: Sequence[Source], format_: Format | None, *, methods: bool) -> None:
    from orchestrator.analysis import scalings
    from orchestrator.analysis.methods import methods_of
    from orchestrator.cli.answers import answer_cells, in_format

    if format_ is not None:
        cells = [
            {"Run": source.label, **row}
            for source in sources
            for row in answer_cells(scalings(source.rows), source.rows)
        ]
        answer(in_format(cells, format_))
    for source in sources if methods else ():
        answer(("\n" if format_ else "") + methods_of(source.run, source.rows))


def _frontiers(runs: Sequence[RunFiles], goals: Sequence[GoalOf]) -> list[list[FrontierRow]]:
    """The frontier of each run. A goal applies to those runs that have its workloads; a goal that
    no run has a workload for applies to all, so that it is refused by name."""
    from orchestrator.report.scales import frontier_for_page

    asked = [[goal for goal in goals if any(map(goal.asked_of, run.studies()))] for run in runs]
    nowhere = [goal for goal in goals if not any(goal in of_run for of_run in asked)]
    return [
        frontier_for_page(run, [*of_run, *nowhere]) if of_run or nowhere or not goals else []
        for run, of_run in zip(runs, asked, strict=True)
    ]


def _answers(sources: Sequence[Source], price: float | None) -> list[dict[str, object]]:
    """For each curve: where it bends, and the batch size that is recommended."""
    from orchestrator.analysis.forecasts import comparisons_of
    from orchestrator.report import price_of

    found = []
    price = price_of(sources[0].run) if price is None else price
    for source in sources:
        for panel in replace(source, label="").answers(price):
            advice = {recipe: asdict(one) for recipe, one in panel.advice_by_recipe.items()}
            known = comparisons_of(source.run, panel.rows, panel.scalings)
            beside = {one.recipe: one.to_json() for one in known}
            held = {holding.first.recipe: holding.to_json() for holding in panel.holdings}
            for scaling in panel.scalings:
                answer = {
                    **scaling.to_json(),
                    "recommended": advice.get(scaling.recipe),
                    "forecast": beside.get(scaling.recipe),
                    "holding": held.get(scaling.recipe),
                }
                found.append({"run": source.label, **answer} if source.label else answer)
    return found


def names_of(paths: Sequence[str]) -> list[str]:
    """The last part of each path, or whole paths if two of these parts are the same."""
    paths = [path.rstrip("/") for path in paths]
    last = [path.rpartition("/")[2] for path in paths]
    names = last if len(set(last)) == len(last) else [*paths]
    if len(set(names)) < len(names):
        raise BadInput("The same run is given twice. Name each run once.", code="given-twice")
    return names
