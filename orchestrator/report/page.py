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
from orchestrator.report import sections
from orchestrator.report.comparisons_section import comparisons
from orchestrator.report.content import Panel
from orchestrator.report.figures import Span
from orchestrator.report.panel import panel_section

_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1a1a1a; --quiet: #555; --line: #ddd;
        --note: #7a3b00; --link: #0059a0; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14171a; --ink: #e8e8e8; --quiet: #aab0b6; --line: #3a4046; --note: #ffb877;
          --link: #7cc4ff; }
}
@media print { :root { color-scheme: light; --paper: #fff; --ink: #000; --quiet: #333;
                       --line: #bbb; --note: #5a2b00; } }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--paper);
       max-width: 64rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.8rem; line-height: 1.2; margin: .5rem 0 0; overflow-wrap: anywhere; }
h2 { font-size: 1.3rem; margin: 2.6rem 0 .4rem; overflow-wrap: anywhere; }
h3 { font-size: 1.05rem; margin: 1.4rem 0 .2rem; overflow-wrap: anywhere; }
h4 { font-size: 1rem; margin: 1rem 0 .3rem; }
a { color: var(--link); }
nav ul { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; list-style: none; padding: 0; }
ul { padding-left: 1.2rem; } li { margin: .3rem 0; overflow-wrap: anywhere; }
p.lead, figcaption, caption { color: var(--quiet); }
.notice { border-left: 4px solid var(--note); padding: .3rem .8rem; color: var(--note); }
figure { margin: 1.6rem 0; break-inside: avoid; }
figcaption { font-size: .92rem; }
figcaption b { color: var(--ink); display: block; }
.plot { min-height: 300px; }
.scroll { overflow-x: auto; } .scroll + .scroll { margin-top: 1.4rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums;
        font-size: .94rem; }
caption { white-space: normal; text-align: left; padding-bottom: .4rem; font-size: .92rem; }
th, td { padding: .3rem .55rem; text-align: right; border-bottom: 1px solid var(--line);
         white-space: nowrap; font-weight: normal; }
thead th { border-bottom: 2px solid var(--quiet); font-weight: 600; }
.text { text-align: left; }
td.wrap { white-space: normal; min-width: 14rem; color: var(--note); }
.small { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 19rem), 1fr));
         gap: 0 1rem; }
.small figure { margin: .6rem 0; display: flex; flex-direction: column-reverse; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(15rem, 1fr)); gap: .8rem; }
.cards div { border: 1px solid var(--line); border-top: 4px solid var(--link); border-radius: 4px;
             padding: .4rem .9rem .6rem; break-inside: avoid; }
.cards b { font-size: 1.7rem; line-height: 1.3; }
dt { font-weight: 600; } dd { margin: 0 0 .5rem; overflow-wrap: anywhere; }
pre { overflow-x: auto; }
@media print {
  body { max-width: none; padding: 0; } main { zoom: .75; } nav, .modebar { display: none; }
  h2, h3, h4, caption { break-after: avoid; } tr { break-inside: avoid; }
  .scroll { overflow: visible; } th, td { white-space: normal; padding: .25rem .4rem; }
}
"""

_DRAW = """
const SAVE_AS_SVG = {name: "Download plot as SVG", icon: Plotly.Icons.disk,
  click: plot => Plotly.downloadImage(plot, {format: "svg", filename: plot.id})};
const ink = () => getComputedStyle(document.documentElement).getPropertyValue("--ink").trim();
const drawn = [];
function draw(id, figure) {
  figure.layout.font = {...figure.layout.font, color: ink()};
  const small = document.getElementById(id).closest(".small") !== null;
  Plotly.newPlot(id, figure.data, figure.layout, {displaylogo: false, responsive: true,
    displayModeBar: small || innerWidth < 600 ? false : "hover",
    modeBarButtonsToRemove: ["select2d", "lasso2d", "sendDataToCloud"],
    modeBarButtonsToAdd: [SAVE_AS_SVG], toImageButtonOptions: {scale: 2}});
  drawn.push(id);
}
const recolour = () => {
  for (const id of drawn) Plotly.relayout(id, {"font.color": ink()});
};
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
addEventListener("beforeprint", recolour);
addEventListener("afterprint", recolour);
"""


class Figures:
    """The figures of a page, each drawn where it stands: the page can be read while it loads."""

    def __init__(self) -> None:
        self.named: list[tuple[str, go.Figure]] = []

    def show(self, figure: go.Figure, title: str, finding: str, reading: str) -> str:
        number = len(self.named)
        self.named.append((title, figure))
        # Nothing in there can end the script.
        data = figure.to_json().replace("<", "\\u003c")
        height = figure.layout.height
        return f"""
