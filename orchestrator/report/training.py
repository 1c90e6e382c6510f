"""The fold of training: the goal's metric of the winners, and of other trials, as they train."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from orchestrator.records import Goal, StudyKey
from orchestrator.report.content import Curve, Panel, grouped
from orchestrator.report.sections import Show
from orchestrator.report.style import (
    MOST_CURVES,
    evenly,
    guide,
    log10_axis,
    of_size,
    rounded,
    safe,
    shaded,
    styled,
    value_axis,
)
from orchestrator.results import FrontierRow, Run
from orchestrator.results.counting import columns

MOST_POINTS = 160
"""The most points of a training curve that are drawn; the frontier always uses all points."""

MOST_LOSERS = 30
"""The most trials of a recipe that are drawn behind its winners."""

POINTS_OF_LOSER = 40


def curves_of_winners(run: Run, metric: str, rows: Sequence[FrontierRow]) -> dict[str, list[Curve]]:
    """Maps each recipe to a metric of the best trial of each batch size, as far as it was
    measured."""
    asked = [(row.key, row.trial) for row in rows if row.trial is not None]
    return _by_recipe(run.in_parallel(lambda one: _curve(run, metric, *one), asked))


def curves_of_losers(
    run: Run, metric: str, rows: Sequence[FrontierRow], trials: Mapping[StudyKey, Sequence[int]]
) -> dict[str, list[Curve]]:
    """Maps each recipe to the same metric of those of the `trials` that did not win. If there are
    too many, they are chosen evenly over batch sizes and trials."""
    asked = [
        (row.key, trial)
        for mine in grouped(rows, lambda row: row.recipe).values()
        for row in evenly(mine, MOST_LOSERS)
        for trial in evenly(
            [trial for trial in trials[row.key] if trial != row.trial],
            max(MOST_LOSERS // len(mine), 1),
        )
    ]
    return _by_recipe(
        run.in_parallel(lambda one: _curve(run, metric, *one, most=POINTS_OF_LOSER), asked)
    )


def _by_recipe(curves: Iterable[Curve | None]) -> dict[str, list[Curve]]:
    return grouped((curve for curve in curves if curve), lambda curve: curve.recipe)


def _curve(
    run: Run, metric: str, key: StudyKey, trial: int, most: int = MOST_POINTS
) -> Curve | None:
    _, step, value = columns(run.curve(key, trial), metric)
    # The axis is logarithmic.
    drawn = np.isfinite(value) & (step > 0)
    step, value = step[drawn], value[drawn]
    if not len(step):
        return None
    # Evenly in the logarithm, as it is drawn.
    wanted = np.geomspace(1, len(step), most).astype(int) - 1
    shown = np.unique(wanted[wanted < len(step)]) if len(step) > most else np.arange(len(step))
    return Curve(
        recipe=key.recipe,
        batch_size=key.batch_size,
        trial=trial,
        steps=step[shown].tolist(),
        values=[rounded(each, 6) for each in value[shown].tolist()],
    )


def training_curves(panel: Panel, show: Show) -> str:
    shown = ""
    for recipe, curves in panel.curves.items():
        losers = panel.losers.get(recipe, ())
        few = f", of {MOST_CURVES} batch sizes of {len(curves):,}" * (len(curves) > MOST_CURVES)
        faint = f"Faint lines: {len(losers)} of the other trials. " if losers else ""
        if recipe in panel.compact:
            faint += "The curves of all but the best trials are not in this compact run. "
        shown += show(
            _figure(curves, panel.goal, losers),
            f"{recipe}: {panel.goal.metric} while it trains",
            f"The winner of each batch size{few}, as strong lines.",
            f"{faint}Dark lines are small batch sizes, bright lines large ones. A trial stops at "
            f"its goal unless the sweep asks it to go on.",
        )
    return shown


def found(panel: Panel) -> str:
    return f"{panel.goal.metric} along the trainings"


def _figure(curves: Sequence[Curve], goal: Goal, losers: Sequence[Curve]) -> go.Figure:
    """Draws the best trial of each batch size, from small (dark) to large (bright), and behind
    them, faint, trials that did not win."""
    figure = go.Figure()
    of_sizes = {curve.batch_size: curve for curve in curves}
    for batch_size, colour in shaded(of_sizes):
        figure.add_scatter(**_faint(losers, batch_size), line={"color": colour, "width": 1})
    for batch_size, colour in shaded(of_sizes):
        curve = of_sizes[batch_size]
        figure.add_scatter(
            x=curve.steps, y=curve.values, name=f"{curve.batch_size:,}", mode="lines",
            legendgroup=f"{curve.batch_size}", line={"color": colour, "width": 2},
            hovertemplate=f"{of_size(curve.batch_size)}trial {curve.trial}, "
            "step %{x:,}: %{y:.4g}<extra></extra>",
        )  # fmt: skip
    steps = [step for curve in curves for step in curve.steps]
    figure.add_traces(guide([min(steps), max(steps)], [goal.bound, goal.bound], "goal"))
    styled(figure, "Step", safe(goal.metric), legend="batch size")
    figure.update_xaxes(**log10_axis(step for curve in (*curves, *losers) for step in curve.steps))
    values = [value for curve in (*curves, *losers) for value in curve.values]
    figure.update_yaxes(**value_axis([*values, goal.bound], goal))
    return figure


def _faint(losers: Sequence[Curve], batch_size: int) -> dict[str, Any]:
    """Joins all trials that did not win at one batch size, one after the other with gaps between
    them."""
    mine = [curve for curve in losers if curve.batch_size == batch_size]
    return {
        "x": [step for curve in mine for step in (*curve.steps, None)],
        "y": [value for curve in mine for value in (*curve.values, None)],
        "mode": "lines", "opacity": 0.3, "showlegend": False, "hoverinfo": "skip",
        "legendgroup": f"{batch_size}", "name": f"{batch_size:,}, other trials",
    }  # fmt: skip
