"""The parts of the page that are about all of it, as HTML. Whatever comes from a run is escaped."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go

from orchestrator.analysis import (
    Cost,
    growing_sentence,
    in_count,
    in_time,
    sentence,
)
from orchestrator.analysis.points import ENOUGH_STEPS
from orchestrator.analysis.scaling import PERFECT_TOLERANCE, USEFUL_TOLERANCE
from orchestrator.records import ENOUGH_SIZES
from orchestrator.report import figures
from orchestrator.report.content import Panel
from orchestrator.report.figures import Span
from orchestrator.report.figures.course import MOST_BARS, MOST_LINES
from orchestrator.report.tables import devices, table_of_advice, table_of_scalings

Show = Callable[[go.Figure, str, str, str], str]
"""Puts a figure on the page: the figure, its title, what is to be seen, how to read it."""

MOST_CARDS = 3
"""Workloads and goals whose recommendation is told large."""

MOST_NOTES = 3

NO_ADVICE = (
    f"No batch size is recommended: it takes {ENOUGH_SIZES} of them, in studies that have finished "
    f"and with winners of at least {ENOUGH_STEPS} steps."
)


def section(place: str, title: str, text: str) -> str:
    """One that can be linked to at `place`."""
    return f'<section id="{place}"><h2>{escape(title)}</h2>{text}</section>'


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
            + _cards(panel, "h4" if len(panels) > 1 else "h3")
            for panel in panels
        ]
    else:
        lines = [(_name(panel), line) for panel in panels for line in _lines(panel)]
        items = [f"<li><b>{escape(name)}</b>: {escape(line)}</li>" for name, line in lines]
        if more := sum(not panel.drawn.rows for panel in panels):
            items.append(f"<li>And {more:,} more workloads and goals, in the tables.</li>")
        parts = [f"<ul>{''.join(items)}</ul>"]
    numbers = table_of_scalings(panels)
    remark = (
        "In brackets 90 % intervals. They include the scatter about the fitted curve, how far "
        "measurements lie apart and, where they are known, seeds and few trials. Scaling is called "
        f"perfect while steps times batch size is within {PERFECT_TOLERANCE:.0%} of its minimum, "
        f"a batch size useful until steps are within {USEFUL_TOLERANCE:.0%} of the fewest. B_crit "
        "is that of steps = S_min (1 + B_crit / B), left out where the points refuse that law; "
        "the last column says by how many doublings they lie off the curve that was used."
    )
    if numbers:
        numbers += f'<p class="lead">{remark}</p>'
    text = f"{''.join(parts)}{_basis(panels)}{numbers}{table_of_advice(panels)}"
    return section("answer", "The answer", text)


def _name(panel: Panel) -> str:
    return f"{panel.workload}, until {panel.goal}"


def _lines(panel: Panel) -> list[str]:
    grown = [growing_sentence(row) for row in panel.growing]
    if not panel.drawn.rows:
        return grown
    lines = [*(sentence(scaling) for scaling in panel.drawn.scalings), *grown]
    if (more := len(panel.recipes) - len(panel.drawn.recipes)) > 0:
        lines.append(f"And {more:,} more recipes, in the tables.")
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


def _cards(panel: Panel, level: str) -> str:
    """What to take, of all recipes, under a heading of that level."""
    advice = panel.advice
    if advice is None:
        return f"<p>{NO_ADVICE}</p>" if panel.costs else ""
    named = {"Fastest": advice.fastest, "Balanced": advice.balanced, "Cheapest": advice.cheapest}
    cards = "".join(
        f"<div><dt>{name}</dt><dd><b>{cost.batch_size:,}</b> {escape(cost.recipe)}<br>"
        f"{escape(_needs(cost))}</dd></div>"
        for name, cost in named.items()
    )
    return f'<{level}>Recommended batch size</{level}><dl class="cards">{cards}</dl>'


def _basis(panels: Sequence[Panel]) -> str:
    """How recommendations come about."""
    found = [
        advice
        for panel in panels
        for advice in (panel.advice, *panel.advice_by_recipe.values())
        if advice is not None
    ]
    said = []
    if any(advice.by_step_times for advice in found):
        residuals = [device.residual for panel in panels for device in panel.devices.values()]
        off = [residual for residual in residuals if residual is not None]
        said.append(
            "Where step times are known, of all batch sizes on as few devices as was measured and "
            "on as many as each keeps busy, that is, at half of their best rate or more: fastest "
            "is the least work (device-seconds) within a tenth of the least time, cheapest the "
            "least time within a tenth of the least work, balanced the least product of both. "
            "Other trials may have slowed steps down, and what more devices than were used need "
            "to exchange gradients is not in them."
        )
        said += [f"Step times are at most {max(off):.0%} off on the whole."] if off else []
    if not all(advice.by_step_times for advice in found):
        said.append(
            "Without step times, fastest is the fewest examples within a tenth of the fewest "
            "steps, cheapest the fewest steps within a tenth of the fewest examples, balanced the "
            "least product of both."
        )
    return f'<p class="lead">{" ".join(said)}</p>' if said else ""


def _needs(cost: Cost) -> str:
    needs = f"{in_count(cost.steps)} steps, {in_count(cost.examples)} examples"
    for one in cost.priced:
        needs += f"; {in_time(one.seconds)} on {devices(one)}"
        if one.money is not None:
            needs += f", {one.money:,.3g} in money"
    return needs


def overview(panels: Sequence[Panel], show: Show) -> str:
    """All curves at a glance, where there are several workloads or goals."""
    panels = [panel for panel in panels if panel.rows]
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
    return section("glance", "At a glance", text)


def course(spans: Sequence[Span], show: Show) -> str:
    """When which trial ran."""
    if not spans:
        return ""
    figure = show(
        figures.timeline(spans),
        "Which trial ran when",
        f"{len(spans):,} trials, by how they ended." + _merged(spans),
        "Each bar is a trial, or what was trained of it after it was last set aside for others. "
        "Gaps are earlier parts of trials, and times in which a slot had nothing to train. "
        "Trials that were trained together follow each other here, each as long as its share.",
    )
    return section("course", "How the run went", figure)


def _merged(spans: Sequence[Span]) -> str:
    if len(spans) <= MOST_BARS:
        return ""
    return (
        f" They are drawn as at most {MOST_BARS:,} bars: trials that began in the same moment, one "
        f"after the other, share a bar, which shows how those ended that took most of its time. Of "
        f"trials at the same time at most {MOST_LINES} are drawn."
    )


def provenance_section(provenance: Mapping[str, Any], sweep_file: str) -> str:
    items = "".join(
        f"<dt>{escape(str(name))}</dt><dd>{escape(str(value))}</dd>"
        for name, value in provenance.items()
    )
    return section(
        "source",
        "Where this comes from",
        f"<dl>{items}</dl><details><summary>Sweep file, in full</summary>"
        f"<pre>{escape(sweep_file)}</pre></details>",
    )
