"""Goals, models, data sets and recipes side by side: the overview of the page, and a fold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from orchestrator.analysis.comparisons import Group, groups_of, relative, shared_size
from orchestrator.analysis.points import beside_minima, trained_points
from orchestrator.analysis.words import in_count
from orchestrator.report.answer import goals_compared, steps_to_goal
from orchestrator.report.content import Panel, grouped
from orchestrator.report.sections import Show, fold, lead
from orchestrator.report.style import Drawing, add_line, guide, log2_axis, mark, of_size, styled
from orchestrator.results import FrontierRow


def overview(panels: Sequence[Panel], show: Show) -> str:
    """Shows all curves side by side, where there are several workloads or goals."""
    panels = [panel for panel in panels if panel.rows]
    if len(panels) < 2:
        return ""
    shown = "".join(
        show(_small_steps(panel.rows), f"{panel.workload}, {panel.goal}", panel.least, "")
        for panel in panels
    )
    said = lead(
        "Steps to goal against batch size. Both axes are logarithmic. Along a dashed line, "
        "doubling the batch size halves the steps."
    )
    two = " two" if len(panels) == 2 else ""
    return f'{said}<div class="small{two}">{shown}</div>'


def comparisons(panels: Sequence[Panel], show: Show) -> str:
    """Compares goals, models, data sets and all workloads, where there are several."""
    shown = _goals(panels, show)
    for group in groups_of(dict.fromkeys(panel.workload for panel in panels)):
        shown += _group(group, panels, show)
    rows = [row for panel in panels for row in panel.rows]
    if len({row.workload for row in rows}) > 1:
        curves = grouped(rows, lambda row: f"{row.workload}, {row.recipe}, {row.goal}")
        shown += _relative(curves, "Workloads and recipes compared", panels, show)
    if not shown:
        return ""
    return fold("compared", "Compared", "Goals, models, data sets and recipes side by side", shown)


def _goals(panels: Sequence[Panel], show: Show) -> str:
    rows = [row for panel in panels for row in panel.rows]
    shown = ""
    for (workload, recipe), mine in grouped(rows, lambda r: (r.workload, r.recipe)).items():
        goals = grouped(mine, lambda row: row.goal)
        if len(goals) > 1:
            shown += show(
                goals_compared(mine),
                f"{workload}, {recipe}: goals compared",
                f"The steps to each of {len(goals)} goals.{beside_minima(goals)}",
                "They show whether a stricter goal moves the batch size at which scaling ends.",
            )
    return shown


def _group(group: Group, panels: Sequence[Panel], show: Show) -> str:
    """Shows workloads that differ in one thing only."""
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


def _small_steps(rows: Sequence[FrontierRow]) -> Drawing:
    """Draws steps to goal in a small figure that stands beside others of its kind."""
    figure = steps_to_goal(rows)
    figure.style(
        height=300, margin={"l": 55, "r": 10, "t": 10, "b": 45}, font={"size": 12},
        showlegend=len({row.recipe for row in rows}) > 1, hovermode="closest",
    )  # fmt: skip
    for trace in figure.data:
        if trace["name"] == "perfect scaling":
            trace["showlegend"] = False
    figure.x_axes(tickangle=0)
    for letter, most in (("x", 4), ("y", 6)):
        for axis in figure.axes(letter):
            keep = slice(None, None, math.ceil(len(axis["tickvals"]) / most))
            axis |= {name: axis[name][keep] for name in ("tickvals", "ticktext")}
    return figure


def relative_steps(curves: Mapping[str, Sequence[FrontierRow]], at: int | None) -> Drawing:
    """Draws the curves of different workloads or recipes, each divided by its steps at batch size
    `at`, or else by its steps at its smallest batch size."""
    figure = Drawing()
    shares, sizes = [], []
    for number, (name, rows) in enumerate(curves.items()):
        found = relative(rows, at)
        if found is None:
            continue
        unit, points = found
        at_each = []
        for point, share in points:
            text = of_size(point.batch_size, name)
            text += f"{in_count(point.steps)} steps, {share:.3g} of those at {unit:,}"
            at_each.append((point.batch_size, share, text))
        add_line(figure, name, at_each, mark(number))
        shares += [share for _, share in points]
        sizes += [point.batch_size for point, _ in points]
    if at and shares:
        low, high = min(sizes) / at, min(max(sizes) / at, 1 / min(shares))
        figure.add(guide([at * low, at * high], [1 / low, 1 / high], "perfect scaling"))
    styled(figure, "Batch size", "Steps to goal, relative")
    figure.x_axes(**log2_axis(sizes))
    figure.y_axes(**log2_axis(shares))
    return figure
