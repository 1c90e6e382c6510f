"""The report's part on quality, as HTML: whether large batches reach worse values."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from orchestrator.analysis import Largeness
from orchestrator.report.content import Panel
from orchestrator.report.figures import gaps
from orchestrator.report.sections import Show
from orchestrator.results import BestRow


def best_values_within(panel: Panel, show: Show) -> str:
    """Shows the best values within budgets. It refuses if trials were stopped at their goals,
    because that would favour trials that trained on."""
    metric = panel.goal.metric
    shown, refused = "", []
    for recipe, rows in panel.quality.items():
        if any(row.censored for row in rows):
            refused.append(recipe)
        elif any(row.value is not None for row in rows):
            if len({row.batch_size for row in rows}) > 1:
                shown += show(
                    gaps.best_within(rows, panel.goal),
                    f"{recipe}: best {metric} within budgets",
                    _ends(rows),
                    "They show whether a large batch size gets worse values with as many steps, "
                    "and with as many epochs. Dark lines are small budgets, bright lines are large "
                    "ones.",
                )
            shown += show(
                gaps.training_longer(rows, panel.goal),
                f"{recipe}: training longer",
                _longer(rows),
                f"The best {metric} against the budget shows whether more training makes up for a "
                f"large batch size. Dark lines are small batch sizes, bright lines large ones.",
            )
    whole = [row for row in panel.bests if row.value is not None]
    if len({row.recipe for row in whole}) > 2:
        shown += show(
            gaps.ladder(whole, panel.recipes, panel.goal),
            "Recipes, one after the other",
            _rungs(whole, panel.recipes),
            f"The best {metric} within the recipe's budget, with the recipes in the sweep's order. "
            f"If each recipe adds something to the recipe before it, this shows what each addition "
            f"brings.",
        )
    if refused:
        shown += (
            f'<p class="lead">The best {escape(metric)} within budgets is not shown for '
            f"{escape(', '.join(refused))}: their trials were stopped as soon as they had "
            f"reached their goals or could no longer win, so their best values are not known. A "
            f"sweep with <code>stop: {{at_goal: false}}</code> measures them.</p>"
        )
    return shown


def _ends(rows: Sequence[BestRow]) -> str:
    """Says the best values within the largest budget, at the smallest and the largest batch
    size."""
    known = [row for row in rows if row.within == rows[-1].within and row.value is not None]
    said = [f"{row.value:.4g} at batch size {row.batch_size:,}" for row in known]
    return f"Within {_budget(rows[-1])}: {', '.join([*said[:1], *said[1:][-1:]])}." if said else ""


def _longer(rows: Sequence[BestRow]) -> str:
    """Says the best values of the largest batch size, within the smallest and the largest
    budget."""
    size, unit = max(row.batch_size for row in rows), (rows[-1].within or "").partition("=")[0]
    known = [
        row
        for row in rows
        if row.batch_size == size and row.value is not None and (row.within or "").startswith(unit)
    ]
    said = [f"{row.value:.4g} within {_budget(row)}" for row in known]
    return f"At batch size {size:,}: {', '.join([*said[:1], *said[1:][-1:]])}." if said else ""


def _budget(row: BestRow) -> str:
    unit, _, amount = (row.within or "").partition("=")
    return f"{float(amount):,g} {unit}"


def _rungs(rows: Sequence[BestRow], recipes: Sequence[str]) -> str:
    """Says the best value of each recipe at the largest batch size, which is the hardest."""
    size = max(row.batch_size for row in rows)
    values = {row.recipe: row.value for row in rows if row.batch_size == size}
    said = [
        f"{recipe} {value:.4g}" for recipe in recipes if (value := values.get(recipe)) is not None
    ]
    return f"At batch size {size:,}: {', '.join(said)}."


def generalisation(panel: Panel, show: Show) -> str:
    if not panel.gaps:
        return ""
    widest = max(panel.gaps, key=lambda gap: gap.value)
    return show(
        gaps.generalisation_gap(panel.gaps, panel.goal.metric, panel.recipes),
        "Generalisation gap",
        f"Widest with {widest.recipe} at batch size {widest.batch_size:,}: {widest.judged:.4g} "
        f"against {widest.trained:.4g} on the training set.",
        "The gap is how much better the winners are on the training set, "
        + (
            "at their best value within the recipe's budget."
            if panel.bests
            else "at the step at which they reached the goal."
        ),
    )


def large_batches(panel: Panel, show: Show) -> str:
    found = panel.largeness
    if found is None:
        return ""
    if isinstance(found, str):
        return f'<p class="lead">Large and huge batch sizes are not known: {escape(found)}.</p>'
    return show(
        gaps.accuracy_held(found.held, panel.recipes),
        "Large, huge and full batches",
        _sizes(found),
        "Large: the baseline's recipe, its learning rate scaled by rule, no longer reaches 99.5 % "
        "of the baseline's accuracy with at most 1.2 times its loss. Huge: no recipe reaches that "
        "accuracy. All are trained on as many examples as the baseline.",
    )


def _sizes(found: Largeness) -> str:
    def from_(size: int | None) -> str:
        return "at no batch size tested" if size is None else f"from {size:,} on"

    full = "" if found.full is None else f" The full batch is {found.full:,}."
    return (
        f"Beside {found.recipe} at {found.batch_size:,} ({found.accuracy:.2%} within "
        f"{found.examples:,} examples), batches are large {from_(found.large_from)}, huge "
        f"{from_(found.huge_from)}.{full}"
    )


def quality_found(panel: Panel) -> str:
    if isinstance(panel.largeness, Largeness):
        return _sizes(panel.largeness).rstrip(".")
    if panel.gaps:
        widest = max(panel.gaps, key=lambda gap: gap.value)
        return f"The generalisation gap is at most {widest.value:.3g}"
    if not panel.bests:
        return "Not measured: trials were stopped early"
    return "Whether large batch sizes get worse values"
