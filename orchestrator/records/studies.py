"""One search: a workload, a recipe and a batch size, with all that its trials share."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from orchestrator.records.errors import BadInput
from orchestrator.records.goals import Goal
from orchestrator.records.ranges import Choice, Range, Space, Value
from orchestrator.records.stages import BatchSchedule, Stage

WIDEST_SPACING = 1_000_000
"""With that, a trial is evaluated at its beginning, soon after, and at its end."""


@dataclass(frozen=True, kw_only=True)
class EvaluationGrid:
    """The steps at which a trial is evaluated; the same for every trial of a study."""

    spacing: float
    """Distance between evaluations, relative to the step reached."""
    min_gap: int
    """Fewest steps between evaluations."""

    def __post_init__(self) -> None:
        if not 0 <= self.spacing <= WIDEST_SPACING:
            raise BadInput(
                f"`spacing` must be from 0 to {WIDEST_SPACING:,}, but got {self.spacing:g}."
            )
        if self.min_gap < 1:
            raise BadInput(f"`min_gap` must be at least 1 step, but got {self.min_gap}.")

    def after(self, step: int) -> int:
        """The evaluation that follows the one at `step`."""
        return max(math.ceil(step * (1 + self.spacing)), step + self.min_gap)

    def most_until(self, step: int) -> float:
        """An upper bound on the evaluations up to `step`, without walking from one to the next:
        they are `min_gap` steps apart at first, then in the ratio of the spacing."""
        first = min(float(step), self.min_gap / self.spacing) if self.spacing else float(step)
        later = math.log(step / first) / math.log1p(self.spacing) if step > first else 0
        return first / self.min_gap + later + 2


@dataclass(frozen=True, kw_only=True)
class Extras:
    """What is measured beyond the metrics of the validation and test splits, on request."""

    train_examples: int = 0
    """`train/*` is evaluated on so many examples of the training set, always the same ones."""
    gradient_norm: bool = False
    """`batch/gradient_norm`: of the last batch before the evaluation."""
    distance: bool = False
    """`weights/distance`: the Euclidean distance of the weights from their initial values."""
    noise_scale: Literal["never", "repeats", "always"] = "never"
    """`noise/*`: of the gradient, at the first step, whenever the steps have doubled, and at the
    end."""


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """When a trial whose numbers are still finite counts as diverged: a loss was `above` times its
    first measured value for so many `evaluations` in a row."""

    above: float = 1000.0
    evaluations: int = 10


DESIGN_NAMES = ("halton", "sobol", "random")
"""Search algorithms whose points depend neither on each other nor on results."""


@dataclass(frozen=True, kw_only=True)
class SearchPlan:
    """How the points of a study are chosen."""

    algorithm: str = "halton"
    """halton, sobol, random; points: those listed, no others; tpe, gp, cmaes or the import path of
    a sampler: Optuna's."""
    launches: int | None = None
    """At most so many trials, divergent ones included; None: three times `Study.trials`."""
    generation: int = 8
    """Trials between two times that Optuna is told how they ended."""
    extend: bool = False
    """Widen a range near whose end the best trial lies."""
    points: tuple[Mapping[str, Value], ...] = ()

    @property
    def is_even_sample(self) -> bool:
        """Whether the points are an even sample of the search space: no result had a say in them,
        and no range is widened on the way."""
        return self.algorithm in DESIGN_NAMES and not self.extend


ENOUGH_SIZES = 4
"""Batch sizes without which nothing is said of a curve, and none of them is recommended."""


@dataclass(frozen=True, kw_only=True, order=True)
class StudyKey:
    """What tells one study of a run from another."""

    workload: str
    recipe: str
    batch_size: int

    def __str__(self) -> str:
        return f"{self.workload} {self.recipe} batch size {self.batch_size}"


@dataclass(frozen=True, kw_only=True)
class Study:
    """One search: a workload, a recipe and a batch size, with all that its trials share."""

    workload: str
    recipe: str
    optimizer: str
    batch_size: int
    """The largest, where it grows along a training."""
    goals: tuple[Goal, ...]
    """A trial has reached them once it has passed all of them."""
    budget_steps: int
    grid: EvaluationGrid
    space: Space
    trials: int
    """Points that do not diverge."""
    search: SearchPlan = SearchPlan()
    train_size: int | None = None
    """Examples in an epoch; None where that isn't known or there is no end to them."""
    repeats: int = 0
    """How often each of the best `repeat_best` trials is run again, with other seeds."""
    repeat_best: int = 1
    """Where more than one is, half of their repeats choose one of them, and its others tell."""
    inherit: float | None = None
    """The budget is at first so many times the steps that the next smaller batch size needed."""
    stop_at_goal: bool = True
    stop_dominated: bool = True
    """End a trial once it can no longer be among the best `keep` at any goal."""
    keep: int = 1
    """How many of the best trials are known exactly; with 1, the winner alone."""
    extras: Extras = Extras()
    divergence: Divergence = Divergence()
    batch_schedule: BatchSchedule | None = None
    """How the batch size grows along a training; None: it does not."""
    start_step: int = 0
    """Its trials begin with the state that another one had at that step."""
    states_at: tuple[int, ...] = ()
    """Steps at which the states of its trials are kept, for others to begin with."""

    @property
    def key(self) -> StudyKey:
        return StudyKey(workload=self.workload, recipe=self.recipe, batch_size=self.batch_size)

    @property
    def is_one_point(self) -> bool:
        """Whether there is nothing to search: what is trained is one point, with several seeds."""
        searched = any(isinstance(entry, Range | Choice) for entry in self.space.values())
        return self.trials == 1 and not searched

    @property
    def launches(self) -> int:
        """The most trials that its search may launch, repeats and widening aside."""
        if self.is_one_point:
            return 1
        if self.search.algorithm == "points":
            return len(self.search.points)
        return self.search.launches or 3 * self.trials

    @cached_property
    def batches(self) -> BatchSchedule:
        return self.batch_schedule or BatchSchedule.constant(self.batch_size)

    def with_batches_of(self, size: int) -> Study:
        """The same at another batch size, which does not grow."""
        if self.batch_schedule is None:
            return replace(self, batch_size=size)
        stage = Stage(batch_size=size, factor=self.batches.stages[-1].factor)
        schedule = BatchSchedule((stage,))
        return replace(self, batch_size=size, batch_schedule=schedule, start_step=0)

    @property
    def grows(self) -> bool:
        """Whether the batch grows while its trials train."""
        return self.batches.stages[-1].from_step > self.start_step

    def examples(self, step: int) -> int:
        """How many were trained in so many steps."""
        return self.batches.examples(step)

    def following(self, step: int) -> int:
        """The step of the measurement after the one at `step`."""
        if self.batch_schedule is None:
            return min(self.grid.after(step), self.budget_steps)
        later = bisect_right(self._measured, step)
        return self._measured[later] if later < len(self._measured) else self.budget_steps

    @cached_property
    def _measured(self) -> list[int]:
        """The steps of all measurements, where batches grow: after as many examples as if they
        did not, counted from the start."""
        steps, first, in_first = [self.start_step], self.batches.first, 0
        begun = self.examples(self.start_step)
        while steps[-1] < self.budget_steps:
            in_first = self.grid.after(in_first)
            step = min(self.batches.steps(begun + in_first * first), self.budget_steps)
            steps += [step] if step > steps[-1] else []
        return steps
