"""What a sweep file describes: a validated `Sweep`, part by part."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, TypeAdapter, model_validator

from orchestrator.planning.branch_parts import TrunkBranches
from orchestrator.planning.more import More
from orchestrator.planning.parts import LONGEST_NAME, MANY, MOST_ITEMS, FolderName, Part, Size, Text
from orchestrator.planning.workload_parts import Number, ProgramWorkload, expanded, goal_text, named
from orchestrator.programs.starting import Devices, Kept
from orchestrator.records import (
    DESIGN_NAMES,
    WIDEST_SPACING,
    BadInput,
    BatchSchedule,
    Study,
    refuse_unknown,
)
from orchestrator.records.roles import COURSE, FREE, STUDIES
from orchestrator.search import MOST_POINTS, check_algorithm


def _run(name: str) -> str:
    """Refuses a name that can't be that of a run's folder, below runs/."""
    if name.startswith("."):
        raise BadInput("the name of a sweep must not begin with a dot", code="wrong-name")
    if (length := len(name.encode())) > LONGEST_NAME:
        raise BadInput(
            f"the name of a sweep, which is that of its folder, must be at most {LONGEST_NAME} "
            f"bytes long, but this one has {length:,}: shorten it",
            code="too-large",
        )
    return name


class BatchLadder(Part):
    """Batch sizes from `from` upwards by a factor; the last one is `to` itself."""

    low: int = Field(alias="from", ge=1, le=MANY, examples=[1])
    """The smallest batch size."""
    high: Size = Field(alias="to", examples=["full"])
    """The largest batch size, which is always in the list; `full` is the whole training set."""
    factor: float = Field(gt=1, allow_inf_nan=False, examples=[4])
    """Each batch size is the one before times this factor."""


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


class Search(Part):
    """How the points of each study are chosen."""

    algorithm: Annotated[Text, AfterValidator(check_algorithm)] = Field(
        default="halton", examples=["sobol"]
    )
    """`halton`, `sobol`, `random`, `grid`, `points`, `tpe`, `gp`, `cmaes`, or the import path of an
    Optuna sampler, such as `my_sampler.py:Sampler`."""
    trials: int = Field(default=20, ge=1, le=MOST_POINTS, examples=[50])
    """How many points each study tries. Points that diverge are replaced and do not count. A grid
    has at most this many points, unless `grid` names its axes."""
    max_launches: int | None = Field(default=None, ge=1, le=10 * MOST_POINTS, examples=[200])
    """The most points that a study starts, divergent ones included. Default: three times
    `trials`."""
    generation: int = Field(default=8, ge=1, le=MOST_POINTS, examples=[16])
    """How many points `tpe`, `gp` and `cmaes` choose at a time, before they are told how these
    ended."""
    grid: dict[Text, Annotated[int, Field(ge=1, le=MOST_POINTS)]] = Field(
        default={}, examples=[{"learning_rate": 8, "momentum": 5}]
    )
    """With `algorithm: grid`, the number of values on each axis; of `options`, all are taken. A
    metaparameter without an entry stays in the middle of its range. Default: as many on every axis
    as `trials` allows."""
    points: list[dict[Text, Any]] = Field(
        default=[], max_length=MOST_POINTS, examples=[[{"learning_rate": 0.1, "momentum": 0.9}]]
    )
    """With `algorithm: points`, the points to try, each as names and values of metaparameters."""

    @model_validator(mode="after")
    def _fitting(self) -> Search:
        for name in ("grid", "points"):
            if getattr(self, name) and self.algorithm != name:
                raise BadInput(f"`{name}` is for algorithm: {name} only", code="no-effect")
        default = Search.model_fields["generation"].default  # a run keeps it, whoever wrote it
        if self.algorithm in (*DESIGN_NAMES, "grid", "points") and self.generation != default:
            raise BadInput(f"`generation` has no effect on {self.algorithm}", code="no-effect")
        if self.algorithm == "points" and not self.points:
            raise BadInput("algorithm: points needs `points`, a list", code="missing-key")
        if self.max_launches is not None and self.max_launches < self.trials:
            raise BadInput("`max_launches` must be at least `trials`", code="range-order")
        return self


class Budget(Part):
    """How long a trial may train: the largest of the given amounts."""

    steps: int | None = Field(default=None, ge=1, le=MANY, examples=[2000])
    """Optimizer steps, the same number at every batch size."""
    epochs: float | None = Field(default=None, gt=0, le=MANY, examples=[6])
    """Passes over the training set."""
    examples: int | None = Field(default=None, ge=1, le=MANY**2, examples=[60000])
    """Training examples, in place of `epochs`."""
    at_least_steps: int | None = Field(default=None, ge=1, le=MANY, examples=[1000])
    """Steps that every batch size gets, even where `epochs` or `examples` come to fewer."""
    inherit: float | None = Field(default=None, ge=1, le=MANY, examples=[1.5])
    """First train each trial for at most this many times the steps to the goal of the next smaller
    batch size. If no trial reaches the goal within that, all go on to the whole budget."""

    @model_validator(mode="after")
    def _something(self) -> Budget:
        if all(value is None for value in self.model_dump().values()):
            raise BadInput("give steps, epochs, examples or at_least_steps", code="missing-key")
        return self

    def or_else(self, other: Budget) -> Budget:
        """This one; the size of `other` where it says only what to inherit."""
        if set(self.model_dump(exclude_none=True)) == {"inherit"}:
            return other.model_copy(update={"inherit": self.inherit})
        return self

    def in_steps(self, batches: BatchSchedule, workload: str, train_size: int | None) -> int:
        if self.epochs is not None and train_size is None:
            raise BadInput(
                f"budget: {workload} is endless, or of unknown size: use `examples`, not `epochs`.",
                code="endless-data",
            )
        examples = max(self.examples or 0, (self.epochs or 0) * (train_size or 0))
        steps = max(self.steps or 1, self.at_least_steps or 1, batches.steps(math.ceil(examples)))
        if steps > MANY:
            raise BadInput(
                f"budget: at most {MANY:,} steps, but batch size {batches} needs {steps:,}.",
                code="too-many",
            )
        return steps


class BatchStage(Part):
    """A batch size that a trial takes from a number of examples or steps on."""

    batch_size: int = Field(ge=1, le=MANY, examples=[16])
    """The batch size of this stage; not smaller than that of the stage before."""
    examples: int | None = Field(default=None, ge=0, le=MANY**2, examples=[20000])
    """The stage begins once this many examples were trained. The first stage begins at 0."""
    steps: int | None = Field(default=None, ge=0, le=MANY, examples=[500])
    """The stage begins after this many steps, in place of `examples`."""
    learning_rate: Annotated[
        Literal["constant", "sqrt", "linear"] | Annotated[float, Field(gt=0, allow_inf_nan=False)],
        Field(union_mode="left_to_right"),
    ] = Field(default="constant", examples=["sqrt"])
    """What happens to the learning rate when the stage begins. `constant` leaves it as it is.
    `linear` multiplies it by the growth of the batch size, `sqrt` by its square root. A
    number makes it this many times the learning rate of the recipe."""


class Recipe(Part):
    """A named way to train. A bare optimizer name is the recipe of that name."""

    name: Annotated[FolderName, STUDIES] = Field(examples=["tame"])
    """What tables, figures and folders call the recipe."""
    optimizer: Annotated[Text, STUDIES] = Field(examples=["nesterov"])
    """A built-in optimizer, one of the libraries' in docs/recipes.md, or `my_file.py:MyOptimizer`.
    Default: the name of the recipe."""
    space: Annotated[dict[Text, Any], STUDIES] = Field(default={}, examples=[{"momentum": 0.9}])
    """Entries that replace those of the optimizer's search space, or `only: {...}` to replace all
    of it. A plain value fixes a metaparameter. Default: the optimizer's own search space."""
    schedule: Annotated[dict[Text, Any], STUDIES] = Field(
        default={}, examples=[{"warmup_epochs": 2, "decay": "cosine"}]
    )
    """How the learning rate changes along a trial: warmup and decay, fixed or searched. Default: it
    does not change."""
    batch_schedule: Annotated[list[BatchStage], STUDIES] = Field(
        default=[],
        max_length=MOST_ITEMS,
        examples=[[{"batch_size": 8}, {"examples": 20000, "batch_size": 16}]],
    )
    """How the batch size grows along each trial. Default: it does not grow, and the recipe is
    trained at each of the sweep's `batch_sizes`."""
    search: Annotated[Search | None, STUDIES] = Field(default=None, examples=[{"trials": 8}])
    """A search of this recipe alone, in place of the sweep's. Default: the sweep's."""
    budget: Annotated[Budget | None, STUDIES] = Field(default=None, examples=[{"epochs": 20}])
    """A budget of this recipe alone, in place of the sweep's, to which `inherit` alone is added.
    Default: the sweep's."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"name": value, "optimizer": value}
        if isinstance(value, dict) and "optimizer" not in value:
            return {**value, "optimizer": value.get("name", "")}
        return value


class Stop(Part):
    """When a trial ends before its budget is spent."""

    at_goal: bool = Field(default=True, examples=[False])
    """End a trial once it has passed every goal. With `false`, every trial trains to its budget."""
    dominated: bool | None = Field(default=None, examples=[False])
    """End a trial once it can no longer be among the best `keep` trials of its study. Default: as
    `at_goal`."""
    keep: int = Field(default=1, ge=1, le=MOST_POINTS, examples=[5])
    """How many of the best trials of each study are known exactly: steps, order and ties. With 1,
    only the winner is."""
    repeats_stay: bool = Field(default=True, examples=[False])
    """Train judging repeats further after their goals: until three measurements in a row have
    passed, or to 2.5 times the steps. So the page can say how often a goal is lost again."""

    @model_validator(mode="after")
    def _agree(self) -> Stop:
        if self.dominated and not self.at_goal:
            raise BadInput(
                "a trial that trains to its budget can't be cut: leave out `dominated`",
                code="not-together",
            )
        return self


class Evaluate(Part):
    """When trials are evaluated, and what is measured besides the workload's own metrics."""

    spacing: float | None = Field(default=None, ge=0, le=WIDEST_SPACING, examples=[0.05])
    """Evaluate each time the number of steps has grown by this share. Default: the workload's
    own."""
    min_examples: int | None = Field(default=None, ge=1, le=MANY**2, examples=[1000])
    """Train at least this many examples between two evaluations. Default: the workload's own, or
    else twice the number of examples that an evaluation looks at."""
    train_examples: int = Field(default=0, ge=0, le=MANY, examples=[500])
    """Measure the metrics on this many examples of the training set, too, as `train/*`."""
    noise_scale: bool | Literal["repeats"] = Field(default=False, examples=["repeats"])
    """Measure the gradient noise scale, as `noise/*`, in every trial, or only in `repeats`."""
    precision: Literal["float32", "bfloat16"] = Field(default="float32", examples=["bfloat16"])
    """The precision of the forward passes of evaluations, whatever that of the training. On GPUs,
    `bfloat16` is quicker; metrics are rounded more coarsely, and trials train one by one. Trials in
    float64 are always evaluated in it."""


