"""Goals, models, data sets and recipes side by side: the overview of the page, and a fold."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from orchestrator.analysis.points import beside_minima, trained_points
from orchestrator.analysis.words import in_count
from orchestrator.records import grouped
from orchestrator.report.answer import lines_of, steps_to_goal
from orchestrator.report.content import Panel
from orchestrator.report.sections import Show, fold, lead
from orchestrator.report.style import Drawing, guide, mark, of_size
from orchestrator.results import FrontierRow


def groups_of(workloads: Iterable[str]) -> list[tuple[str, str, dict[str, str]]]:
    """The groups of at least two workloads that differ in one thing: what that is, the part of the
    name that they share, and workload -> the part that differs. A workload's name is DATA
    SET/MODEL?OPTIONS; options, such as the share of a data set to train on, make versions."""
    parts, found = {}, []
    for name in workloads:
        path, _, options = name.partition("?")
        data, _, model = path.rpartition("/")
        parts[name] = data, model, options
    for position, by in ((1, "model"), (0, "data set"), (2, "version")):
        by_shared: dict[tuple[str, ...], dict[str, str]] = {}
        for name, part in parts.items():
            shared = tuple(text for n, text in enumerate(part) if n != position)
            by_shared.setdefault(shared, {})[name] = part[position] or "all of it"
        found += [
            (by, ", ".join(filter(None, shared)), labels)
            for shared, labels in by_shared.items()
            if len(labels) > 1
        ]
    return found


def shared_size(curves: Iterable[Sequence[FrontierRow]]) -> int | None:
    """The smallest batch size at which all curves that have points reached their goals."""
    sizes = [{point.batch_size for point in trained_points(rows)} for rows in curves]
    return min(set.intersection(*filter(None, sizes)), default=None) if any(sizes) else None


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
    shown = _goals(panels, show)
    for by, of, labels in groups_of(dict.fromkeys(panel.workload for panel in panels)):
        shown += _group(f"{of}: {by}s compared", labels, panels, show)
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
                lines_of(goals, perfect=False),
                f"{workload}, {recipe}: goals compared",
                f"The steps to each of {len(goals)} goals.{beside_minima(goals)}",
                "They show whether a stricter goal moves the batch size at which scaling ends.",
            )
    return shown


def _group(title: str, labels: Mapping[str, str], panels: Sequence[Panel], show: Show) -> str:
    mine = [panel for panel in panels if panel.workload in labels]
    several = len(mine) > len(labels)
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
    if not curves:
        return ""
    at = shared_size(curves.values())
    said = "Each curve is relative to its smallest batch size: the curves share none."
    if at is not None:
        said = f"Relative to the steps at batch size {at:,}."
    return show(
        relative_steps(curves, at),
        title,
        said + beside_minima(curves),
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
    `at`, or else by its steps at the smallest batch size that reached the goal."""
    figure = Drawing()
    shares, sizes = [], []
    for number, (name, rows) in enumerate(curves.items()):
        points = trained_points(rows)
        unit = next(point for point in points if at in (None, point.batch_size))
        at_each = []
        for point in points:
            share = point.steps / unit.steps
            text = of_size(point.batch_size, name)
            text += f"{in_count(point.steps)} steps, {share:.3g} of those at {unit.batch_size:,}"
            at_each.append((point.batch_size, share, text))
        figure.line(name, at_each, mark(number))
        shares += [share for _, share, _ in at_each]
        sizes += [size for size, *_ in at_each]
    if at and shares:
        low, high = min(sizes) / at, min(max(sizes) / at, 1 / min(shares))
        figure.add(guide([at * low, at * high], [1 / low, 1 / high], "perfect scaling"))
    figure.styled("Batch size", "Steps to goal, relative")
    figure.log2("x", sizes)
    figure.log2("y", shares)
    return figure
