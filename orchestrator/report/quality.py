"""The fold of quality: whether large batches reach worse values."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from orchestrator.analysis.quality import Gap
from orchestrator.records import Goal, Study, grouped
from orchestrator.report.content import Panel
from orchestrator.report.sections import Show, lead
from orchestrator.report.style import Drawing, mark, of_size, safe, value_axis
from orchestrator.results import BestRow, RunFiles, Within, best_of_studies


def best_in_budget(
    run: RunFiles, goal: Goal, studies: Sequence[Study]
) -> dict[str, Sequence[BestRow]]:
    """The best value of each study within the largest budget that all studies of its recipe had: in
    epochs or, if that is less than one, in steps."""
    found: dict[str, Sequence[BestRow]] = {}
    for recipe, mine in grouped(studies, lambda study: study.recipe).items():
        if not all(study.budget_steps for study in mine):
            continue
        within = Within(amount=min(study.budget_steps for study in mine), unit="steps")
        if size := mine[0].train_size:
            epochs = min(study.budget_examples // size for study in mine)
            within = Within(amount=epochs, unit="epochs") if epochs else within
        upwards = goal.direction == ">"
        found[recipe] = best_of_studies(run, mine, goal.metric, maximise=upwards, within=[within])
    return found


STOPPED = (
    "their trials were stopped as soon as they had reached their goals or could no longer win, so "
    "their best values are not known. A sweep with <code>stop: {at_goal: false}</code> measures "
    "them."
)

ENDED_ELSEWHERE = "not all of their trainings went to the end, so the best values are not known."


def best_values(panel: Panel, show: Show) -> str:
    """Shows the best values within the budget. It refuses if trials were stopped at their goals,
    because that would favour trials that trained on."""
    metric = panel.goal.metric
    shown = ""
    if known := [row for row in panel.bests if row.value is not None]:
        shown = show(
            _best_values(known, panel.goal, panel.recipes),
            f"Best {metric} within the budget",
            "",
            "It shows whether a large batch size gets worse values within the same budget, which "
            "is the largest that all batch sizes of a recipe had.",
        )
    refused = [name for name, rows in panel.quality.items() if any(row.censored for row in rows)]
    if refused:
        shown += lead(
            f"The best {escape(metric)} within the budget is not shown for "
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


def _best_values(rows: Sequence[BestRow], goal: Goal, recipes: Sequence[str]) -> Drawing:
    figure = Drawing()
    ordered = sorted(rows, key=lambda row: row.batch_size)
    for recipe, mine in grouped(ordered, lambda row: row.recipe).items():
        at = [(row.batch_size, row.value, _describe(row)) for row in mine]
        figure.line(recipe, at, mark(recipes.index(recipe)))
    figure.styled("Batch size", f"Best {safe(goal.metric)}")
    figure.log2("x", (row.batch_size for row in rows))
    figure.y_axes(**value_axis([row.value for row in rows if row.value is not None], goal))
    return figure


def _describe(row: BestRow) -> str:
    unit, _, amount = (row.within or "").partition("=")
    return (
        f"{of_size(row.batch_size, row.recipe)}{row.value:.4g} within {amount} {unit}, at step "
        f"{row.step:,} of trial {row.trial}"
    )


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
