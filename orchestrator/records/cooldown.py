"""How trainings are cooled down: how long, and from which steps on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.records.errors import wrong_value

LADDER = 2
"""How many times as late each cooldown of the ladder begins as the one before."""

TRUNK = "trunk/"
"""What the names of metrics begin with that are measured before a cooldown."""


@dataclass(frozen=True, kw_only=True)
class Cooldown:
    """The end of a training, in which its learning rate comes down. Its length is a number of
    `steps`, or a `fraction` of the whole training."""

    shape: str = "linear"
    fraction: float | None = None
    steps: int | None = None
    end_factor: float = 0.0
    """Factor on the learning rate after the last step."""
    power: float | None = None
    """Exponent of the shape `polynomial`."""

    def __post_init__(self) -> None:
        if self.fraction is not None and not 0 < self.fraction < 1:
            raise wrong_value("`fraction`", "above 0 and below 1", self.fraction)
        if not 0 <= self.end_factor < 1:
            raise wrong_value("`end_factor`", "from 0 to below 1", self.end_factor)

    def __str__(self) -> str:
        part = f"{self.steps:,} steps" if self.fraction is None else f"{100 * self.fraction:g} %"
        to = f", to {self.end_factor:g} of it" if self.end_factor else ""
        return f"{self.shape} in the last {part}{to}"

    def length(self, start: int) -> int:
        """Returns the number of steps of the cooldown that begins at step `start`."""
        if self.steps is not None:
            return self.steps
        assert self.fraction is not None
        return max(1, round(start * self.fraction / (1 - self.fraction)))

    def end(self, start: int) -> int:
        return start + self.length(start)

    def start(self, end: int) -> int:
        """Returns the last step at which a cooldown that ends by `end` begins; at most 0 if there
        is none."""
        if self.steps is not None:
            return end - self.steps
        assert self.fraction is not None
        start = round(end * (1 - self.fraction)) + 1
        while start > 0 and self.end(start) > end:
            start -= 1
        return start

    def ladder(self, first: int, budget: int) -> Iterator[int]:
        """Yields the steps at which cooldowns begin as long as none has passed a goal: in geometric
        distance, the last so that it ends with the budget."""
        last = self.start(budget)
        while first < last:
            yield first
            first *= LADDER
        yield last

    def most_steps(self, first: int, budget: int) -> int:
        """Returns the number of steps of a training that passes no goal."""
        starts = [*self.ladder(first, budget)]
        return starts[-1] + sum(map(self.length, starts))
