"""The report: one HTML file that works offline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import plotly.io
from plotly.offline import get_plotlyjs

from orchestrator.analysis import Estimate, Scaling
from orchestrator.analysis.scaling import PERFECT_TOLERANCE, USEFUL_TOLERANCE
from orchestrator.places import Place
from orchestrator.records import Value
from orchestrator.report.figures import steps_to_goal
from orchestrator.results import FrontierRow

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; max-width: 60rem; margin: 0 auto;
       padding: 1rem; }
h1 { font-size: 1.7rem; margin-bottom: 0; }
h2 { font-size: 1.25rem; margin: 2.2rem 0 .4rem; }
p.lead { color: #555; margin-top: .2rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
caption { white-space: normal; text-align: left; color: #555; padding-bottom: .4rem; }
th, td { padding: .3rem .7rem; text-align: right; border-bottom: 1px solid #ddd;
         white-space: nowrap; }
thead th { border-bottom: 2px solid #999; font-weight: 600; }
.text { text-align: left; }
td.wrap { white-space: normal; min-width: 14rem; color: #7a3b00; }
dt { font-weight: 600; } dd { margin: 0 0 .5rem; overflow-wrap: anywhere; }
@media print { body { max-width: none; } }
"""


def write_report(
    place: Place,
    *,
    title: str,
    rows: Sequence[FrontierRow],
    scalings: Sequence[Scaling],
    provenance: Mapping[str, Any],
    sweep_file: str,
) -> None:
    """Writes the report of one run to `place`, whole or not at all."""
    place.write_text(_page(title, rows, scalings, provenance, sweep_file))


def _page(
    title: str,
    rows: Sequence[FrontierRow],
    scalings: Sequence[Scaling],
    provenance: Mapping[str, Any],
    sweep_file: str,
) -> str:
    panels = dict.fromkeys((row.workload, row.goal) for row in rows)
    sections = [
        _panel(
            number,
            workload,
            goal,
            [row for row in rows if (row.workload, row.goal) == (workload, goal)],
            [s for s in scalings if (s.workload, s.goal) == (workload, goal)],
        )
        for number, (workload, goal) in enumerate(panels)
    ]
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{escape(title)}: steps to goal against batch size</title>
<style>{_STYLE}</style>
<script>{get_plotlyjs()}</script>
</head>
<body>
<main>
<h1>{escape(title)}</h1>
<p class="lead">How far can the batch size scale? For every batch size the metaparameters were
searched anew, and the trial that reached the goal in the fewest steps counts.</p>
{"".join(sections)}
{_provenance(provenance, sweep_file)}
</main>
</body>
</html>
"""


def _panel(
    number: int,
    workload: str,
    goal: str,
    rows: Sequence[FrontierRow],
    scalings: Sequence[Scaling],
) -> str:
    figure = plotly.io.to_html(
        steps_to_goal(rows),
        full_html=False,
        include_plotlyjs=False,
        div_id=f"steps-to-goal-{number}",
        config={"displaylogo": False, "responsive": True},
    )
    sentences = [_sentence(scaling) for scaling in scalings]
    finding = " ".join(sentences)
    return f"""
<section>
<h2>{escape(workload)}, until {escape(goal)}</h2>
<ul>{"".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)}</ul>
<div role="img" aria-label="Steps to goal against batch size. {escape(finding)}">{figure}</div>
<p class="lead">Both axes are logarithmic. Along the dashed line, twice the batch halves the steps;
it passes through the point that needed the fewest examples. Scaling is called perfect while steps
times batch size is within {PERFECT_TOLERANCE:.0%} of its minimum, and a batch size useful until
steps are within {USEFUL_TOLERANCE:.0%} of the fewest.</p>
{_table(rows)}
</section>
"""


def _sentence(scaling: Scaling) -> str:
    if scaling.perfect_scaling_until is None or scaling.max_useful_batch_size is None:
        return f"{scaling.recipe}: {scaling.verdict}."
    return (
        f"{scaling.recipe}: perfect scaling up to batch size "
        f"{_number(scaling.perfect_scaling_until)}, useful up to "
        f"{_number(scaling.max_useful_batch_size)} ({scaling.verdict})."
    )


def _number(estimate: Estimate) -> str:
    return f"{estimate.value:,.0f}"


def _table(rows: Sequence[FrontierRow]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row.params or {}))
    heads = [
        ("Recipe", True), ("Batch size", False), ("Steps", False), ("±", False),
        ("Examples", False), ("Trial", False), *((name, False) for name in names),
        ("Trials", True), ("Notes", True),
    ]  # fmt: skip
    head = "".join(
        f'<th scope="col"{" class=text" if text else ""}>{escape(name)}</th>'
        for name, text in heads
    )
    body = "".join(_table_row(row, names) for row in rows)
    return f"""<div class="scroll" tabindex="0" role="region" aria-label="Frontier table"><table>
<caption>The frontier: per study, the trial that reached the goal in the fewest steps. ± is the
distance to its previous measurement.</caption>
<thead><tr>{head}</tr></thead>
<tbody>{body}</tbody>
</table></div>"""


def _table_row(row: FrontierRow, names: Sequence[str]) -> str:
    if row.censored:
        steps = "censored"
    else:
        steps = "not reached" if row.steps is None else f"{row.steps:,}"
    examples = "" if row.steps is None else f"{row.steps * row.batch_size:,}"
    numbers = [
        f"{row.batch_size:,}",
        steps,
        "" if row.resolution is None else f"{row.resolution:,}",
        examples,
        "" if row.trial is None else str(row.trial),
        *(_value((row.params or {}).get(name)) for name in names),
    ]
    counts = ", ".join(f"{count} {status}" for status, count in row.trials.items())
    return (
        f'<tr><th scope="row" class="text">{escape(row.recipe)}</th>'
        + "".join(f"<td>{escape(number)}</td>" for number in numbers)
        + f'<td class="text">{escape(counts)}</td>'
        + f'<td class="text wrap">{escape("; ".join(row.remarks()))}</td></tr>\n'
    )


def _value(value: Value | None) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _provenance(provenance: Mapping[str, Any], sweep_file: str) -> str:
    items = "".join(
        f"<dt>{escape(str(name))}</dt><dd>{escape(str(value))}</dd>"
        for name, value in provenance.items()
    )
    return f"""
<section>
<h2>Where this comes from</h2>
<dl>{items}</dl>
<details><summary>Sweep file, in full</summary><pre>{escape(sweep_file)}</pre></details>
</section>
"""
