"""Studies: one search of a workload, a recipe and a batch size, with all that trials share."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Literal

from orchestrator.records.errors import wrong_value
from orchestrator.records.goals import Goal
from orchestrator.records.ranges import Space, Value, searched
from orchestrator.records.roles import COURSE, END, FREE, GROWS, SEARCH
from orchestrator.records.stages import BatchSchedule, Cooldown, Stage

MANY = 1_000_000_000
"""Bound of steps, batch sizes, counts and seconds, in sweeps and in archives: so many steps take
weeks, so many seconds a lifetime, and the product of two is still a 64-bit integer."""

WIDEST_SPACING = 1_000_000
"""Largest spacing of evaluations: at the beginning of a trial, soon after it, and at its end."""


@dataclass(frozen=True, kw_only=True)
class EvaluationGrid:
    """The steps at which a trial is evaluated. They are the same for all trials of a study."""

    spacing: float
    """Distance between two evaluations in steps, divided by the step of the first of them."""
    min_gap: Annotated[int, "min_examples in steps"]
    """Smallest number of steps between two evaluations."""

    def __post_init__(self) -> None:
        if not 0 <= self.spacing <= WIDEST_SPACING:
            raise wrong_value("`spacing`", f"from 0 to {WIDEST_SPACING:,}", self.spacing)
        if self.min_gap < 1:
            raise wrong_value("`min_gap`", "at least 1 step", self.min_gap)

    def after(self, step: int) -> int:
        """Returns the step of the evaluation that follows the evaluation at `step`."""
        return max(math.ceil(step * (1 + self.spacing)), step + self.min_gap)

    def most_until(self, step: int) -> float:
        """An upper bound on the evaluations up to `step`, without a loop over them: at first they
        are `min_gap` steps apart, and later each comes at 1 + `spacing` times the step before."""
        first = min(float(step), self.min_gap / self.spacing) if self.spacing else float(step)
        later = math.log(step / first) / math.log1p(self.spacing) if step > first else 0
        return first / self.min_gap + later + 2


@dataclass(frozen=True, kw_only=True)
class Extras:
    """Optional measurements beyond the metrics of the validation and test splits."""

    train_examples: int = 0
    """Number of training examples, always the same, on which `train/*` is evaluated; 0: none."""
    noise_scale: Literal["never", "repeats", "always"] = "never"
    """The trials in which to measure `noise/*`, the noise scale of the gradient: at the first step,
    whenever the number of steps has doubled, and at the end."""
    precision: Literal["float32", "bfloat16"] = "float32"


Source = Literal["report", "stdout", "jsonl", "tensorboard"]


@dataclass(frozen=True, kw_only=True)
class Heard:
    """Where the numbers of a program are found."""

    source: Source = "report"
    """`report`: the program calls `orchestrator.report`, or writes lines of JSON to the file that
    is named in its environment. `stdout`: its output. `jsonl`: a file of lines of JSON that it
    writes. `tensorboard`: its event files."""
    pattern: str = ""
    """Regular expression for a line of the output. Its group `step` and at least another one are
    named; their names are those of the metrics."""
    place: str = ""
    """The file or folder, which may hold placeholders."""
    step: str = "step"
    """The key of the step in lines of JSON."""

    @property
    def asks(self) -> bool:
        """Whether such a program asks whether it should go on, so that it may end by itself."""
        return self.source == "report"


@dataclass(frozen=True, kw_only=True)
class Program:
    """A command that trains one trial."""

    command: tuple[str, ...]
    """Its arguments, with placeholders such as `{learning_rate}`."""
    function: str = ""
    """The place of the Python function that the command calls; empty for other programs."""
    launch: Literal["once", "ranks"] = "once"
    """Whether the command is started once, for all devices of a trial, or for each of them."""
    heard: Heard = Heard()
    arguments: Mapping[str, str] = field(default_factory=dict)
    """Name here -> name of the program's option, in `{args}`."""
    max_per_device: int | None = None
    """Most examples that a device takes at once; more are accumulated over several passes."""
    tokens_per_example: int | None = None
    resumes: bool = False
    """Whether the program goes on from what it finds in its folder."""
    every: int | None = None
    """Least number of steps between two reports, if that is known."""


