"""The rule by which a trial can no longer win. It is pure: the trials that it ends could not have
changed the answer.

For each goal, a study has a ranking: the `keep` trials that passed the goal first, in the order
(steps, index). The first of them is the winner. A trial that has not passed a goal yet can enter
the ranking only by passing it before the last trial of the ranking did, and passing is observed
only at a measurement. All trials of a study are measured at the same steps.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from orchestrator.records import Goal, Study

Place = tuple[int, int]
"""Steps to goal and index of a trial that passed a goal."""

Ranking = tuple[Place, ...]
"""The at most `Study.keep` trials that passed a goal first, best first."""

Bounds = tuple[Ranking, ...]
"""The ranking of each goal of a study, in the order of the goals."""


def no_bounds(study: Study) -> Bounds:
    """Returns the bounds of a study in which no trial has passed a goal."""
    return ((),) * len(study.goals)


def closed(study: Study) -> Ranking:
    """Returns a ranking that no trial can enter."""
    return ((0, -1),) * study.keep


def joined(rankings: Collection[Ranking], keep: int) -> Ranking:
    """Joins several rankings of one goal and keeps the best `keep` trials."""
    return tuple(sorted({place for ranking in rankings for place in ranking})[:keep])


def tighter(study: Study, bounds: Bounds, other: Bounds | None) -> Bounds:
    """Joins the bounds that two sources know."""
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
    """Returns the status with which a trial ends now; None if it goes on. `upcoming` is the step of
    its next measurement, and `unmet` are the goals that it has not passed. It is `dominated` if it
    can no longer enter a ranking of these goals. It is `paused` if the next measurement lies beyond
    `limit`, the step up to which all trials of the study are trained first."""
    if study.goals and not unmet:
        return None
    rankings = [bounds[number] for number, goal in enumerate(study.goals) if goal in unmet]
    if unmet and all(
        len(ranking) >= study.keep and (upcoming, index) > ranking[-1] for ranking in rankings
    ):
        return "dominated"
    return "paused" if limit is not None and upcoming > limit else None
