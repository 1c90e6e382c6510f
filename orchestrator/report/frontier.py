"""The fold of the frontier: the winner of each study, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.analysis.words import batch_sizes_of, median_of, on_medians, steps_of
from orchestrator.report.content import Panel
from orchestrator.report.sections import MOST_ROWS, lead, short, table
from orchestrator.results import FrontierRow


def frontier(panel: Panel) -> str:
    # Those drawn come first, lest they be left out of a table that is too long.
    drawn = {*panel.drawn.recipes}
    others = [row for row in panel.rows if row.recipe not in drawn]
    rows = [*panel.drawn.rows, *others] if len(panel.rows) > MOST_ROWS else [*panel.rows]
    rows += panel.growing
    names = list(dict.fromkeys(name for row in rows for name in row.answering[1] or {}))
    repeated = any(row.repeats for row in rows)
    heads = [
        "Recipe", "Batch size", "Steps", "±", *(["Median"] if repeated else []), "Examples",
        "Trial", *names, "Trials", "Notes",
    ]  # fmt: skip
    rendered = table(
        "The frontier: the trial of each study that reached the goal in the fewest steps.",
        heads,
        [_cells(row, names, repeated) for row in rows],
    )
    return rendered + lead(
        f"± is the number of steps between the measurement that passed the goal and the "
        f"measurement before it. {on_medians(rows)}"
    )


def found(panel: Panel) -> str:
    rows = [*panel.rows, *panel.growing]
    reached = sum(row.steps is not None for row in rows)
    return f"The winner of each study; {reached:,} of {len(rows):,} studies reached the goal"


def _cells(row: FrontierRow, names: Sequence[str], repeated: bool) -> list[str]:
    return [
        row.recipe,
        batch_sizes_of(row),
        steps_of(row),
        "" if row.resolution is None else f"{row.resolution:,}",
        *([median_of(row)] if repeated else []),
        "" if row.examples is None else f"{row.examples:,}",
        "" if row.trial is None else str(row.answering[0]),
        *(short((row.answering[1] or {}).get(name)) for name in names),
        ", ".join(f"{count} {status}" for status, count in row.trials.items()),
        "; ".join(row.remarks()),
    ]
