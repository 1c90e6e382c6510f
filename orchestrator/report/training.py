"""The folds along trainings: the winners' metric, and what the noise scale forecasts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from orchestrator.analysis.forecasts import Comparison, a_fifth_more
from orchestrator.analysis.words import ends_of, factor_in_words, in_words
from orchestrator.records import Goal, StudyKey, grouped
from orchestrator.records.stages import TRUNK
from orchestrator.report.content import Curve, Panel
from orchestrator.report.sections import Show, table
from orchestrator.report.style import (
    MOST_CURVES,
    Drawing,
    guide,
    of_size,
    rounded,
    safe,
    shaded,
    value_axis,
)
from orchestrator.results import FrontierRow, RunFiles
from orchestrator.results.counting import columns

MOST_POINTS = 160
"""The most points of a training curve that are drawn; the frontier always uses all points."""


def curves_of_winners(
    run: RunFiles, metric: str, rows: Sequence[FrontierRow]
) -> dict[str, list[Curve]]:
    """Recipe -> a metric of the best trial of each batch size, as far as it was measured: of one
    that is cooled down, along its trunk and at the ends of its cooldowns."""
    found = run.in_parallel(partial(_curves, run, metric), rows)
    return grouped((curve for curves in found for curve in curves), lambda curve: curve.recipe)


def _curves(run: RunFiles, metric: str, row: FrontierRow) -> list[Curve]:
    if row.trial is None:
        return []
    measured, found = run.curve(row.key, row.trial), list[Curve | None]()
    if row.cooldown is not None and row.steps:
        trials = run.trials(row.key, ["trial", "steps"])
        steps = trials["steps"].to_pylist()[trials["trial"].to_pylist().index(row.trial)]
        found.append(_curve(measured, metric, row.key, row.trial, trained=steps / row.steps))
        metric = TRUNK + metric
    found.append(_curve(measured, metric, row.key, row.trial))
    return [curve for curve in found if curve is not None]


def _curve(
    measured: pa.Table, metric: str, key: StudyKey, trial: int, *, trained: float | None = None
) -> Curve | None:
    _, step, value = columns(measured, metric)
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
        trained=trained,
    )


def training_curves(panel: Panel, show: Show) -> str:
    shown = ""
    for recipe, curves in panel.curves.items():
        few = f", of {MOST_CURVES} batch sizes of {len(curves):,}" * (len(curves) > MOST_CURVES)
        said = "Dark lines are small batch sizes, bright lines large ones."
        if not panel.is_imported:
            said += " A trial of a search stops at its goal unless the sweep asks it to go on."
        if trained := [one.trained for one in curves if one.trained is not None]:
            said += (
                f" Points are ends of cooldowns, lines the trunks that they leave. With all of "
                f"them, these trials trained {ends_of(trained, '.1f')} times the steps of their "
                f"answers."
            )
        shown += show(
            _figure(curves, panel.goal),
            f"{recipe}: {panel.goal.metric} while it trains",
            f"The winner of each batch size{few}.",
            said,
        )
    return shown


def finding(panel: Panel) -> str:
    return f"{panel.goal.metric} along the trainings"


def _figure(curves: Sequence[Curve], goal: Goal) -> Drawing:
    """Draws the best trial of each batch size, from small (dark) to large (bright)."""
    figure = Drawing()
    of_sizes = grouped(curves, lambda curve: curve.batch_size)
    for batch_size, colour in shaded(of_sizes):
        for curve in of_sizes[batch_size]:
            what = ", end of a cooldown" if curve.trained else ""
            style = (
                {"mode": "markers", "marker": {"color": colour, "size": 7}, "showlegend": False}
                if curve.trained
                else {"mode": "lines", "line": {"color": colour, "width": 2}}
            )
            figure.add({
                "x": curve.steps, "y": curve.values, "name": f"{batch_size:,}", **style,
                "legendgroup": f"{batch_size}",
                "hovertemplate": f"{of_size(batch_size)}trial {curve.trial}, "
                f"step %{{x:,}}: %{{y:.4g}}{what}<extra></extra>",
            })  # fmt: skip
    steps = [step for curve in curves for step in curve.steps]
    figure.add(guide([min(steps), max(steps)], [goal.bound, goal.bound], "goal"))
    figure.styled("Step", safe(goal.metric), legend={"title": {"text": "batch size "}})
    figure.log10("x", steps)
    values = [value for curve in curves for value in curve.values]
    figure.y_axes(**value_axis([*values, goal.bound], goal))
    return figure


HEADS = "Recipe", "Forecast", "Measured", "Ratio"


def forecasts(panel: Panel, show: Show) -> str:
    return table(
        "A fifth of B_crit, the batch size that takes a fifth more examples by the law of B_crit: "
        "the forecast from the noise scale beside the measurement, with 90 % intervals. The "
        "interval of a forecast follows from the scatter of the forecasts from single batch sizes.",
        HEADS,
        [_cells(one) for one in panel.comparisons],
    )


def _cells(one: Comparison) -> list[str]:
    return [
        one.recipe,
        in_words(a_fifth_more(one.forecast)),
        "not known" if one.measured is None else in_words(a_fifth_more(one.measured)),
        "" if one.ratio is None else factor_in_words(one.ratio),
    ]


def foretold(panel: Panel) -> str:
    ratios = [one.ratio.value for one in panel.comparisons if one.ratio is not None]
    if not ratios:
        return "What the gradient noise scale forecasts"
    return f"Forecasts are {ends_of(ratios, '.2g')} times the measured values"
