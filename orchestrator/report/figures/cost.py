"""Figures of what each batch size costs."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from orchestrator.analysis import Cost, Priced, in_count
from orchestrator.report.figures.style import add_line, log2_axis, log10_axis, mark, safe, styled


def examples_against_steps(costs: Sequence[Cost], recipes: Sequence[str]) -> go.Figure:
    """Draws each batch size of each recipe; a filled mark is Pareto-optimal. `recipes` are all
    recipes of the page, in their order."""
    figure = go.Figure()
    for recipe in dict.fromkeys(cost.recipe for cost in costs):
        points = sorted((c for c in costs if c.recipe == recipe), key=lambda c: c.batch_size)
        look = mark(recipes.index(recipe))
        symbol = look["marker"]["symbol"]
        look["marker"]["symbol"] = [symbol if c.pareto else f"{symbol}-open" for c in points]
        look["line"]["width"] = 1
        add_line(figure, recipe, [(c.steps, c.examples, _describe(c)) for c in points], look)
    styled(figure, "Steps to goal", "Examples")
    figure.update_xaxes(**log2_axis(cost.steps for cost in costs))
    figure.update_yaxes(**log2_axis(cost.examples for cost in costs))
    return figure


def device_seconds_against_time(costs: Sequence[Cost], recipes: Sequence[str]) -> go.Figure:
    """Draws each batch size as a line from one device to as many as it keeps busy."""
    figure = go.Figure()
    for recipe in dict.fromkeys(cost.recipe for cost in costs):
        mine = [cost for cost in costs if cost.recipe == recipe]
        # A gap after each batch size.
        points = [(cost, one) for cost in mine for one in (*cost.priced, None)]
        look = mark(recipes.index(recipe))
        symbol = look["marker"]["symbol"]
        fronts = [symbol if one and one.pareto else f"{symbol}-open" for _, one in points]
        look["marker"] |= {"symbol": fronts, "size": 9}
        look["line"]["width"] = 1
        at = [
            (one and one.seconds, one and one.device_seconds, _describe(cost, one))
            for cost, one in points
        ]
        add_line(figure, recipe, at, look)
    styled(figure, "Seconds to goal", "Device-seconds")
    priced = [one for cost in costs for one in cost.priced]
    figure.update_xaxes(**log10_axis(one.seconds for one in priced))
    figure.update_yaxes(**log10_axis(one.device_seconds for one in priced))
    return figure


def _describe(cost: Cost, one: Priced | None = None) -> str:
    said = (
        f"<b>{safe(cost.recipe)}, batch size {cost.batch_size:,}</b><br>"
        f"{in_count(cost.steps)} steps, {in_count(cost.examples)} examples"
    )
    if one is not None:
        said += f"<br>on {one.devices} devices {one.seconds:.3g} s, {one.device_seconds:.3g} "
        said += "device-seconds" + ("" if one.money is None else f", {one.money:,.3g} in money")
        said += "<br>not timed: if exchanging gradients took no time" * (not one.timed)
    elif cost.seconds is not None:
        said += f"<br>{cost.seconds:.3g} s of training as measured of the winner"
    return said