class Repeats(Part):
    """Repeats in long."""

    count: int = Field(ge=0, le=MOST_POINTS, examples=[10])
    """How often each of the best trials is trained again, with other seeds."""
    of: int = Field(default=1, ge=1, le=MOST_POINTS, examples=[5])
    """How many of the best trials are repeated; the same as `repeat_best`."""


LEAST_GPU = 0.0001
"""What Ray divides a GPU into."""


class Resources(Part):
    """How many ranks, hence devices, train one trial."""

    examples_per_device: int | None = Field(default=None, ge=1, le=MANY, examples=[128])
    """Use one more rank for every so many examples of the batch, up to `max_devices`. Default: one
    rank, whatever the batch size."""
    max_devices: int = Field(default=1, ge=1, le=100_000, examples=[8])
    """The most ranks of one trial."""
    gpus_per_device: float | None = Field(default=None, ge=0, le=1, examples=[0.25])
    """GPUs of each rank. Below 1, trials of one rank each share a GPU. Default: 1 where there
    are GPUs, else 0."""
    cpus_per_rank: int = Field(default=1, ge=1, le=100_000, examples=[4])
    """Cores of each rank, and threads that torch computes with there."""
    stack: Literal["auto"] | Annotated[int, Field(ge=1, le=1024)] = Field(
        default="auto", examples=[32]
    )
    """How many trials of a study one rank trains together as one model. `auto` takes as many as
    makes training quickest; 1 trains each trial alone."""

    @model_validator(mode="after")
    def _shared(self) -> Resources:
        if 0 < (self.gpus_per_device or 0) < LEAST_GPU:
            raise ValueError(f"gpus_per_device must be 0, or from {LEAST_GPU} to 1")
        if 0 < (self.gpus_per_device or 0) < 1 and self.max_devices > 1:
            raise BadInput(
                "ranks of one trial can't share a GPU: gpus_per_device below 1 needs max_devices 1",
                code="not-together",
            )
        both = {"examples_per_device", "max_devices"} <= self.model_fields_set
        if not both and (self.examples_per_device, self.max_devices) != (None, 1):
            raise BadInput("give both `max_devices` and `examples_per_device`", code="no-effect")
        return self

    def on(self, gpus: float) -> Resources:
        """These resources on machines with so many GPUs, with nothing left open."""
        if self.gpus_per_device is not None:
            return self
        return self.model_copy(update={"gpus_per_device": 1 if gpus else 0})

    @property
    def kind(self) -> Literal["cpu", "cuda"]:
        """The kind of devices that train, once nothing is left open."""
        return "cuda" if self.gpus_per_device else "cpu"

    def ranks(self, batch_size: int) -> int:
        if self.examples_per_device is None:
            return 1
        return min(self.max_devices, math.ceil(batch_size / self.examples_per_device))

    def devices(self, study: Study, hang_seconds: float | None = None) -> Devices:
        """What the program of a study may use on one machine, and how it is started there."""
        count = self.ranks(study.batch_size)
        of_ranks = study.program is not None and study.program.launch == "ranks"
        return Devices(
            count=count,
            starts=(Kept,) * (count if of_ranks else 1),
            threads=self.cpus_per_rank,
            hang_seconds=hang_seconds,
        )


