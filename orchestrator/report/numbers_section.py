"""The answer in numbers, as HTML."""

from __future__ import annotations

from orchestrator.analysis import in_words
from orchestrator.analysis.scaling import PERFECT_TOLERANCE, USEFUL_TOLERANCE
from orchestrator.report.answer_section import MOST_SENTENCES, listed, sentences
from orchestrator.report.content import Panel
from orchestrator.report.sections import Show
from orchestrator.report.tables import (
    table_of_advice,
    table_of_further,
    table_of_ratios,
    table_of_scalings,
)

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

BY_STEP_TIMES = (
    "We compare every batch size on every number of devices on which steps were timed. "
    "Fastest: of all choices within 10 % of the shortest time to the goal, the choice with the "
    "fewest device-seconds. Cheapest: of all choices within 10 % of the fewest device-seconds, the "
    "choice with the shortest time. Balanced: the smallest product of time and device-seconds. "
    "Step times were measured while other trials ran, which may have slowed them down."
)

BY_STEPS = (
    "Step times are not known, so steps stand for time and examples for work. Fastest: of all "
    "batch sizes within 10 % of the fewest steps, the batch size with the fewest examples. "
    "Cheapest: of all batch sizes within 10 % of the fewest examples, the batch size with the "
    "fewest steps. Balanced: the smallest product of steps and examples."
)


def numbers(panel: Panel, show: Show) -> str:
    lines = sentences(panel, most=None)
    text = listed(lines) if len(lines) > MOST_SENTENCES else ""
    scalings = table_of_scalings(panel.scalings)
    if scalings:
        text += f'{scalings}<p class="lead">{HOW_TO_READ}</p>'
    advised = table_of_advice(panel)
    if advised:
        text += f'{advised}<p class="lead">{_basis(panel)}</p>'
    return text + table_of_further(panel.scalings) + table_of_ratios(panel.rows)


def numbers_found(panel: Panel) -> str:
    known = [
        f"{in_words(one.critical_by_examples)} for {one.recipe}"
        for one in panel.drawn.scalings
        if one.critical_by_examples is not None and not one.critical_by_examples_is
    ]
    more = len(known) - MOST_TOLD
    said = ", ".join(known[:MOST_TOLD]) + (f", and {more:,} more" if more > 0 else "")
    return (
        f"+20 % examples at {said}" if known else "Where each curve bends, and how recipes compare"
    )


def _basis(panel: Panel) -> str:
    """Says how recommendations are derived."""
    found = [advice for advice in (panel.advice, *panel.advice_by_recipe.values()) if advice]
    said = []
    if any(advice.by_step_times for advice in found):
        said.append(BY_STEP_TIMES)
        residuals = [device.residual for device in panel.devices.values()]
        off = [residual for residual in residuals if residual is not None]
        if off:
            said.append(
                f"Step times scatter about a straight line in the batch size by up to "
                f"{100 * max(off):.0f} % (root mean square of a recipe)."
            )
    if not all(advice.by_step_times for advice in found):
        said.append(BY_STEPS)
    return " ".join(said)
