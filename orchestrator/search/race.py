"""Which trial can no longer win. A pure rule: what it ends could not have changed the answer.

For each goal a study has a ranking: the `keep` trials that passed it first, in the order
(steps, index). The first of them is the winner. A trial that has yet to pass a goal can enter the
ranking only by passing it earlier than the last of them, and it can only be seen to do so at a
measurement. All trials of a study are measured at the same steps.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from orchestrator.records import Goal, Study

Place = tuple[int, int]
"""(steps, index) of a trial that passed a goal."""

Ranking = tuple[Place, ...]
"""The trials that passed a goal first, best first; at most `Study.keep`."""

Bounds = tuple[Ranking, ...]
"""The ranking of each of a study's goals, in their order."""


def no_bounds(study: Study) -> Bounds:
    """Nobody has passed any goal."""
    return ((),) * len(study.goals)


def closed(study: Study) -> Ranking:
    """A ranking that no trial can enter."""
    return ((0, -1),) * study.keep


def joined(rankings: Collection[Ranking], keep: int) -> Ranking:
    """The best `keep` of all that are in some rankings of one goal."""
    return tuple(sorted({place for ranking in rankings for place in ranking})[:keep])


def tighter(study: Study, bounds: Bounds, other: Bounds | None) -> Bounds:
    """The bounds that two sources know together."""
    if other is None or other == bounds:
        return bounds
    return tuple(joined(both, study.keep) for both in zip(bounds, other, strict=True))


def ending(
    study: Study,
    bounds: Bounds,
    limit: int | None,
    *,
    unmet: Collection[Goal],
    upcoming: int,
    index: int,
) -> Literal["dominated", "paused"] | None:
    """Whether a trial ends whose next measurement would be at step `upcoming`, with the goals
    `unmet` not passed so far: for good, or at the `limit` up to which all are trained first."""
    if study.goals and not unmet:
        return None
    rankings = [bounds[number] for number, goal in enumerate(study.goals) if goal in unmet]
    if unmet and all(
        len(ranking) >= study.keep and (upcoming, index) > ranking[-1] for ranking in rankings
    ):
        return "dominated"
    return "paused" if limit is not None and upcoming > limit else None
