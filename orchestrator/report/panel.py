"""All that a report shows of one workload and goal, as HTML."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from orchestrator.report import (
    cost,
    errors,
    frontier,
    holding,
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


@dataclass(frozen=True)
class Group:
    """Several parts that are folded together, and the line that summarises them."""

    place: str
    title: str
    finding: Callable[[Panel], str]
    parts: tuple[Callable[[Panel, Show], str], ...]


def panel_section(number: int, panel: Panel, show: Show, several: bool) -> str:
    """The answer and, folded below it, the parts on which it rests, in the order in which questions
    arise. Parts without content are left out."""
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
    Group("numbers", "Numbers", numbers.found, (numbers.numbers,)),
    Group("cost", "Cost and devices", cost.found, (cost.costs, cost.recommended)),
    Group(
        "enough",
        "Errors, and whether there were enough trials",
        errors.found,
        (errors.made_of, errors.best_of_trials),
    ),
    Group("holding", "Goals that hold", holding.found, (holding.holding,)),
    Group(
        "metaparameters",
        "Metaparameters",
        metaparameters.found,
        (metaparameters.best_values, metaparameters.options),
    ),
    Group("trials", "All trials", trials.found, (trials.all_tried, trial_table.table_of_trials)),
    Group("training", "How the winners train", training.found, (training.training_curves,)),
    Group("noise", "Noise scale and forecasts", noise.found, (noise.forecasts, noise.noise_along)),
    Group(
        "quality",
        "Quality",
        quality.found,
        (quality.best_values_within, quality.generalisation, quality.large_batches),
    ),
)

OF_ALL = (quality.large_batches, numbers.numbers, cost.recommended)
"""The parts that are about all recipes, whether they are drawn or not."""
