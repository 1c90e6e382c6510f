"""Folds of numbers: where curves bend, how recipes compare, errors, and goals that hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from orchestrator.analysis.errors import BestOf
from orchestrator.analysis.estimates import Estimate
from orchestrator.analysis.holding import holding_in_words
from orchestrator.analysis.points import beside_minima, trained_points
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
    in_count,
    in_digits,
    in_words,
    remarks_of,
)
from orchestrator.records import HELD_FOR, STAYS
from orchestrator.report.answer import MOST_SENTENCES, sentences, steps_to_goal
from orchestrator.report.content import Panel, grouped
from orchestrator.report.sections import Show, bullets, lead, table
from orchestrator.report.style import Drawing, of_size, shaded
from orchestrator.results import FrontierRow

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
    if panel.scalings:
        cells = [*map(_scaling_cells, panel.scalings)]
        text += table("Where each curve bends, in batch sizes.", HEADS, cells)
        text += bullets([*map(_remark, panel.scalings)]) + lead(HOW_TO_READ)
    of_rules = "".join(table(*one) for one in tables_of_rules(panel.rules))
    return text + _table_of_further(panel.scalings) + table_of_ratios(panel.rows) + of_rules


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
        *(bend_cells(scaling).values() if scaling.curves else (scaling.recipe, "", "", "")),
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
        f"Which recipe scales further: each over {first.recipe}, which takes the fewest steps. Not "
        f"decided: the 90 % interval of the ratio holds 1."
    )
    return table(caption, ["Recipe", "+20 % examples at", "Fewest steps"], rows)


def table_of_ratios(rows: Sequence[FrontierRow]) -> str:
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
        [recipe, *(_ratio(mine[size] / fewest[size]) if size in mine else "" for size in sizes)]
        for recipe, mine in steps.items()
    ]
    return table(
        f"Steps of each recipe over the fewest steps of any recipe, by batch size."
        f"{beside_minima(grouped(rows, lambda row: row.recipe))}",
        ["Recipe", *(f"{size:,}" for size in sizes)],
        cells,
    )


def _ratio(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 10 else in_digits(ratio)


PARTS = "Recipe", "Few trials", "Seeds", "Resolution", "Other scatter", "Two thirds of the trials"

ERRORS = (
    "The errors of the points from which the intervals follow: one standard deviation, in percent "
    "of the steps. Few trials: other trials would have found another best point. Seeds: repeats of "
    "one point differ. Resolution: the goal was passed somewhere between two measurements. Other "
    "scatter: the remaining distance of the points from the curve. The last column says how many "
    "more steps two thirds of the trials would have needed."
)


def best_of_trials(panel: Panel, show: Show) -> str:
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
    rows = [
        [
            scaling.recipe,
            *map(_percent, (parts.few_trials, parts.seeds, parts.resolution, parts.scatter)),
            "not known" if scaling.by_part is None else f"{100 * (2**scaling.by_part - 1):+.1f} %",
        ]
        for scaling in panel.scalings
        if (parts := scaling.contributions) is not None
    ]
    return table(ERRORS, PARTS, rows)


def _percent(part: float | None) -> str:
    return "not known" if part is None else f"{100 * (2**part - 1):.1f} %"


def trials_needed(panel: Panel) -> str:
    known = [one.by_part for one in panel.drawn.scalings if one.by_part is not None]
    if not known:
        return "Not known"
    more = ends_of([100 * (2**part - 1) for part in known], ".0f")
    return f"Two thirds of the trials would need {more} % more steps"


def _best_of(sizes: Sequence[BestOf]) -> Drawing:
    """Draws a line per batch size, from small (dark) to large (bright): the median fewest steps of
    n trials, up to the number of trials that were made."""
    figure = Drawing()
    medians = {one.batch_size: one.medians for one in sizes if one.medians}
    for batch_size, colour in shaded(medians):
        at = [
            (n, steps, f"{of_size(batch_size)}best of {n:,}: {in_count(steps)} steps")
            for n, steps in medians[batch_size]
        ]
        look = {"line": {"color": colour, "width": 2, "shape": "hv"}}
        figure.line(f"{batch_size:,}", at, look, mode="lines")
    figure.styled("Trials", "Fewest steps to goal, median", lines="batch size")
    figure.log2("x", (x for trace in figure.data for x in trace["x"]))
    figure.log10("y", (y for trace in figure.data for y in trace["y"]))
    return figure


HELD = "Recipe", "Batch size", "Lost again", "Steps to goal", "Steps to goal that holds", "Ratio"

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
            "" if not again.median or held.median is None else _ratio(held.median / again.median),
        ]
        for one in known
        for row in one.rows
        if (again := row.repeats) is not None and (held := again.held) is not None
    ]
    return (
        bullets([holding_in_words(one) for one in known])
        + lead(ON_HOLDING + ON_OUR_REPEATS * (not panel.is_imported))
        + figure
        + table("What the repeats show, at each batch size, in the median.", HELD, sizes)
    )


def lost_again(panel: Panel) -> str:
    both = [one.lost for one in panel.holdings]
    lost, reached = (sum(part) for part in zip(*both, strict=True))
    return f"{lost:,} of {reached:,} repeats lost the goal again"
