"""The report's part on the gradient noise scale, as HTML."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.analysis import Comparison, a_fifth_more, factor_in_words, in_words
from orchestrator.report.content import Panel
from orchestrator.report.figures import noise
from orchestrator.report.sections import Show
from orchestrator.report.tables import table

HEADS = [
    ("Recipe", True), ("Forecast", False), ("Measured", False), ("Ratio", False),
    ("By the gradient as the optimizer scales it", False),
]  # fmt: skip


def noise_along(panel: Panel, show: Show) -> str:
    return "".join(
        show(
            noise.noise_along(lines),
            f"{recipe}: noise scale while it trains",
            _grows(lines),
            "The noise scale is the variance of one example's gradient, divided by the squared "
            "length of the mean gradient. Far below it, doubling the batch halves the steps. It "
            "was measured in the winner's repeats; bars are 90 % intervals. Dark lines are small "
            "batch sizes, bright lines large ones.",
        )
        for recipe, lines in panel.noise.items()
    )


def _grows(lines: Sequence[noise.NoiseLine]) -> str:
    line = max(lines, key=lambda line: line.batch_size)
    first, last = line.points[0], line.points[-1]
    return (
        f"At batch size {line.batch_size:,}: {in_words(first.scale)} at first, "
        f"{in_words(last.scale)} at step {last.step:,}."
    )


def forecasts(panel: Panel, show: Show) -> str:
    """Returns the table of the forecasts by noise scales beside the measurements."""
    if not panel.comparisons:
        return ""
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


def forecasts_compared(panels: Sequence[Panel], show: Show) -> str:
    """Shows all forecasts of a page beside the measurements."""
    known = [one for panel in panels for one in panel.comparisons if one.ratio is not None]
    if not known:
        return ""
    ratios = [one.ratio.value for one in known if one.ratio is not None]
    return show(
        noise.forecast_against_measured(known),
        "Forecasts against measurements",
        f"The forecasts for {len(known)} curves are {min(ratios):.2g} to {max(ratios):.2g} times "
        f"the measured B_crit.",
        "On the dashed line, the noise scale along one training foretells exactly what a whole "
        "sweep measures. Bars are 90 % intervals.",
    )


def noise_found(panel: Panel) -> str:
    ratios = [one.ratio.value for one in panel.comparisons if one.ratio is not None]
    if not ratios:
        return "The gradient noise scale along the winners' trainings"
    ends = f"{min(ratios):.2g} to {max(ratios):.2g}" if len(ratios) > 1 else f"{ratios[0]:.2g}"
    return f"Forecasts are {ends} times the measured values"
