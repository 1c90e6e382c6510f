"""What a sweep file describes: a validated `Sweep`, part by part."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from orchestrator.planning.branch_parts import Branches
from orchestrator.planning.more import More
from orchestrator.planning.parts import (
    LONGEST_NAME,
    MANY,
    MOST_ITEMS,
    MOST_STEPS,
    FolderName,
    Part,
    Size,
    Text,
)
from orchestrator.records import (
    WIDEST_SPACING,
    BadInput,
    Baseline,
    BatchSchedule,
    Divergence,
    Goal,
    unknown,
)
from orchestrator.search import DESIGNS, MOST_POINTS, check_algorithm


def _run(name: str) -> str:
    """Refuses a name that can't be that of a run's folder, below runs/."""
    if name.startswith("."):
        raise ValueError("the name of a sweep must not begin with a dot")
    if (length := len(name.encode())) > LONGEST_NAME:
        raise ValueError(
            f"the name of a sweep, which is that of its folder, must be at most {LONGEST_NAME} "
            f"bytes long, but this one has {length:,}: shorten it"
        )
    return name


class BatchLadder(Part):
    """Batch sizes from `low` upwards by a factor; the last one is `high` itself."""

    low: int = Field(alias="from", ge=1, le=MANY)
    high: Size = Field(alias="to")
    factor: float = Field(gt=1, allow_inf_nan=False)


def _shape_of_sizes(given: Any) -> str | None:
    if isinstance(given, list):
        return "list"
    return "ladder" if isinstance(given, (dict, BatchLadder)) else None


BatchSizes = Annotated[
    Annotated[list[Size], Field(max_length=MOST_ITEMS), Tag("list")]
    | Annotated[BatchLadder, Tag("ladder")],
    Discriminator(
        _shape_of_sizes,
        custom_error_type="batch_sizes",
        custom_error_message="write a list like [1, 4, full], or {from: 1, to: full, factor: 4}",
    ),
]


def _algorithm(name: str) -> str:
    check_algorithm(name)
    return name


class Search(Part):
    algorithm: Annotated[Text, AfterValidator(_algorithm)] = "halton"
    """halton, sobol, random, grid, points; tpe, gp, cmaes, or the import path of a sampler."""
    trials: int = Field(default=20, ge=1, le=MOST_POINTS)
    """Points that do not diverge; a grid has at most so many, unless its axes are given."""
    max_launches: int | None = Field(default=None, ge=1, le=10 * MOST_POINTS)
    """Divergent ones included; None: three times `trials`."""
    generation: int = Field(default=8, ge=1, le=MOST_POINTS)
    """How many trials tpe, gp and cmaes choose before they are told how these ended."""
    extend: bool = False
    """Widen a range near whose end the best trial lies, twice at most."""
    grid: dict[Text, Annotated[int, Field(ge=1, le=MOST_POINTS)]] = Field(default={})
    """Values on each axis of a grid; what is not named stays in the middle of its range."""
    points: list[dict[Text, Any]] = Field(default=[], max_length=MOST_POINTS)

    @model_validator(mode="after")
    def _fitting(self) -> Search:
        for name in ("grid", "points"):
            if getattr(self, name) and self.algorithm != name:
                raise ValueError(f"`{name}` is for algorithm: {name}, not {self.algorithm}")
        if self.algorithm == "points" and not self.points:
            raise ValueError("algorithm: points needs `points`, a list of {name: value}")
        if self.extend and self.algorithm not in DESIGNS:
            raise ValueError(f"`extend` goes with {', '.join(DESIGNS)} only")
        if self.max_launches is not None and self.max_launches < self.trials:
            raise ValueError(f"`max_launches` must be at least `trials`, which is {self.trials}")
        return self


class Budget(Part):
    """The larger of what is given."""

    steps: int | None = Field(default=None, ge=1, le=MOST_STEPS)
    epochs: float | None = Field(default=None, gt=0, le=MANY)
    examples: int | None = Field(default=None, ge=1, le=MANY**2)
    at_least_steps: int | None = Field(default=None, ge=1, le=MOST_STEPS)
    inherit: float | None = Field(default=None, ge=1, le=MANY)
    """At first no more than so many times the steps of the next smaller batch size; if no trial
    reaches the goal with that, the rest."""

    @model_validator(mode="after")
    def _something(self) -> Budget:
        if all(value is None for value in self.model_dump().values()):
            raise ValueError("give at least one of steps, epochs, examples, at_least_steps")
        return self

    def or_else(self, other: Budget) -> Budget:
        """This one; the size of `other` where it says only what to inherit."""
        if set(self.model_dump(exclude_none=True)) == {"inherit"}:
            return other.model_copy(update={"inherit": self.inherit})
        return self

    def in_steps(self, batches: BatchSchedule, train_size: int | None) -> int:
        if self.epochs is not None and train_size is None:
            raise BadInput("a budget in epochs needs a finite training set; use `examples`.")
        examples = max(self.examples or 0, (self.epochs or 0) * (train_size or 0))
        steps = max(self.steps or 1, self.at_least_steps or 1, batches.steps(math.ceil(examples)))
        if steps > MOST_STEPS:
            raise BadInput(
                f"budget: at most {MOST_STEPS:,} steps can be trained, but at batch size "
                f"{batches} it comes to {steps:,}."
            )
        return steps


class BatchStage(Part):
    """From so many examples or steps on, another batch size."""

    batch_size: int = Field(ge=1, le=MANY)
    examples: int | None = Field(default=None, ge=0, le=MANY**2)
    steps: int | None = Field(default=None, ge=0, le=MOST_STEPS)
    learning_rate: Annotated[
        Literal["constant", "sqrt", "linear"] | Annotated[float, Field(gt=0, allow_inf_nan=False)],
        Field(union_mode="left_to_right"),
    ] = "constant"
    """How it changes with the batch size, from that of the stage before; or how many times that of
    the recipe it is."""


class Recipe(Part):
    """A named way to train. A bare optimizer name is the recipe of that name."""

    name: FolderName
    optimizer: Text
    space: dict[Text, Any] = Field(default={})
    """Replaces entries of the optimizer's search space, or with `only: {...}` all of it; a plain
    value fixes a metaparameter."""
    schedule: dict[Text, Any] = Field(default={})
    """How the learning rate changes: warmup and decay, which may be searched as well."""
    batch_schedule: list[BatchStage] = Field(default=[], max_length=MOST_ITEMS)
    """How the batch size grows along a training, in place of the sweep's batch sizes."""
    search: Search | None = None
    """In place of the sweep's."""
    budget: Budget | None = None
    """In place of the sweep's."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"name": value, "optimizer": value}
        if isinstance(value, dict) and "optimizer" not in value:
            return {**value, "optimizer": value.get("name")}
        return value


class Diverged(Part):
    """A loss so many times its first value, in so many evaluations in a row."""

    above: float = Field(default=Divergence.above, gt=1, allow_inf_nan=True)
    evaluations: int = Field(default=Divergence.evaluations, ge=1, le=MANY)


class Stop(Part):
    at_goal: bool = True
    """End a trial once it has passed every goal; else it goes on to its budget."""
    dominated: bool | None = None
    """End a trial once it can no longer be among the best `keep`. None: as `at_goal`."""
    keep: int = Field(default=1, ge=1, le=MOST_POINTS)
    """How many of the best trials of each study are known exactly."""
    diverged: Diverged = Diverged()
    """Numbers that aren't finite end a trial in any case."""

    @model_validator(mode="after")
    def _agree(self) -> Stop:
        if self.dominated and not self.at_goal:
            raise ValueError(
                "a trial that trains to its budget can't be cut: leave out `dominated`"
            )
        return self


