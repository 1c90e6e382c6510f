"""All that a report shows of one workload and goal, as HTML."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from orchestrator.analysis.words import frontier_cells, on_medians
from orchestrator.records import short
from orchestrator.report import cost, metaparameters, numbers, quality, training, trials
from orchestrator.report.answer import answer_of
from orchestrator.report.content import Panel
from orchestrator.report.sections import MOST_ROWS, Show, alone, fold, lead, section, table


@dataclass(frozen=True)
class Fold:
    """Several parts that are folded together, and the line that summarises them."""

    anchor: str
    title: str
    finding: Callable[[Panel], str]
    parts: tuple[Callable[[Panel, Show], str], ...]


def panel_section(number: int, panel: Panel, show: Show, several: bool) -> str:
    """The answer and, folded below it, the parts on which it rests, in the order in which questions
    arise. Parts without content are left out."""
    prefix = f"panel-{number}-" if several else ""
    text = alone("The answer", partial(answer_of, panel, show)) + '<div class="folds">'
    for folded in FOLDS if panel.drawn.rows else ():
        text += alone(folded.title, partial(_folded, folded, prefix, panel, show))
    text += fold(f"{prefix}frontier", "Frontier", _reached(panel), _frontier(panel)) + "</div>"
    if several:
        return section(f"panel-{number}", f"{panel.workload}, until {panel.goal}", text)
    return f'<section id="answer"><h2 class="unseen">The answer</h2>{text}</section>'


def _folded(folded: Fold, prefix: str, panel: Panel, show: Show) -> str:
    inside = "".join(part(panel if part in OF_ALL else panel.drawn, show) for part in folded.parts)
    return inside and fold(prefix + folded.anchor, folded.title, folded.finding(panel), inside)


FOLDS = (
    Fold("numbers", "Numbers", numbers.finding, (numbers.numbers,)),
    Fold("cost", "Cost and devices", cost.finding, (cost.costs, cost.recommended)),
    Fold(
        "enough",
        "Errors, and whether there were enough trials",
        numbers.trials_needed,
        (numbers.made_of,),
    ),
    Fold("holding", "Goals that hold", numbers.lost_again, (numbers.holding,)),
    Fold("metaparameters", "Metaparameters", metaparameters.finding, (metaparameters.best_values,)),
    Fold("trials", "All trials", trials.finding, (trials.all_tried, trials.table_of_trials)),
    Fold("training", "How the winners train", training.finding, (training.training_curves,)),
    Fold("noise", "Forecasts by the noise scale", training.foretold, (training.forecasts,)),
    Fold(
        "quality", "Quality", quality.finding, (quality.best_values_within, quality.generalisation)
    ),
)

OF_ALL = (numbers.numbers, cost.recommended)
"""The parts that are about all recipes, whether they are drawn or not."""


def _frontier(panel: Panel) -> str:
    # Those drawn come first, lest they be left out of a table that is too long.
    drawn = {*panel.drawn.recipes}
    others = [row for row in panel.rows if row.recipe not in drawn]
    rows = [*panel.drawn.rows, *others] if len(panel.rows) > MOST_ROWS else [*panel.rows]
    rows += panel.growing
    names = list(dict.fromkeys(name for row in rows for name in row.answering[1] or {}))
    known = [frontier_cells(row) for row in rows]
    if not any(row.repeats for row in rows):
        for cells in known:
            del cells["Median"]
    body = [
        [
            *cells.values(),
            *(short((row.answering[1] or {}).get(name)) for name in names),
            ", ".join(f"{count} {status}" for status, count in row.trials.items()),
            "; ".join(row.remarks()),
        ]
        for cells, row in zip(known, rows, strict=True)
    ]
    rendered = table(
        "The frontier: the fewest steps of each study, and the trial that its answer is of.",
        [*(known[0] if known else ()), *names, "Trials", "Notes"],
        body,
    )
    return rendered + lead(
        f"± is the number of steps between the measurement that passed the goal and the "
        f"measurement before it. {on_medians(rows)}"
    )


def _reached(panel: Panel) -> str:
    rows = [*panel.rows, *panel.growing]
    reached = sum(row.steps_answered is not None for row in rows)
    return f"The winner of each study; {reached:,} of {len(rows):,} studies reached the goal"
