"""The first screen: a sentence for each recipe, the main figure and recommended batch sizes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from orchestrator.analysis.cost import Cost
from orchestrator.analysis.curve import Curves
from orchestrator.analysis.errors import errors_of
from orchestrator.analysis.holding import holding_in_words
from orchestrator.analysis.points import ENOUGH_STEPS, CurvePoint, beside_minima, trained_points
from orchestrator.analysis.scaling import BENDS, Scaling
from orchestrator.analysis.words import (
    bend_cells,
    cooled_sentences,
    growing_sentence,
    headline,
    in_count,
    in_digits,
    in_time,
    listed,
)
from orchestrator.records import ENOUGH_SIZES, counted, grouped, point_text, short
from orchestrator.report.content import Panel
from orchestrator.report.sections import Show, bullets, cards, lead
from orchestrator.report.style import Drawing, guide, log2_axis, mark, of_size, safe, whiskers
from orchestrator.results import FrontierRow

MOST_SENTENCES = 3
"""The most recipes of which the first screen has a sentence each; of more, it has a table."""

MOST_ANSWERED = 9
"""The most recipes on the first screen, which has no room for more beside the figure."""

FIGURE_HEIGHT = 500
"""Height of the main figure in pixels; each recipe beyond the first three reduces it."""

SENTENCE_HEIGHT = 18

PLACES_DRAWN = 41
"""The number of batch sizes at which a fitted curve is drawn."""

HEADS = ("A fifth more examples at", "Tested ones save under 10 % beyond", "Critical batch size")
"""What the numbers of `bend_cells` are, for somebody who has read nothing else."""

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
    """A workload and goal's first screen: sentences, the main figure, advice and remarks."""
    answers = panel.drawn.scalings
    many = len(answers) > MOST_SENTENCES
    in_table = [one for one in answers if many and one.curves is not None]
    told = [one for one in answers if not many or one.curves is None]
    lines = len(answers) + len(panel.growing)
    figure = _steps(panel, min(lines, MOST_ANSWERED), show) if panel.drawn.rows else ""
    advised = _advised(panel)
    look = " advised" * bool(advised)
    return (
        f"{_table(panel, in_table)}{sentences(panel, told, MOST_ANSWERED)}{_without_bend(panel)}"
        f"{_left_out(panel)}"
        f'<div class="first{look}"><div>{figure}</div>{advised}</div>'
        f"{lead(NO_ADVICE) if panel.costs and panel.advice is None else ''}{_notes(panel)}"
    )


def sentences(panel: Panel, told: Sequence[Scaling], most: int | None = None) -> str:
    """A sentence for each of these recipes, and for trainings whose batch size grows."""
    found = [(_dot(panel, one), headline(one)) for one in told]
    found += [("", growing_sentence(row)) for row in panel.growing]
    items = [f"<li{dot}>{escape(line)}</li>" for dot, line in found]
    if most is not None and (more := len(found) - most) > 0:
        items[most:] = [f"<li>{_more(more)}</li>"]
    return f'<ul class="says">{"".join(items)}</ul>' if items else ""


def _table(panel: Panel, answers: Sequence[Scaling]) -> str:
    """The numbers of the sentences, of the first recipes where there are too many."""
    if not answers:
        return ""
    cells = [(_dot(panel, one), [*bend_cells(one).values()]) for one in answers[:MOST_ANSWERED]]
    rows = "".join(
        f'<tr><th scope="row"{dot}>{_breakable(name)}</th>'
        f"{''.join(f'<td>{escape(number)}</td>' for number in numbers)}</tr>"
        for dot, (name, *numbers) in cells
    )
    heads = "".join(f'<th scope="col">{head}</th>' for head in ("", *HEADS))
    more = max(len(answers) - MOST_ANSWERED, 0)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="Batch sizes"><table '
        f'class="says"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'
        f"{lead(_more(more)) if more else ''}"
    )


def _breakable(name: str) -> str:
    """The name of a recipe, which a line may break after its parts."""
    return re.sub("([_/-])", r"\1<wbr>", escape(name))


def _more(count: int) -> str:
    return f"{count:,} more recipe{'s' * (count > 1)}: under Numbers."


def _dot(panel: Panel, scaling: Scaling) -> str:
    """A dot in the colour of the curve; it is hollow as the curve's markers are."""
    look = mark(panel.drawn.recipes.index(scaling.recipe))["marker"]
    hollow = " hollow" * look["symbol"].endswith("-open")
    return f' class="dot{hollow}" style="--curve: {look["color"]}"'


def _without_bend(panel: Panel) -> str:
    names = [one.recipe for one in panel.drawn.scalings if one.verdict == BENDS]
    said = [f"{listed(names)}: {BENDS}." for _ in names[:1]]
    said += [f"{one.recipe}: {one.at_end}." for one in panel.drawn.scalings if one.at_end]
    return lead(escape(" ".join(said[:MOST_SENTENCES]))) if said else ""


def _left_out(panel: Panel) -> str:
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
    figure.style(height=FIGURE_HEIGHT - SENTENCE_HEIGHT * max(lines - 3, 0))
    return show(
        figure,
        "Steps to goal against batch size",
        panel.least + beside_minima(grouped(drawn.rows, lambda row: row.recipe)),
        _reading(panel),
    )


