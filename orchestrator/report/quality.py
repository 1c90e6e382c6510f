"""The fold of quality: whether large batches reach worse values."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from orchestrator.analysis.quality import Gap
from orchestrator.records import Goal, Study, grouped
from orchestrator.report.content import Panel
from orchestrator.report.sections import Show, lead
from orchestrator.report.style import Drawing, mark, of_size, safe, shades, value_axis
from orchestrator.results import BestRow, RunFiles, Within, best_of_studies

SHARES = (16, 8, 4, 2, 1)
"""The fractions of a budget within which the best value is asked for."""


def best_within_budgets(
    run: RunFiles, goal: Goal, studies: Sequence[Study]
) -> dict[str, Sequence[BestRow]]:
    """The best values within the largest budgets that all studies of a recipe had, and within
    fractions of these budgets."""
    found: dict[str, Sequence[BestRow]] = {}
    for recipe, mine in grouped(studies, lambda study: study.recipe).items():
        if not all(study.budget_steps for study in mine):
            continue
        budgets = [("steps", min(study.budget_steps for study in mine))]
        if size := mine[0].train_size:
            budgets.append(("epochs", min(study.budget_examples // size for study in mine)))
        within = [
            Within(amount=amount // part, unit=unit)
            for unit, amount in budgets
            for part in SHARES
            if amount // part
        ]
        upwards = goal.direction == ">"
        rows = best_of_studies(run, mine, goal.metric, maximise=upwards, within=within)
        # Where trials were ended early, the largest budgets tell, and nothing else is shown.
        whole = {str(Within(amount=amount, unit=unit)) for unit, amount in budgets}
        largest = [row for row in rows if row.within in whole]
        found[recipe] = largest if any(row.censored for row in largest) else rows
    return found


STOPPED = (
    "their trials were stopped as soon as they had reached their goals or could no longer win, so "
    "their best values are not known. A sweep with <code>stop: {at_goal: false}</code> measures "
    "them."
)

ENDED_ELSEWHERE = "not all of their trainings went to the end, so the best values are not known."


def best_values_within(panel: Panel, show: Show) -> str:
    """Shows the best values within budgets. It refuses if trials were stopped at their goals,
    because that would favour trials that trained on."""
    metric = panel.goal.metric
    shown, refused = "", []
    for recipe, rows in panel.quality.items():
        if any(row.censored for row in rows):
            refused.append(recipe)
        elif any(row.value is not None for row in rows):
            shown += show(
                _best_within(rows, panel.goal),
                f"{recipe}: best {metric} within budgets",
                "",
                "They show whether a large batch size gets worse values within the same budget. "
                "Dark lines are small budgets, bright lines are large ones.",
            )
    if refused:
        shown += lead(
            f"The best {escape(metric)} within budgets is not shown for "
            f"{escape(', '.join(refused))}: {ENDED_ELSEWHERE if panel.is_imported else STOPPED}"
        )
    return shown


def generalisation(panel: Panel, show: Show) -> str:
    if not panel.gaps:
        return ""
    return show(
        _generalisation_gap(panel.gaps, panel.goal.metric, panel.recipes),
        "Generalisation gap",
        "",
        "The gap is how much better the winners are on the training set, "
        + (
            "at their best value within the recipe's budget."
            if panel.bests
            else "at the step at which they reached the goal."
        ),
    )


def finding(panel: Panel) -> str:
    if panel.gaps:
        widest = max(panel.gaps, key=lambda gap: gap.value)
        return f"The generalisation gap is at most {widest.value:.3g}"
    if not panel.bests:
        return "Not measured: trials were stopped early"
    return "Whether large batch sizes get worse values"


def _best_within(rows: Sequence[BestRow], goal: Goal) -> Drawing:
    """Draws one recipe: a line per budget, small (dark) to large (bright), with budgets in steps on
    the left and in epochs on the right."""
    by_unit = grouped(rows, lambda row: (row.within or "").partition("=")[0])
    titles = [f"in {unit}" for unit in by_unit]
    figure = Drawing(titles, gaps=(0.04, 0), one_y=True)
    for panel, mine in enumerate(by_unit.values()):
        budgets = grouped(mine, lambda row: row.within or "")
        colours = shades(len(budgets))
        for number, (budget, of_budget) in enumerate(budgets.items()):
            at = [
                (row.batch_size, row.value, _describe(row))
                for row in sorted(of_budget, key=lambda row: row.batch_size)
                if row.value is not None
            ]
            look = mark(number, colours[number])
            figure.line(budget.replace("=", " "), at, look, panel=panel)
    figure.styled("Batch size", "", margin={"t": 60}, legend={"y": 1.1})
    figure.log2("x", (row.batch_size for row in rows))
    figure.y_axes(**value_axis([row.value for row in rows if row.value is not None], goal))
    figure.y_axes(0, title={"text": f"Best {safe(rows[0].metric)}"})
    return figure


def _describe(row: BestRow) -> str:
    return f"{of_size(row.batch_size)}{row.value:.4g} at step {row.step:,}, trial {row.trial}"


def _generalisation_gap(gaps: Sequence[Gap], metric: str, recipes: Sequence[str]) -> Drawing:
    figure = Drawing()
    ordered = sorted(gaps, key=lambda gap: gap.batch_size)
    for recipe, mine in grouped(ordered, lambda gap: gap.recipe).items():
        at = [
            (
                gap.batch_size,
                gap.value,
                f"{of_size(gap.batch_size, recipe)}{gap.judged:.4g} against {gap.trained:.4g} in "
                f"training",
            )
            for gap in mine
        ]
        figure.line(recipe, at, mark(recipes.index(recipe)))
    figure.styled("Batch size", f"Gap in {safe(metric)}")
    figure.log2("x", (gap.batch_size for gap in gaps))
    return figure
