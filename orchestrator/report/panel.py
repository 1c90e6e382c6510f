"""All that a report shows of one workload and goal, as HTML."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from orchestrator.analysis import wander
from orchestrator.report.answer_section import answer_of
from orchestrator.report.content import Panel
from orchestrator.report.cost_section import costs, costs_found
from orchestrator.report.enough_section import best_of_trials, enough_found, made_of
from orchestrator.report.figures import course
from orchestrator.report.figures.course import Curve
from orchestrator.report.figures.style import MOST_CURVES, evenly
from orchestrator.report.metaparameters_section import best_values, metaparameters_found, options
from orchestrator.report.noise_section import forecasts, noise_along, noise_found
from orchestrator.report.numbers_section import numbers, numbers_found
from orchestrator.report.quality_section import (
    best_values_within,
    generalisation,
    large_batches,
    quality_found,
)
from orchestrator.report.sections import Show, alone, fold, section
from orchestrator.report.tables import MOST_ROWS, table_of_frontier
from orchestrator.report.trials_section import (
    all_tried,
    grids,
    parallel,
    table_of_trials,
    trials_found,
)


@dataclass(frozen=True, kw_only=True)
class Group:
    """Several parts that are folded together, and the line that summarises them."""

    place: str
    title: str
    finding: Callable[[Panel], str]
    parts: tuple[Callable[[Panel, Show], str], ...]


def panel_section(number: int, panel: Panel, show: Show, several: bool) -> str:
    """Returns the answer and, folded below it, the parts on which it rests, in the order in which
    questions arise. Parts without content are left out."""
    place = f"panel-{number}-" if several else ""
    text = alone("The answer", partial(answer_of, panel, show)) + '<div class="folds">'
    for group in GROUPS if panel.drawn.rows else ():
        text += alone(group.title, partial(_folded, group, place, panel, show))
    text += (
        fold(f"{place}frontier", "Frontier", _frontier_found(panel), _frontier(panel)) + "</div>"
    )
    if several:
        return section(f"panel-{number}", f"{panel.workload}, until {panel.goal}", text)
    return f'<section id="answer"><h2 class="unseen">The answer</h2>{text}</section>'


def _folded(group: Group, place: str, panel: Panel, show: Show) -> str:
    # Whether a batch is huge is a question to all recipes, as are numbers.
    inside = "".join(part(panel if part in OF_ALL else panel.drawn, show) for part in group.parts)
    return inside and fold(place + group.place, group.title, group.finding(panel), inside)


def _frontier(panel: Panel) -> str:
    # Those drawn come first, lest they be left out of a table that is too long.
    drawn = {*panel.drawn.recipes}
    others = [row for row in panel.rows if row.recipe not in drawn]
    rows = [*panel.drawn.rows, *others] if len(panel.rows) > MOST_ROWS else panel.rows
    return table_of_frontier([*rows, *panel.growing])


def _frontier_found(panel: Panel) -> str:
    rows = [*panel.rows, *panel.growing]
    reached = sum(row.steps is not None for row in rows)
    return f"The winner of each study; {reached:,} of {len(rows):,} studies reached the goal"


def _training_curves(panel: Panel, show: Show) -> str:
    return "".join(
        show(
            course.training_curves(curves, panel.goal, panel.losers.get(recipe, ())),
            f"{recipe}: {panel.goal.metric} while it trains",
            f"The winner of each batch size{_some(curves)}, as strong lines.",
            _behind(panel.losers.get(recipe, ()), is_compact=recipe in panel.compact)
            + "Dark lines are small batch sizes, bright lines large ones. A trial stops at its "
            "goal unless the sweep asks it to go on.",
        )
        for recipe, curves in panel.curves.items()
    )


def _behind(losers: Sequence[Curve], *, is_compact: bool) -> str:
    faint = f"Faint lines: {len(losers)} of the other trials. " if losers else ""
    lacking = "The curves of all but the best trials are not in this compact run. "
    return faint + (lacking if is_compact else "")


def _schedules(panel: Panel, show: Show) -> str:
    if not panel.schedules:
        return ""
    return show(
        course.schedules(panel.schedules, panel.recipes),
        "Learning-rate schedules side by side",
        f"The schedules of the winners at batch size {panel.schedules[0].batch_size:,}.",
        "A line is the factor by which a recipe multiplies its learning rate, over its whole "
        "budget.",
    )


def _distances(panel: Panel, show: Show) -> str:
    return "".join(
        show(
            course.distances(curves),
            f"{recipe}: distance from the initial weights",
            _powers(curves),
            "A distance that grows with the logarithm of the step is a straight line. For a random "
            "walk on a random potential, the power is 2 / alpha.",
        )
        for recipe, curves in panel.distances.items()
    )


def _some(curves: Sequence[Curve]) -> str:
    few = f", of {MOST_CURVES} batch sizes of {len(curves):,}"
    return few if len(curves) > MOST_CURVES else ""


def _powers(curves: Sequence[Curve]) -> str:
    said = []
    for curve in evenly(curves, MOST_CURVES):
        power = wander(curve.steps, curve.values)
        so_far = f"{curve.values[-1]:.3g} at {curve.batch_size:,}"
        said.append(so_far if power is None else f"{so_far} (power {power:.2f})")
    told = ", ".join(said)
    return f"At the end, by batch size, with the power of the logarithm of the step: {told}."


GROUPS = (
    Group(place="numbers", title="Numbers", finding=numbers_found, parts=(numbers,)),
    Group(place="cost", title="Cost and devices", finding=costs_found, parts=(costs,)),
    Group(
        place="enough",
        title="Errors, and whether there were enough trials",
        finding=enough_found,
        parts=(made_of, best_of_trials),
    ),
    Group(
        place="metaparameters",
        title="Metaparameters",
        finding=metaparameters_found,
        parts=(best_values, options),
    ),
    Group(
        place="trials",
        title="All trials",
        finding=trials_found,
        parts=(all_tried, grids, parallel, table_of_trials),
    ),
    Group(
        place="training",
        title="How the winners train",
        finding=lambda panel: f"{panel.goal.metric} along the trainings",
        parts=(_training_curves, _schedules, _distances),
    ),
    Group(
        place="noise",
        title="Noise scale and forecasts",
        finding=noise_found,
        parts=(forecasts, noise_along),
    ),
    Group(
        place="quality",
        title="Quality",
        finding=quality_found,
        parts=(best_values_within, generalisation, large_batches),
    ),
)

OF_ALL = (large_batches, numbers)
"""The parts that are about all recipes, whether they are drawn or not."""
