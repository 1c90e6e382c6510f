"""A sweep file, and the validated `Sweep` it becomes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    model_validator,
)

from orchestrator.records import BadInput, Baseline, Divergence, Goal, unknown
from orchestrator.search import DESIGNS, check_algorithm
from orchestrator.yaml_files import parse_yaml, read_yaml

SWEEPS = Path(__file__).parent / "sweeps"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)


def _size(size: int | str) -> int | str:
    if size != "full" and (isinstance(size, (str, bool)) or size < 1):
        raise ValueError("each batch size must be a whole number from 1 up, or `full`")
    return size


Size = Annotated[int | str, AfterValidator(_size)]
"""A batch size; `full` stands for the whole training set."""


class BatchLadder(_Part):
    """Batch sizes from `low` upwards by a factor; the last one is `high` itself."""

    low: int = Field(alias="from", ge=1)
    high: Size = Field(alias="to")
    factor: float = Field(gt=1, allow_inf_nan=False)


def _shape_of_sizes(given: Any) -> str | None:
    if isinstance(given, list):
        return "list"
    return "ladder" if isinstance(given, (dict, BatchLadder)) else None


BatchSizes = Annotated[
    Annotated[list[Size], Tag("list")] | Annotated[BatchLadder, Tag("ladder")],
    Discriminator(
        _shape_of_sizes,
        custom_error_type="batch_sizes",
        custom_error_message="write a list like [1, 4, full], or {from: 1, to: full, factor: 4}",
    ),
]


def _algorithm(name: str) -> str:
    check_algorithm(name)
    return name


class Search(_Part):
    algorithm: Annotated[str, AfterValidator(_algorithm)] = "halton"
    """halton, sobol, random, grid, points; tpe, gp, cmaes, or the import path of a sampler."""
    trials: int = Field(default=20, ge=1)
    """Points that do not diverge; a grid has at most so many, unless its axes are given."""
    max_launches: int | None = Field(default=None, ge=1)
    """Divergent ones included; None: three times `trials`."""
    generation: int = Field(default=8, ge=1)
    """How many trials tpe, gp and cmaes choose before they are told how these ended."""
    extend: bool = False
    """Widen a range near whose end the best trial lies, twice at most."""
    grid: dict[str, Annotated[int, Field(ge=1)]] = {}
    """Values on each axis of a grid; what is not named stays in the middle of its range."""
    points: list[dict[str, Any]] = []

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


class Budget(_Part):
    """The larger of what is given."""

    steps: int | None = Field(default=None, ge=1)
    epochs: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    examples: int | None = Field(default=None, ge=1)
    at_least_steps: int | None = Field(default=None, ge=1)
    inherit: float | None = Field(default=None, ge=1, allow_inf_nan=False)
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

    def in_steps(self, batch_size: int, train_size: int | None) -> int:
        if self.epochs is not None and train_size is None:
            raise BadInput("a budget in epochs needs a finite training set; use `examples`.")
        examples = max(self.examples or 0, (self.epochs or 0) * (train_size or 0))
        return max(self.steps or 1, self.at_least_steps or 1, math.ceil(examples / batch_size))


class Recipe(_Part):
    """A named way to train. A bare optimizer name is the recipe of that name."""

    name: str = Field(min_length=1)
    optimizer: str
    space: dict[str, Any] = {}
    """Replaces entries of the optimizer's search space; a plain value fixes a metaparameter."""
    schedule: dict[str, Any] = {}
    """How the learning rate changes: warmup and decay, which may be searched as well."""
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


class Diverged(_Part):
    """A loss so many times its first value, in so many evaluations in a row."""

    above: float = Field(default=Divergence.above, gt=1, allow_inf_nan=True)
    evaluations: int = Field(default=Divergence.evaluations, ge=1)


class Stop(_Part):
    at_goal: bool = True
    """End a trial once it has passed every goal; else it goes on to its budget."""
    dominated: bool | None = None
    """End a trial once it can't change the frontier any more. None: as `at_goal`."""
    diverged: Diverged = Diverged()
    """Numbers that aren't finite end a trial in any case."""

    @model_validator(mode="after")
    def _agree(self) -> Stop:
        if self.dominated and not self.at_goal:
            raise ValueError(
                "a trial that trains to its budget can't be cut: leave out `dominated`"
            )
        return self


