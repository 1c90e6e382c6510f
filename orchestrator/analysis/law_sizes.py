"""Finds the batch size whose measurement would best tell laws apart."""

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
    """One of the laws that are to be told apart."""

    name: Any
    fit: Callable[[Measured], Bend | SmallestUseful]


def deciding_size(
    measured: Measured, first: Contender, *others: Contender, largest: int | None = None
) -> int | None:
    """Returns the batch size at which one more measurement would best tell the first law from the
    others. At each candidate, we add a point on either of two laws and fit the other one to all
    points. The more its squared distances grow, the better the laws can be told apart there.
    Returns None if there is no candidate."""
    curve = first.fit(measured)
    rivals = [(other, other.fit(measured)) for other in others]
    sizes = candidate_sizes(measured, largest=largest)
    curves = [curve, *(rival for _, rival in rivals)]
    if any(isinstance(one, SmallestUseful) for one in curves) or _starves(measured):
        # The goal may be out of reach below the smallest, which a whole search would pay for.
        sizes = [size for size in sizes if math.log2(size) > measured.log_sizes[0]]
    told: dict[int, float] = {}
    for size in sizes:
        at = math.log2(size)
        if min(_log_steps(one, at) for one in curves) < math.log2(ENOUGH_STEPS):
            continue
        told[size] = sum(
            _spoils(measured, other, rival, at, _log_steps(curve, at))
            + _spoils(measured, first, curve, at, _log_steps(rival, at))
            for other, rival in rivals
        )
        if at < measured.log_sizes[0]:
            told[size] /= SMALLER_COSTS
    return max(told, key=lambda size: told[size], default=None)


def _log_steps(curve: Bend | SmallestUseful, log_size: float) -> float:
    return float(curve.log_steps(np.array([log_size]))[0])


def _spoils(
    measured: Measured, law: Contender, curve: Bend | SmallestUseful, log_size: float, log: float
) -> float:
    """Returns by how much one more point would spoil the fit of the law."""
    return law.fit(measured.with_point(log_size, log)).squares - curve.squares


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
