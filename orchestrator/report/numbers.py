"""Folds of numbers: where curves bend, how recipes compare, errors, and goals that hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from orchestrator.analysis.estimates import Estimate
from orchestrator.analysis.holding import holding_in_words
from orchestrator.analysis.scaling import (
    PERFECT_TOLERANCE,
    USEFUL_TOLERANCE,
    Scaling,
    compared_with,
    fewest_steps,
)
from orchestrator.analysis.tuned import tables_of_rules
from orchestrator.analysis.words import (
    bend_cells,
    capital,
    compared_in_words,
    ends_of,
    errors_in_words,
    exponent_in_words,
    fifth_in_words,
    in_words,
    remarks_of,
)
from orchestrator.records import HELD_FOR, STAYS
from orchestrator.report.answer import MOST_SENTENCES, sentences
from orchestrator.report.content import Panel
from orchestrator.report.sections import Show, bullets, lead, table

HEADS = (
    "Recipe", "+20 % examples at", "Useful until", "B_crit", "Exponent", "S_min", "Perfect until",
    "Off the curve", "Points are",
)  # fmt: skip

MOST_TOLD = 3
"""The most recipes that the line of a fold names."""

HOW_TO_READ = (
    "Numbers in brackets are 90 % intervals, over all curves that the points allow: bends S_min "
    "(1 + (B_c / B)^a)^(1/a) of any exponent a, also with a smallest useful batch size. They "
    "include the errors of seeds, of few trials and of the distance between measurements, as far "
    "as these are known, and the scatter about the curve. +20 % examples at: this batch size takes "
    "a fifth more examples than the fewest of any that was tested. Useful until: the first batch "
    f"size whose steps are within {100 * USEFUL_TOLERANCE:.0f} % of the fewest. B_crit belongs to "
    "the law S_min (1 + B_crit / B), of exponent 1; it is left out where the points refuse that "
    f"law. Perfect until: examples are within {100 * PERFECT_TOLERANCE:.0f} % of the fewest. Off "
    "the curve: the root mean square distance of the points from the curve in the middle, in "
    "doublings."
)


def numbers(panel: Panel, show: Show) -> str:
    told = panel.drawn.scalings
    text = sentences(panel, told) if len(told) > MOST_SENTENCES else ""
    cells = [_scaling_cells(one) for one in panel.scalings if one.curves is not None]
    text += table("Where each curve bends, in batch sizes.", HEADS, cells)
    text += bullets([*map(_remark, panel.scalings)]) + (lead(HOW_TO_READ) if cells else "")
    of_rules = "".join(table(*one) for one in tables_of_rules(panel.rules))
    return text + _table_of_further(panel.scalings) + of_rules


def finding(panel: Panel) -> str:
    known = [
        f"{fifth_in_words(one)} for {one.recipe}"
        for one in panel.drawn.scalings
        if one.fifth_more is not None and not one.critical_by_examples_is
    ]
    more = len(known) - MOST_TOLD
    said = ", ".join(known[:MOST_TOLD]) + (f", and {more:,} more" if more > 0 else "")
    return (
        f"+20 % examples at {said}" if known else "Where each curve bends, and how recipes compare"
    )


def _scaling_cells(scaling: Scaling) -> list[str]:
    off = scaling.fit_residual_log2

    def said(found: Estimate | None, how: Callable[[Estimate], str] = in_words) -> str:
        return "" if found is None else how(found)

    return [
        *bend_cells(scaling).values(),
        said(scaling.exponent, exponent_in_words),
        said(scaling.steps_min),
        said(scaling.perfect_scaling_until),
        "" if off is None else f"{off:.2f}",
        "medians of repeats" if scaling.of_medians else "minima over trials",
    ]


def _remark(scaling: Scaling) -> str:
    remarks = remarks_of(scaling) or [f"{capital(scaling.verdict)}."]
    left_out = [f"Left out: {point}." for point in scaling.left_out]
    return f"{scaling.recipe}: {' '.join([*remarks, *left_out])}"


def _table_of_further(scalings: Sequence[Scaling]) -> str:
    """The table that says which recipe scales further; it is empty if there is only one curve."""
    known = [one for one in scalings if one.curves is not None]
    if len(known) < 2:
        return ""
    first = min(known, key=fewest_steps)
    rows = [
        [one.recipe, *(compared_in_words(ratio) for ratio in compared_with(one, first))]
        for one in known
        if one is not first
    ]
    caption = (
        f"Which recipe scales further: each over {first.recipe}, which takes the fewest steps of "
        f"those in the table above. Not decided: the 90 % interval of the ratio holds 1."
    )
    return table(caption, ["Recipe", "+20 % examples at", "Fewest steps"], rows)


ERRORS = (
    "Few trials: other trials would have found another best point. Seeds: repeats of one point "
    "differ. Resolution: the goal was passed somewhere between two measurements. Other scatter: "
    "the remaining distance of the points from the curve."
)


def made_of(panel: Panel, show: Show) -> str:
    """Says which errors of the points the intervals are made from."""
    known = [one for one in panel.scalings if one.contributions is not None]
    said = bullets([f"{one.recipe}: {errors_in_words(one)}" for one in known])
    return said and said + lead(ERRORS)


def trials_needed(panel: Panel) -> str:
    known = [one.by_part for one in panel.drawn.scalings if one.by_part is not None]
    if not known:
        return "Not known"
    more = ends_of([100 * (2**part - 1) for part in known], ".0f")
    return f"Two thirds of the trials would need {more} % more steps"


ON_HOLDING = (
    "Steps to goal are counted to the first measurement that passes it. Lost again: so many of "
    "those that reached the goal failed it at one of the next measurements. The noise of a small "
    "batch touches a goal early, so first passage flatters small batches."
)

ON_OUR_REPEATS = (
    f" Repeats of the best points train on until {HELD_FOR} measurements in a row pass the goal, "
    f"or {STAYS:g} times as long. These points were searched for the first passage: a search for a "
    f'goal that holds may find others (goals: ["... for {HELD_FOR} measurements"]).'
)


def holding(panel: Panel, show: Show) -> str:
    said = bullets([holding_in_words(one) for one in panel.holdings])
    return said and said + lead(ON_HOLDING + ON_OUR_REPEATS * (not panel.is_imported))


def lost_again(panel: Panel) -> str:
    both = [one.lost for one in panel.holdings]
    lost, reached = (sum(part) for part in zip(*both, strict=True))
    return f"{lost:,} of {reached:,} repeats lost the goal again"