DESIGN_NAMES = ("halton", "sobol", "random")
"""Search algorithms whose points depend neither on each other nor on results."""


@dataclass(frozen=True, kw_only=True)
class SearchPlan:
    """How the points of a study are chosen."""

    algorithm: Annotated[str, SEARCH] = "halton"
    """`halton`, `sobol` or `random`: a design. `points`: the listed points and no others. `tpe`,
    `gp`, `cmaes` or the import path of a sampler: a sampler of Optuna."""
    launches: Annotated[int | None, FREE, "max_launches"] = None
    """Largest number of trials, diverged ones included; None: three times `Study.trials`."""
    generation: Annotated[int, SEARCH] = 8
    """Number of trials of a round of Optuna's samplers, which are told its results afterwards."""
    points: Annotated[tuple[Mapping[str, Value], ...], GROWS] = ()

    @property
    def is_even_sample(self) -> bool:
        """Whether the points are an even sample of the space, which depends on no result."""
        return self.algorithm in DESIGN_NAMES

    @property
    def is_adaptive(self) -> bool:
        """Whether points depend on results, or may, since nobody knows how they were chosen."""
        return self.algorithm not in (*DESIGN_NAMES, "points")


def plain(optimizer: str) -> str:
    """The name of an optimizer as tables have it: case and underscores don't matter."""
    return optimizer.replace("_", "").lower()


ENOUGH_SIZES = 4
"""Smallest number of batch sizes of a curve for which there is an answer and a recommendation."""


@dataclass(frozen=True, kw_only=True, order=True)
class StudyKey:
    """The identity of a study within a run."""

    workload: str
    recipe: str
    batch_size: int

    def __str__(self) -> str:
        return f"{self.workload} {self.recipe} batch size {self.batch_size}"


