"""The standing of a trial in training: a function of its measurements alone, without torch."""

from __future__ import annotations

import math
from collections.abc import Mapping

from orchestrator.records import Measurement, Status, Study


class Standing:
    """The measurements of a trial so far, and what follows from them: goals that it has not passed,
    its next measurement and its end. It is the same on all ranks."""

    def __init__(self, study: Study) -> None:
        self._study = study
        self.measurements: list[Measurement] = []
        self.unmet = set(study.goals)
        self.status: Status | None = None
        """The status with which the measurements end the trial; None if it goes on."""
        self.upcoming = study.start_step
        """Step of the next measurement."""
        self._first: dict[str, float] = {}
        self._high: dict[str, int] = {}
        self._doubled = 0
        """The last step that was at least twice the previous such step."""

    def add(self, measurement: Measurement) -> None:
        step, metrics = measurement.step, measurement.metrics
        self.measurements.append(measurement)
        if step >= 2 * self._doubled:
            self._doubled = step
        self.unmet = {goal for goal in self.unmet if not goal.passed(metrics.get(goal.metric))}
        self.status, self.upcoming = self._status(metrics, step), self._study.following(step)

    def wants_test(self, metrics: Mapping[str, float], step: int) -> bool:
        """Tells whether to evaluate test splits at this step: if a goal is passed here, if a goal
        is on a test split, and at the end of a trial that trains for its whole budget. Test splits
        are not evaluated when a trial ends without reaching its goals, as most trials do."""
        goals = self._study.goals
        to_the_end = not (goals and self._study.stop_at_goal)
        return (
            any(goal.metric.startswith("test/") for goal in goals)
            or any(goal.passed(metrics.get(goal.metric)) for goal in self.unmet)
            or (to_the_end and step >= self._study.budget_steps)
        )

    def wants_noise(self, metrics: Mapping[str, float], step: int) -> bool:
        """Tells whether to measure the noise scale at this step: at the first step, whenever the
        number of steps has doubled, where a state is saved, and at the end."""
        saved = step in self._study.states_at
        return saved or step >= 2 * self._doubled or self._ends(metrics, step)

    def _ends(self, metrics: Mapping[str, float], step: int) -> bool:
        """Tells whether a trial with these metrics has reached all goals or spent its budget."""
        goals = self._study.goals
        reached = all(goal.passed(metrics.get(goal.metric)) for goal in self.unmet)
        return (bool(goals) and self._study.stop_at_goal and reached) or (
            step >= self._study.budget_steps
        )

    def _status(self, metrics: Mapping[str, float], step: int) -> Status | None:
        reached = bool(self._study.goals) and not self.unmet
        if reached and self._study.stop_at_goal:
            return "reached"
        if not all(map(math.isfinite, metrics.values())) or self._far_above(metrics):
            return "diverged"
        if step < self._study.budget_steps:
            return None
        return "reached" if reached else "exhausted"

    def _far_above(self, metrics: Mapping[str, float]) -> bool:
        rule = self._study.divergence
        for name, value in metrics.items():
            # The loss of a batch is no basis for comparison: its first value may come from a single
            # example.
            if name.endswith("loss") and not name.startswith("batch/"):
                first = abs(self._first.setdefault(name, value))
                above = value > rule.above * first > 0
                self._high[name] = self._high.get(name, 0) + 1 if above else 0
        return max(self._high.values(), default=0) >= rule.evaluations
