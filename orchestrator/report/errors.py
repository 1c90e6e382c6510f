"""The fold of errors: what the errors are made of, and whether there were enough trials."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.analysis.errors import BestOf
from orchestrator.analysis.words import errors_in_words, in_count
from orchestrator.report.content import Panel
from orchestrator.report.drawing import Drawing
from orchestrator.report.sections import Show, table
from orchestrator.report.style import add_line, log2_axis, log10_axis, of_size, shaded, styled

HEADS = "Recipe", "Few trials", "Seeds", "Resolution", "Other scatter", "Two thirds of the trials"

CAPTION = (
    "The errors of the points from which the intervals follow: one standard deviation, in percent "
    "of the steps. Few trials: other trials would have found another best point. Seeds: repeats of "
    "one point differ. Resolution: the goal was passed somewhere between two measurements. Other "
    "scatter: the remaining distance of the points from the curve. The last column says how many "
    "more steps two thirds of the trials would have needed."
)


def best_of_trials(panel: Panel, show: Show) -> str:
    """Draws a figure for each recipe whose best trials are known."""
    return "".join(
        show(
            _best_of(scaling.best_of),
            f"{scaling.recipe}: fewest steps by number of trials",
            errors_in_words(scaling),
            "A line is the median fewest steps of n trials, as it follows from the trials that "
            "were made. If a line still falls at its end, more trials would lower that point of "
            "the curve. Dark lines are small batch sizes, bright lines large ones.",
        )
        for scaling in panel.scalings
        if any(len(one.medians) > 1 for one in scaling.best_of)
    )


def made_of(panel: Panel, show: Show) -> str:
    """The table of the sources of error behind the intervals of each curve."""
    rows = [
        [
            scaling.recipe,
            *map(_percent, (parts.few_trials, parts.seeds, parts.resolution, parts.scatter)),
            "not known" if scaling.by_part is None else f"{100 * (2**scaling.by_part - 1):+.1f} %",
        ]
        for scaling in panel.scalings
        if (parts := scaling.contributions) is not None
    ]
    return table(CAPTION, HEADS, rows)


def _percent(part: float | None) -> str:
    return "not known" if part is None else f"{100 * (2**part - 1):.1f} %"


def found(panel: Panel) -> str:
    """Says what two thirds of the trials would have found."""
    known = [one.by_part for one in panel.drawn.scalings if one.by_part is not None]
    if not known:
        return "Not known"
    ends = [f"{100 * (2**part - 1):.0f}" for part in (min(known), max(known))]
    return f"Two thirds of the trials would need {' to '.join(dict.fromkeys(ends))} % more steps"


def _best_of(sizes: Sequence[BestOf]) -> Drawing:
    """Draws a line per batch size, from small (dark) to large (bright): the median fewest steps of
    n trials, up to the number of trials that were made."""
    figure = Drawing()
    medians = {one.batch_size: one.medians for one in sizes if one.medians}
    for batch_size, colour in shaded(medians):
        at = [
            (n, steps, f"{of_size(batch_size)}best of {n:,} trials: {in_count(steps)}")
            for n, steps in medians[batch_size]
        ]
        look = {"line": {"color": colour, "width": 2, "shape": "hv"}}
        add_line(figure, f"{batch_size:,}", at, look, mode="lines")
    styled(figure, "Trials", "Fewest steps to goal, median", legend="batch size")
    figure.x_axes(**log2_axis(x for trace in figure.data for x in trace["x"]))
    figure.y_axes(**log10_axis(y for trace in figure.data for y in trace["y"]))
    return figure
