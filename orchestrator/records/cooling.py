"""Trials that reach a goal by cooling down: where their next cooldown begins, and what they found.

Such a trial is a training at its own rate, the trunk, with cooldowns from some of its steps, the
starts. Only a measurement at a cooldown's end counts. Starts are on a ladder until a cooldown
passes the goal. Then the bracket between the first start that passed and the last before it that
did not is halved, until it is as narrow as the distance of two measurements elsewhere. The answer
is the end of the earliest cooldown that passed. All of this follows from the values at the ends
of cooldowns, whatever their order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from orchestrator.records.goals import HELD_FOR, STAYS, Goal
from orchestrator.records.lr_schedules import warmup_of
from orchestrator.records.ranges import Value
from orchestrator.records.stages import TRUNK
from orchestrator.records.standing import Standing
from orchestrator.records.studies import Study
from orchestrator.records.trials import Measurement, Status, Trial


def first_start(study: Study, params: Mapping[str, Value]) -> int:
    """Returns the step at which the first cooldown of a trial begins: after its warmup."""
    return max(study.grid.after(0), math.ceil(warmup_of(study, params)))


class Cooling:
    """The cooldowns of a trial that have ended."""

    def __init__(self, study: Study, params: Mapping[str, Value], *, stays: bool = False) -> None:
        """With `stays`, later cooldowns follow to see whether they pass, too."""
        assert study.cooldown is not None
        self._study, self._cooldown, self._stays = study, study.cooldown, stays
        self._ladder = [*study.cooldown.ladder(first_start(study, params), study.budget_steps)]
        self._values: dict[int, float] = {}
        """Start -> value of the goals' metric at the end."""

    def add(self, measurement: Measurement) -> None:
        """Takes note of a measurement at the end of a cooldown; any other is ignored."""
        if not is_cooled(measurement):
            return
        metric = self._study.goals[0].metric if self._study.goals else ""
        start = self._cooldown.start(measurement.step)
        self._values[start] = measurement.metrics.get(metric, math.nan)

    @property
    def start(self) -> int | None:
        """Step at which the next cooldown begins; None if there is no other."""
        going_on = not (self._study.goals and self._study.stop_at_goal)
        # The goals have one metric, and those that are passed more easily come first.
        for goal in sorted(self._study.goals, key=_ease):
            low, high, passed = self._bracket(goal)
            if passed and not self._narrow(low, high):
                return self._between(low, high)
            going_on |= not passed
        return self._rung if going_on else self._later

    def end(self, start: int) -> int:
        return self._cooldown.end(start)

    def passed(self, goal: Goal) -> int | None:
        """Step at which the trial passed the goal so far; None if it did not."""
        _, high, passed = self._bracket(goal)
        return self.end(high) if passed else None

    def met(self, goal: Goal) -> int | None:
        """Step at which the trial reached the goal; None if that is not known yet."""
        passed = self.passed(goal)
        return passed if passed == self.earliest(goal) else None

    def earliest(self, goal: Goal) -> int:
        """Returns the first step at which the goal may still turn out to be reached. A cooldown by
        which the bracket of an easier goal is halved may pass this one as well."""
        ends = []
        for one in self._study.goals:
            low, high, _ = self._bracket(one)
            if one == goal or (_ease(one) < _ease(goal) and not self._narrow(low, high)):
                while not self._narrow(low, high):
                    high = self._between(low, high)
                ends.append(self.end(high))
        return min(ends)

    @property
    def open_from(self) -> int | None:
        """First step at which the trial may be measured next; None if it is at its end."""
        if self.start is None:
            return self._rung and self.end(self._rung)
        unmet = (self.earliest(goal) for goal in self._study.goals if self.met(goal) is None)
        return min(unmet, default=self.end(self.start))

    @property
    def bases(self) -> set[int]:
        """Starts from which the trunk may have to go on."""
        goals, upcoming = self._study.goals, self.start or 0
        lows = {self._bracket(goal)[0] for goal in goals if self.met(goal) is None}
        highs = {self._bracket(goal)[1] for goal in goals if self._stays}
        before = max((start for start in self._values if start <= upcoming), default=0)
        return {*lows, *highs, before, max(self._values, default=0)}

    @property
    def _later(self) -> int | None:
        """The start that tells next whether a goal holds; None if that is known of all goals."""
        found = (
            first_held(self._study, self._values, goal)[1]
            for goal in sorted(self._study.goals, key=_ease)
            if self._stays
        )
        return next((start for start in found if start is not None), None)

    @property
    def _rung(self) -> int | None:
        done = max(self._values, default=0)
        return next((start for start in self._ladder if start > done), None)

    def _bracket(self, goal: Goal) -> tuple[int, int, bool]:
        """Returns the last start that did not pass the goal, 0 if there is none, the first that
        passed it, and True. If none passed it, the second is the next one of the ladder, or beyond
        its end, and the third False."""
        passed = [start for start, value in self._values.items() if goal.passed(value)]
        high = min(passed, default=self._rung or self._study.budget_steps)
        return max((start for start in self._values if start < high), default=0), high, bool(passed)

    def _narrow(self, low: int, high: int) -> bool:
        return low == 0 or high <= self._study.grid.after(low)

    def _between(self, low: int, high: int) -> int:
        return min(max(round(math.sqrt(low * high)), low + 1), high - 1)


