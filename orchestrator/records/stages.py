"""How a training changes along its steps: its batch sizes, which give the number of examples of a
number of steps, and the cooldown at its end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.records.errors import BadInput, wrong_value

LADDER = 2
"""How many times as late each cooldown of the ladder begins as the one before."""

TRUNK = "trunk/"
"""What the names of metrics begin with that are measured before a cooldown."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """The steps of a training at one batch size, until the next stage begins."""

    batch_size: int
    from_step: int = 0
    from_examples: int = 0
    """Number of examples that were trained before the stage."""
    factor: float = 1.0
    """Factor on the learning rate during the stage."""


@dataclass(frozen=True)
class BatchSchedule:
    """The batch sizes of a training, which grow from stage to stage or stay the same."""

    stages: tuple[Stage, ...]
    """All stages, from step 0 on. Neighbouring stages differ."""

    def __post_init__(self) -> None:
        first = self.stages[0]
        if first.from_step or first.from_examples:
            raise BadInput("a batch schedule begins at step 0", code="stage-order")
        if (least := min(stage.batch_size for stage in self.stages)) < 1:
            raise wrong_value("a batch size", "at least 1", least)

    @classmethod
    def constant(cls, batch_size: int) -> BatchSchedule:
        return cls((Stage(batch_size=batch_size),))

    @property
    def first(self) -> int:
        return self.stages[0].batch_size

    @property
    def largest(self) -> int:
        return max(stage.batch_size for stage in self.stages)

    def then(self, *, batch_size: int, factor: float, at: int) -> BatchSchedule:
        """This schedule with one more stage, from when at least `at` examples have been trained."""
        step, last = self.steps(at), self.stages[-1]
        if batch_size < last.batch_size:
            raise wrong_value(
                "a batch size", f"at least the one before, {last.batch_size:,}", batch_size
            )
        if step <= last.from_step:
            raise BadInput(
                f"each stage needs a step, but the stage of batch size {last.batch_size:,} begins "
                f"at {last.from_examples:,} examples and the next at {at:,}",
                code="stage-order",
            )
        stage = Stage(
            batch_size=batch_size, from_step=step, from_examples=self.examples(step), factor=factor
        )
        if (batch_size, factor) == (last.batch_size, last.factor):
            return self
        return BatchSchedule((*self.stages, stage))

    def stage(self, step: int) -> Stage:
        """Returns the stage of the update that follows `step` updates."""
        return next(stage for stage in reversed(self.stages) if stage.from_step <= step)

    def end(self, stage: Stage, budget_steps: int) -> int:
        """Returns the step of a training of `budget_steps` at which the stage ends."""
        later = (other.from_step for other in self.stages if other.from_step > stage.from_step)
        return min(next(later, budget_steps), budget_steps)

    def examples(self, step: int) -> int:
        """Returns the number of examples that are trained in the first `step` steps."""
        stage = self.stage(step)
        return stage.from_examples + (step - stage.from_step) * stage.batch_size

    def steps(self, examples: int) -> int:
        """Returns the smallest number of steps in which at least `examples` are trained."""
        stage = next(stage for stage in reversed(self.stages) if stage.from_examples <= examples)
        return stage.from_step - (stage.from_examples - examples) // stage.batch_size

    def __str__(self) -> str:
        first, *later = self.stages
        parts = [f"{stage.batch_size:,} from step {stage.from_step:,}" for stage in later]
        return ", ".join([f"{first.batch_size:,}", *parts])


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
        if (self.fraction is None) == (self.steps is None):
            raise BadInput("give `fraction` or `steps`, not both", code="not-together")

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
        """The last start of a cooldown that ends by `end`; at most 0 if there is none."""
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
