"""All that a report shows of one workload and goal, as HTML."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from orchestrator.report import (
    cost,
    errors,
    frontier,
    metaparameters,
    noise,
    numbers,
    quality,
    training,
    trial_table,
    trials,
)
from orchestrator.report.answer import answer_of
from orchestrator.report.content import Panel
from orchestrator.report.sections import Show, alone, fold, section


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
    rows = frontier.frontier(panel)
    text += fold(f"{place}frontier", "Frontier", frontier.found(panel), rows) + "</div>"
    if several:
        return section(f"panel-{number}", f"{panel.workload}, until {panel.goal}", text)
    return f'<section id="answer"><h2 class="unseen">The answer</h2>{text}</section>'


def _folded(group: Group, place: str, panel: Panel, show: Show) -> str:
    # Whether a batch is huge is a question to all recipes, as are numbers.
    inside = "".join(part(panel if part in OF_ALL else panel.drawn, show) for part in group.parts)
    return inside and fold(place + group.place, group.title, group.finding(panel), inside)


GROUPS = (
    Group(place="numbers", title="Numbers", finding=numbers.found, parts=(numbers.numbers,)),
    Group(
        place="cost",
        title="Cost and devices",
        finding=cost.found,
        parts=(cost.costs, cost.recommended),
    ),
    Group(
        place="enough",
        title="Errors, and whether there were enough trials",
        finding=errors.found,
        parts=(errors.made_of, errors.best_of_trials),
    ),
    Group(
        place="metaparameters",
        title="Metaparameters",
        finding=metaparameters.found,
        parts=(metaparameters.best_values, metaparameters.options),
    ),
    Group(
        place="trials",
        title="All trials",
        finding=trials.found,
        parts=(trials.all_tried, trials.grids, trial_table.table_of_trials),
    ),
    Group(
        place="training",
        title="How the winners train",
        finding=lambda panel: f"{panel.goal.metric} along the trainings",
        parts=(training.training_curves,),
    ),
    Group(
        place="noise",
        title="Noise scale and forecasts",
        finding=noise.found,
        parts=(noise.forecasts, noise.noise_along),
    ),
    Group(
        place="quality",
        title="Quality",
        finding=quality.found,
        parts=(quality.best_values_within, quality.generalisation, quality.large_batches),
    ),
)

OF_ALL = (quality.large_batches, numbers.numbers, cost.recommended)
"""The parts that are about all recipes, whether they are drawn or not."""
