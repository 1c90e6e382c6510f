"""The parts of the page that are about all of it, as HTML. Whatever comes from a run is escaped."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go

from orchestrator.analysis import Cost, Group, groups_of, sentence
from orchestrator.analysis.scaling import PERFECT_TOLERANCE, USEFUL_TOLERANCE
from orchestrator.report import figures
from orchestrator.report.content import Panel
from orchestrator.report.figures import Span
from orchestrator.report.tables import devices, in_time, table_of_advice, table_of_scalings
from orchestrator.report.trials import SIDE_BY_SIDE
from orchestrator.results import FrontierRow

Show = Callable[[go.Figure, str, str, str], str]
"""Puts a figure on the page: the figure, its title, what is to be seen, how to read it."""

MOST_CARDS = 3
"""Workloads and goals whose recommendation is told large."""

MOST_NOTES = 3


def section(title: str, text: str) -> str:
    """One that can be linked to."""
    return f'<section id="{anchor(title)}"><h2>{escape(title)}</h2>{text}</section>'


def anchor(title: str) -> str:
    return "".join(sign if sign.isalnum() else "-" for sign in title.lower())


def contents(text: str) -> str:
    """Links to the sections there are."""
    found = re.findall(r'<section id="([^"]+)"><h2>(.*?)</h2>', text)
    links = "".join(f'<li><a href="#{place}">{title}</a></li>' for place, title in found)
    return f'<nav aria-label="On this page"><ul>{links}</ul></nav>'


def answers(panels: Sequence[Panel]) -> str:
    """The page in words, then in numbers."""
    if len(panels) <= MOST_CARDS:
        parts = [
            (f"<h3>{escape(_name(panel))}</h3>" if len(panels) > 1 else "")
            + f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in _lines(panel))}</ul>"
            + _cards(panel)
            for panel in panels
        ]
    else:
        lines = [(_name(panel), line) for panel in panels for line in _lines(panel)]
        items = [f"<li><b>{escape(name)}</b>: {escape(line)}</li>" for name, line in lines]
        parts = [f"<ul>{''.join(items)}</ul>"]
    remark = (
        f"In brackets 90 % intervals, by the scatter about the fitted curve. Scaling is called "
        f"perfect while steps times batch size is within {PERFECT_TOLERANCE:.0%} of its minimum, a "
        f"batch size useful until steps are within {USEFUL_TOLERANCE:.0%} of the fewest. B_crit "
        f"and S_min are those of steps = S_min (1 + B_crit / B); the last column says by how many "
        f"doublings the points lie off that curve."
    )
    text = f"""{"".join(parts)}{_basis(panels)}{table_of_scalings(panels)}
