"""What the runs of the atlas tell about the next search: ranges and numbers of points."""

from __future__ import annotations

import math
from collections import defaultdict
from statistics import geometric_mean

from measured import CNN, DIGITS, FASHION, GROUPS, MIDDLE, frontier_of, opened, scalings_of

from orchestrator.records import Range

FEWER = (4, 8, 12, 16)
"""Numbers of points that are compared with all that were made."""

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


def points() -> list[str]:
    """A table: the steps that the best of fewer points needs, over those of the best of all. A
    number is left out if the known trials of some study do not determine it. It is also left out
    for half of the points or more: at least half of all such choices hold the best point, so the
    number would be 1 whatever was measured."""
    lines = [
        f"| workload | points | {' | '.join(f'best of {count}' for count in FEWER)} |",
        f"|---|---|{'---|' * len(FEWER)}",
    ]
    for workload in (DIGITS, CNN, FASHION):
        ratios: dict[int, list[float]] = defaultdict(list)
        made, studies = math.inf, 0
        for scaling in scalings_of(GROUPS[workload]):
            for study in scaling.best_of if scaling.goal == MIDDLE[workload] else ():
                if study.steps:
                    made, studies = min(made, study.trials), studies + 1
                    for count, steps in study.medians:
                        ratios[count].append(steps / study.steps)
        told = [
            f"{geometric_mean(ratios[count]):.2f}"
            if len(ratios[count]) == studies and 2 * count < made
            else ""
            for count in FEWER
        ]
        if any(told):
            lines.append(f"| {workload} | {made} | {' | '.join(told)} |")
    return lines
