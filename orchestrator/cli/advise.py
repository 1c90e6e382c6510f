"""The command `advise`: it prints what to train next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from orchestrator.cli.options import GoalOption, JsonOption, RunArgument, print_json
from orchestrator.cli.terminal import answer
from orchestrator.records import wrong_value

if TYPE_CHECKING:
    from orchestrator.cli.advising import Advised


def advise(
    path: RunArgument,
    goal: GoalOption = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="examples=N",
            help="Combine steps that together train on at most N examples. Default: each step by "
            "itself.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Recommend what to train next in a sweep. Lists the additional trials, repeats and batch sizes
    that narrow the interval of B_crit most for their price, with the commands that train them."""
    from orchestrator.cli.advising import advised_for
    from orchestrator.cli.answers import print_table
    from orchestrator.results import Run, parse_goals

    examples = None if budget is None else _examples_of(budget)
    found = advised_for(Run.open(path), parse_goals(goal or []), examples=examples)
    if as_json:
        print_json(found.to_json())
        return
    if found.suggestions:
        print_table(advice_table(found))
    else:
        answer("No step narrows an interval enough to be worth its price.")
    for line in commands_in_words(found):
        answer(line)
    for remark in found.remarks:
        answer(f"\n{remark}")


def advice_table(found: Advised) -> Table:
    """The steps as a table; the step that narrows most for its price comes first."""
    from orchestrator.analysis.step_words import (
        addition_in_words,
        effect_in_words,
        price_in_words,
    )

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("", justify="right")
    table.add_column("Train", overflow="fold")
    table.add_column("Interval of B_crit, upper end / lower end", overflow="fold")
    table.add_column("Price", overflow="fold")
    many_goals = len({curve.goal for curve in found.curves}) > 1
    for number, suggestion in enumerate(found.suggestions, 1):
        effects = [
            f"{effect.recipe}{f', {effect.goal}' * many_goals}: {effect_in_words(effect)}"
            for effect in suggestion.step.effects
        ]
        table.add_row(
            str(number),
            addition_in_words(suggestion.step.addition),
            "\n".join(effects) or "not known yet",
            price_in_words(suggestion.step, suggestion.money),
        )
    return table


def commands_in_words(found: Advised) -> list[str]:
    """The command of each step, or one command for all steps."""
    if found.together is not None:
        return ["\nOne command for all steps:", f"  {found.together}"]
    lines = [
        f"{number}: {suggestion.command}"
        for number, suggestion in enumerate(found.suggestions, 1)
        if suggestion.command is not None
    ]
    if not lines:
        return []
    return ["\nEach command takes one step. Take the first, then ask for advice again:", *lines]


def _examples_of(budget: str) -> float:
    from orchestrator.results import Within

    parsed = Within.parse(budget)
    if parsed.unit != "examples":
        raise wrong_value("--budget", "examples=NUMBER, as steps differ in cost", budget)
    return parsed.amount
