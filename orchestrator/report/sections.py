"""The parts of the page that are about the whole page, as HTML. All text that comes from a run is
escaped."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go

from orchestrator.analysis import in_time
from orchestrator.records import BadInput, mistake
from orchestrator.report.content import Panel
from orchestrator.report.figures.course import MOST_BARS, MOST_LINES, Span, timeline
from orchestrator.report.figures.steps import small_steps

logger = logging.getLogger(__name__)

Show = Callable[[go.Figure, str, str, str], str]
"""Puts a figure on the page, given the figure, its title, what it shows and how to read it."""


def section(place: str, title: str, text: str) -> str:
    """Returns a section; links reach it at `place`."""
    return f'<section id="{place}"><h2>{escape(title)}</h2>{text}</section>'


def alone(title: str, make: Callable[[], str]) -> str:
    """Returns what `make` returns. If it fails, returns a line that says so, since a mistake in one
    part must not cost the others."""
    try:
        return make()
    except BadInput:
        raise
    except Exception as error:
        line = mistake(f'"{title}", a part of the page,', error)
        logger.warning(line)
        return f'<p class="notice">{escape(line)}</p>'


def fold(place: str, title: str, finding: str, text: str, *, level: int = 3) -> str:
    """Returns a section that opens on a click or when a link leads to it. Its line says what is
    inside."""
    return (
        f'<details class="fold" id="{place}"><summary><h{level}>{escape(title)}</h{level}>'
        f"<span>{escape(finding)}</span></summary>{text}</details>"
    )


def contents(text: str) -> str:
    """Returns links to the sections of the page."""
    found = re.findall(r'<section id="([^"]+)"><h2>(.*?)</h2>', text)
    links = "".join(f'<li><a href="#{place}">{title}</a></li>' for place, title in found)
    return f'<nav aria-label="On this page"><ul>{links}</ul></nav>' if links else ""


def overview(panels: Sequence[Panel], show: Show) -> str:
    """Shows all curves side by side, where there are several workloads or goals."""
    panels = [panel for panel in panels if panel.rows]
    if len(panels) < 2:
        return ""
    shown = "".join(
        show(
            small_steps(panel.rows),
            f"{panel.workload}, {panel.goal}",
            panel.least,
            "",
        )
        for panel in panels
    )
    lead = (
        "Steps to goal against batch size. Both axes are logarithmic. Along a dashed line, "
        "doubling the batch size halves the steps."
    )
    two = " two" if len(panels) == 2 else ""
    return f'<p class="lead">{lead}</p><div class="small{two}">{shown}</div>'


def course(spans: Sequence[Span], show: Show) -> str:
    """Shows which trial ran when."""
    if not spans:
        return ""
    figure = show(
        timeline(spans),
        "Which trial ran when",
        f"{len(spans):,} trials, coloured by how they ended." + _merged(spans),
        "Each bar is one trial. A trial that was set aside for others and went on later shows its "
        "last part only. A gap is the earlier part of such a trial, or a time in which the slot "
        "had nothing to train. Trials that were trained together in one model are drawn one after "
        "the other, each as long as its share of the time.",
    )
    seconds = max(span.started + span.seconds for span in spans)
    finding = f"{len(spans):,} trials in {in_time(seconds)}"
    return fold("course", "How the run went", finding, figure)


def _merged(spans: Sequence[Span]) -> str:
    if len(spans) <= MOST_BARS:
        return ""
    return (
        f" The figure has at most {MOST_BARS:,} bars: trials of one slot that began at about the "
        f"same time share a bar, whose colour shows how the trials ended that took most of its "
        f"time. Of all trials that ran at the same time, at most {MOST_LINES} are drawn."
    )


def provenance_section(provenance: Mapping[str, Any], sweep_file: str) -> str:
    items = "".join(
        f"<dt>{escape(str(name))}</dt><dd>{escape(str(value))}</dd>"
        for name, value in provenance.items()
    )
    return fold(
        "source",
        "Where this comes from",
        "Versions, machine, commit, seed, how trials ended, and the sweep file",
        f'<dl>{items}</dl><h4>The sweep file, in full</h4><pre tabindex="0">'
        f"{escape(sweep_file)}</pre>",
    )
