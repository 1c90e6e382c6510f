"""The fold of the frontier: the winner of each study, as a table."""

from __future__ import annotations

from orchestrator.analysis.words import frontier_cells, on_medians
from orchestrator.report.content import Panel
from orchestrator.report.sections import MOST_ROWS, lead, short, table


def frontier(panel: Panel) -> str:
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
        "The frontier: the trial of each study that reached the goal in the fewest steps.",
        [*(known[0] if known else ()), *names, "Trials", "Notes"],
        body,
    )
    return rendered + lead(
        f"± is the number of steps between the measurement that passed the goal and the "
        f"measurement before it. {on_medians(rows)}"
    )


def found(panel: Panel) -> str:
    rows = [*panel.rows, *panel.growing]
    reached = sum(row.steps is not None for row in rows)
    return f"The winner of each study; {reached:,} of {len(rows):,} studies reached the goal"
