"""Which trial can no longer win. A pure rule: what it ends could not have changed the frontier.

For each goal a study has an incumbent, the trial that passed it first in the order (steps, index).
A trial that has yet to pass a goal can take it over only by passing it earlier in that order, and
it can only be seen to do so at a measurement. All trials of a study are measured at the same steps.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from orchestrator.records import Goal, Study

Incumbent = tuple[int, int]
"""(steps, index) of the trial that passed a goal first."""

Bounds = tuple[Incumbent | None, ...]
"""The incumbent of each of a study's goals, in their order; None: nobody has passed it."""

BEATEN: Incumbent = (0, -1)
"""An incumbent that no trial can take over."""


def no_bounds(study: Study) -> Bounds:
    return (None,) * len(study.goals)


def better(bounds: Bounds, goal: int, candidate: Incumbent) -> Bounds | None:
    """The bounds with `candidate` as the incumbent of goal number `goal`; None if it is none."""
    incumbent = bounds[goal]
    if incumbent is not None and incumbent <= candidate:
        return None
    return (*bounds[:goal], candidate, *bounds[goal + 1 :])


def tighter(bounds: Bounds, other: Bounds | None) -> Bounds:
    """The better incumbent of each goal."""
    for goal, incumbent in enumerate(other or ()):
        if incumbent is not None:
            bounds = better(bounds, goal, incumbent) or bounds
    return bounds


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
    incumbents = [bounds[number] for number, goal in enumerate(study.goals) if goal in unmet]
    if unmet and all(best is not None and (upcoming, index) > best for best in incumbents):
        return "dominated"
    return "paused" if limit is not None and upcoming > limit else None
