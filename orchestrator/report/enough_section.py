"""The report's part on whether there were enough trials, as HTML."""

from __future__ import annotations

from html import escape

from orchestrator.analysis import Contributions, Scaling, enough_in_words, in_words
from orchestrator.analysis.enough import MANY_TRIALS
from orchestrator.report.content import Panel
from orchestrator.report.figures import enough
from orchestrator.report.sections import Show
from orchestrator.report.tables import table

HEADS = [
    ("Recipe", True), ("Few trials", False), ("Seeds", False), ("Resolution", False),
    ("Other scatter", False), ("B_crit, equally many trials", False),
    ("B_crit, equally well tuned", False),
]  # fmt: skip


def best_of_trials(panel: Panel, show: Show) -> str:
    """Draws a figure for each recipe whose best trials are known."""
    return "".join(
        show(
            enough.best_of_trials(scaling.best_of),
            f"{scaling.recipe}: fewest steps by number of trials",
            enough_in_words(scaling),
            "A line is the median fewest steps of n trials. Solid lines follow from the trials "
            "that were made. Dotted lines extrapolate from the best of them to more trials; bars "
            "are 90 % intervals. If a line still falls at its end, more trials would lower that "
            "point of the curve. Dark lines are small batch sizes, bright lines large ones.",
        )
        for scaling in panel.scalings
        if any(len(one.medians) > 1 for one in scaling.best_of)
    )


def made_of(panel: Panel, show: Show) -> str:
    """Returns the table of the sources of error behind the intervals of each curve."""
    rows = [
        [scaling.recipe, *_errors(scaling.contributions), *_critical(scaling)]
        for scaling in panel.scalings
        if scaling.contributions is not None
    ]
    caption = (
        "The errors of the points from which the intervals follow: one standard deviation, in "
        "percent of the steps. Few trials: the best point of the search space was not among the "
        "trials. Seeds: repeats of one point differ. Resolution: the goal was passed somewhere "
        "between two measurements. Other scatter: the remaining distance of the points from the "
        "curve. With equally many trials, large batch sizes are often tuned worse than small ones; "
        "the last column corrects for that."
    )
    return table(escape(caption), HEADS, rows) if rows else ""


def _errors(parts: Contributions) -> list[str]:
    found = (parts.few_trials, parts.seeds, parts.resolution, parts.scatter)
    return ["not known" if part is None else f"{100 * (2**part - 1):.1f} %" for part in found]


def _critical(scaling: Scaling) -> list[str]:
    equal = scaling.equal_quality
    known = (scaling.critical_batch_size, None if equal is None else equal.critical_batch_size)
    return ["not known" if one is None else in_words(one) for one in known]


def enough_found(panel: Panel) -> str:
    """Says what 100 trials, or twice as many as there were, would change over all batch sizes."""
    known = [one for scaling in panel.drawn.scalings for one in scaling.best_of if one.beyond]
    if not known:
        return "Not known"
    hundreds = [one.hundred.value for one in known if one.hundred is not None]
    # `beyond` begins with twice the trials, unless 100 come first.
    ratios = hundreds or [one.beyond[0][1].value for one in known]
    trials = f"{MANY_TRIALS} trials" if hundreds else "Twice as many trials"
    least, most = (max(1 - ratio, 0) for ratio in (max(ratios), min(ratios)))
    ends = [f"{100 * share:.0f}" for share in (least, most)]
    share = " to ".join(dict.fromkeys(ends))
    return f"{trials} would need {share} % fewer steps"
