"""The fold of the gradient noise scale: along trainings, and what it forecasts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from orchestrator.analysis.forecasts import Comparison, NoisePoint, a_fifth_more
from orchestrator.analysis.words import factor_in_words, in_words
from orchestrator.report.content import Panel
from orchestrator.report.drawing import Drawing
from orchestrator.report.sections import Show, table
from orchestrator.report.style import add_line, log10_axis, of_size, shaded, styled, whiskers

HEADS = "Recipe", "Forecast", "Measured", "Ratio", "By the gradient as the optimizer scales it"


def noise_along(panel: Panel, show: Show) -> str:
    return "".join(
        show(
            _noise_along(lines),
            f"{recipe}: noise scale while it trains",
            "",
            "The noise scale is the variance of one example's gradient, divided by the squared "
            "length of the mean gradient. Far below it, doubling the batch halves the steps. It "
            "was measured in the winner's repeats; bars are 90 % intervals. Dark lines are small "
            "batch sizes, bright lines large ones.",
        )
        for recipe, lines in panel.noise.items()
    )


def forecasts(panel: Panel, show: Show) -> str:
    """The table of the forecasts by noise scales beside the measurements."""
    return table(
        "The batch size that takes a fifth more examples: the forecast from the noise scale beside "
        "the measurement, with 90 % intervals. The interval of a forecast follows from the scatter "
        "of the forecasts from single batch sizes.",
        HEADS,
        [_cells(one) for one in panel.comparisons],
    )


def _cells(one: Comparison) -> list[str]:
    scaled = one.preconditioned
    return [
        one.recipe,
        in_words(a_fifth_more(one.forecast)),
        "not known" if one.measured is None else in_words(a_fifth_more(one.measured)),
        "" if one.ratio is None else factor_in_words(one.ratio),
        "" if scaled is None else in_words(a_fifth_more(scaled)),
    ]


def found(panel: Panel) -> str:
    ratios = [one.ratio.value for one in panel.comparisons if one.ratio is not None]
    if not ratios:
        return "The gradient noise scale along the winners' trainings"
    ends = f"{min(ratios):.2g} to {max(ratios):.2g}" if len(ratios) > 1 else f"{ratios[0]:.2g}"
    return f"Forecasts are {ends} times the measured values"


def _noise_along(lines: Mapping[int, Sequence[NoisePoint]]) -> Drawing:
    """Draws a line per batch size, from small (dark) to large (bright), against examples."""
    figure = Drawing()
    for batch_size, colour in shaded(lines):
        # Both axes are logarithmic: before the first step there were no examples.
        points = [p for p in lines[batch_size] if p.step and math.isfinite(p.scale.value)]
        at = [
            (
                point.step * batch_size,
                point.scale.value,
                f"{of_size(batch_size)}step {point.step:,}: {in_words(point.scale)}, by "
                f"{point.trainings} trainings",
            )
            for point in points
        ]
        look = {"line": {"color": colour, "width": 2}, "marker": {"size": 6}}
        bars = whiskers([point.scale for point in points], thickness=1, width=0)
        add_line(figure, f"{batch_size:,}", at, look, error_y=bars)
    styled(figure, "Examples", "Noise scale, in examples", legend="batch size")
    found = [trace for trace in figure.data if trace["x"]]
    figure.x_axes(**log10_axis(x for trace in found for x in trace["x"]))
    figure.y_axes(**log10_axis(y for trace in found for y in trace["y"]))
    return figure
