"""The command `scale`: best batch sizes for amounts of training, and laws over data and model."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Annotated

import typer

from orchestrator.cli.options import GoalOption, JsonOption, MaximiseOption, print_json
from orchestrator.cli.report import names_of
from orchestrator.cli.terminal import answer, print_table
from orchestrator.records import refuse_unknown, unknown, wrong_value


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
            help="Amount of training: steps, examples or epochs, such as examples=1e9. Repeatable. "
            "Default: the whole budget.",
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
    if scales and laws:
        names = {name for law in found.laws for name in law.exponents}
        refuse_unknown("scale of the laws", scales, names)
        if not any(there for _, there in laws):
            raise unknown("place on the scales of the laws", ", ".join(scales), names)
    if as_json:
        laws_as_json = [{**law.to_json(), "at": there and asdict(there)} for law, there in laws]
        bests = [asdict(best) for best in found.bests]
        print_json({"best_batch_sizes": bests, "laws": laws_as_json, "notes": found.notes})
        return
    rows = [dict(zip(HEADS, row, strict=True)) for row in rows_of(found.bests)]
    print_table(rows, shared={"Recipe": "{}"})
    for law, there in laws:
        first, *more = law_in_words(law)
        answer(f"\n{law.quantity}, {law.recipe}: {first}")
        for line in [*more, *([predicted_in_words(law, there)] if there else [])]:
            answer(f"  {line}")
    for note in found.notes:
        answer(f"\nLaws: {note}.")


def _place(texts: list[str]) -> dict[str, float]:
    from orchestrator.results.tables import as_number

    scales: dict[str, float] = {}
    for text in texts:
        name, _, number = text.partition("=")
        value = as_number(number) or math.nan
        if not (name and 0 < value < math.inf) or name in scales:
            rule = "SCALE=N with N above 0, once for each scale, such as data=1e12"
            raise wrong_value("`--at`", rule, text)
        scales[name] = value
    return scales
