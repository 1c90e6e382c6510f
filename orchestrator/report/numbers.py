"""The fold of numbers: where each curve bends, and how recipes compare."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.analysis.comparisons import compared_with, fewest_steps
from orchestrator.analysis.points import beside_minima, trained_points
from orchestrator.analysis.rule_costs import tables_of_rules
from orchestrator.analysis.scaling import PERFECT_TOLERANCE, USEFUL_TOLERANCE, Scaling
from orchestrator.analysis.words import compared_in_words, in_words, remarks_of
from orchestrator.report.answer import MOST_SENTENCES, listed, sentences
from orchestrator.report.content import Panel, grouped
from orchestrator.report.sections import Show, lead, table
from orchestrator.results import FrontierRow

HEADS = (
    "Recipe", "+20 % examples at", "Useful until", "B_crit", "Exponent", "S_min", "Perfect until",
    "Off the curve", "Points are", "Remarks",
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
    lines = sentences(panel, most=None)
    text = listed(lines) if len(lines) > MOST_SENTENCES else ""
    if panel.scalings:
        cells = [*map(_scaling_cells, panel.scalings)]
        text += table("Where each curve bends, in batch sizes.", HEADS, cells) + lead(HOW_TO_READ)
    of_rules = "".join(table(*one) for one in tables_of_rules(panel.rules))
    return text + _table_of_further(panel.scalings) + table_of_ratios(panel.rows) + of_rules


def found(panel: Panel) -> str:
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


def _scaling_cells(scaling: Scaling) -> list[str]:
    estimates = (
        scaling.max_useful_batch_size,
        scaling.critical_batch_size,
        scaling.exponent,
        scaling.steps_min,
        scaling.perfect_scaling_until,
    )
    off, fifth, bound = (
        scaling.fit_residual_log2, scaling.critical_by_examples, scaling.critical_by_examples_is,
    )  # fmt: skip
    remarks = remarks_of(scaling) or [f"{scaling.verdict[0].upper()}{scaling.verdict[1:]}."]
    left_out = [f"Left out: {point}." for point in scaling.left_out]
    return [
        scaling.recipe,
        "" if fifth is None else bound if bound.startswith("below") else in_words(fifth),
        *("" if estimate is None else in_words(estimate) for estimate in estimates),
        "" if off is None else f"{off:.2f}",
        "medians of repeats" if scaling.of_medians else "minima over trials",
        " ".join([*remarks, *left_out]),
    ]


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
        f"Which recipe scales further: each over {first.recipe}, which takes the fewest steps. Not "
        f"decided: the 90 % interval of the ratio holds 1."
    )
    return table(caption, ["Recipe", "+20 % examples at", "Fewest steps"], rows)


def table_of_ratios(rows: Sequence[FrontierRow]) -> str:
    """The table that compares recipes; it is empty if there is only one recipe."""
    by_recipe = grouped(trained_points(rows), lambda point: point.recipe)
    if len(by_recipe) < 2:
        return ""
    steps = {
        recipe: {point.batch_size: point.steps for point in points}
        for recipe, points in by_recipe.items()
    }
    sizes = sorted({size for mine in steps.values() for size in mine})
    fewest = {size: min(mine[size] for mine in steps.values() if size in mine) for size in sizes}
    cells = [
        [recipe, *(f"{mine[size] / fewest[size]:.2f}" if size in mine else "" for size in sizes)]
        for recipe, mine in steps.items()
    ]
    return table(
        f"Steps of each recipe over the fewest steps of any recipe, by batch size."
        f"{beside_minima(grouped(rows, lambda row: row.recipe))}",
        ["Recipe", *(f"{size:,}" for size in sizes)],
        cells,
    )