def _reading(panel: Panel) -> str:
    said = []
    points = trained_points(panel.drawn.rows)
    curves = grouped(points, lambda point: point.recipe).values()
    errors = [errors_of(of_curve) for of_curve in curves]
    known = all(one.few_trials is not None for one in errors)
    shown = "; its whiskers show where it would lie with other "
    kinds = {point.is_median for point in points}
    if True in kinds:
        single = all(point.again.count == 1 for point in points if point.again)
        of = "a single repeat" if single else "the median of repeats"
        others = f"{shown}seeds{' and other trials' * known}"
        others *= any(one.seeds is not None for one in errors)
        said.append(f"A point is {of}{others}.")
    if False in kinds:
        others = f"{shown}trials"
        others *= any(one.seeds is None and one.few_trials is not None for one in errors)
        said.append(f"Without repeats, a point is the fewest steps of any trial{others}.")
    if any(one.few_trials is None and one.seeds is None for one in errors):
        said.append("Without whiskers, the luck of a point is not known; more repeats would tell.")
    said += cooled_sentences(panel.drawn.rows)
    if points:
        said.append("Dashed: perfect scaling, where doubling the batch halves the steps.")
    if any(scaling.curves for scaling in panel.drawn.scalings):
        said.append("Dotted: the middle of all bends that the points allow, nine tenths shaded.")
    if len(points) < len(panel.drawn.rows):
        said.append("Crosses at the top: no steps to the goal are known; hovering says why.")
    return " ".join(said)


def _advised(panel: Panel) -> str:
    """A card for each recommendation, over all recipes; those that agree share one."""
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
    interval = " (error unknown)"
    if cost.low is not None and cost.high is not None:
        to = f"to {cost.high:,.0f}" if cost.high < math.inf else "or more"
        interval = f" ({cost.low:,.0f} {to})"
    needs = f"{in_count(cost.steps)} steps{interval}, {in_count(cost.examples)} examples"
    for one in cost.priced:
        needs += f"; {in_time(one.seconds)} on {counted(one.devices, 'device')}"
        if one.money is not None:
            needs += f", {in_digits(one.money)} in money"
    point = point_text(cost.params)
    needs += f"; {point}" if point else ""
    return f"<b>{cost.batch_size:,}</b> {escape(cost.recipe)}<br><span>{escape(needs)}</span>"


def _coarse(panel: Panel) -> str:
    """Says which points are known to little more than the distance between two measurements."""
    every = trained_points(panel.rows)
    coarse = [one for one in every if one.resolution > max(1, MOST_APART * one.steps)]
    if not coarse:
        return ""
    worst = max(coarse, key=lambda one: one.resolution / one.steps)
    finer = max(1, round(min(one.examples for one in coarse) * MOST_APART / 2))
    keys = f"{{spacing: {MOST_APART / 2:g}, min_examples: {finer}}}"
    how = f"Measure more often, with evaluate: {keys}."
    if panel.is_imported:
        how = "More measurements along a training would tell."
    elif panel.is_program:
        how = f"Let it measure about every {finer:,} examples there."
    return (
        f"Measurements lie more than a tenth of the steps apart at {len(coarse):,} of "
        f"{len(every):,} points: {worst.recipe} at batch size {worst.batch_size:,} takes "
        f"{in_count(worst.steps)} steps, or up to {worst.resolution:,} fewer. {how}"
    )


