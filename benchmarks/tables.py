"""Tables of figures: printed, and with `--write` put into the pages of docs/measurements/.

There, a table lies between `<!-- made by NAME.py -->` and `<!-- end -->`; where a benchmark has
several tables, `<!-- made by NAME.py: TABLE -->`. Below each is what made it: the command, the
commit, the day and the machine. tests/test_benchmarks.py checks that every table has its place, and
every place its table.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "docs" / "measurements"
PLACE = re.compile(r"(<!-- made by (\w+)\.py(?:: ([^>]+?))? -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Table:
    """Its cells are in words."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]

    def for_terminal(self) -> str:
        widths = [max(map(len, column)) for column in zip(self.heads, *self.rows, strict=True)]
        lines = (
            "  ".join(
                cell.rjust(width) if place else cell.ljust(width)
                for place, (cell, width) in enumerate(zip(line, widths, strict=True))
            )
            for line in (self.heads, *self.rows)
        )
        return "\n".join(line.rstrip() for line in lines)

    def for_page(self) -> str:
        lines = (self.heads, ["---"] * len(self.heads), *self.rows)
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


Tables = Mapping[str, Table]
"""By their names; the name of a benchmark's only table is empty."""


def bounded(cell: str, held: bool) -> str:
    """In bold where a bound is missed."""
    return cell if held else f"**{cell}**"


def write(benchmark: str, tables: Tables) -> None:
    """Puts the tables into their places. A benchmark with one for each size makes one at a time."""
    maker = f"*{_made_by(benchmark)}*"
    for page in PAGES.glob("*.md"):
        text = page.read_text()
        filled = PLACE.sub(
            lambda found: (
                f"{found[1]}\n{tables[found[3] or ''].for_page()}\n\n{maker}\n\n{found[4]}"
                if found[2] == benchmark and (found[3] or "") in tables
                else found[0]
            ),
            text,
        )
        if filled != text:
            page.write_text(filled)


def places() -> set[tuple[str, str]]:
    """The tables that the pages have: benchmark and name."""
    return {
        (found[2], found[3] or "")
        for page in PAGES.glob("*.md")
        for found in PLACE.finditer(page.read_text())
    }


def _made_by(benchmark: str) -> str:
    words = [word for word in sys.argv[1:] if word != "--write"]
    commit = _git("rev-parse", "--short=8", "HEAD")
    changed = _git("status", "--porcelain", "--", "orchestrator", "workloads", "benchmarks")
    return (
        f"`{shlex.join(['python', f'benchmarks/{benchmark}.py', *words])}`, {date.today()}, "
        f"commit {commit}{' with changes' if changed else ''}, {os.cpu_count()} cores of "
        f"{_processor()}"
    )


def _git(*words: str) -> str:
    done = subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _processor() -> str:
    described = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return described[1] if described else "an unknown processor"
