"""Goals, which trainings must reach."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from orchestrator.records.errors import wrong_value

_GOAL = re.compile(
    r"^\s*([^\s<>:/](?:[^<>:\x00-\x1f\x7f]*[^\s<>:])?)\s*([<>])\s*(\S+)"  # some names have spaces
    r"(?:\s+for\s+([1-9]\d{0,14})\s+(measurement|example)s?)?\s*$"
)

HELD_FOR = 3
"""Number of measurements for which a goal must hold, where it is asked whether it is lost again."""

STAYS = 2.5
"""How many times the steps to its goal a repeat trains at most to see whether the goal holds."""


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A metric and a bound that the metric must pass strictly, compared in float64. A value that is
    not finite never passes a goal.

    A goal may have to hold: it is reached with the first of a run of measurements that all pass, as
    soon as the run is long enough."""

    metric: str
    direction: Literal["<", ">"]
    bound: float
    measurements: int = 1
    """Least number of measurements of such a run."""
    examples: int = 0
    """Least number of examples from its first measurement to its last."""

    @classmethod
    def parse(cls, text: str) -> Goal:
        match = _GOAL.match(text)
        try:
            if match is None:
                raise ValueError
            metric, direction, bound, count, unit = match.groups()
            goal = cls(
                metric=metric,
                direction="<" if direction == "<" else ">",
                bound=float(bound),
                **({} if count is None else {f"{unit}s": int(count)}),
            )
        except ValueError:
            raise wrong_value(
                "A goal",
                "METRIC < NUMBER or METRIC > NUMBER, as in val/error < 0.04, which may "
                "have to hold for COUNT measurements or for COUNT examples",
                text,
            ) from None
        if not math.isfinite(goal.bound):
            raise wrong_value("A goal's bound", "finite", text)
        return goal

    def passed(self, value: float | None) -> bool:
        if value is None or not math.isfinite(value):
            return False
        return value < self.bound if self.direction == "<" else value > self.bound

    @property
    def holds(self) -> bool:
        """Whether a single measurement that passes may not be enough."""
        return self.measurements > 1 or self.examples > 0

    @property
    def held(self) -> Goal:
        """The goal that tells whether this one is lost again: itself if it has to hold."""
        return self if self.holds else replace(self, measurements=HELD_FOR)

    def implies(self, other: Goal) -> bool:
        """Whether a training that has reached this goal must have reached `other` as well."""
        stricter = self.bound <= other.bound if self.direction == "<" else self.bound >= other.bound
        longer = self.measurements >= other.measurements and self.examples >= other.examples
        same = (self.metric, self.direction) == (other.metric, other.direction)
        return same and stricter and longer and self != other

    def __str__(self) -> str:
        said = f"{self.metric} {self.direction} {self.bound!r}"
        if self.measurements > 1:
            said += f" for {self.measurements} measurements"
        return said + (f" for {self.examples} examples" if self.examples else "")


@dataclass(frozen=True, kw_only=True)
class Watch:
    """What the measurements of a trial so far say about a goal."""

    goal: Goal
    since: int | None = None
    """First step of the present run of measurements that pass the goal; None outside of one."""
    count: int = 0
    """Number of measurements of the run."""
    met: int | None = None
    """Step at which the goal was reached: the first step of the first run that was long enough."""

    def after(self, step: int, value: float | None, examples: Callable[[int], int]) -> Watch:
        """Returns what is known after a measurement, which tells nothing if it lacks the metric.
        `examples` gives the number of examples of so many steps."""
        if self.met is not None or value is None or math.isnan(value):
            return self
        if not self.goal.passed(value):
            return self if self.since is None else Watch(goal=self.goal)
        since, count = step if self.since is None else self.since, self.count + 1
        trained = examples(step) - examples(since)
        long = count >= self.goal.measurements and trained >= self.goal.examples
        return Watch(goal=self.goal, since=since, count=count, met=since if long else None)

    def earliest(self, upcoming: int) -> int:
        """The first step at which it may still be reached, if step `upcoming` is measured next."""
        return upcoming if self.since is None else self.since