<figure><div class="plot" id="figure-{number}" role="group" style="height: {height}px"
aria-label="{escape(f"{title}. {finding}")}"></div>
<figcaption><b>{escape(title)}</b> {escape(finding)} {escape(reading)}</figcaption></figure>
<script>draw("figure-{number}", {data});</script>
"""

    def save(self, folder: Path, kind: str) -> None:
        """Each figure as a file, in the order of the page, named by its title."""
        for _, figure in self.named:
            figure.update_layout(paper_bgcolor="#fff", plot_bgcolor="#fff", width=1000)
        titles = [re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") for title, _ in self.named]
        files = [folder / f"{n:03}-{title[:80]}.{kind}" for n, title in enumerate(titles, start=1)]
        try:
            write_images([figure for _, figure in self.named], files, scale=2)
        except RuntimeError as error:
            raise BadInput(
                f"Images of figures are drawn by Chrome or Chromium, which did not do so: install "
                f"it, or set BROWSER_PATH to it. It said: {str(error).strip().splitlines()[0]}"
            ) from None


def all_figures(panels: Sequence[Panel], spans: Sequence[Span]) -> dict[tuple[str, str], go.Figure]:
    """What the page would show, by workload ("" where it is about all of them) and title. Where
    there are several goals, the first one's."""
    found: dict[tuple[str, str], go.Figure] = {}
    drawn = [panel.drawn for panel in panels]
    shown = Figures()
    sections.overview(drawn, shown.show)
    comparisons(drawn, shown.show)
    sections.course(spans, shown.show)
    several = [("", shown)]
    for number, panel in enumerate(panels):
        several.append((panel.workload, Figures()))
        panel_section(number, panel, several[-1][1].show)
    for workload, shown in several:
        for title, figure in shown.named:
            found.setdefault((workload, title), figure)
    return found


def check_images(folder: Path) -> None:
    """Before anything is drawn."""
    if find_spec("kaleido") is None:
        raise BadInput(
            "Images of figures need the package kaleido: pip install "
            "'orchestrate-batch-size[images]'."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"Images can't be written to {folder}: {error.strerror}.") from None


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
    """Writes the report to `place`, whole or not at all; while the run goes on, browsers reload it
    after so many seconds. `images`: a folder for its figures as files, and their format."""
    if images is not None:
        check_images(images[0])
    figures = Figures()
    drawn = [panel.drawn for panel in panels]
    parts = [
        sections.answers(panels),
        sections.overview(drawn, figures.show),
        *(panel_section(number, panel, figures.show) for number, panel in enumerate(panels)),
        comparisons(drawn, figures.show),
        sections.course(spans, figures.show),
        sections.provenance_section(provenance, sweep_file),
    ]
    page = page_of(
        "".join(parts),
        title=title,
        about="steps to goal against batch size",
        lead="How far can the batch size scale? For every batch size the metaparameters were "
        "searched anew. What counts is the trial that reached the goal in the fewest steps or, "
        "where it was repeated with other seeds, the median of its repeats.",
        reload_seconds=reload_seconds,
    )
    place.write_text(page)
    if images is not None:
        figures.save(*images)


def page_of(text: str, *, title: str, about: str, lead: str, reload_seconds: int | None) -> str:
    """The whole page around the sections in `text`; `about` is what it shows of the title."""
    reload = notice = ""
    if reload_seconds is not None:
        now = datetime.now(UTC).strftime("%H:%M:%S UTC")
        reload = f'<meta http-equiv="refresh" content="{reload_seconds}">\n'
        notice = (
            f'<p class="notice" role="status">As of {now}, this run was going on: answers are of '
            f"what had been trained by then. The page reloads itself.</p>\n"
        )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
{reload}<link rel="icon" href="data:,">
<title>{escape(title)}: {escape(about)}</title>
<style>{_STYLE}</style>
<script>{get_plotlyjs()}{_DRAW}</script>
</head>
<body>
<main>
<h1>{escape(title)}</h1>
<p class="lead">{escape(lead)}</p>
{notice}{sections.contents(text)}
{text}
</main>
</body>
</html>
"""