class Evaluate(Part):
    """Replaces a workload's own grid of evaluations, and asks for more than its metrics."""

    spacing: float | None = Field(default=None, ge=0, le=WIDEST_SPACING)
    min_examples: int | None = Field(default=None, ge=1, le=MANY**2)
    train_examples: int = Field(default=0, ge=0, le=MANY)
    """`train/*` on so many examples of the training set."""
    gradient_norm: bool = False
    """`batch/gradient_norm`: of the last batch."""
    distance: bool = False
    """`weights/distance`: how far the weights are from where they began."""
    noise_scale: bool | Literal["repeats"] = False
    """`noise/*`: the gradient's squared length and variance; of repeats only, if it says so."""


class EvaluateRepeats(Part):
    noise_scale: bool = False


class Repeats(Part):
    """Repeats in long, with what is measured in them alone."""

    count: int = Field(ge=0, le=MOST_POINTS)
    of: int = Field(default=1, ge=1, le=MOST_POINTS)
    """How many of the best trials are repeated."""
    evaluate: EvaluateRepeats = EvaluateRepeats()


def _of_repeats(repeats: Repeats, evaluate: Any) -> dict[str, Any]:
    """The same in the words of a document that has them in short."""
    told = {"repeats": repeats.count, "repeat_best": repeats.of}
    if not repeats.evaluate.noise_scale or not isinstance(evaluate or {}, dict):
        return told
    return {
        **told,
        "evaluate": {"noise_scale": "repeats", **(evaluate or {})},
    }


LEAST_GPU = 0.0001
"""What Ray divides a GPU into."""


class Resources(Part):
    """How many ranks, hence devices, train one trial."""

    examples_per_device: int | None = Field(default=None, ge=1, le=MANY)
    """A rank is added for each so many examples of the batch; None: always one rank."""
    max_devices: int = Field(default=1, ge=1, le=100_000)
    gpus_per_device: float | None = Field(default=None, ge=0, le=1)
    """Below 1, several trials of one rank share a GPU. None: 1 where there are GPUs, else 0."""
    cpus_per_rank: int = Field(default=1, ge=1, le=100_000)
    """Cores of each rank, and threads that torch computes with there."""
    stack: Literal["auto"] | Annotated[int, Field(ge=1, le=1024)] = "auto"
    """How many trials of a study one rank trains as one model; auto: as many as that makes
    quicker."""

    @model_validator(mode="after")
    def _shared(self) -> Resources:
        if 0 < (self.gpus_per_device or 0) < LEAST_GPU:
            raise ValueError(f"gpus_per_device must be 0, or from {LEAST_GPU} to 1")
        if 0 < (self.gpus_per_device or 0) < 1 and self.max_devices > 1:
            raise ValueError(
                "ranks of one trial can't share a GPU: gpus_per_device below 1 needs max_devices 1"
            )
        return self

    def ranks(self, batch_size: int) -> int:
        if self.examples_per_device is None:
            return 1
        return min(self.max_devices, math.ceil(batch_size / self.examples_per_device))


