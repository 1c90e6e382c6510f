"""The report: one HTML file that works offline."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.io import write_images
from plotly.offline import get_plotlyjs

from orchestrator.files.places import Place
from orchestrator.records import BadInput
from orchestrator.report.comparisons import comparisons, overview
from orchestrator.report.content import Panel
from orchestrator.report.course import Span, course
from orchestrator.report.look import KEEP_OPEN, SCRIPT, STYLE
from orchestrator.report.panel import panel_section
from orchestrator.report.sections import alone, contents, provenance_section


class Figures:
    """The figures of a page. Each is drawn where it stands, or when its fold opens, so that the
    page can be read while it loads."""

    def __init__(self) -> None:
        self.named: list[tuple[str, go.Figure]] = []

    def show(self, figure: go.Figure, title: str, finding: str, reading: str) -> str:
        number = len(self.named)
        self.named.append((title, figure))
        # Nothing in there can end the script.
        data = figure.to_json().replace("<", "\\u003c")
        height, name = figure.layout.height, escape(f"{title}. {finding}")
        plot = (
            f'<div class="plot" id="figure-{number}" role="group" style="height: {height}px" '
            f'aria-label="{name}"></div>'
        )
        if _columns(figure) > 2:  # too many for a phone
            plot = f'<div class="wide" tabindex="0" role="region" aria-label="{name}">{plot}</div>'
        return f"""
<figure>{plot}
<figcaption><b>{escape(title)}</b> {escape(finding)} {escape(reading)}</figcaption></figure>
<script type="application/json" id="figure-{number}-data">{data}</script>
<script>show("figure-{number}");</script>
"""

    def save(self, folder: Path, kind: str) -> None:
        """Saves each figure as a file, in the order of the page, named by its title."""
        for _, figure in self.named:
            figure.update_layout(paper_bgcolor="#fff", plot_bgcolor="#fff")
        heights = [figure.layout.height for _, figure in self.named]
        titles = [re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") for title, _ in self.named]
        files = [folder / f"{n:03}-{title[:80]}.{kind}" for n, title in enumerate(titles, start=1)]
        try:
            write_images(
                [figure for _, figure in self.named], files, scale=2, width=1000, height=heights
            )
        except RuntimeError as error:
            raise BadInput(
                f"Images of figures are drawn by Chrome or Chromium, which did not do so: install "
                f"it, or set BROWSER_PATH to it. It said: {str(error).strip().splitlines()[0]}"
            ) from None


def _columns(figure: go.Figure) -> int:
    """Returns how many panels stand side by side."""
    return len({(axis.domain or (0,))[0] for axis in figure.select_xaxes()})


def all_figures(panels: Sequence[Panel], spans: Sequence[Span]) -> dict[tuple[str, str], go.Figure]:
    """Returns the figures of the page by workload ("" if a figure is about all workloads) and
    title. Where there are several goals, the figures belong to the first."""
    found: dict[tuple[str, str], go.Figure] = {}
    drawn = [panel.drawn for panel in panels]
    shown = Figures()
    overview(drawn, shown.show)
    comparisons(drawn, shown.show)
    course(spans, shown.show)
    several = [("", shown)]
    for number, panel in enumerate(panels):
        several.append((panel.workload, Figures()))
        panel_section(number, panel, several[-1][1].show, len(panels) > 1)
    for workload, shown in several:
        for title, figure in shown.named:
            found.setdefault((workload, title), figure)
    return found


def check_images(folder: Path) -> None:
    """Checks, before anything is drawn, that images can be written."""
    if find_spec("kaleido") is None:
        raise BadInput(
            "Images need the package kaleido: pip install 'orchestrate-batch-size[images]'.",
            code="not-installed",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{folder} can't be written: {error.strerror}.", code="unwritable") from None


def write_report(
    place: Place,
    *,
    title: str,
    panels: Sequence[Panel],
    spans: Sequence[Span],
    provenance: Mapping[str, Any],
    sweep_file: str,
    reload_seconds: int | None = None,
    images: tuple[Path, str] | None = None,
) -> None:
    """Writes the report to `place`, whole or not at all. While the run goes on, browsers reload the
    page at an interval in seconds. `images` is a folder that receives the figures as files, and
    their format."""
    if images is not None:
        check_images(images[0])
    figures = Figures()
    drawn = [panel.drawn for panel in panels]
    several = len(panels) > 1
    glance = alone("All curves", lambda: overview(drawn, figures.show))
    parts = [
        *(panel_section(n, panel, figures.show, several) for n, panel in enumerate(panels)),
        alone("Recipes compared", lambda: comparisons(drawn, figures.show)),
        alone("How the run went", lambda: course(spans, figures.show)),
        provenance_section(provenance, sweep_file),
    ]
    text = "".join(parts)
    page = page_of(
        f"{glance}{contents(text) if several else ''}{text}",
        title=title,
        about="steps to goal against batch size",
        subtitle=", ".join(f"{one.workload}, until {one.goal}" for one in panels[: not several]),
        reload_seconds=reload_seconds,
    )
    place.write_text(page)
    if images is not None:
        figures.save(*images)


def page_of(
    text: str, *, title: str, about: str, reload_seconds: int | None, subtitle: str = ""
) -> str:
    """Returns the whole page around `text`; `about` is the description in its title."""
    reload = notice = keep_open = ""
    if reload_seconds is not None:
        now = datetime.now(UTC).strftime("%H:%M:%S UTC")
        reload = f'<meta http-equiv="refresh" content="{reload_seconds}">\n'
        notice = (
            f'<p class="notice" role="status">This run was going on at {now}. The answers follow '
            f"from the trials that had ended by then. The page reloads itself.</p>\n"
        )
        keep_open = KEEP_OPEN
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
{reload}<link rel="icon" href="data:,">
<title>{escape(title)}: {escape(about)}</title>
<style>{STYLE}</style>
<script>{get_plotlyjs()}{SCRIPT}{keep_open}</script>
</head>
<body>
<main>
<h1>{escape(title)} <small>{escape(subtitle)}</small></h1>
{notice}{text}
</main>
</body>
</html>
"""