def first_held(
    study: Study, values: Mapping[int, float], goal: Goal
) -> tuple[int | None, int | None]:
    """Returns, of the starts from the earliest that passed the goal on, at the distance of two
    measurements elsewhere, the first of a run that all pass, and the one to try next if that is not
    known yet. Both are None if there was no such run in time. `values` are those at the ends."""
    assert study.cooldown is not None
    first = start = min((start for start, value in values.items() if goal.passed(value)), default=0)
    until, run = min(study.budget_steps, STAYS * study.cooldown.end(start)), 0
    while start and study.cooldown.end(start) <= until:
        if start not in values:
            return None, start
        run = run + 1 if goal.passed(values[start]) else 0
        first = start if run == 1 else first
        if run == HELD_FOR:
            return first, None
        start = study.grid.after(start)
    return None, None


def is_cooled(measurement: Measurement) -> bool:
    """Whether a measurement was taken at the end of a cooldown."""
    return not any(name.startswith(TRUNK) for name in measurement.metrics)


def _ease(goal: Goal) -> float:
    return -goal.bound if goal.direction == "<" else goal.bound


class CooledStanding(Standing):
    """The standing of a trial that is cooled down."""

    def __init__(self, trial: Trial) -> None:
        super().__init__(trial.study)
        self.cooling = Cooling(trial.study, trial.params, stays=trial.stays)
        self.cools = False
        """Whether the trial is in a cooldown."""

    def add(self, measurement: Measurement) -> None:
        if is_cooled(measurement):
            self.measurements.append(measurement)
            self.cooling.add(measurement)
            self.cools = False
        else:
            super().add(measurement)
        going_on = self.cooling.start is not None
        self.staying = self.all_reached and going_on
        if self.status != "diverged":
            ended: Status = "reached" if self.all_reached else "exhausted"
            self.status = None if going_on else ended

    @property
    def upcoming(self) -> int:
        """Step of the next measurement, or at which a cooldown begins."""
        start = self.cooling.start
        if start is None:
            return self._study.budget_steps
        return self.cooling.end(start) if self.cools else min(super().upcoming, start)

    def turns(self, step: int) -> bool:
        """Whether a cooldown begins at this step of the trunk, where nothing is measured."""
        return not self.cools and step == self.cooling.start and step < super().upcoming

    @property
    def open_from(self) -> int | None:
        return self.cooling.open_from

    @property
    def unmet(self) -> dict[Goal, int]:
        cooling, goals = self.cooling, self._study.goals
        return {goal: cooling.earliest(goal) for goal in goals if cooling.met(goal) is None}

    @property
    def passed(self) -> dict[Goal, int]:
        found = {goal: self.cooling.passed(goal) for goal in self._study.goals}
        return {goal: step for goal, step in found.items() if step is not None}

    def named(self, metrics: Mapping[str, float]) -> Mapping[str, float]:
        if self.cools:
            return metrics
        return {f"{TRUNK}{name}": value for name, value in metrics.items()}

    def wants_test(self, metrics: Mapping[str, float], step: int) -> bool:
        goals = self._study.goals
        return self.cools and (
            any(goal.metric.startswith("test/") for goal in goals)
            or any(goal.passed(metrics.get(goal.metric)) for goal in goals)
            or not (goals and self._study.stop_at_goal)
        )

    def wants_noise(self, metrics: Mapping[str, float], step: int) -> bool:
        return not self.cools and super().wants_noise(metrics, step)


def standing_of(trial: Trial) -> Standing:
    if trial.study.cooldown is not None:
        return CooledStanding(trial)
    return Standing(trial.study, stays=trial.stays)
