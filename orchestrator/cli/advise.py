"""The command `advise`: it prints what to train next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from orchestrator.cli.options import GoalOption, JsonOption, RunArgument, print_json
from orchestrator.cli.terminal import answer, table_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.cli.advising import Suggestion


def advise(path: RunArgument, goal: GoalOption = None, as_json: JsonOption = False) -> None:
    """Recommend what to train next in a sweep. Lists at most three additions, of trials, repeats or
    a batch size, that narrow its answers most for their price, with the commands that train
    them."""
    from orchestrator.cli.advising import advised_for
    from orchestrator.cli.answers import print_table
    from orchestrator.results import RunFiles, parse_goals

    suggestions, remarks = advised_for(RunFiles.open(path), parse_goals(goal or []))
    if as_json:
        print_json({"steps": [one.to_json() for one in suggestions], "remarks": remarks})
        return
    if suggestions:
        print_table(advice_table(suggestions))
    else:
        answer("No step narrows an interval enough to be worth its price.")
    lines = [f"{n}: {one.command}" for n, one in enumerate(suggestions, 1) if one.command]
    if lines:
        answer("\nEach command takes one step. Take the first, then ask for advice again:")
    for line in lines:
        answer(line)
    for remark in remarks:
        answer(f"\n{remark}")


def advice_table(suggestions: Sequence[Suggestion]) -> Table:
    """The steps as a table; the step that narrows most for its price comes first."""
    from orchestrator.analysis.next_steps import effect_in_words, step_in_words

    effects = [effect for one in suggestions for effect in one.step.effects]
    many_goals = len({effect.goal for effect in effects}) > 1
    rows = []
    for number, one in enumerate(suggestions, 1):
        ratios = [
            f"{effect.recipe}{f', {effect.goal}' * many_goals}: {effect_in_words(effect)}"
            for effect in one.step.effects
        ]
        of_step = {
            "#": str(number),
            "Train": step_in_words(one.step),
            "+20 % examples at: upper end / lower end": "\n".join(ratios),
            "Price": _price(one),
        }
        rows.append(of_step)
    return table_of(rows)


def _price(one: Suggestion) -> str:
    from orchestrator.analysis import in_count, in_time

    step = one.step
    said = [f"{step.trainings:,.0f} trainings", f"{in_count(round(step.examples, -3))} examples"]
    if step.seconds is not None:
        said.append(f"{in_time(step.seconds)} of one device")
    if one.money is not None:
        said.append(f"{one.money:,.2f} in money")
    return ", ".join(said)
