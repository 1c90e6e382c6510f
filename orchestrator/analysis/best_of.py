"""The number of steps that the best of n trials of a study needs, for n up to the N that competed.

The trials of a study are a sample of its search space. The median of the best over all choices of n
of the N trials follows exactly from the k best trials, as long as more than half of these choices
hold one of the k.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from orchestrator.results import FrontierRow


@dataclass(frozen=True, kw_only=True)
class BestOf:
    """The fewest steps that fewer trials would have found at one batch size."""

    batch_size: int
    trials: int
    """N, the number of trials that competed."""
    steps: int | None
    """The fewest steps of any of these trials; None where no trial is known to be the best."""
    medians: tuple[tuple[int, int], ...]
    """(n, median fewest steps of the best of n), as far as the best trials determine it."""


def best_of_fewer(row: FrontierRow) -> BestOf:
    steps = [leader.steps for leader in row.leaders]
    found = ((n, _median(steps, row.trials_used, n)) for n in range(1, row.trials_used + 1))
    return BestOf(
        batch_size=row.batch_size,
        trials=row.trials_used,
        steps=steps[0] if steps else None,
        medians=tuple((count, median) for count, median in found if median is not None),
    )


def _median(known: list[int], total: int, count: int) -> int | None:
    """The median, over all choices of `count` of the trials, of the fewest steps among them. It is
    the smallest of those known for which at least half of the choices hold it or a better one. None
    if the known trials do not determine it."""
    choices = math.comb(total, count)
    for place, steps in enumerate(known, start=1):
        if 2 * math.comb(total - place, count) <= choices:
            return steps
    return None
