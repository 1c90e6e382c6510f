"""What a report shows of quality: whether large batches come to less, as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from orchestrator.analysis import Largeness
from orchestrator.report import figures
from orchestrator.report.content import Panel
from orchestrator.report.sections import Show
from orchestrator.results import BestRow


def best_values_within(panel: Panel, show: Show) -> str:
    """Refused where trials were ended for their goal's sake, which would favour who trained on."""
    metric = panel.goal.metric
    shown, refused = "", []
    for recipe, rows in panel.quality.items():
        if any(row.censored for row in rows):
            refused.append(recipe)
        elif any(row.value is not None for row in rows):
            if len({row.batch_size for row in rows}) > 1:
                shown += show(
                    figures.best_within(rows),
                    f"{recipe}: best {metric} within budgets",
                    _ends(rows),
                    "Whether a large batch comes to less with as many steps, and with as many "
                    "epochs. Small budgets are dark, large ones bright.",
                )
            shown += show(
                figures.training_longer(rows),
                f"{recipe}: training longer",
                _longer(rows),
                f"The best {metric} against the budget: whether more training closes what a large "
                f"batch loses. Small batches are dark, large ones bright.",
            )
    whole = [row for row in panel.bests if row.value is not None]
    if len({row.recipe for row in whole}) > 2:
        shown += show(
            figures.ladder(whole, panel.recipes),
            "What each recipe comes to, one after the other",
            _rungs(whole, panel.recipes),
            f"The best {metric} within the recipe's budget. Recipes are in the sweep's order: if "
            f"each adds something to the one before, this is the ladder of what it brings.",
        )
    if refused:
        shown += (
            f'<p class="lead">The best {escape(metric)} within budgets is not shown for '
            f"{escape(', '.join(refused))}: trials were ended as soon as they had reached their "
            f"goals or could no longer win, and what they would have come to isn't known. A sweep "
            f"with <code>stop: {{at_goal: false}}</code> tells.</p>"
        )
    return shown


def _ends(rows: Sequence[BestRow]) -> str:
    """Of the largest budget, at the smallest and at the largest batch size."""
    known = [row for row in rows if row.within == rows[-1].within and row.value is not None]
    said = [f"{row.value:.4g} at batch size {row.batch_size:,}" for row in known]
    return f"Within {_budget(rows[-1])}: {', '.join([*said[:1], *said[1:][-1:]])}." if said else ""


def _longer(rows: Sequence[BestRow]) -> str:
    """Of the largest batch size, within the smallest and the largest budget."""
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
    """At the largest batch size, where it is hardest."""
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
        figures.generalisation_gap(panel.gaps, panel.goal.metric, panel.recipes),
        "Generalisation gap",
        f"Widest with {widest.recipe} at batch size {widest.batch_size:,}: {widest.judged:.4g} "
        f"against {widest.trained:.4g} on the training set.",
        "By how much the winners do better on what they were trained on: "
        + (
            "at the best they came to within their recipe's budget."
            if panel.bests
            else "as they reached the goal."
        ),
    )


def large_batches(panel: Panel, show: Show) -> str:
    found = panel.largeness
    if found is None:
        return ""
    if isinstance(found, str):
        return f'<p class="lead">What is a large or huge batch can\'t be said: {escape(found)}.</p>'
    return show(
        figures.accuracy_held(found.held, panel.recipes),
        "Large, huge and full batches",
        _sizes(found),
        "Large: with its learning rate by rule, the baseline's recipe no longer comes to 99.5 % of "
        "its accuracy with at most 1.2 times its loss. Huge: no recipe comes to that accuracy. All "
        "with the baseline's examples.",
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