def _notes(panel: Panel) -> str:
    """The remarks: the first is visible, the others are folded behind it."""
    notes = [
        f"{row.recipe} at batch size {row.batch_size:,}: {'; '.join(row.warnings)}."
        for row in panel.rows
        if row.warnings and not row.censored
    ]
    flattered = [holding_in_words(one) for one in panel.holdings if one.differs]
    notes = [*flattered, *filter(None, [_coarse(panel)]), *panel.doubts, *notes]
    if panel.is_program:
        notes.append(
            f"{panel.workload} is a program: trained again with the same seed, a trial may measure "
            f"something else. Its times hold evaluations, so no number of devices is recommended."
        )
    if any(row.censored for row in panel.rows):
        notes.insert(
            0,
            "Some answers are censored: trials were ended early, and could have reached this goal "
            "earlier than any trial that did.",
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


def steps_to_goal(
    rows: Sequence[FrontierRow], fitted: Mapping[str, Curves] | None = None
) -> Drawing:
    """Draws one workload and goal: for each recipe a line, the curves that its points allow, and
    perfect scaling from the point that needed the fewest examples. Batch sizes that never reached
    the goal are marked at the top."""
    curves = grouped(rows, lambda row: row.recipe)
    figure = lines_of(curves)
    for number, name in enumerate(curves):
        if (found := (fitted or {}).get(name)) is not None:
            figure.add(*_band(number, name, found))
    return figure


def _band(number: int, name: str, found: Curves) -> list[dict[str, Any]]:
    """The middle of all curves that the points allow, and where nine tenths of them lie."""
    logs = np.linspace(found.log_sizes[0], found.log_sizes[-1], PLACES_DRAWN)
    sizes = (2**logs).tolist()
    middle, low, high = (line.tolist() for line in found.band(logs))
    colour = mark(number)["line"]["color"]
    edge = guide([*sizes, *sizes[::-1]], [*high, *low[::-1]], f"{safe(name)}, 90 %", width=0)
    around = {**edge, "fill": "toself", "fillcolor": colour, "opacity": 0.15, "showlegend": False}
    line = guide(sizes, middle, f"{safe(name)}, bend", "dot", colour=colour)
    return [around, {**line, "showlegend": False}]


def lines_of(curves: Mapping[str, Sequence[FrontierRow]], *, perfect: bool = True) -> Drawing:
    figure = Drawing()
    drawn = {name: trained_points(rows) for name, rows in curves.items()}
    reached = [point for points in drawn.values() for point in points]
    spread = {name: errors_of(points).intervals(points) for name, points in drawn.items()}
    ends = [end for of_name in spread.values() for one in of_name for end in (one.low, one.high)]
    # All of where a point may lie is to be seen.
    seen = [*(end for end in ends if end and end < math.inf), *(point.steps for point in reached)]
    if reached and perfect:
        figure.add(guide([None], [None], "perfect scaling"))
        figure.add(*(_perfect(n, drawn[name]) for n, name in enumerate(curves) if drawn[name]))
    for number, (name, rows) in enumerate(curves.items()):
        if not drawn[name]:
            continue
        # No line leads through where the goal was not reached.
        sizes = sorted(row.batch_size for row in rows)
        points = {point.batch_size: point for point in drawn[name]}
        intervals = dict(zip(points, spread[name], strict=True))
        at = [(n, points[n].steps, _describe(name, points[n])) if n in points else (n, None, "")
              for n in sizes]  # fmt: skip
        spread_of = whiskers([intervals.get(size) for size in sizes], thickness=1)
        figure.line(name, at, mark(number), error_y=spread_of)
    figure.styled("Batch size", "Steps to goal")
    figure.log2("x", (row.batch_size for rows in curves.values() for row in rows))
    axis = log2_axis(seen)
    figure.y_axes(**axis)
    for number, (name, rows) in enumerate(curves.items()):
        known = {point.batch_size for point in drawn[name]}
        if missing := [row for row in rows if row.batch_size not in known]:
            _cross_out(figure, number, name, missing, 10 ** axis["range"][1])
    return figure


def _perfect(number: int, points: Sequence[CurvePoint]) -> dict[str, Any]:
    """Perfect scaling through the point with the fewest examples, over a curve's batch sizes."""
    examples = min(point.examples for point in points)
    fewest = min(point.steps for point in points)
    smallest = min(point.batch_size for point in points)
    largest = min(max(point.batch_size for point in points), 2 * examples / fewest)
    steps = [examples / smallest, examples / largest]
    colour = mark(number)["line"]["color"]
    line = guide([smallest, largest], steps, "perfect scaling", width=1.2, colour=colour)
    return {**line, "opacity": 0.6, "showlegend": False}


def _cross_out(
    figure: Drawing, number: int, name: str, rows: Sequence[FrontierRow], top: float
) -> None:
    """Marks batch sizes without a point by crosses at the top, a little lower for each recipe."""
    cross = {"color": mark(number)["line"]["color"], "symbol": "x-thin-open", "size": 10}
    look = {"marker": {**cross, "line": {"width": 2}}, "showlegend": False, "cliponaxis": False}
    at = [(row.batch_size, top / 1.06 ** (number + 1), _why(name, row)) for row in rows]
    figure.line(f"{name}, not reached", at, look, "markers")


def _why(name: str, row: FrontierRow) -> str:
    ended = ", ".join(f"{count} {safe(status)}" for status, count in row.trials.items())
    if row.censored:
        why = "not known: trials were ended early"
    elif row.steps_answered == 0:
        why = "the goal was passed before the first step"
    elif row.repeats is not None and row.steps is not None:
        why = "too few of the winner's repeats reached the goal"
    else:
        why = "the goal was not reached" if row.finished else "not finished yet"
    said = of_size(row.batch_size, name) + why
    return f"{said}<br>trials: {ended}" if ended else said


def _describe(name: str, point: CurvePoint) -> str:
    row, again = point.row, point.again
    lines = [f"{safe(key)} = {safe(short(value))}" for key, value in point.params.items()]
    if row.steps is not None and row.trial is not None:
        fewest = f"{counted(row.steps, 'step')} (±{row.resolution or 0:,}) in trial {row.trial}"
        lines.insert(0 if again is None else len(lines), fewest)
    if again is not None:
        low, high = ("never" if end is None else f"{end:,}" for end in (again.low, again.high))
        ends = f", the median of {again.count} repeats ({low} to {high}, {again.confidence:.0%})"
        again_of = f" of trial {row.answering[0]}"
        how = f"{ends}{again_of}" if again.count > 1 else f" in the only repeat{again_of}"
        lines.insert(0, f"{in_count(point.steps)} steps{how}")
    return of_size(point.batch_size, name) + "<br>".join(lines)
