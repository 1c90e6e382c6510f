"""The fold of training: the goal's metric of the winners as they train."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from orchestrator.records import Goal, StudyKey
from orchestrator.report.content import Curve, Panel, grouped
from orchestrator.report.drawing import Drawing
from orchestrator.report.sections import Show
from orchestrator.report.style import (
    MOST_CURVES,
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


def curves_of_winners(run: Run, metric: str, rows: Sequence[FrontierRow]) -> dict[str, list[Curve]]:
    """Recipe -> a metric of the best trial of each batch size, as far as it was measured."""
    asked = [(row.key, row.trial) for row in rows if row.trial is not None]
    found = run.in_parallel(lambda one: _curve(run, metric, *one), asked)
    return grouped((curve for curve in found if curve), lambda curve: curve.recipe)


def _curve(run: Run, metric: str, key: StudyKey, trial: int) -> Curve | None:
    _, step, value = columns(run.curve(key, trial), metric)
    # The axis is logarithmic.
    drawn = np.isfinite(value) & (step > 0)
    step, value = step[drawn], value[drawn]
    if not len(step):
        return None
    # Evenly in the logarithm, as it is drawn.
    wanted = np.geomspace(1, len(step), MOST_POINTS).astype(int) - 1
    many = len(step) > MOST_POINTS
    shown = np.unique(wanted[wanted < len(step)]) if many else np.arange(len(step))
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
        few = f", of {MOST_CURVES} batch sizes of {len(curves):,}" * (len(curves) > MOST_CURVES)
        shown += show(
            _figure(curves, panel.goal),
            f"{recipe}: {panel.goal.metric} while it trains",
            f"The winner of each batch size{few}.",
            "Dark lines are small batch sizes, bright lines large ones. A trial stops at its goal "
            "unless the sweep asks it to go on.",
        )
    return shown


def found(panel: Panel) -> str:
    return f"{panel.goal.metric} along the trainings"


def _figure(curves: Sequence[Curve], goal: Goal) -> Drawing:
    """Draws the best trial of each batch size, from small (dark) to large (bright)."""
    figure = Drawing()
    of_sizes = {curve.batch_size: curve for curve in curves}
    for batch_size, colour in shaded(of_sizes):
        curve = of_sizes[batch_size]
        figure.add({
            "x": curve.steps, "y": curve.values, "name": f"{curve.batch_size:,}", "mode": "lines",
            "line": {"color": colour, "width": 2},
            "hovertemplate": f"{of_size(curve.batch_size)}trial {curve.trial}, "
            "step %{x:,}: %{y:.4g}<extra></extra>",
        })  # fmt: skip
    steps = [step for curve in curves for step in curve.steps]
    figure.add(guide([min(steps), max(steps)], [goal.bound, goal.bound], "goal"))
    styled(figure, "Step", safe(goal.metric), legend="batch size")
    figure.x_axes(**log10_axis(steps))
    values = [value for curve in curves for value in curve.values]
    figure.y_axes(**value_axis([*values, goal.bound], goal))
    return figure