<p class="lead">{remark}</p>{table_of_advice(panels)}"""
    return section("The answer", text)


def _name(panel: Panel) -> str:
    return f"{panel.workload}, until {panel.goal}"


def _lines(panel: Panel) -> list[str]:
    lines = [sentence(scaling) for scaling in panel.scalings]
    if any(row.censored for row in panel.rows):
        lines.append(
            "Some answers are censored: trials were ended at other goals, and could have come to "
            "this one sooner than any that did."
        )
    notes = [
        f"{row.recipe} at batch size {row.batch_size:,}: {'; '.join(row.warnings)}"
        for row in panel.rows
        if row.warnings and not row.censored
    ]
    if notes:
        more = len(notes) - MOST_NOTES
        rest = f" And {more} more, in the table of the frontier." if more > 0 else ""
        lines.append(f"Mind: {'. '.join(notes[:MOST_NOTES])}.{rest}")
    return lines


def _cards(panel: Panel) -> str:
    """What to take, of all recipes."""
    advice = panel.advice
    if advice is None:
        return ""
    named = {"Fastest": advice.fastest, "Balanced": advice.balanced, "Cheapest": advice.cheapest}
    cards = "".join(
        f"<div><dt>{name}</dt><dd><b>{cost.batch_size:,}</b> {escape(cost.recipe)}<br>"
        f"{escape(_needs(cost))}</dd></div>"
        for name, cost in named.items()
    )
    return f'<h4>Recommended batch size</h4><dl class="cards">{cards}</dl>'


def _basis(panels: Sequence[Panel]) -> str:
    """How recommendations come about."""
    found = [advice for panel in panels if (advice := panel.advice) is not None]
    if not found:
        return ""
    if all(advice.by_step_times for advice in found):
        off = max(device.residual for panel in panels for device in panel.devices.values())
        basis = (
            f"Of all batch sizes on one device and on as many as each keeps busy, that is, at half "
            f"of their best rate or more: fastest is the least work (device-seconds) within a "
            f"tenth of the least time, cheapest the least time within a tenth of the least work, "
            f"balanced the least product of both. From step times as measured, at most {off:.0%} "
            f"off on the whole; other trials may have slowed them down, and what more devices than "
            f"were used need to exchange gradients is not in them."
        )
    else:
        basis = (
            "Fastest is the fewest examples within a tenth of the fewest steps, cheapest the "
            "fewest steps within a tenth of the fewest examples, balanced the least product of "
            "both."
        )
    return f'<p class="lead">{basis}</p>'


def _needs(cost: Cost) -> str:
    needs = f"{cost.steps:,} steps, {cost.examples:,} examples"
    for one in cost.priced:
        needs += f"; {in_time(one.seconds)} on {devices(one.devices)}"
        if one.money is not None:
            needs += f", {one.money:,.3g} in money"
    return needs


def overview(panels: Sequence[Panel], show: Show) -> str:
    """All curves at a glance, where there are several workloads or goals."""
    if len(panels) < 2:
        return ""
    shown = "".join(
        show(
            figures.small_steps(panel.rows),
            f"{panel.workload}, {panel.goal}",
            panel.least,
            "",
        )
        for panel in panels
    )
    lead = (
        "Steps to goal against batch size, both logarithmic; along the dashed line twice the batch "
        "halves the steps."
    )
    text = f'<p class="lead">{lead}</p><div class="small">{shown}</div>'
    return section("At a glance", text)


def comparisons(panels: Sequence[Panel], show: Show) -> str:
    """Goals, models, data sets and all workloads side by side, where there are several."""
    shown = _goals(panels, show)
    for group in groups_of(dict.fromkeys(panel.workload for panel in panels)):
        shown += _group(group, panels, show)
    rows = [row for panel in panels for row in panel.rows]
    if len({row.workload for row in rows}) > 1:
        curves: dict[str, list[FrontierRow]] = {}
        for row in rows:
            curves.setdefault(f"{row.workload}, {row.recipe}, {row.goal}", []).append(row)
        shown += _relative(curves, "Workloads and recipes compared", panels, show)
    return section("Compared", shown) if shown else ""


def _goals(panels: Sequence[Panel], show: Show) -> str:
    rows = [row for panel in panels for row in panel.rows]
    shown = ""
    for workload, recipe in dict.fromkeys((row.workload, row.recipe) for row in rows):
        mine = [row for row in rows if (row.workload, row.recipe) == (workload, recipe)]
        goals = len({row.goal for row in mine})
        if goals > 1:
            shown += show(
                figures.goals_compared(mine),
                f"{workload}, {recipe}: goals compared",
                f"Steps to each of {goals} goals.",
                "Whether a stricter goal moves the batch size at which scaling ends.",
            )
    return shown


def _group(group: Group, panels: Sequence[Panel], show: Show) -> str:
    """Workloads that differ in one thing: their curves, and where good trials lie."""
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
        if sum(any(row.steps for row in rows) for rows in curves.values()) > 1:
            shown += _relative(curves, f"{title}, {recipe}", panels, show)
        shown += _tried_in(mine, labels, recipe, title, show)
    return shown


def _relative(
    curves: Mapping[str, Sequence[FrontierRow]], title: str, panels: Sequence[Panel], show: Show
) -> str:
    if not any(row.steps and not row.censored for rows in curves.values() for row in rows):
        return ""
    return show(
        figures.relative_steps(curves, panels[0].settings.compare_at),
        title,
        "Steps to goal, relative to those at a common batch size.",
        "Curves that go on falling longer gain more from a larger batch.",
    )


def _tried_in(
    panels: Sequence[Panel], labels: Mapping[str, str], recipe: str, title: str, show: Show
) -> str:
    """Every trial of each workload, at the largest batch size that all show."""
    tried = {panel.workload: panel.tried[recipe] for panel in panels if recipe in panel.tried}
    if not 1 < len(tried) <= SIDE_BY_SIDE or len({(t.x, t.y) for t in tried.values()}) > 1:
        return ""
    shared = set.intersection(*({size for size, _ in t.outcomes} for t in tried.values()))
    if not shared:
        return ""
    size, one = max(shared), next(iter(tried.values()))
    return show(
        figures.tried_by_workload(
            [(labels[name], dict(some.outcomes)[size]) for name, some in tried.items()],
            one.x, one.y, y_from_one=one.y_from_one,
        ),
        f"{title}, {recipe}: every trial at batch size {size:,}",
        f"By {one.x} and {one.y}.",
        "Whether the good region moves from one to the next.",
    )  # fmt: skip


def course(spans: Sequence[Span], show: Show) -> str:
    """When which trial ran."""
    if not spans:
        return ""
    figure = show(
        figures.timeline(spans),
        "Which trial ran when",
        f"{len(spans):,} trials, by how they ended.",
        "Each bar is a trial, or what was trained of it after it was last set aside for others. "
        "Gaps are earlier parts of trials, and times in which a slot had nothing to train.",
    )
    return section("How the run went", figure)


def provenance_section(provenance: Mapping[str, Any], sweep_file: str) -> str:
    items = "".join(
        f"<dt>{escape(str(name))}</dt><dd>{escape(str(value))}</dd>"
        for name, value in provenance.items()
    )
    return section(
        "Where this comes from",
        f"<dl>{items}</dl><details><summary>Sweep file, in full</summary>"
        f"<pre>{escape(sweep_file)}</pre></details>",
    )
