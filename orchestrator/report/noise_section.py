"""What a report shows of the gradient noise scale, as HTML."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.analysis import Comparison, a_fifth_more, factor_in_words, in_words
from orchestrator.report import figures
from orchestrator.report.content import Panel
from orchestrator.report.sections import Show
from orchestrator.report.tables import table

HEADS = [
    ("Recipe", True), ("Forecast", False), ("Measured", False), ("Ratio", False),
    ("By the gradient as the optimizer scales it", False),
]  # fmt: skip


def noise_along(panel: Panel, show: Show) -> str:
    return "".join(
        show(
            figures.noise_along(lines),
            f"{recipe}: noise scale while it trains",
            _grows(lines),
            "The variance of one example's gradient, divided by the squared length of the mean "
            "gradient. Far below the noise scale, twice the batch is worth two steps. Measured in "
            "the winner's repeats, with 90 % intervals. Dark is a small batch, bright a large one.",
        )
        for recipe, lines in panel.noise.items()
    )


def _grows(lines: Sequence[figures.NoiseLine]) -> str:
    line = max(lines, key=lambda line: line.batch_size)
    first, last = line.points[0], line.points[-1]
    return (
        f"At batch size {line.batch_size:,}: {in_words(first.scale)} at first, "
        f"{in_words(last.scale)} at step {last.step:,}."
    )


def forecasts(panel: Panel, show: Show) -> str:
    """What noise scales foretold, beside what was measured."""
    if not panel.comparisons:
        return ""
    return table(
        "Batch size at which it takes a fifth more examples, as the noise scale foretold it and as "
        "it was measured, with 90 % intervals: of a forecast by how far those from single batch "
        "sizes scatter.",
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
    """All forecasts of a page beside what was measured."""
    known = [one for panel in panels for one in panel.comparisons if one.ratio is not None]
    if not known:
        return ""
    ratios = [one.ratio.value for one in known if one.ratio is not None]
    return show(
        figures.forecast_against_measured(known),
        "Forecasts against measurements",
        f"Of {len(known)} curves, forecasts were {min(ratios):.2g} to {max(ratios):.2g} times "
        f"B_crit as it was measured.",
        "On the dashed line the noise scale along one training tells what a whole sweep finds. "
        "Bars are 90 % intervals.",
    )
