"""All that a report shows of one workload and goal, as HTML."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.analysis import Tuned, beside_minima, in_count, wander
from orchestrator.records import Goal
from orchestrator.report import figures
from orchestrator.report.content import Panel
from orchestrator.report.enough_section import best_of_trials, made_of
from orchestrator.report.figures import Curve
from orchestrator.report.figures.style import MOST_CURVES, evenly
from orchestrator.report.gathering import MOST_IN_DETAIL
from orchestrator.report.noise_section import forecasts, noise_along
from orchestrator.report.quality_section import best_values_within, generalisation, large_batches
from orchestrator.report.sections import Show, section
from orchestrator.report.tables import MOST_ROWS, short, table_of_frontier, table_of_ratios
from orchestrator.report.trials import Grid, Options, Tried


def panel_section(number: int, panel: Panel, show: Show) -> str:
    """In the order in which questions come up; nothing is said of what there is nothing about."""
    parts = {
        "Steps and cost": (_steps, _ratios, _costs),
        "Were there enough trials?": (best_of_trials, made_of),
        "Metaparameters": (_best_values, _options, _all_tried, _grids),
        "How the winners train": (_training_curves, _schedules, _distances),
        "Noise scale": (forecasts, noise_along),
        "Quality": (best_values_within, generalisation, large_batches),
    }
    text = _left_out(panel)
    for heading, shown in parts.items() if panel.drawn.rows else ():
        # Whether a batch is huge is a question to all recipes.
        inside = "".join(
            part(panel if part is large_batches else panel.drawn, show) for part in shown
        )
        text += f"<h3>{heading}</h3>{inside}" if inside else ""
    # Those drawn come first, lest they be left out of a table that is too long.
    drawn = {*panel.drawn.recipes}
    others = [row for row in panel.rows if row.recipe not in drawn]
    rows = [*panel.drawn.rows, *others] if len(panel.rows) > MOST_ROWS else panel.rows
    text += f"<h3>Frontier</h3>{table_of_frontier([*rows, *panel.growing])}"
    return section(f"panel-{number}", f"{panel.workload}, until {panel.goal}", text)


def _left_out(panel: Panel) -> str:
    """What figures don't show."""
    if panel.detailed is None:
        return ""
    few, many = len(panel.drawn.recipes), len(panel.recipes)
    return (
        f'<p class="lead">{few:,} of {many:,} recipes are drawn: on the whole page at most '
        f"{MOST_IN_DETAIL}, those first that need the fewest steps. The frontier has all.</p>"
    )


def _steps(panel: Panel, show: Show) -> str:
    return show(
        figures.steps_to_goal(panel.rows, {s.recipe: s.law for s in panel.scalings if s.law}),
        "Steps to goal against batch size",
        panel.least + beside_minima(panel.by_recipe),
        "Both axes are logarithmic. Along the dashed line, twice the batch halves the steps; it "
        "passes through the point that needed the fewest examples. Dotted lines are the laws that "
        "fit. Whiskers show where the true median of a point's repeats lies.",
    )


def _ratios(panel: Panel, show: Show) -> str:
    return table_of_ratios(panel.rows)


def _costs(panel: Panel, show: Show) -> str:
    if not panel.costs:
        return ""
    best = ", ".join(f"{cost.recipe} {cost.batch_size:,}" for cost in panel.costs if cost.pareto)
    shown = show(
        figures.examples_against_steps(panel.costs, panel.recipes),
        "Work against time",
        f"Beaten in both by none: {best}.",
        "Steps are time, where there are devices for the whole batch; examples are work. Batch "
        "sizes that none beats in both are filled.",
    )
    priced = [cost for cost in panel.costs if cost.priced]
    if priced:
        front = ", ".join(
            f"{cost.recipe} {cost.batch_size:,} on {one.devices:,}"
            for cost in priced
            for one in cost.priced
            if one.pareto
        )
        price = panel.settings.price_per_device_hour
        shown += show(
            figures.device_seconds_against_time(priced, panel.recipes),
            "Device-seconds against seconds",
            f"Beaten in both by none: {front}.",
            "Each batch size is a line from one device to as many as it keeps busy, from measured "
            "step times." + ("" if price is None else f" A device-hour costs {price:g}."),
        )
    return shown


def _best_values(panel: Panel, show: Show) -> str:
    found = panel.tuned
    curves = {
        name: [c for c in found if c.name == name] for name in dict.fromkeys(c.name for c in found)
    }
    return "".join(
        show(
            figures.best_values(mine, panel.recipes),
            f"Best {name} against batch size",
            f"Powers of the batch size that it goes with: {' '.join(map(_rule, mine))}",
            "The winner's value at each batch size"
            + (
                "; and what the usual rules make of the first one: the linear rule is the power 1, "
                "the square root 0.5."
                if mine[0].is_rate
                else "."
            ),
        )
        for name, mine in curves.items()
    )


def _rule(curve: Tuned) -> str:
    if curve.zeros:
        return f"{curve.recipe}: 0 at {curve.zeros} batch sizes, which are not shown."
    if curve.exponent is None or curve.exponent_interval is None:
        return f"{curve.recipe}: too few batch sizes to tell a rule."
    low, high = curve.exponent_interval
    return f"{curve.recipe}: {curve.exponent:.2f} ({low:.2f} to {high:.2f})."


