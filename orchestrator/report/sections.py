"""What the page is made of, as HTML: sections, folds, tables. Text of a run is escaped."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any

from orchestrator.records import BadInput, mistake
from orchestrator.report.style import Drawing

logger = logging.getLogger(__name__)

MOST_ROWS = 2000
"""The most rows of a table; each takes about 500 bytes."""

LOOKS = {
    **dict.fromkeys(("Workload", "Recipe", "Rule", "Within", "Points are"), "text"),
    **dict.fromkeys(("Fastest", "Balanced", "Cheapest"), "text"),
    "Trials": "text told",
    "Notes": "text wrap",
}
"""Columns that hold text, and how they look; all others hold numbers."""

Show = Callable[[Drawing, str, str, str], str]
"""Puts a figure on the page, given the figure, its title, what it shows and how to read it."""


def section(anchor: str, title: str, text: str) -> str:
    """A section; links reach it at `anchor`."""
    return f'<section id="{anchor}"><h2>{escape(title)}</h2>{text}</section>'


def alone(title: str, make: Callable[[], str]) -> str:
    """What `make` returns, or a line that says so: one part's mistake must not cost the others."""
    try:
        return make()
    except BadInput:
        raise
    except Exception as error:
        line = mistake(f'"{title}", a part of the page,', error)
        logger.warning(line)
        return f'<p class="notice">{escape(line)}</p>'


def fold(anchor: str, title: str, finding: str, text: str, opened: bool = False) -> str:
    """A section that opens on a click or when a link leads to it. Its line says what is inside."""
    return (
        f'<details class="fold" id="{anchor}"{" open" * opened}><summary><h3>{escape(title)}</h3>'
        f"<span>{escape(finding)}</span></summary>{text}</details>"
    )


def contents(text: str) -> str:
    found = re.findall(r'<section id="([^"]+)"><h2>(.*?)</h2>', text)
    links = "".join(f'<li><a href="#{anchor}">{title}</a></li>' for anchor, title in found)
    return f'<nav aria-label="On this page"><ul>{links}</ul></nav>' if links else ""


def lead(text: str) -> str:
    """A paragraph that explains; `text` is HTML."""
    return f'<p class="lead">{text}</p>'


def bullets(lines: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else ""


def cards(found: Iterable[tuple[str, str]]) -> str:
    inside = "".join(f"<div><dt>{escape(name)}</dt><dd>{html}</dd></div>" for name, html in found)
    return f'<dl class="cards">{inside}</dl>'


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


def table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column names the row; it is empty if there are no rows. If there are too
    many rows, only the first are shown."""
    if not rows:
        return ""
    if len(rows) > MOST_ROWS:
        caption = f"{caption} The first {MOST_ROWS:,} of {len(rows):,} rows."
        rows = rows[:MOST_ROWS]
    caption = escape(caption)
    looks = [f' class="{LOOKS[name]}"' if name in LOOKS else "" for name in heads]
    head = "".join(
        f'<th scope="col"{look}>{escape(name)}</th>'
        for name, look in zip(heads, looks, strict=True)
    )
    body = ""
    for first, *rest in rows:
        cells = "".join(
            f"<td{look}>{escape(cell)}</td>" for look, cell in zip(looks[1:], rest, strict=True)
        )
        body += f'<tr><th scope="row"{looks[0]}>{escape(first)}</th>{cells}</tr>\n'
    return f"""<div class="scroll" tabindex="0" role="region" aria-label="{caption}"><table>
<caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"""
