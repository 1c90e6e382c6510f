"""Batch sizes along a training. They give the number of examples of a number of steps."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.records.errors import BadInput, wrong_value


@dataclass(frozen=True, kw_only=True)
class Stage:
    """The steps of a training at one batch size, until the next stage begins."""

    batch_size: int
    from_step: int = 0
    """Number of steps before the stage."""
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
        """Returns the step at which a stage ends in a training of `budget_steps`. The next stage,
        if there is one, begins there."""
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
