"""What the runs of the atlas tell about the next search: ranges."""

from __future__ import annotations

from collections import defaultdict

from measured import CNN, DIGITS, FASHION, GROUPS, frontier_of, opened

from orchestrator.records import Range

NEAR = 0.1
"""A best point is near an end of its range if it lies in the tenth of the range at that end."""


def ranges() -> list[str]:
    """A table: where in its range the best point of each study lies."""
    lines = [
        "| workload | recipe | metaparameter | searched | best points | in the lowest tenth "
        "| in the highest tenth |",
        "|---|---|---|---|---|---|---|",
    ]
    for workload in (DIGITS, CNN, FASHION):
        spaces = {study.key: study.space for study in opened(GROUPS[workload]).studies()}
        best = defaultdict(list)
        for row in frontier_of(GROUPS[workload]):
            for name, value in (row.answering[1] or {}).items():
                entry = spaces[row.key].get(name)
                if isinstance(entry, Range):
                    best[row.recipe, name, entry].append(float(value))
        for (recipe, name, entry), values in best.items():
            places = [entry.fraction(value) for value in values]
            lines.append(
                f"| {workload} | {recipe} | {name} | {entry.low:g} to {entry.high:g} "
                f"| {min(values):.4g} to {max(values):.4g} "
                f"| {sum(place < NEAR for place in places)} of {len(places)} "
                f"| {sum(place > 1 - NEAR for place in places)} of {len(places)} |"
            )
    return lines