class Faults(Part):
    """What happens when a trial fails or hangs, or the run cannot be written."""

    max_failures: int = Field(default=2, ge=0, le=MANY, examples=[5])
    """How often a trial is tried again before it counts as failed. Up to 20 lost machines do not
    count."""
    hang_seconds: float | None = Field(default=600, gt=0, le=MANY, examples=[1800])
    """A trial that takes no step for this many seconds is ended and tried again; `null`: never."""
    storage_seconds: float = Field(default=600, gt=0, allow_inf_nan=False, examples=[3600])
    """For how many seconds finished trials are kept in memory while the run's folder can't be
    written. Then the sweep ends."""


class Checkpoints(Part):
    """How often a trial saves its state."""

    every_seconds: float = Field(default=60, gt=0, le=MANY, examples=[600])
    """Seconds of training between two checkpoints: the most that a killed trial loses."""


class Report(Part):
    """What the report shows in addition."""

    price_per_device_hour: float | None = Field(default=None, gt=0, le=MANY, examples=[2.5])
    """Price of one device-hour, in any currency; the report then shows costs in money."""


class Sweep(Part):
    """All studies described by one file."""

    name: Annotated[str, Field(pattern=r"^[\w.-]+$"), AfterValidator(_run), FREE] = Field(
        examples=["my_sweep"]
    )
    """The name of the run, which is written to `runs/NAME`."""
    seed: Annotated[int, COURSE] = Field(default=0, ge=0, le=2**63 - 1, examples=[1])
    """The seed of search points, initial weights, batches and everything else that is random."""
    workloads: Annotated[list[FolderName], STUDIES] = Field(
        min_length=1, max_length=MOST_ITEMS, examples=[["digits/mlp", "mine.py:Blobs"]]
    )
    """Names from `orchestrate workloads`, or `my_file.py:MyClass`. Fields of the class can be set
    after a question mark: `digits/mlp?width=64`. A mapping describes a program of your own."""
    programs: Annotated[dict[FolderName, ProgramWorkload], STUDIES] = Field({})
    """The workloads that are programs."""
    scales: Annotated[dict[str, dict[str, Number]], FREE] = Field({})
    """Where workloads stand on a scale, which `scale` says."""
    goals: Annotated[list[Annotated[Text, AfterValidator(goal_text)]], STUDIES] = Field(
        [], max_length=MOST_ITEMS, examples=[["val/error < 0.05"]]
    )
    """What a trial must reach; the fewest steps to each goal are found. Default: each workload's
    own."""
    recipes: Annotated[list[Recipe], STUDIES] = Field(
        min_length=1,
        max_length=MOST_ITEMS,
        examples=[["sgd", {"name": "tame", "optimizer": "nesterov", "space": {"momentum": 0.9}}]],
    )
    """The ways to train: names of optimizers, or recipes with keys of their own."""
    batch_sizes: Annotated[BatchSizes, STUDIES] = Field(
        examples=[{"from": 1, "to": "full", "factor": 4}]
    )
    """A list such as `[16, 64, full]`, or a ladder with `from`, `to` and `factor`. `full` is the
    whole training set. It takes at least four batch sizes to tell where a curve bends."""
    search: Annotated[Search, STUDIES] = Search()
    """How the points of each study are chosen."""
    budget: Annotated[Budget | None, STUDIES] = Field(
        default=None, examples=[{"epochs": 6, "at_least_steps": 1000}]
    )
    """How long a trial may train. Default: each workload's own."""
    repeats: Annotated[int, STUDIES] = Field(default=0, ge=0, le=MOST_POINTS, examples=[5])
    """How often the best trial of each study is trained again, with other seeds. A mapping says
    more: with `{count: 10, of: 5}`, five trainings of each of the best five choose one of these
    trials, which is trained five times more."""
    repeat_best: Annotated[int, STUDIES] = Field(default=1, ge=1, le=MOST_POINTS, examples=[5])
    """How many of the best trials are repeated; the same as `of` in `repeats`."""
    more: Annotated[list[More], STUDIES] = Field(
        default=[],
        max_length=MOST_ITEMS,
        examples=[[{"recipes": ["sgd"], "batch_sizes": [256], "trials": 40}]],
    )
    """More trials or repeats at some batch sizes than the sweep has everywhere."""
    stop: Annotated[Stop, STUDIES] = Stop()
    """When a trial ends before its budget is spent."""
    evaluate: Annotated[Evaluate, STUDIES] = Evaluate()
    """When trials are evaluated, and what is measured."""
    checkpoint: Annotated[Checkpoints, FREE] = Checkpoints()
    """How often a trial saves its state."""
    faults: Annotated[Faults, FREE] = Faults()
    """What happens when a trial fails or hangs, or the run cannot be written."""
    resources: Annotated[Resources, FREE] = Resources()
    """How many ranks, hence devices, train one trial."""
    report: Annotated[Report, FREE] = Report()
    """What the report shows in addition."""
    branch: TrunkBranches | None = None
    """The branches of one training. `orchestrate branch` writes it from a branch file."""

    @model_validator(mode="after")
    def _names_are_known(self) -> Sweep:
        recipes = [recipe.name for recipe in self.recipes]
        refuse_unknown("workload of scales", self.scales, self.workloads)
        for number, entry in enumerate(self.more):
            refuse_unknown(f"workload of more.{number}", entry.workloads, self.workloads)
            refuse_unknown(f"recipe of more.{number}", entry.recipes, recipes)
        return self

    @model_validator(mode="before")
    @classmethod
    def _accept_short_forms(cls, document: dict[str, Any]) -> dict[str, Any]:
        document = dict(document)
        if isinstance(repeats := document.get("repeats"), dict):
            # Within a mapping, so that a mistake is told with its whole place, as `repeats.of`.
            parts = TypeAdapter(dict[str, Repeats]).validate_python({"repeats": repeats})
            long = parts["repeats"]
            document["repeats"] = long.count
            if "of" in long.model_fields_set:
                if "repeat_best" in document:
                    raise BadInput("give `repeat_best` or `repeats.of`", code="not-together")
                document["repeat_best"] = long.of
        if (scale := document.pop("scale", None)) is not None:
            workloads, document["scales"] = expanded(scale)
            if isinstance(given := document.get("workloads", []), list):
                document["workloads"] = [*given, *workloads]
        if isinstance(given := document.get("workloads"), list):
            document["workloads"], programs = named(given)
            if programs:
                known = document.get("programs")
                document["programs"] = {**(known if isinstance(known, dict) else {}), **programs}
        return document

    @property
    def code_names(self) -> set[str]:
        """All that may name code of one's own."""
        searches = [self.search, *(recipe.search for recipe in self.recipes if recipe.search)]
        optimizers = [recipe.optimizer for recipe in self.recipes]
        own = {entry.function for entry in self.programs.values() if entry.function}
        files = {part for entry in self.programs.values() for part in entry.files}
        classes = {*self.workloads} - {*self.programs}
        return {*classes, *own, *files, *optimizers, *(search.algorithm for search in searches)}

    def resolved(self) -> dict[str, Any]:
        """The document that describes this sweep in full: what a run keeps."""
        return self.model_dump(mode="json", by_alias=True)
