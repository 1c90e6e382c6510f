"""The report's part on what the errors are made of, and whether there were enough trials, as
HTML."""

from __future__ import annotations

from html import escape

from orchestrator.analysis import Parts, errors_in_words
from orchestrator.report.content import Panel
from orchestrator.report.figures import enough
from orchestrator.report.sections import Show
from orchestrator.report.tables import table

HEADS = [
    ("Recipe", True), ("Few trials", False), ("Seeds", False), ("Resolution", False),
    ("Other scatter", False), ("Two thirds of the trials", False),
]  # fmt: skip

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
            enough.best_of_trials(scaling.best_of),
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
    """Returns the table of the sources of error behind the intervals of each curve."""
    rows = [
        [
            scaling.recipe,
            *_errors(scaling.contributions),
            "not known" if scaling.by_part is None else f"{100 * (2**scaling.by_part - 1):+.1f} %",
        ]
        for scaling in panel.scalings
        if scaling.contributions is not None
    ]
    return table(escape(CAPTION), HEADS, rows) if rows else ""


def _errors(parts: Parts) -> list[str]:
    found = (parts.few_trials, parts.seeds, parts.resolution, parts.scatter)
    return ["not known" if part is None else f"{100 * (2**part - 1):.1f} %" for part in found]


def enough_found(panel: Panel) -> str:
    """Says what two thirds of the trials would have found."""
    known = [one.by_part for one in panel.drawn.scalings if one.by_part is not None]
    if not known:
        return "Not known"
    ends = [f"{100 * (2**part - 1):.0f}" for part in (min(known), max(known))]
    return f"Two thirds of the trials would need {' to '.join(dict.fromkeys(ends))} % more steps"
