"""The fold of cost: what each batch size costs, and which are recommended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.analysis.cost import Cost, Priced
from orchestrator.analysis.words import in_count, in_digits, in_time
from orchestrator.records import counted, grouped
from orchestrator.report.content import Panel
from orchestrator.report.sections import Show, lead, table
from orchestrator.report.style import Drawing, mark, of_size

BY_STEP_TIMES = (
    "We compare every batch size on every number of devices on which steps were timed. "
    "Fastest: of all choices within 10 % of the shortest time to the goal, the choice with the "
    "fewest device-seconds. Cheapest: of all choices within 10 % of the fewest device-seconds, the "
    "choice with the shortest time. Balanced: the smallest product of time and device-seconds. "
    "Step times were measured while other trials ran, which may have slowed them down; of trials "
    "that are stacked, steps were timed alone up to three times, and the shortest time counts."
)

BY_STEPS = (
    "Not all batch sizes have step times that can be used, so steps stand for time and examples "
    "for work. Fastest: of all batch sizes within 10 % of the fewest steps, the batch size with "
    "the fewest examples. Cheapest: of all batch sizes within 10 % of the fewest examples, the "
    "batch size with the fewest steps. Balanced: the smallest product of steps and examples."
)


def costs(panel: Panel, show: Show) -> str:
    if not panel.costs:
        return ""
    shown = show(
        _examples_against_steps(panel.costs, panel.recipes),
        "Work against time",
        "",
        "Steps stand for time, if there are devices enough for the whole batch; examples stand for "
        "work. A filled mark is Pareto-optimal: no other batch size takes fewer steps without "
        "taking more examples.",
    )
    priced = [cost for cost in panel.costs if cost.priced]
    if priced:
        shown += show(
            _device_seconds_against_time(priced, panel.recipes),
            "Device-seconds against seconds",
            "",
            "Each batch size is a line from one device to as many as it keeps half busy. A filled "
            "mark is Pareto-optimal among the numbers of devices on which steps were timed. On "
            "other numbers, these are the times if exchanging gradients took no time."
            + ("" if panel.price is None else f" A device-hour costs {panel.price:g}."),
        )
    return shown


def recommended(panel: Panel, show: Show) -> str:
    """The table of the recommended batch sizes of each recipe, and how they follow."""
    rows = [
        [recipe, *map(_in_short, (advice.fastest, advice.balanced, advice.cheapest))]
        for recipe, advice in panel.advice_by_recipe.items()
    ]
    heads = ["Recipe", "Fastest", "Balanced", "Cheapest"]
    found = [advice for advice in (panel.advice, *panel.advice_by_recipe.values()) if advice]
    used = {advice.by_step_times for advice in found}
    basis = " ".join([BY_STEP_TIMES] * (True in used) + [BY_STEPS] * (False in used))
    shown = table("The recommended batch size of each recipe.", heads, rows)
    return shown + (lead(basis) if rows else "")


def _in_short(cost: Cost) -> str:
    timed = (f", {in_time(one.seconds)} on {counted(one.devices, 'device')}" for one in cost.priced)
    return f"{cost.batch_size:,} ({in_count(cost.steps)} steps{''.join(timed)})"


def finding(panel: Panel) -> str:
    best = sum(cost.pareto for cost in panel.costs)
    devices = {one.devices for cost in panel.costs for one in cost.priced if one.pareto}
    said = f"Pareto-optimal in steps and examples: {best:,} of {len(panel.costs):,} batch sizes"
    several = max(devices, default=1)
    return f"{said}; up to {counted(several, 'device')} pay off" if several > 1 else said


def _examples_against_steps(costs: Sequence[Cost], recipes: Sequence[str]) -> Drawing:
    """Draws each batch size of each recipe; a filled mark is Pareto-optimal. `recipes` are all
    recipes of the page, in their order."""
    figure = Drawing()
    ordered = sorted(costs, key=lambda cost: cost.batch_size)
    for recipe, mine in grouped(ordered, lambda cost: cost.recipe).items():
        look = _filled(recipes.index(recipe), [cost.pareto for cost in mine])
        figure.line(recipe, [(c.steps, c.examples, _describe(c)) for c in mine], look)
    figure.styled("Steps to goal", "Examples")
    figure.log2("x", (cost.steps for cost in costs))
    figure.log2("y", (cost.examples for cost in costs))
    return figure


def _device_seconds_against_time(costs: Sequence[Cost], recipes: Sequence[str]) -> Drawing:
    """Draws each batch size as a line from one device to as many as it keeps busy."""
    figure = Drawing()
    for recipe, mine in grouped(costs, lambda cost: cost.recipe).items():
        # A gap after each batch size.
        points = [(cost, one) for cost in mine for one in (*cost.priced, None)]
        look = _filled(recipes.index(recipe), [one is not None and one.pareto for _, one in points])
        look["marker"]["size"] = 9
        at = [
            (one and one.seconds, one and one.device_seconds, _describe(cost, one))
            for cost, one in points
        ]
        figure.line(recipe, at, look)
    figure.styled("Seconds to goal", "Device-seconds")
    priced = [one for cost in costs for one in cost.priced]
    figure.log10("x", (one.seconds for one in priced))
    figure.log10("y", (one.device_seconds for one in priced))
    return figure


def _filled(number: int, filled: Sequence[bool]) -> dict[str, Any]:
    """The look of the n-th recipe, its other marks hollow, whatever they are elsewhere."""
    look = mark(number)
    symbol = look["marker"]["symbol"].removesuffix("-open")
    look["marker"]["symbol"] = [symbol if one else f"{symbol}-open" for one in filled]
    look["line"]["width"] = 1
    return look


def _describe(cost: Cost, one: Priced | None = None) -> str:
    said = of_size(cost.batch_size, cost.recipe)
    said += f"{in_count(cost.steps)} steps, {in_count(cost.examples)} examples"
    if one is not None:
        said += f"<br>on {counted(one.devices, 'device')} {in_digits(one.seconds)} s, "
        said += f"{in_digits(one.device_seconds)} device-seconds"
        said += "" if one.money is None else f", {in_digits(one.money)} in money"
        said += "<br>not timed: if exchanging gradients took no time" * (not one.timed)
    elif cost.seconds is not None and not cost.priced:  # which are better known
        said += f"<br>{in_digits(cost.seconds)} s of training as measured of the winner"
    return said