class Evaluate(_Part):
    """Replaces a workload's own grid of evaluations, and asks for more than its metrics."""

    spacing: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    min_examples: int | None = Field(default=None, ge=1)
    train_examples: int = Field(default=0, ge=0)
    """`train/*` on so many examples of the training set."""
    gradient_norm: bool = False
    """`batch/gradient_norm`: of the last batch."""
    distance: bool = False
    """`weights/distance`: how far the weights are from where they began."""


class Resources(_Part):
    """How many ranks, hence devices, train one trial."""

    examples_per_device: int | None = Field(default=None, ge=1)
    """A rank is added for each so many examples of the batch; None: always one rank."""
    max_devices: int = Field(default=1, ge=1)
    gpus_per_device: float | None = Field(default=None, ge=0, le=1)
    """Below 1, several trials of one rank share a GPU. None: 1 where there are GPUs, else 0."""
    cpus_per_rank: int = Field(default=1, ge=1)
    """Cores of each rank, and threads that torch computes with there."""

    @model_validator(mode="after")
    def _shared(self) -> Resources:
        if 0 < (self.gpus_per_device or 0) < 1 and self.max_devices > 1:
            raise ValueError(
                "ranks of one trial can't share a GPU: gpus_per_device below 1 needs max_devices 1"
            )
        return self

    def ranks(self, batch_size: int) -> int:
        if self.examples_per_device is None:
            return 1
        return min(self.max_devices, math.ceil(batch_size / self.examples_per_device))


class Faults(_Part):
    max_failures: int = Field(default=2, ge=0)
    """How often a trial is tried again before it counts as failed. Lost machines don't count."""
    hang_seconds: float | None = Field(default=600, gt=0, allow_inf_nan=False)
    """A trial that takes no step for so long is ended and tried again; null: never."""


class Checkpoints(_Part):
    every_seconds: float = Field(default=60, gt=0, allow_inf_nan=False)
    """Of training: what a trial that is killed loses at most."""


def _goal_text(text: str) -> str:
    return str(Goal.parse(text))


def _baseline_text(text: str) -> str:
    return str(Baseline.parse(text))


class Report(_Part):
    """What its page is asked besides; may be said later, too."""

    baseline: Annotated[str, AfterValidator(_baseline_text)] | None = None
    """RECIPE@BATCH_SIZE: from which batch size on the others are large, or huge."""
    price_per_device_hour: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    compare_at: int | None = Field(default=None, ge=1)
    """The batch size that comparisons of workloads are relative to; None: the smallest."""


class Sweep(_Part):
    """All studies described by one file."""

    name: str = Field(pattern=r"^[\w.-]+$")
    seed: int = Field(default=0, ge=0)
    workloads: list[str] = Field(min_length=1)
    goals: list[Annotated[str, AfterValidator(_goal_text)]] = []
    """Empty: each workload's own."""
    recipes: list[Recipe] = Field(min_length=1)
    batch_sizes: BatchSizes
    search: Search = Search()
    budget: Budget | None = None
    """None: each workload's own."""
    repeats: int = Field(default=0, ge=0)
    """How often each study's best trial is run again, with other seeds."""
    stop: Stop = Stop()
    evaluate: Evaluate = Evaluate()
    checkpoint: Checkpoints = Checkpoints()
    faults: Faults = Faults()
    resources: Resources = Resources()
    report: Report = Report()

    @model_validator(mode="after")
    def _known_baseline(self) -> Sweep:
        if self.report.baseline is not None:
            names = [recipe.name for recipe in self.recipes]
            if (name := Baseline.parse(self.report.baseline).recipe) not in names:
                raise unknown("recipe of report.baseline", name, names)
        return self

    @model_validator(mode="before")
    @classmethod
    def _accept_short_forms(cls, document: dict[str, Any]) -> dict[str, Any]:
        document = dict(document)
        if "optimizers" in document:
            if "recipes" in document:
                raise ValueError("give `recipes` or `optimizers`, not both")
            document["recipes"] = document.pop("optimizers")
        if document.get("resources") == "auto":
            document.pop("resources")
        return document

    def resolved(self) -> dict[str, Any]:
        """The document that describes this sweep in full: what a run keeps."""
        return self.model_dump(mode="json", by_alias=True)


