"""What is known of a trial in training: a function of its measurements alone, without torch."""

from __future__ import annotations

import math
from collections.abc import Mapping

from orchestrator.records import Measurement, Status, Study


class Standing:
    """Where a trial stands, after each measurement. All ranks have the same one."""

    def __init__(self, study: Study) -> None:
        self._study = study
        self.measurements: list[Measurement] = []
        self.unmet = set(study.goals)
        self.status: Status | None = None
        """How the trial ended, by what was measured; None if it goes on."""
        self.upcoming = study.start_step
        """The step of the next measurement."""
        self._first: dict[str, float] = {}
        self._high: dict[str, int] = {}
        self._doubled = 0
        """The last step that was at least twice the one before it of this kind."""

    def add(self, measurement: Measurement) -> None:
        step, metrics = measurement.step, measurement.metrics
        self.measurements.append(measurement)
        if step >= 2 * self._doubled:
            self._doubled = step
        self.unmet = {goal for goal in self.unmet if not goal.passed(metrics.get(goal.metric))}
        self.status, self.upcoming = self._status(metrics, step), self._study.following(step)

    def wants_test(self, metrics: Mapping[str, float], step: int) -> bool:
        """Test splits are looked at where a goal is passed, for a goal's own sake, and at the end
        of a trial that is to go there: not where one failed, which is most of them."""
        goals = self._study.goals
        to_the_end = not (goals and self._study.stop_at_goal)
        return (
            any(goal.metric.startswith("test/") for goal in goals)
            or any(goal.passed(metrics.get(goal.metric)) for goal in self.unmet)
            or (to_the_end and step >= self._study.budget_steps)
        )

    def wants_noise(self, metrics: Mapping[str, float], step: int) -> bool:
        """The noise scale is measured at the first step, whenever the steps have doubled, where a
        state is kept, and at the end."""
        kept = step in self._study.states_at
        return kept or step >= 2 * self._doubled or self._ends(metrics, step)

    def _ends(self, metrics: Mapping[str, float], step: int) -> bool:
        """Whether a trial with these metrics is over, in a way that isn't a failure's."""
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
            # The loss of a batch is no yardstick: its first value may be that of one example.
            if name.endswith("loss") and not name.startswith("batch/"):
                first = abs(self._first.setdefault(name, value))
                above = value > rule.above * first > 0
                self._high[name] = self._high.get(name, 0) + 1 if above else 0
        return max(self._high.values(), default=0) >= rule.evaluations
