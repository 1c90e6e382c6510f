"""The fold of goals that hold: how often a goal is lost again, and the answer if it must hold."""

from __future__ import annotations

from orchestrator.analysis.holding import holding_in_words
from orchestrator.analysis.words import in_count
from orchestrator.records import HELD_FOR, STAYS
from orchestrator.report.answer import steps_to_goal
from orchestrator.report.content import Panel
from orchestrator.report.sections import Show, bullets, lead, table

HEADS = "Recipe", "Batch size", "Lost again", "Steps to goal", "Steps to goal that holds", "Ratio"

READING = (
    f"Steps to goal are counted to the first measurement that passes it. Repeats of the best "
    f"points train on until {HELD_FOR} measurements in a row pass the goal, or {STAYS:g} times as "
    f"long. Lost again: so many of those that reached the goal failed it at one of the next "
    f"measurements. The noise of a small batch touches a goal early, so first passage flatters "
    f"small batches. These points were searched for the first passage: a search for a goal that "
    f'holds may find others (goals: ["... for {HELD_FOR} measurements"]).'
)


def holding(panel: Panel, show: Show) -> str:
    """Says the answer of each recipe if its goal must hold, and shows its curve."""
    known = panel.holdings
    if not known:
        return ""
    figure = show(
        steps_to_goal(
            [row for one in known for row in one.rows_held],
            {one.first.recipe: one.held.curves for one in known if one.held.curves},
        ),
        "Steps to a goal that holds",
        "Medians of the repeats that show it.",
        "Dotted: the middle of all bends that the points allow, nine tenths shaded.",
    )
    sizes = [
        [
            one.first.recipe,
            f"{row.batch_size:,}",
            f"{again.lost} of {again.reached}",
            "never" if again.median is None else in_count(again.median),
            "not in time" if held.median is None else in_count(held.median),
            "" if not again.median or held.median is None else f"{held.median / again.median:.2f}",
        ]
        for one in known
        for row in one.rows
        if (again := row.repeats) is not None and (held := again.held) is not None
    ]
    return (
        bullets([holding_in_words(one) for one in known])
        + lead(READING)
        + figure
        + table("What the repeats show, at each batch size, in the median.", HEADS, sizes)
    )


def found(panel: Panel) -> str:
    both = [one.lost for one in panel.holdings]
    lost, reached = (sum(part) for part in zip(*both, strict=True))
    return f"{lost:,} of {reached:,} repeats lost the goal again"