class Faults(Part):
    max_failures: int = Field(default=2, ge=0, le=MANY)
    """How often a trial is tried again before it counts as failed. Lost machines don't count."""
    hang_seconds: float | None = Field(default=600, gt=0, le=MANY)
    """A trial that takes no step for so long is ended and tried again; null: never."""
    storage_seconds: float = Field(default=600, gt=0, allow_inf_nan=False)
    """How long finished trials are kept in memory while the run can't be written."""


class Checkpoints(Part):
    every_seconds: float = Field(default=60, gt=0, le=MANY)
    """Of training: what a trial that is killed loses at most."""


def _goal_text(text: str) -> str:
    return str(Goal.parse(text))


def _baseline_text(text: str) -> str:
    return str(Baseline.parse(text))


class Report(Part):
    """What its page is asked besides; may be said later, too."""

    baseline: Annotated[Text, AfterValidator(_baseline_text)] | None = None
    """RECIPE@BATCH_SIZE: from which batch size on the others are large, or huge."""
    price_per_device_hour: float | None = Field(default=None, gt=0, le=MANY)
    compare_at: int | None = Field(default=None, ge=1, le=MANY)
    """The batch size that comparisons of workloads are relative to; None: the smallest."""


class Sweep(Part):
    """All studies described by one file."""

    name: Annotated[str, Field(pattern=r"^[\w.-]+$"), AfterValidator(_run)]
    seed: int = Field(default=0, ge=0, le=2**63 - 1)
    workloads: list[FolderName] = Field(min_length=1, max_length=MOST_ITEMS)
    goals: list[Annotated[Text, AfterValidator(_goal_text)]] = Field([], max_length=MOST_ITEMS)
    """Empty: each workload's own."""
    recipes: list[Recipe] = Field(min_length=1, max_length=MOST_ITEMS)
    batch_sizes: BatchSizes
    search: Search = Search()
    budget: Budget | None = None
    """None: each workload's own."""
    repeats: int = Field(default=0, ge=0, le=MOST_POINTS)
    """How often each study's best trial is run again, with other seeds."""
    repeat_best: int = Field(default=1, ge=1, le=MOST_POINTS)
    """How many of its best trials are; `repeats: {count: 10, of: 3}` says the same."""
    more: list[More] = Field(default=[], max_length=MOST_ITEMS)
    """More trials and repeats than that at some batch sizes."""
    stop: Stop = Stop()
    evaluate: Evaluate = Evaluate()
    checkpoint: Checkpoints = Checkpoints()
    faults: Faults = Faults()
    resources: Resources = Resources()
    report: Report = Report()
    branch: Branches | None = None
    """`orchestrate branch` has one."""

    @model_validator(mode="after")
    def _known_baseline(self) -> Sweep:
        if self.report.baseline is not None:
            names = [recipe.name for recipe in self.recipes]
            if (name := Baseline.parse(self.report.baseline).recipe) not in names:
                raise unknown("recipe of report.baseline", name, names)
        return self

    @model_validator(mode="after")
    def _known_names_in_more(self) -> Sweep:
        for place, entry in enumerate(self.more):
            for kind, given, known in (
                ("workload", entry.workloads, self.workloads),
                ("recipe", entry.recipes, [recipe.name for recipe in self.recipes]),
            ):
                for name in given:
                    if name not in known:
                        raise unknown(f"{kind} of more.{place}", name, known)
        return self

    @model_validator(mode="before")
    @classmethod
    def _accept_short_forms(cls, document: dict[str, Any]) -> dict[str, Any]:
        document = dict(document)
        if "optimizers" in document:
            if "recipes" in document:
                raise ValueError("give `recipes` or `optimizers`, not both")
            document["recipes"] = document.pop("optimizers")
        if isinstance(repeats := document.get("repeats"), dict):
            document |= _of_repeats(Repeats.model_validate(repeats), document.get("evaluate"))
        if document.get("resources") == "auto":
            document.pop("resources")
        return document

    @property
    def places(self) -> set[str]:
        """All that may name code of one's own."""
        searches = [self.search, *(recipe.search for recipe in self.recipes if recipe.search)]
        optimizers = [recipe.optimizer for recipe in self.recipes]
        return {*self.workloads, *optimizers, *(search.algorithm for search in searches)}

    def resolved(self) -> dict[str, Any]:
        """The document that describes this sweep in full: what a run keeps."""
        return self.model_dump(mode="json", by_alias=True)
