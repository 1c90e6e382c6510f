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
class Tried:
    """The best trials of one study, as far as it is certain that no other was better."""

    batch_size: int
    trials: tuple[int, ...]
    """Indices of the trials, best first. Studies of one curve share their table of points, so
    trials of the same index tried the same point."""
    steps: tuple[int, ...]
    """Steps to goal of each trial."""
    resolutions: tuple[int, ...]
    """Steps since the previous measurement of each trial; it passed the goal between the two."""
    competed: int
    """N, the number of trials that competed."""

    @classmethod
    def of_row(cls, row: FrontierRow) -> Tried:
        return cls(
            batch_size=row.batch_size,
            trials=tuple(leader.trial for leader in row.leaders),
            steps=tuple(leader.steps for leader in row.leaders),
            resolutions=tuple(leader.resolution for leader in row.leaders),
            competed=row.trials_used,
        )

    def best(self, count: int) -> Tried:
        """The same with only the `count` best trials."""
        return Tried(
            batch_size=self.batch_size,
            trials=self.trials[:count],
            steps=self.steps[:count],
            resolutions=self.resolutions[:count],
            competed=self.competed,
        )


def median_best_of(tried: Tried, count: int) -> int | None:
    """The median, over all choices of `count` of the N trials, of the fewest steps among them. It
    is the smallest y_j for which at least half of the choices hold one of the j best. None if the
    known trials do not determine it."""
    total = tried.competed
    if not 1 <= count <= total:
        return None
    choices = math.comb(total, count)
    for place, steps in enumerate(tried.steps, start=1):
        without = math.comb(total - place, count)
        if 2 * without <= choices:
            return steps
    return None


def medians_up_to_all(tried: Tried) -> tuple[tuple[int, int], ...]:
    """(n, median fewest steps of the best of n) for every n up to N that has one."""
    found = ((count, median_best_of(tried, count)) for count in range(1, tried.competed + 1))
    return tuple((count, steps) for count, steps in found if steps is not None)
