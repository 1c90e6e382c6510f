"""What became of the frontier's trials when they were run again with other seeds."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from orchestrator.records import Goal
from orchestrator.results.counting import columns
from orchestrator.results.tables import numbers


@dataclass(frozen=True, kw_only=True)
class Repeats:
    """The winner's point, run again with other seeds: free of the luck that made it the winner."""

    count: int
    reached: int
    median: float | None
    """Steps to goal; None where half of them or more did not reach it."""
    low: int | None
    high: int | None
    """Order statistics between which the true median lies ..."""
    confidence: float
    """... with this probability, whatever the distribution."""


def repeats_of(goal: Goal, winner: int, repeats: pa.Table) -> Repeats | None:
    ours = repeats.filter(pc.equal(repeats["trial"], winner)) if len(repeats) else repeats
    if not len(ours):
        return None
    _, step, value = columns(ours, goal.metric)
    number = numbers(ours["repeat"])
    steps = sorted(
        min(
            (int(s) for s, v in zip(step[mine], value[mine], strict=True) if goal.passed(v)),
            default=math.inf,
        )
        for mine in (number == repeat for repeat in np.unique(number))
    )
    low, high, confidence = median_interval(len(steps))
    median = (steps[(len(steps) - 1) // 2] + steps[len(steps) // 2]) / 2
    return Repeats(
        count=len(steps),
        reached=sum(map(math.isfinite, steps)),
        median=median if math.isfinite(median) else None,
        low=int(steps[low]) if math.isfinite(steps[low]) else None,
        high=int(steps[high]) if math.isfinite(steps[high]) else None,
        confidence=confidence,
    )


def median_interval(count: int) -> tuple[int, int, float]:
    """Which of `count` ordered draws enclose the median of their distribution, and how surely: the
    narrowest pair with at least 90 %, else the outermost."""
    best = (0, count - 1, 1 - 2 * 0.5**count)
    below = 0.5**count
    for place in range(1, count // 2):
        below += math.comb(count, place) * 0.5**count
        if 1 - 2 * below < 0.9:
            break
        best = (place, count - 1 - place, 1 - 2 * below)
    return best
