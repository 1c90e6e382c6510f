"""Figures that show whether large batches degrade quality."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from orchestrator.analysis import Gap, Held
from orchestrator.analysis.quality import ACCURACY_SHARE
from orchestrator.records import Goal
from orchestrator.report.figures.style import (
    MOST_CURVES,
    add_line,
    evenly,
    graded,
    guide,
    log2_axis,
    mark,
    safe,
    styled,
    value_axis,
)
from orchestrator.results import BestRow


def best_within(rows: Sequence[BestRow], goal: Goal) -> go.Figure:
    """Draws one recipe: a line per budget, small (dark) to large (bright), with budgets in steps on
    the left and in epochs on the right."""
    units = [unit for unit in ("steps", "epochs") if any(_unit(row) == unit for row in rows)]
    figure = make_subplots(
        rows=1, cols=len(units), shared_yaxes=True, horizontal_spacing=0.04,
        subplot_titles=[f"within so many {unit}" for unit in units],
    )  # fmt: skip
    for column, unit in enumerate(units, start=1):
        budgets = dict.fromkeys(row.within or "" for row in rows if _unit(row) == unit)
        for budget, look in zip(budgets, graded(len(budgets)), strict=True):
            points = sorted(
                (row for row in rows if row.within == budget and row.value is not None),
                key=lambda row: row.batch_size,
            )
            hover = [f"<b>batch size {row.batch_size:,}</b><br>{_which(row)}" for row in points]
            at = [
                (row.batch_size, row.value, text) for row, text in zip(points, hover, strict=True)
            ]
            add_line(figure, budget.replace("=", " "), at, look, row=1, col=column)
    styled(figure, "Batch size", "")
    figure.update_layout(margin={"t": 60}, legend={"y": 1.1})
    figure.update_xaxes(**log2_axis(row.batch_size for row in rows))
    figure.update_yaxes(**value_axis(_values(rows), goal))
    figure.update_yaxes(title=f"Best {safe(rows[0].metric)}", col=1)
    return figure


def training_longer(rows: Sequence[BestRow], goal: Goal) -> go.Figure:
    """Draws, for one recipe, the best value against the budget, with a line per batch size."""
    unit = "epochs" if any(_unit(row) == "epochs" for row in rows) else "steps"
    mine = [row for row in rows if _unit(row) == unit and row.value is not None]
    sizes = evenly(sorted({row.batch_size for row in mine}), MOST_CURVES)
    figure = go.Figure()
    for size, look in zip(sizes, graded(len(sizes)), strict=True):
        points = sorted(
            ((_amount(row), row) for row in mine if row.batch_size == size), key=lambda p: p[0]
        )
        at = [
            (amount, row.value, f"<b>batch size {size:,}, {amount:g} {unit}</b><br>{_which(row)}")
            for amount, row in points
        ]
        add_line(figure, f"{size:,}", at, look)
    styled(figure, f"Budget in {unit}", f"Best {safe(rows[0].metric)}")
    figure.update_layout(legend={"title": {"text": "batch size "}})
    figure.update_xaxes(**log2_axis(map(_amount, mine)))
    figure.update_yaxes(**value_axis(_values(mine), goal))
    return figure


def ladder(rows: Sequence[BestRow], recipes: Sequence[str], goal: Goal) -> go.Figure:
    """Draws the best value of each recipe, in the recipes' order, with a line per batch size."""
    figure = go.Figure()
    sizes = evenly(sorted({row.batch_size for row in rows}), MOST_CURVES)
    for size, look in zip(sizes, graded(len(sizes)), strict=True):
        by_recipe = {row.recipe: row for row in rows if row.batch_size == size}
        mine = [by_recipe[recipe] for recipe in recipes if recipe in by_recipe]
        mine = [row for row in mine if row.value is not None]
        names = [safe(row.recipe) for row in mine]
        at = [
            (name, row.value, f"<b>{name}, batch size {size:,}</b><br>{_which(row)}")
            for name, row in zip(names, mine, strict=True)
        ]
        add_line(figure, f"{size:,}", at, look)
    styled(figure, "", f"Best {safe(rows[0].metric)}")
    figure.update_layout(legend={"title": {"text": "batch size "}})
    figure.update_xaxes(
        type="category", categoryorder="array", categoryarray=[safe(name) for name in recipes]
    )
    figure.update_yaxes(**value_axis(_values(rows), goal))
    return figure


def accuracy_held(held: Sequence[Held], recipes: Sequence[str]) -> go.Figure:
    """Draws the share of the baseline's accuracy that each recipe reached at each batch size."""
    figure = go.Figure()
    sizes = [one.batch_size for one in held]
    bounds = [ACCURACY_SHARE, ACCURACY_SHARE]
    figure.add_traces(guide([min(sizes), max(sizes)], bounds, f"{ACCURACY_SHARE:.1%}"))
    for recipe in dict.fromkeys(one.recipe for one in held):
        points = sorted((one for one in held if one.recipe == recipe), key=lambda o: o.batch_size)
        at = []
        for one in points:
            text = f"<b>{safe(recipe)}, batch size {one.batch_size:,}</b><br>"
            text += f"{one.accuracy_share:.2%} of the baseline's accuracy"
            text += "" if one.loss_ratio is None else f"<br>{one.loss_ratio:.3g} x its loss"
            at.append((one.batch_size, one.accuracy_share, text))
        add_line(figure, recipe, at, mark(recipes.index(recipe)))
    styled(figure, "Batch size", "Share of the baseline's accuracy")
    figure.update_xaxes(**log2_axis(sizes))
    # What fails altogether would flatten what is near.
    shares = [one.accuracy_share for one in held]
    low = min([share for share in shares if share > 0.9], default=min(shares))
    figure.update_yaxes(tickformat=".1%", range=[low - 0.01, max([*shares, 1]) + 0.005])
    return figure


def generalisation_gap(gaps: Sequence[Gap], metric: str, recipes: Sequence[str]) -> go.Figure:
    """Draws how much better the winners are on their training set than on the test set."""
    figure = go.Figure()
    for recipe in dict.fromkeys(gap.recipe for gap in gaps):
        points = sorted((gap for gap in gaps if gap.recipe == recipe), key=lambda g: g.batch_size)
        at = []
        for gap in points:
            text = f"<b>{safe(recipe)}, batch size {gap.batch_size:,}</b><br>{gap.judged:.4g} "
            text += f"against {gap.trained:.4g} in training"
            at.append((gap.batch_size, gap.value, text))
        add_line(figure, recipe, at, mark(recipes.index(recipe)))
    styled(figure, "Batch size", f"Gap in {safe(metric)}")
    figure.update_xaxes(**log2_axis(gap.batch_size for gap in gaps))
    return figure


def _values(rows: Sequence[BestRow]) -> list[float]:
    return [row.value for row in rows if row.value is not None]


def _which(row: BestRow) -> str:
    return f"{row.value:.4g} at step {row.step:,}, trial {row.trial}"


def _amount(row: BestRow) -> float:
    return float((row.within or "").partition("=")[2] or 0)


def _unit(row: BestRow) -> str:
    return (row.within or "").partition("=")[0]