def _options(panel: Panel, show: Show) -> str:
    return "".join(
        show(
            figures.options(found.points, found.name, f"best {panel.goal.metric}"),
            f"{recipe}: what {found.name} changes",
            _told(found),
            "Of the trials with each value, the fewest steps to the goal and the best they came "
            "to. Points are missing where none reached it, or where trials were ended early and "
            "would tell too little.",
        )
        for recipe, several in panel.options.items()
        for found in several
        if any(point.steps or point.best is not None for point in found.points)
    )


def _told(found: Options) -> str:
    size = max(point.batch_size for point in found.points if point.steps or point.best is not None)
    said = [
        f"{point.option}" + (f" in {point.steps:,} steps" if point.steps else "")
        + ("" if point.best is None else f", best {point.best:.4g}")
        for point in found.points
        if point.batch_size == size
    ]  # fmt: skip
    return f"At batch size {size:,}: {'; '.join(said)}."


def _training_curves(panel: Panel, show: Show) -> str:
    return "".join(
        show(
            figures.training_curves(curves, panel.goal),
            f"{recipe}: {panel.goal.metric} while it trains",
            f"The best trial of each batch size{_some(curves)}.",
            "Dark is a small batch, bright a large one. A trial stops at its goal unless asked to "
            "go on.",
        )
        for recipe, curves in panel.curves.items()
    )


def _all_tried(panel: Panel, show: Show) -> str:
    shown = ""
    for recipe, tried in panel.tried.items():
        shown += show(
            figures.tried(tried.outcomes, tried.x, tried.y, y_from_one=tried.y_from_one),
            f"{recipe}: every trial by {tried.x} and {tried.y}",
            _counts(tried) + _sampled(tried),
            "How wide the good region is, where it moves as the batch grows, and how near its best "
            "point lies to an end of the ranges. The best trial is starred.",
        )
        shown += _within_budgets(panel, recipe, tried, show)
    return shown


def _within_budgets(panel: Panel, recipe: str, tried: Tried, show: Show) -> str:
    """The same for budgets twice as large as the best batch size needs. Trials that were ended
    since they could no longer win say nothing about that."""
    mine = [cost for cost in panel.costs if cost.recipe == recipe]
    if len(mine) < 2 or len(tried.outcomes) < 2 or tried.cut:
        return ""
    examples = 2 * min(cost.examples for cost in mine)
    steps = 2 * min(cost.steps for cost in mine)
    return show(
        figures.tried_within(
            tried.outcomes, tried.x, tried.y, y_from_one=tried.y_from_one,
            examples=examples, steps=steps,
        ),
        f"{recipe}: the same within one budget for all batch sizes",
        f"Twice the fewest examples any needed ({in_count(examples)}), and twice the fewest steps "
        f"({in_count(steps)}).",
        "With as many examples for all, the good region closes as the batch grows; with as many "
        "steps, it opens.",
    )  # fmt: skip


def _counts(tried: Tried) -> str:
    parts = [f"{reached} of {count} at {size:,}" for size, reached, count in tried.counts]
    more = " Those that could no longer win were ended early: more may have reached it."
    return f"Reached the goal: {', '.join(parts)}.{more * tried.cut}"


def _sampled(tried: Tried) -> str:
    few, many = sum(len(table) for _, table in tried.outcomes), sum(n for _, _, n in tried.counts)
    if few == many:
        return ""
    return (
        f" {few:,} of {many:,} trials are drawn: at each batch size those that reached the goal in "
        f"the fewest steps, and an even sample of the others."
    )


def _grids(panel: Panel, show: Show) -> str:
    return "".join(
        show(
            figures.heat_maps(
                grid.cells, ((grid.x, grid.xs), (grid.y, grid.ys)), grid.shown, logs=grid.is_steps
            ),
            f"{recipe}: {grid.shown} by {grid.x} and {grid.y}",
            _best_cell(grid, panel.goal),
            "Each cell is the best trial with these two values. Empty ones did not come to it"
            + (", or were ended early." if grid.is_steps else "."),
        )
        for recipe, grid in panel.grids.items()
        if any(values for _, values in grid.cells)
    )


def _best_cell(grid: Grid, goal: Goal) -> str:
    size, values = [cell for cell in grid.cells if cell[1]][-1]
    best = max if goal.direction == ">" and not grid.is_steps else min
    x, y = best(values, key=lambda at: values[at])
    return (
        f"Best at batch size {size:,}: {values[x, y]:.4g} with {grid.x} {short(x)} and {grid.y} "
        f"{short(y)}."
    )


def _schedules(panel: Panel, show: Show) -> str:
    if not panel.schedules:
        return ""
    return show(
        figures.schedules(panel.schedules, panel.recipes),
        "Learning-rate schedules side by side",
        f"The winners' at batch size {panel.schedules[0].batch_size:,}.",
        "What each recipe's learning rate is multiplied with, over its whole budget.",
    )


def _distances(panel: Panel, show: Show) -> str:
    return "".join(
        show(
            figures.distances(curves),
            f"{recipe}: distance from the initial weights",
            _powers(curves),
            "A straight line goes with the logarithm of the step. Of a random walk on a random "
            "potential, the power is 2 / alpha.",
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
    return f"In the end, and as a power of the logarithm: {', '.join(said)}."
