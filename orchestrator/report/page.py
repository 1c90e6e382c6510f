"""The report of runs: one HTML file that works offline, and its figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from plotly.offline import get_plotlyjs

from orchestrator.analysis.methods import methods_of
from orchestrator.analysis.scale_laws import ScaleAnswer
from orchestrator.files.places import Place
from orchestrator.files.yaml_files import write_yaml
from orchestrator.report.comparisons import comparisons, overview
from orchestrator.report.content import Panel
from orchestrator.report.gathering import Source, panels_of
from orchestrator.report.panel import panel_section
from orchestrator.report.scales import best_batch_fold, laws_fold, scale_answers
from orchestrator.report.sections import alone, contents, provenance_section
from orchestrator.report.style import Drawing
from orchestrator.results import RunFiles, holds_branches, unknown_of

HERE = Path(__file__).parent


class Figures:
    """The figures of a page. Each is drawn where it stands, or when its fold opens, so that the
    page can be read while it loads."""

    def __init__(self) -> None:
        self.workload = ""
        """The workload of the figures that come next; empty if they are about several."""
        self.drawn: list[tuple[str, str, Drawing]] = []

    def show(self, figure: Drawing, title: str, finding: str, reading: str) -> str:
        number = len(self.drawn)
        self.drawn.append((self.workload, title, figure))
        # Nothing in there can end the script.
        data = figure.to_json().replace("<", "\\u003c")
        height, name = figure.layout["height"], escape(f"{title}. {finding}")
        plot = (
            f'<div class="plot" id="figure-{number}" role="group" style="height: {height}px" '
            f'aria-label="{name}"></div>'
        )
        side_by_side = {axis["domain"][0] for axis in figure.axes("x")}
        if len(side_by_side) > 2:  # too many for a phone
            plot = f'<div class="wide" tabindex="0" role="region" aria-label="{name}">{plot}</div>'
        return f"""
<figure>{plot}
<figcaption><b>{escape(title)}</b> {escape(finding)} {escape(reading)}</figcaption></figure>
<script type="application/json" id="figure-{number}-data">{data}</script>
<script>show("figure-{number}");</script>
"""


def _parts(
    panels: Sequence[Panel], scales: ScaleAnswer | None, figures: Figures
) -> tuple[str, str]:
    """The overview of all curves, and all below it."""
    drawn = [panel.drawn for panel in panels]
    glance = alone("All curves", lambda: overview(drawn, figures.show))
    text = ""
    for number, panel in enumerate(panels):
        figures.workload = panel.workload
        text += panel_section(number, panel, figures.show, len(panels) > 1)
    figures.workload = ""
    if scales is not None:
        # Without goals, the page has nothing else.
        show, alone_here = figures.show, not panels
        text += alone("Best batch size", lambda: best_batch_fold(scales, show, alone_here))
        text += alone("Data and model size", lambda: laws_fold(scales.laws, show, alone_here))
    return glance, text + alone("Recipes compared", lambda: comparisons(drawn, figures.show))


def write_report(
    place: Place,
    *,
    title: str,
    panels: Sequence[Panel],
    provenance: Mapping[str, Any],
    sweep_file: str,
    scales: ScaleAnswer | None = None,
    notes: Sequence[str] = (),
    reload_seconds: int | None = None,
) -> None:
    """Writes the report to `place`, whole or not at all. While the run goes on, browsers reload the
    page at an interval in seconds."""
    figures = Figures()
    glance, text = _parts(panels, scales, figures)
    text += provenance_section(provenance, sweep_file)
    several = len(panels) > 1
    notices = "".join(f'<p class="notice">Mind: {escape(note)}</p>' for note in notes)
    page = page_of(
        f"{notices}{glance}{contents(text) if several else ''}{text}",
        title=title,
        about="steps to goal against batch size",
        subtitle=", ".join(f"{one.workload}, until {one.goal}" for one in panels[: not several]),
        reload_seconds=reload_seconds,
    )
    place.write_text(page)


def page_of(
    text: str, *, title: str, about: str, reload_seconds: int | None, subtitle: str = ""
) -> str:
    """The whole page around `text`; `about` is the description in its title."""
    reload = notice = ""
    if reload_seconds is not None:
        now = datetime.now(UTC).strftime("%H:%M:%S UTC")
        reload = f'<meta http-equiv="refresh" content="{reload_seconds}">\n'
        notice = (
            f'<p class="notice" role="status">This run was going on at {now}. The answers follow '
            f"from the trials that had ended by then. The page reloads itself.</p>\n"
        )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
{reload}<link rel="icon" href="data:,">
<title>{escape(title)}: {escape(about)}</title>
<style>
{(HERE / "page.css").read_text()}</style>
<script>{get_plotlyjs()}
{(HERE / "page.js").read_text()}</script>
</head>
<body>
<main>
<h1>{escape(title)} <small>{escape(subtitle)}</small></h1>
{notice}{text}
</main>
</body>
</html>
"""


def write_report_of(
    sources: Sequence[Source],
    place: Place,
    *,
    reload_seconds: int | None = None,
    price: float | None = None,
) -> None:
    """Writes the page of one run, or of several runs by their labels on one page."""
    runs = [source.run for source in sources]
    provenance: dict[str, object] = {}
    for source in sources:
        facts = provenance_of(source.run) | {"for a paper": methods_of(source.run, source.rows)}
        provenance |= {source.name(key): value for key, value in facts.items()}
    write_report(
        place,
        reload_seconds=reload_seconds,
        title=", ".join(str(run.sweep()["name"]) for run in runs),
        panels=panels_of(sources, price_of(runs[0]) if price is None else price),
        notes=[*dict.fromkeys(filter(None, map(unknown_of, runs)))],
        scales=scale_answers({source.label: source.run for source in sources}),
        provenance=provenance,
        sweep_file="\n".join(write_yaml(run.sweep()) for run in runs),
    )


def provenance_of(run: RunFiles) -> dict[str, object]:
    """The versions, the machine, the commit, and how the run went."""
    provenance: dict[str, object] = {**run.provenance()}
    if isinstance(packages := provenance.get("packages"), dict):
        listed = ", ".join(f"{name} {version}" for name, version in packages.items())
        provenance["packages"] = listed
    return {**provenance, **_how_it_ran(run)}


def _how_it_ran(run: RunFiles) -> dict[str, str]:
    names = {"paused": "trained as far as was needed"} if holds_branches(run) else {}
    tables = run.in_parallel(run.trials, [study.key for study in run.studies()])
    statuses = Counter(status for table in tables for status in table["status"].to_pylist())
    ended = (f"{n:,} {names.get(status, status)}" for status, n in statuses.most_common())
    facts = {"trials": ", ".join(ended)}
    if run.is_compact:
        facts["measurements"] = (
            "a compact run: all of the best trials; of repeats those of goals and noise scales; "
            "of the others only those that the answers need"
        )
    return facts if run.imported else {"seed": str(run.sweep()["seed"]), **facts}


def figures_of(source: Source) -> dict[tuple[str, str], Drawing]:
    """The figures of the page of a run by workload ("" if a figure is about all workloads) and
    title. Where there are several goals, the figures belong to the first."""
    figures = Figures()
    panels = panels_of([source], price_of(source.run))
    _parts(panels, scale_answers({"": source.run}), figures)
    found: dict[tuple[str, str], Drawing] = {}
    for workload, title, figure in figures.drawn:
        found.setdefault((workload, title), figure)
    return found


def price_of(run: RunFiles) -> float | None:
    """The price of a device-hour in the sweep file of a run."""
    price: float | None = (run.sweep().get("report") or {}).get("price_per_device_hour")
    return price
