"""Goals, which trainings must reach, and baselines, which other trainings are compared with."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from orchestrator.records.errors import wrong_value

_GOAL = re.compile(r"^\s*([\w.-]+/[\w.@-]+)\s*([<>])\s*(\S+)\s*$")


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A metric and a bound that the metric must pass strictly, compared in float64. A value that is
    not finite never passes a goal."""

    metric: str
    direction: Literal["<", ">"]
    bound: float

    @classmethod
    def parse(cls, text: str) -> Goal:
        match = _GOAL.match(text)
        try:
            if match is None:
                raise ValueError
            metric, direction, bound = match.groups()
            goal = cls(
                metric=metric, direction="<" if direction == "<" else ">", bound=float(bound)
            )
        except ValueError:
            raise wrong_value(
                "A goal",
                "SPLIT/METRIC < NUMBER or SPLIT/METRIC > NUMBER, as in val/error < 0.04",
                text,
            ) from None
        if not math.isfinite(goal.bound):
            raise wrong_value("A goal's bound", "finite", text)
        return goal

    def passed(self, value: float | None) -> bool:
        if value is None or not math.isfinite(value):
            return False
        return value < self.bound if self.direction == "<" else value > self.bound

    def __str__(self) -> str:
        return f"{self.metric} {self.direction} {self.bound!r}"


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """The trainings that others are compared with: those of one recipe at one batch size."""

    recipe: str
    batch_size: int

    @classmethod
    def parse(cls, text: str) -> Baseline:
        recipe, _, size = text.rpartition("@")
        if not recipe or not re.fullmatch(r"[1-9]\d{0,17}", size):
            raise wrong_value("A baseline", "RECIPE@BATCH_SIZE, such as linear_rule@256", text)
        return cls(recipe=recipe, batch_size=int(size))

    @property
    def key(self) -> tuple[str, int]:
        return self.recipe, self.batch_size

    def __str__(self) -> str:
        return f"{self.recipe}@{self.batch_size}"
