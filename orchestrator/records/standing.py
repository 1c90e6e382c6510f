"""The standing of a trial in training: a function of its measurements alone, without torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from orchestrator.records.goals import STAYS, Goal, Watch
from orchestrator.records.studies import Study
from orchestrator.records.trials import Measurement, Status

FAR, IN_A_ROW = 1000.0, 10
"""A trial with finite losses has diverged if a loss was more than this many times its first
measured value, in so many evaluations in a row."""


class Standing:
    """The measurements of a trial so far, and what follows from them: goals that it has not
    reached, its next measurement and its end. It is the same on all ranks."""

    def __init__(self, study: Study, *, stays: bool = False) -> None:
        """A trial that `stays` trains on after its goals, to see whether they hold."""
        self._study, self._stays = study, stays
        self.measurements: list[Measurement] = []
        self._watches = [Watch(goal=goal) for goal in study.goals]
        self._held = [Watch(goal=goal.held) for goal in study.goals]
        self.status: Status | None = None
        """The status with which the measurements end the trial; None if it goes on."""
        self._upcoming = study.start_step
        self.staying = False
        """Whether the trial trains on to see whether a goal holds that it has reached."""
        self._first: dict[str, float] = {}
        self._high: dict[str, int] = {}
        self._doubled = 0
        """The last step that was at least twice the previous such step."""

    def add(self, measurement: Measurement) -> None:
        step, metrics = measurement.step, measurement.metrics
        self.measurements.append(measurement)
        if step >= 2 * self._doubled:
            self._doubled = step
        self._watches = self._after(self._watches, metrics, step)
        self._held = self._after(self._held, metrics, step)
        self.staying = self._stays and any(
            watch.met is not None and held.met is None and step < STAYS * watch.met
            for watch, held in zip(self._watches, self._held, strict=True)
        )
        self.status, self._upcoming = self._status(metrics, step), self._study.following(step)

    @property
    def upcoming(self) -> int:
        """Step of the next measurement."""
        return self._upcoming

    @property
    def open_from(self) -> int | None:
        """First step at which a trial that is cooled down may be measured next at the end of a
        cooldown. None for other trials, and if there is no other cooldown."""
        return None

    @property
    def passed(self) -> dict[Goal, int]:
        """Goals that a trial that is cooled down has passed, each with the step at which it did.
        It may turn out to reach them sooner."""
        return {}

    @property
    def all_reached(self) -> bool:
        """Whether it has reached all goals, of which there are some."""
        return bool(self._study.goals) and not self.unmet

    @property
    def unmet(self) -> dict[Goal, int]:
        """The goals that it has not reached, with the first steps at which it may still do so."""
        return {w.goal: w.earliest(self.upcoming) for w in self._watches if w.met is None}

    def _after(
        self, watches: Sequence[Watch], metrics: Mapping[str, float], step: int
    ) -> list[Watch]:
        of = self._study.examples
        return [each.after(step, metrics.get(each.goal.metric), of) for each in watches]

    def named(self, metrics: Mapping[str, float]) -> Mapping[str, float]:
        """The names under which the results of an evaluation are kept."""
        return metrics

    def wants_test(self, metrics: Mapping[str, float], step: int) -> bool:
        """Tells whether to evaluate test splits at this step: if a goal is passed here for the
        first time or again, if a goal is on a test split, and at the end of a trial that trains for
        its whole budget. Test splits are not evaluated when a trial ends without reaching its
        goals, as most trials do."""
        goals = self._study.goals
        to_the_end = not (goals and self._study.stop_at_goal)
        return (
            any(goal.metric.startswith("test/") for goal in goals)
            or any(each.since == step for each in self._after(self._watches, metrics, step))
            or (to_the_end and step >= self._study.budget_steps)
        )

    def wants_noise(self, metrics: Mapping[str, float], step: int) -> bool:
        """Tells whether to measure the noise scale at this step: at the first step, whenever the
        number of steps has doubled, where a state is saved, and at the end. A trial that trains on
        after its goals measures no more of it: forecasts are about trainings up to the goal."""
        if self.staying and not self.unmet:
            return False
        saved = step in self._study.states_at
        return saved or step >= 2 * self._doubled or self._ends(metrics, step)

    def _ends(self, metrics: Mapping[str, float], step: int) -> bool:
        """Whether a trial with these metrics reaches its last goal or has spent its budget."""
        after = self._after(self._watches, metrics, step)
        reached = bool(self.unmet) and all(each.met is not None for each in after)
        return (self._study.stop_at_goal and reached) or step >= self._study.budget_steps

    def _status(self, metrics: Mapping[str, float], step: int) -> Status | None:
        reached = self.all_reached
        if reached and self._study.stop_at_goal and not self.staying:
            return "reached"
        if not all(map(math.isfinite, metrics.values())) or self._far_above(metrics):
            return "diverged"
        if step < self._study.budget_steps:
            return None
        return "reached" if reached else "exhausted"

    def _far_above(self, metrics: Mapping[str, float]) -> bool:
        for name, value in metrics.items():
            # The first loss of a batch is no basis for comparison: it may be of a single example.
            if name.endswith("loss") and not name.startswith("batch/"):
                first = abs(self._first.setdefault(name, value))
                above = value > FAR * first > 0
                self._high[name] = self._high.get(name, 0) + 1 if above else 0
        return max(self._high.values(), default=0) >= IN_A_ROW