def find_sweep_file(name: str | None) -> Path:
    """The file called `name`, or the sweep of that name that comes with the project."""
    known = {path.stem: path for path in SWEEPS.glob("*.yaml")}
    if name is None:
        return known["quickstart"]
    if name in known and not Path(name).exists():
        return known[name]
    if not Path(name).exists():
        if name.endswith((".yaml", ".yml")):
            raise BadInput(f"There is no sweep file {name}. Sweeps to start from: {sorted(known)}.")
        raise unknown("sweep", name, known)
    return Path(name)


def load_sweep(path: Path, overrides: Iterable[str] = ()) -> Sweep:
    """The sweep in the file at `path` after `key=value` overrides (dotted keys, YAML values)."""
    document = read_yaml(path)
    for override in overrides:
        _override(document, override)
    return validated(document, str(path))


def validated(document: Mapping[str, Any], place: str) -> Sweep:
    """The sweep that `document` describes; `place` is where a mistake in it is said to be."""
    try:
        return Sweep.model_validate(document)
    except ValidationError as error:
        raise BadInput(
            "\n".join(_explain(place, document, dict(e)) for e in error.errors())
        ) from None


GROWS = (
    "workloads",
    "batch_sizes",
    "repeats",
    "resources",
    "checkpoint",
    "faults",
    "goals",
    "report",
)
"""What a run may get more of, or be run on, without making its trials incomparable."""

GROWS_IN_SEARCH = ("trials", "max_launches", "extend")


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Where two resolved sweeps differ so that their trials can't be compared, one line each."""
    before, after = (
        {
            **{key: value for key, value in document.items() if key not in (*GROWS, "recipes")},
            "search": _without_growth(document.get("search") or {}),
        }
        for document in (old, new)
    )
    lines = _differences(before, after)
    of_old, of_new = ({recipe["name"]: recipe for recipe in d["recipes"]} for d in (old, new))
    for name in of_old.keys() & of_new.keys():
        pair = (
            {**r, "search": _without_growth(r.get("search") or {})}
            for r in (of_old[name], of_new[name])
        )
        lines += [f"recipe {name!r}: {line}" for line in _differences(*pair)]
    return lines


def _without_growth(search: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in search.items() if key not in GROWS_IN_SEARCH}


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    lines = []
    for key in dict.fromkeys([*old, *new]):
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            lines += [f"{key}.{line}" for line in _differences(before, after)]
        elif before != after:
            lines.append(f"{key}: {before!r} there, {after!r} here")
    return lines


def _override(document: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise BadInput(
            f"--set takes KEY=VALUE, for example search.trials=50, but got {override!r}."
        )
    *path, last = key.split(".")
    place: Any = document
    for name in path:
        place = place.setdefault(name, {})
        if not isinstance(place, dict):
            raise BadInput(f"--set {override}: {name!r} holds {place!r}, not keys to set.")
    place[last] = parse_yaml(text, f"--set {override}")


def _explain(source: str, document: Mapping[str, Any], error: Mapping[str, Any]) -> str:
    """One line for one of pydantic's errors: file, key, value, and what would be accepted."""
    location = [part for part in error["loc"] if part not in ("list", "ladder")]
    key = ".".join(map(str, location)) or "the file"
    if error["type"] == "extra_forbidden":
        known = _keys_at(location[:-1])
        return f"{source}: {unknown('key', key, [*map(str, known)])}"
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "missing":
        return f"{source}: {key}: this key is required."
    return f"{source}: {key}: {message[0].lower() + message[1:]} (got {error['input']!r})."


def _keys_at(location: list[Any]) -> list[str]:
    """The keys accepted at a place in the sweep file."""
    part: type[BaseModel] = Sweep
    for piece in location:
        part = _PARTS.get(piece, part)
    prefix = "".join(f"{piece}." for piece in location)
    return [f"{prefix}{field.alias or name}" for name, field in part.model_fields.items()]


_PARTS: dict[Any, type[BaseModel]] = {
    "recipes": Recipe,
    "batch_sizes": BatchLadder,
    "search": Search,
    "budget": Budget,
    "stop": Stop,
    "diverged": Diverged,
    "evaluate": Evaluate,
    "checkpoint": Checkpoints,
    "faults": Faults,
    "resources": Resources,
    "report": Report,
}
