"""The rule by which a trial can no longer win, and what it knows of trials. It is pure: the trials
that it ends could not have changed the answer.

For each goal, a study has a ranking: the `keep` trials that passed the goal first, in the order
(steps, index). The first of them is the winner. A trial that has not passed a goal yet can enter
the ranking only by passing it before the last trial of the ranking did, and passing is observed
only at a measurement. So each trial is judged by the earliest step at which it may still pass: its
next measurement, or, where a goal must hold and a run of measurements that pass has begun, the
first step of that run. A trial that is cooled down is judged by the earliest end of a cooldown that
may still follow, which may come before ends that were measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from orchestrator.records import FinishedTrial, Goal, Status, Study, Trial, TrialKey, Value, Watch
from orchestrator.records.cooling import Cooling

Ended = Literal["dominated", "paused"] | None

Passage = tuple[int, int]
"""Steps to goal and index of a trial that passed a goal."""

Ranking = tuple[Passage, ...]
"""The at most `Study.keep` trials that passed a goal first, best first."""

Bounds = tuple[Ranking, ...]
"""The ranking of each goal of a study, in the order of the goals."""


def no_bounds(study: Study) -> Bounds:
    """The bounds of a study in which no trial has passed a goal."""
    return ((),) * len(study.goals)


def closed(study: Study) -> Ranking:
    """A ranking that no trial can enter."""
    return ((0, -1),) * study.keep


def joined(rankings: Collection[Ranking], keep: int) -> Ranking:
    """Joins several rankings of one goal and keeps the best `keep` trials."""
    return tuple(sorted({passage for ranking in rankings for passage in ranking})[:keep])


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
    unmet: Mapping[Goal, int],
    upcoming: int,
    index: int,
) -> Ended:
    """The status with which a trial ends now; None if it goes on. `upcoming` is the step of its
    next measurement, and `unmet` are the goals that it has not passed, each with the earliest step
    at which it may still pass. It is `dominated` if it can no longer enter a ranking of these
    goals. It is `paused` if it can pass none of them up to `limit`, the step up to which all trials
    of the study are trained first."""
    if study.goals and not unmet:
        return None
    if unmet and all(
        len(ranking) >= study.keep and (unmet[goal], index) > ranking[-1]
        for goal, ranking in zip(study.goals, bounds, strict=True)
        if goal in unmet
    ):
        return "dominated"
    return "paused" if limit is not None and min([upcoming, *unmet.values()]) > limit else None


@dataclass(frozen=True, kw_only=True)
class Result:
    """The data of a trial that ended which a search needs."""

    key: TrialKey
    status: Status
    steps: int
    """Number of steps of the trial, or, if it is cooled down, where it might have gone on."""
    upcoming: int
    """Step of its next measurement."""
    died: bool
    """Whether it failed because its process was lost."""
    params: Mapping[str, Value]
    passed: Mapping[Goal, int]
    """Goal -> step at which the trial passed it."""
    unmet: Mapping[Goal, int]
    """Goal that it has not passed -> earliest step at which it may pass if it goes on."""
    shown: Mapping[Goal, tuple[tuple[int, float], ...]]
    """Goal -> (step, value) at each measurement for an adaptive search, else at the last one."""


def result_of(finished: FinishedTrial) -> Result:
    trial, outcome = finished.trial, finished.outcome
    study = trial.study
    steps, passed, unmet = outcome.steps, dict[Goal, int](), dict[Goal, int]()
    upcoming, shown = study.following(steps), dict[Goal, tuple[tuple[int, float], ...]]()
    cooling = None
    if study.cooldown is not None:
        cooling = Cooling(study, trial.params)
        for measurement in finished.measurements:
            cooling.add(measurement)
        steps = upcoming = cooling.open_from or study.budget_steps
    for goal in study.goals:
        curve = sorted(
            (measurement.step, measurement.metrics[goal.metric])
            for measurement in finished.measurements
            if goal.metric in measurement.metrics
        )
        if cooling is not None:
            met, earliest = cooling.met(goal), cooling.earliest(goal)
        else:
            watch = Watch(goal=goal)
            for step, value in curve:
                watch = watch.after(step, value, study.examples)
            met, earliest = watch.met, watch.earliest(upcoming)
        if met is not None:
            passed[goal] = met
        else:
            unmet[goal] = earliest
        shown[goal] = tuple(curve if study.search.is_adaptive else curve[-1:])
    return Result(
        key=trial.key,
        status=outcome.status,
        steps=steps,
        upcoming=upcoming,
        died=outcome.died,
        params=trial.params,
        passed=passed,
        unmet=unmet,
        shown=shown,
    )


def bounds_after(bounds: Bounds, study: Study, result: Result) -> Bounds:
    """The bounds of a study after a trial of its search ended with `result`."""
    if result.key.repeat or result.status == "failed" or not result.passed:
        return bounds
    return tuple(
        joined((ranking, ((result.passed[goal], result.key.index),)), study.keep)
        if goal in result.passed
        else ranking
        for goal, ranking in zip(study.goals, bounds, strict=True)
    )


def shortfall(goal: Goal, value: float) -> float:
    """The distance from the goal over the goal's bound; infinite for what is not finite."""
    if not math.isfinite(value):
        return math.inf
    if goal.passed(value):
        return 0.0
    return abs(value - goal.bound) / (abs(goal.bound) or 1.0)


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A trial to start, with the bounds of its study at the time of the proposal."""

    trial: Trial
    bounds: Bounds
    limit: int | None
    """Step up to which trials of the study are trained at present; None: the whole budget."""


class PackRace:
    """Decides when the trials of one process end, which know each other's results at once."""

    def __init__(self, study: Study, heard: Callable[[], Bounds | None] = lambda: None) -> None:
        """`heard` returns the newest bounds from trials in other processes."""
        self._study, self._heard = study, heard
        self._bounds = no_bounds(study)
        self._passed: dict[int, Mapping[Goal, int]] = {}
        """Trial in training -> goals that it has passed, and may yet turn out to reach sooner."""

    def record(self, finished: FinishedTrial) -> None:
        """Records a trial that ended in this process. A trial may end other trials only once its
        result is on its way to the run's files."""
        self._bounds = bounds_after(self._bounds, self._study, result_of(finished))
        self._passed.pop(finished.trial.index, None)

    def ending(self, proposal: Proposal, unmet: Mapping[Goal, int], upcoming: int) -> Ended:
        """The status with which the trial ends at this measurement; None if it goes on."""
        return self._decide(proposal, unmet, upcoming, self._known(proposal))

    def ending_or_held(
        self,
        proposal: Proposal,
        unmet: Mapping[Goal, int],
        upcoming: int,
        passed: Mapping[Goal, int],
    ) -> Ended | Literal["held"]:
        """The same, or `held` if the trial will be dominated unless another one in training is
        lost. `passed` are goals that it has passed, but may turn out to reach sooner."""
        bounds, study, own = self._known(proposal), self._study, proposal.trial.index
        if passed and not proposal.trial.repeat:
            self._passed[own] = passed
        end = self._decide(proposal, unmet, upcoming, bounds)
        if end is not None or not study.stop_dominated or proposal.trial.repeat:
            return end
        for index, goals in self._passed.items():
            passages = (((goals[g], index),) if g in goals else () for g in study.goals)
            bounds = tighter(study, bounds, None if index == own else tuple(passages))
        return "held" if self._decide(proposal, unmet, upcoming, bounds) else None

    def _known(self, proposal: Proposal) -> Bounds:
        bounds = proposal.bounds
        if self._study.stop_dominated and not proposal.trial.repeat:
            for known in (self._bounds, self._heard()):
                bounds = tighter(self._study, bounds, known)
        return bounds

    def _decide(
        self, proposal: Proposal, unmet: Mapping[Goal, int], upcoming: int, bounds: Bounds
    ) -> Ended:
        index, limit = proposal.trial.index, proposal.limit
        return ending(self._study, bounds, limit, unmet=unmet, upcoming=upcoming, index=index)
