"""The page's part in which goals, models, data sets and recipes stand side by side, as HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.analysis import (
    Group,
    beside_minima,
    groups_of,
    relative,
    shared_size,
    trained_points,
)
from orchestrator.report.content import Panel
from orchestrator.report.figures.steps import goals_compared, relative_steps
from orchestrator.report.figures.tried import every_trial
from orchestrator.report.noise_section import forecasts_compared
from orchestrator.report.sections import Show, fold
from orchestrator.report.trials import SIDE_BY_SIDE
from orchestrator.results import FrontierRow


def comparisons(panels: Sequence[Panel], show: Show) -> str:
    """Compares goals, models, data sets and all workloads, where there are several."""
    shown = _goals(panels, show)
    for group in groups_of(dict.fromkeys(panel.workload for panel in panels)):
        shown += _group(group, panels, show)
    rows = [row for panel in panels for row in panel.rows]
    if len({row.workload for row in rows}) > 1:
        curves: dict[str, list[FrontierRow]] = {}
        for row in rows:
            curves.setdefault(f"{row.workload}, {row.recipe}, {row.goal}", []).append(row)
        shown += _relative(curves, "Workloads and recipes compared", panels, show)
    shown += forecasts_compared(panels, show)
    if not shown:
        return ""
    return fold("compared", "Compared", "Goals, models, data sets and recipes side by side", shown)


def _goals(panels: Sequence[Panel], show: Show) -> str:
    rows = [row for panel in panels for row in panel.rows]
    shown = ""
    for workload, recipe in dict.fromkeys((row.workload, row.recipe) for row in rows):
        mine = [row for row in rows if (row.workload, row.recipe) == (workload, recipe)]
        goals = {one: [row for row in mine if row.goal == one] for one in (r.goal for r in mine)}
        if len(goals) > 1:
            shown += show(
                goals_compared(mine),
                f"{workload}, {recipe}: goals compared",
                f"The steps to each of {len(goals)} goals.{beside_minima(goals)}",
                "They show whether a stricter goal moves the batch size at which scaling ends.",
            )
    return shown


def _group(group: Group, panels: Sequence[Panel], show: Show) -> str:
    """Shows workloads that differ in one thing only: their curves, and where good trials lie."""
    labels = {workload: label for label, workload in group.members}
    mine = [panel for panel in panels if panel.workload in labels]
    several = len(mine) > len(labels)
    title = f"{group.of}: {group.by}s compared"
    shown = ""
    for recipe in dict.fromkeys(recipe for panel in mine for recipe in panel.recipes):
        curves = {
            labels[panel.workload] + (f", {panel.goal}" if several else ""): [
                row for row in panel.rows if row.recipe == recipe
            ]
            for panel in mine
        }
        if sum(bool(trained_points(rows)) for rows in curves.values()) > 1:
            shown += _relative(curves, f"{title}, {recipe}", panels, show)
        shown += "" if several else _tried_in(mine, labels, recipe, title, show)
    return shown


def _relative(
    curves: Mapping[str, Sequence[FrontierRow]], title: str, panels: Sequence[Panel], show: Show
) -> str:
    curves = {name: rows for name, rows in curves.items() if trained_points(rows)}
    at = panels[0].settings.compare_at or shared_size(curves.values())
    there = {name: rows for name, rows in curves.items() if relative(rows, at) is not None}
    if not there:
        return ""
    missing = ", ".join(name for name in curves if name not in there)
    said = "Each curve is relative to its smallest batch size: the curves share none."
    if at is not None:
        said = f"Relative to the steps at batch size {at:,}."
        said += f" The goal was not reached there by {missing}." if missing else ""
    said += beside_minima(there)
    return show(
        relative_steps(there, at),
        title,
        said,
        "The longer a curve falls, the larger the batch size that still pays off.",
    )


def _tried_in(
    panels: Sequence[Panel], labels: Mapping[str, str], recipe: str, title: str, show: Show
) -> str:
    """Shows every trial of each workload, at the largest batch size that all workloads have."""
    tried = {panel.workload: panel.tried[recipe] for panel in panels if recipe in panel.tried}
    if not 1 < len(tried) <= SIDE_BY_SIDE or len({(t.x, t.y) for t in tried.values()}) > 1:
        return ""
    shared = set.intersection(*({size for size, _ in t.outcomes} for t in tried.values()))
    if not shared:
        return ""
    size, one = max(shared), next(iter(tried.values()))
    return show(
        every_trial(
            [(labels[name], dict(some.outcomes)[size]) for name, some in tried.items()],
            one.x, one.y, y_from_one=one.y_from_one,
        ),
        f"{title}, {recipe}: every trial at batch size {size:,}",
        "Reached the goal: " + ", ".join(
            f"{reached} of {count} with {labels[name]}" for name, some in tried.items()
            for at, reached, count in some.counts if at == size
        ) + ".",
        f"By {one.x} and {one.y}. The panels show whether the good region moves.",
    )  # fmt: skip
