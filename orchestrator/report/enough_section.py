"""Whether there were enough trials, and what the intervals are made of, as HTML."""

from __future__ import annotations

from html import escape

from orchestrator.analysis import Contributions, Scaling, enough_in_words, in_words
from orchestrator.report import figures
from orchestrator.report.content import Panel
from orchestrator.report.sections import Show
from orchestrator.report.tables import table

HEADS = [
    ("Recipe", True), ("Few trials", False), ("Seeds", False), ("Resolution", False),
    ("Other scatter", False), ("B_crit, equally many trials", False),
    ("B_crit, equally well tuned", False),
]  # fmt: skip


def best_of_trials(panel: Panel, show: Show) -> str:
    """A figure for each recipe whose best trials are known."""
    return "".join(
        show(
            figures.best_of_trials(scaling.best_of),
            f"{scaling.recipe}: fewest steps by number of trials",
            enough_in_words(scaling),
            "The median fewest steps of n trials. Solid lines follow from the trials that were "
            "made. Dotted lines say what more of them would find, by how the best trials lie, with "
            "90 % intervals. Where a line still falls at its end, more trials would lower that "
            "point of the curve. Dark is a small batch, bright a large one.",
        )
        for scaling in panel.scalings
        if any(len(one.medians) > 1 for one in scaling.best_of)
    )


def made_of(panel: Panel, show: Show) -> str:
    """What the intervals of each curve are made of."""
    rows = [
        [scaling.recipe, *_errors(scaling.contributions), *_critical(scaling)]
        for scaling in panel.scalings
        if scaling.contributions is not None
    ]
    caption = (
        "What the intervals are made of: errors of the points, one standard deviation in percent "
        "of their steps. Few trials: the best point of the search space was not among them. Seeds: "
        "repeats of one point differ. Resolution: measurements lie apart. Other scatter: what else "
        "the points lie off the curve. Large batches are often tuned worse by equally many trials; "
        "the last column is for all batch sizes tuned equally well."
    )
    return table(escape(caption), HEADS, rows) if rows else ""


def _errors(parts: Contributions) -> list[str]:
    found = (parts.few_trials, parts.seeds, parts.resolution, parts.scatter)
    return ["not known" if part is None else f"{100 * (2**part - 1):.1f} %" for part in found]


def _critical(scaling: Scaling) -> list[str]:
    equal = scaling.equal_quality
    known = (scaling.critical_batch_size, None if equal is None else equal.critical_batch_size)
    return ["not known" if one is None else in_words(one) for one in known]
