"""The first screen: a sentence for each recipe, the main figure and recommended batch sizes."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from orchestrator.analysis import (
    Cost,
    beside_minima,
    growing_sentence,
    headline,
    in_count,
    in_time,
    trained_points,
)
from orchestrator.analysis.points import ENOUGH_STEPS
from orchestrator.records import ENOUGH_SIZES
from orchestrator.report.content import Panel, grouped
from orchestrator.report.sections import Show, bullets, cards, in_devices, lead, short
from orchestrator.report.steps import steps_to_goal
from orchestrator.report.style import COLOURS

MOST_SENTENCES = 6
"""The most sentences on the first screen, which has no room for more beside the figure."""

FIGURE_HEIGHT = 500
"""Height of the main figure in pixels; each sentence beyond the first three reduces it."""

SENTENCE_HEIGHT = 28

MOST_APART = 0.1
"""Share of its steps by which a point may be uncertain because of the distance between two
measurements, without a remark."""

MOST_NOTES = 20
"""The most remarks that are listed."""

NO_ADVICE = (
    f"No batch size is recommended: that takes {ENOUGH_SIZES} batch sizes whose studies have "
    f"finished and whose winners needed at least {ENOUGH_STEPS} steps."
)


def answer_of(panel: Panel, show: Show) -> str:
    """Returns the first screen of one workload and goal: sentences, the main figure, the
    recommendations and remarks."""
    lines = sentences(panel)
    figure = _steps(panel, len(lines), show) if panel.drawn.rows else ""
    advised = _advised(panel)
    look = " advised" * bool(advised)
    return (
        f"{listed(lines)}{_left_out(panel)}"
        f'<div class="first{look}"><div>{figure}</div>{advised}</div>'
        f"{lead(NO_ADVICE) if panel.costs and panel.advice is None else ''}{_notes(panel)}"
    )


def listed(lines: Sequence[tuple[str, str]]) -> str:
    """Returns the sentences as a list; each has a dot in the colour of its curve."""
    items = "".join(f'<li style="--curve: {c}">{escape(line)}</li>' for c, line in lines)
    return f'<ul class="says">{items}</ul>'


def sentences(panel: Panel, most: int | None = MOST_SENTENCES) -> list[tuple[str, str]]:
    """Returns (colour, sentence) for each recipe, or for the first recipes where there are too
    many."""
    names = panel.drawn.recipes
    found = [
        (COLOURS[names.index(scaling.recipe) % len(COLOURS)], headline(scaling))
        for scaling in panel.drawn.scalings
    ]
    found += [("transparent", growing_sentence(row)) for row in panel.growing]
    if most is not None and (more := len(found) - most) > 0:
        rest = f"{more:,} more recipe{'s' * (more > 1)}: under Numbers."
        found = [*found[:most], ("transparent", rest)]
    return found


def _left_out(panel: Panel) -> str:
    """Says how many recipes the figures do not show."""
    if panel.detailed is None:
        return ""
    few, many = len(panel.drawn.recipes), len(panel.recipes)
    return lead(
        f"{few:,} of {many:,} recipes are drawn, those that need the fewest steps. The frontier "
        f"below has all of them."
    )


def _steps(panel: Panel, lines: int, show: Show) -> str:
    drawn = panel.drawn
    figure = steps_to_goal(drawn.rows, {s.recipe: s.curves for s in drawn.scalings if s.curves})
    figure.update_layout(height=FIGURE_HEIGHT - SENTENCE_HEIGHT * max(lines - 3, 0))
    return show(
        figure,
        "Steps to goal against batch size",
        panel.least + beside_minima(drawn.by_recipe),
        _reading(panel),
    )


def _reading(panel: Panel) -> str:
    said = []
    known = all(scaling.by_part is not None for scaling in panel.drawn.scalings if scaling.curves)
    trials = " and other trials" if known else ""
    if any(scaling.of_medians for scaling in panel.drawn.scalings):
        said.append(
            f"A point is the median of repeats; its whiskers show where it would lie with other "
            f"seeds{trials}."
        )
    if not all(scaling.of_medians for scaling in panel.drawn.scalings):
        said.append("Without repeats, a point is the fewest steps of any trial.")
    said.append("Dashed: perfect scaling, where doubling the batch halves the steps.")
    if any(scaling.curves for scaling in panel.drawn.scalings):
        said.append("Dotted: the middle of all bends that the points allow, nine tenths shaded.")
    missing = [row for row in panel.drawn.rows if row.steps is None]
    if missing:
        yet = "" if all(row.finished for row in missing) else ", or not yet"
        said.append(f"Crosses at the top: the goal was not reached{yet}.")
    return " ".join(said)


def _advised(panel: Panel) -> str:
    """Returns a card for each recommendation, over all recipes; those that agree share one."""
    advice = panel.advice
    if advice is None:
        return ""
    named = grouped(("fastest", "balanced", "cheapest"), lambda name: _card(getattr(advice, name)))
    found = cards(
        (" and ".join(", ".join(names).rsplit(", ", 1)).capitalize(), said)
        for said, names in named.items()
    )
    return f"<div><h3>Recommended batch size</h3>{found}</div>"


def _card(cost: Cost) -> str:
    said = f"<b>{cost.batch_size:,}</b> {escape(cost.recipe)}<br>"
    return f"{said}<span>{escape(_needs(cost))}</span>"


def _needs(cost: Cost) -> str:
    interval = ""
    if cost.low is not None and cost.high is not None:
        interval = f" ({cost.low:,.0f} to {cost.high:,.0f})"
    needs = f"{in_count(cost.steps)} steps{interval}, {in_count(cost.examples)} examples"
    for one in cost.priced:
        needs += f"; {in_time(one.seconds)} on {in_devices(one.devices)}"
        if one.money is not None:
            needs += f", {one.money:,.3g} in money"
    point = ", ".join(f"{name} {short(value)}" for name, value in cost.params.items())
    return f"{needs}; {point}" if point else needs


def _coarse(panel: Panel) -> str:
    """Says which points are known to little more than the distance between two measurements."""
    every = trained_points(panel.rows)
    coarse = [one for one in every if one.resolution > max(1, MOST_APART * one.steps)]
    if not coarse:
        return ""
    worst = max(coarse, key=lambda one: one.resolution / one.steps)
    finer = max(1, round(min(one.examples for one in coarse) * MOST_APART / 2))
    return (
        f"{len(coarse):,} of {len(every):,} points are known to no better than a tenth of their "
        f"steps, since measurements lie that far apart: {worst.recipe} at batch size "
        f"{worst.batch_size:,} takes {in_count(worst.steps)} steps, or up to "
        f"{worst.resolution:,} fewer. Measure more often, with evaluate: "
        f"{{spacing: {MOST_APART / 2:g}, min_examples: {finer}}}."
    )


def _notes(panel: Panel) -> str:
    """Returns the remarks: the first is visible, the others are folded behind it."""
    notes = [
        f"{row.recipe} at batch size {row.batch_size:,}: {'; '.join(row.warnings)}."
        for row in panel.rows
        if row.warnings and not row.censored
    ]
    notes = [*filter(None, [_coarse(panel)]), *panel.doubts, *notes]
    if any(row.censored for row in panel.rows):
        notes.insert(
            0,
            "Some answers are censored: trials were ended at other goals, and could have reached "
            "this goal earlier than any trial that did.",
        )
    if not notes:
        return ""
    first, *others = notes
    if not others:
        return f'<p class="notice">Mind: {escape(first)}</p>'
    listed = others[:MOST_NOTES]
    if (rest := len(others) - MOST_NOTES) > 0:
        listed.append(f"{rest:,} more, in the table of the frontier.")
    return (
        f'<details class="notice"><summary>Mind: {escape(first)} ({len(others):,} more)</summary>'
        f"{bullets(listed)}</details>"
    )
