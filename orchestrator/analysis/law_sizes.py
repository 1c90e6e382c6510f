"""Finds the batch size whose measurement would best tell two laws apart."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from orchestrator.analysis.law_fits import Bend, Measured
from orchestrator.analysis.law_useful import SmallestUseful
from orchestrator.analysis.points import ENOUGH_STEPS

BEYOND = 2
"""How many further batch sizes beyond either end of the measured ones are considered."""

SMALLER_COSTS = 2.0
"""A batch size below the smallest is recommended only if it tells the laws apart this many times as
well as any other: it takes the most steps, and may be too small to be useful."""

STARVES_TOLERANCE = 0.2
"""No batch size below the smallest is recommended if the smallest needs this many times the fewest
examples."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One of the two laws that are to be told apart."""

    name: Any
    fit: Callable[[Measured], Bend | SmallestUseful]


def deciding_size(
    measured: Measured, first: Contender, second: Contender, *, largest: int | None = None
) -> int | None:
    """Returns the batch size at which one more measurement would tell the two laws apart best. At
    each candidate, we add a point on either law and fit the other law to all points. The more its
    squared distances grow, the better the laws can be told apart there. Returns None if there is no
    candidate."""
    curves = first.fit(measured), second.fit(measured)
    sizes = candidate_sizes(measured, largest=largest)
    if any(isinstance(curve, SmallestUseful) for curve in curves) or _starves(measured):
        # The goal may be out of reach below the smallest, which a whole search would pay for.
        sizes = [size for size in sizes if math.log2(size) > measured.log_sizes[0]]
    told: dict[int, float] = {}
    for size in sizes:
        log_size = math.log2(size)
        logs = [float(curve.log_steps(np.array([log_size]))[0]) for curve in curves]
        if min(logs) < math.log2(ENOUGH_STEPS):
            continue
        told[size] = sum(
            law.fit(measured.with_point(log_size, log)).squares - curve.squares
            for law, curve, log in ((second, curves[1], logs[0]), (first, curves[0], logs[1]))
        )
        if log_size < measured.log_sizes[0]:
            told[size] /= SMALLER_COSTS
    return max(told, key=lambda size: told[size], default=None)


def _starves(measured: Measured) -> bool:
    """Says whether the smallest batch size needs clearly more examples than another one."""
    examples = measured.logs + measured.log_sizes
    return bool(examples[0] - examples.min() > math.log2(1 + STARVES_TOLERANCE))


def candidate_sizes(measured: Measured, *, largest: int | None = None) -> list[int]:
    """Returns whole batch sizes halfway between those measured, and up to two beyond either end."""
    logs = measured.log_sizes
    first, last = logs[1] - logs[0], logs[-1] - logs[-2]
    places = [
        *(logs[0] - first * step for step in range(BEYOND, 0, -1)),
        *((low + high) / 2 for low, high in pairwise(logs)),
        *(logs[-1] + last * step for step in range(1, BEYOND + 1)),
    ]
    known = {round(2**log) for log in logs}
    sizes = {round(2**place) for place in places} - known
    return sorted(size for size in sizes if size >= 1 and (largest is None or size <= largest))