@dataclass(frozen=True, kw_only=True)
class Study:
    """One search: a workload, a recipe and a batch size, with everything that its trials share."""

    workload: Annotated[str, COURSE]
    recipe: Annotated[str, SEARCH]
    optimizer: Annotated[str, COURSE]
    batch_size: Annotated[int, COURSE]
    """Number of examples per step; if the batch size grows along a training, its largest value."""
    goals: Annotated[tuple[Goal, ...], END]
    """The goals of each trial, which ends with status `reached` once it has passed all of them."""
    budget_steps: Annotated[int, END, "budget in steps"]
    """Largest number of steps of a trial."""
    grid: Annotated[EvaluationGrid, COURSE, "evaluate"]
    space: Annotated[Space, SEARCH]
    trials: Annotated[int, GROWS, "search.trials"]
    """Number of points to search. Trials that diverge do not count."""
    search: SearchPlan = SearchPlan()
    train_size: Annotated[int | None, COURSE] = None
    """Number of examples in an epoch; None if it is unknown or the training set is endless."""
    repeats: Annotated[int, GROWS] = 0
    """Number of repeats, with other seeds, of the best trial of each goal."""
    repeat_best: Annotated[int, FREE] = 1
    """Number of trials that are repeated. If there are several, each has half as many repeats,
    which choose one of these trials. Only this one has the others, which measure it."""
    inherit: Annotated[float | None, SEARCH, "budget.inherit"] = None
    """Factor that gives the initial budget: this many times the steps that the next smaller batch
    size needed. None: trials have the full budget from the start."""
    stop_at_goal: Annotated[bool, COURSE, "stop.at_goal"] = True
    """Whether a trial ends once it has passed all goals."""
    stop_dominated: Annotated[bool, SEARCH, "stop.dominated"] = True
    """Whether a trial ends once it can no longer be among the best `keep` trials at any goal."""
    repeats_stay: Annotated[bool, FREE, "stop.repeats_stay"] = False
    """Whether repeats that judge train on after their goals, to see whether these hold."""
    keep: Annotated[int, FREE, "stop.keep"] = 1
    """Number of best trials whose steps to goal are known exactly; 1: only the winner's."""
    extras: Annotated[Extras, COURSE, "evaluate"] = Extras()
    batch_schedule: Annotated[BatchSchedule | None, COURSE] = None
    """The batch sizes along a training; None: the batch size is constant."""
    cooldown: Annotated[Cooldown | None, COURSE] = None
    """How trials are cooled down; None: they reach goals at their own learning rate."""
    start_step: Annotated[int, COURSE] = 0
    """Step at which trials begin. If it is above 0, they begin with the state that a trial of
    another study had at this step."""
    program: Annotated[Program | None, COURSE] = None
    """The command that trains a trial; None: the workload is a class."""
    states_at: Annotated[tuple[int, ...], COURSE] = ()
    """Steps at which states of trials are saved, for trials of other studies to begin with."""

    @property
    def key(self) -> StudyKey:
        return StudyKey(workload=self.workload, recipe=self.recipe, batch_size=self.batch_size)

    @property
    def is_one_point(self) -> bool:
        """Whether there is nothing to search, because the search space has a single point. It is
        trained once, and repeated with other seeds."""
        return self.trials == 1 and not searched(self.space)

    @property
    def launches(self) -> int:
        """The largest number of trials of the search, without repeats."""
        if self.is_one_point:
            return 1
        if self.search.algorithm == "points":
            return len(self.search.points)
        return self.search.launches or 3 * self.trials

    @property
    def choosing(self) -> int:
        """Number of repeats of each of several trials that choose one of these trials."""
        return self.repeats // 2 if self.repeat_best > 1 and not self.is_one_point else 0

    def most_judging(self, repeated: int) -> int:
        """The largest number of repeats that follow those of `repeated` trials that choose."""
        chosen = min(max(len(self.goals), 1), repeated)
        return (self.repeats - self.choosing) * chosen if self.choosing else 0

    @property
    def most_repeats(self) -> int:
        """The largest number of repeats: each goal may have other best trials."""
        most = min(self.repeat_best * max(len(self.goals), 1), self.trials)
        repeated = 1 if self.is_one_point else most
        return (self.choosing or self.repeats) * repeated + self.most_judging(repeated)

    @cached_property
    def batches(self) -> BatchSchedule:
        return self.batch_schedule or BatchSchedule.constant(self.batch_size)

    def with_batches_of(self, size: int) -> Study:
        """Returns the same study at another batch size, which is constant along a training."""
        if self.batch_schedule is None:
            return replace(self, batch_size=size)
        stage = Stage(batch_size=size, factor=self.batches.stages[-1].factor)
        schedule = BatchSchedule((stage,))
        return replace(self, batch_size=size, batch_schedule=schedule, start_step=0)

    @property
    def the_program(self) -> Program:
        """The command that trains a trial, of a study whose workload is no class."""
        assert self.program is not None
        return self.program

    @property
    def grows(self) -> bool:
        """Whether the batch size grows while the trials of this study train."""
        return self.batches.stages[-1].from_step > self.start_step

    def examples(self, step: int) -> int:
        """Returns the number of examples that are trained in the first `step` steps."""
        return self.batches.examples(step)

    @property
    def budget_examples(self) -> int:
        """Largest number of examples that a trial trains."""
        return self.examples(self.budget_steps)

    def following(self, step: int) -> int:
        """Returns the step of the measurement that follows the measurement at `step`."""
        if self.batch_schedule is None:
            return min(self.grid.after(step), self.budget_steps)
        later = bisect_right(self._measured, step)
        return self._measured[later] if later < len(self._measured) else self.budget_steps

    def measured(self) -> Iterator[int]:
        """Yields the steps of all measurements, from step 0 on."""
        before, step = -1, 0
        while step > before:
            yield step
            before, step = step, self.following(step)

    @cached_property
    def _measured(self) -> list[int]:
        """The steps of all measurements if the batch size grows. Measurements come after as many
        examples, counted from the start, as they would at the first batch size."""
        steps, first, in_first = [self.start_step], self.batches.first, 0
        begun = self.examples(self.start_step)
        while steps[-1] < self.budget_steps:
            in_first = self.grid.after(in_first)
            step = min(self.batches.steps(begun + in_first * first), self.budget_steps)
            steps += [step] if step > steps[-1] else []
        return steps
