"""A sweep file becomes a validated `Sweep`, and a sweep becomes studies."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

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

from orchestrator.records import (
    BadInput,
    Choice,
    Divergence,
    EvaluationGrid,
    Extras,
    Goal,
    Range,
    ScalingRule,
    Space,
    Study,
    Trial,
    Value,
    unknown,
)
from orchestrator.search import Entry, load_space, space_from
from orchestrator.training import (
    SCHEDULE_SETTINGS,
    check_metaparameters,
    check_schedule,
    one_thread,
    rehearse,
)
from orchestrator.workloads import Workload, load_workload, splits_of
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


class Recipe(_Part):
    """A named way to train. A bare optimizer name is the recipe of that name."""

    name: str = Field(min_length=1)
    optimizer: str
    space: dict[str, Any] = {}
    """Replaces entries of the optimizer's search space; a plain value fixes a metaparameter."""
    schedule: dict[str, Any] = {}
    """How the learning rate changes: warmup and decay, which may be searched as well."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"name": value, "optimizer": value}
        if isinstance(value, dict) and "optimizer" not in value:
            return {**value, "optimizer": value.get("name")}
        return value


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


class Search(_Part):
    algorithm: Literal["halton"] = "halton"
    trials: int = Field(default=20, ge=1)


class Budget(_Part):
    """The larger of what is given."""

    steps: int | None = Field(default=None, ge=1)
    epochs: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    examples: int | None = Field(default=None, ge=1)
    at_least_steps: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _something(self) -> Budget:
        if all(value is None for value in self.model_dump().values()):
            raise ValueError("give at least one of steps, epochs, examples, at_least_steps")
        return self

    def in_steps(self, batch_size: int, train_size: int | None) -> int:
        if self.epochs is not None and train_size is None:
            raise BadInput("a budget in epochs needs a finite training set; use `examples`.")
        examples = max(self.examples or 0, (self.epochs or 0) * (train_size or 0))
        return max(self.steps or 1, self.at_least_steps or 1, math.ceil(examples / batch_size))


class Diverged(_Part):
    """A loss so many times its first value, in so many evaluations in a row."""

    above: float = Field(default=Divergence.above, gt=1, allow_inf_nan=True)
    evaluations: int = Field(default=Divergence.evaluations, ge=1)


class Stop(_Part):
    at_goal: bool = True
    """End a trial once it has passed every goal; else it goes on to its budget."""
    diverged: Diverged = Diverged()
    """Numbers that aren't finite end a trial in any case."""


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
    gpus_per_device: Literal[0, 1] | None = None
    """None: one where the cluster has GPUs, else none."""

    def ranks(self, batch_size: int) -> int:
        if self.examples_per_device is None:
            return 1
        return min(self.max_devices, math.ceil(batch_size / self.examples_per_device))


class Checkpoints(_Part):
    every_seconds: float = Field(default=60, gt=0, allow_inf_nan=False)
    """Of training: what a trial that is killed loses at most."""


def _goal_text(text: str) -> str:
    return str(Goal.parse(text))


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
    stop: Stop = Stop()
    evaluate: Evaluate = Evaluate()
    checkpoint: Checkpoints = Checkpoints()
    resources: Resources = Resources()

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


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A sweep and the studies it comes to."""

    sweep: Sweep
    studies: tuple[Study, ...]


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
    return _validated(document, path)


def _validated(document: Mapping[str, Any], place: Path) -> Sweep:
    try:
        return Sweep.model_validate(document)
    except ValidationError as error:
        raise BadInput(
            "\n".join(_explain(place, document, dict(e)) for e in error.errors())
        ) from None


def plan(sweep: Sweep, data_dir: Path | None = None) -> Plan:
    """The studies of `sweep`, in the order in which they are best run."""
    _refuse_repeats("workload", sweep.workloads)
    _refuse_repeats("recipe", [recipe.name for recipe in sweep.recipes])
    studies = []
    for name in sweep.workloads:
        of_workload = _studies_of(sweep, name, load_workload(name), data_dir)
        # What a rule makes of a metaparameter is furthest off at the ends of the ladder.
        count = len(sweep.recipes)
        ends = {study.key: study for study in of_workload[:count] + of_workload[-count:]}
        for study in ends.values():
            _rehearse(study, _points(study.space), data_dir)
        studies += of_workload
    return Plan(sweep=sweep, studies=tuple(studies))


def single_trial(
    workload: str,
    optimizer: str,
    batch_size: int,
    *,
    params: Mapping[str, Any],
    steps: int | None,
    seed: int,
    evaluate: Mapping[str, Any] | None = None,
    data_dir: Path | None = None,
) -> Trial:
    """A trial by hand. It trains exactly `steps`, or else until the workload's goal or budget.
    A metaparameter that isn't given takes the middle of its range."""
    document = {
        "name": "trial",
        "workloads": [workload],
        "recipes": [{"name": optimizer, "optimizer": optimizer, "space": dict(params)}],
        "batch_sizes": [batch_size],
        "budget": None if steps is None else {"steps": steps},
        "evaluate": dict(evaluate or {}),
    }
    sweep = _validated(document, Path("orchestrate trial"))
    (study,) = _studies_of(sweep, workload, load_workload(workload), data_dir)
    chosen = _point(study.space, 0.5)
    _rehearse(study, [chosen], data_dir)
    if steps is not None:
        study = replace(study, goals=())
    return Trial(study=study, index=0, seed=seed, params=chosen)


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Where two resolved sweeps differ in what they measure, one line for each key. What they are
    run on doesn't count."""
    lines = []
    for key in dict.fromkeys([*old, *new]):
        before, after = old.get(key), new.get(key)
        if before == after or key in ("resources", "checkpoint"):
            continue
        if isinstance(before, dict) and isinstance(after, dict):
            lines += [f"{key}.{line}" for line in differences(before, after)]
        else:
            lines.append(f"{key}: {before!r} there, {after!r} here")
    return lines


def _studies_of(sweep: Sweep, name: str, workload: Workload, data_dir: Path | None) -> list[Study]:
    train_size = splits_of(workload, data_dir)["train"].size
    goals = tuple(Goal.parse(text) for text in sweep.goals or [workload.goal])
    evaluate = sweep.evaluate
    spacing = workload.evaluation_spacing if evaluate.spacing is None else evaluate.spacing
    min_examples = evaluate.min_examples or workload.evaluation_min_examples
    budget = sweep.budget or Budget.model_validate(dict(workload.budget))
    spaces = [_space(recipe, name, workload) for recipe in sweep.recipes]
    studies = [
        Study(
            workload=name,
            recipe=recipe.name,
            optimizer=recipe.optimizer,
            batch_size=batch_size,
            goals=goals,
            budget_steps=budget.in_steps(batch_size, train_size),
            grid=EvaluationGrid(spacing=spacing, min_gap=math.ceil(min_examples / batch_size)),
            space=_scaled(space, batch_size),
            trials=sweep.search.trials,
            stop_at_goal=sweep.stop.at_goal,
            extras=Extras(
                train_examples=min(evaluate.train_examples, train_size or evaluate.train_examples),
                gradient_norm=evaluate.gradient_norm,
                distance=evaluate.distance,
            ),
            divergence=Divergence(**sweep.stop.diverged.model_dump()),
        )
        for batch_size in _batch_sizes(sweep.batch_sizes, name, train_size)
        for recipe, space in zip(sweep.recipes, spaces, strict=True)
    ]
    return studies


def _space(recipe: Recipe, name: str, workload: Workload) -> dict[str, Entry]:
    if twice := sorted(recipe.space.keys() & recipe.schedule.keys()):
        raise BadInput(f"recipe {recipe.name!r}: {twice[0]!r} is in both space and schedule.")
    for setting in recipe.schedule:
        if setting not in SCHEDULE_SETTINGS:
            raise unknown(
                f"setting of recipe {recipe.name!r}: schedule:", setting, SCHEDULE_SETTINGS
            )
    space = {
        **load_space(recipe.optimizer, name),
        **space_from(recipe.space, f"recipe {recipe.name!r}: space"),
        **space_from(recipe.schedule, f"recipe {recipe.name!r}: schedule"),
    }
    try:
        check_metaparameters(recipe.optimizer, space, workload)
        decay = space.get("decay", "constant")
        check_schedule(space, decay.options if isinstance(decay, Choice) else [str(decay)])
    except BadInput as error:
        raise BadInput(f"recipe {recipe.name!r}: {error}") from None
    return space


def _scaled(space: Mapping[str, Entry], batch_size: int) -> Space:
    """The space with every scaling rule replaced by what it comes to."""
    return {
        name: entry.at(batch_size) if isinstance(entry, ScalingRule) else entry
        for name, entry in space.items()
    }


def _rehearse(study: Study, points: Iterable[dict[str, Value]], data_dir: Path | None) -> None:
    """Refuses what can't be trained or measured, before anything starts."""
    for params in points:
        try:
            with one_thread():
                metrics = rehearse(Trial(study=study, index=0, seed=0, params=params), data_dir)
        except BadInput as error:
            raise BadInput(f"recipe {study.recipe!r}: {error}") from None
        for goal in study.goals:
            if metrics is not None and goal.metric not in metrics:
                where = f"workload {study.workload!r} with recipe {study.recipe!r}"
                raise unknown(f"metric of {where}:", goal.metric, metrics)


def _points(space: Space) -> list[dict[str, Value]]:
    """Those to rehearse: the ends and the middle of each range, each option of each choice."""
    choices = [len(entry.options) for entry in space.values() if isinstance(entry, Choice)]
    last = max([3, *choices]) - 1
    points = [_point(space, number / last) for number in range(last + 1)]
    return [point for place, point in enumerate(points) if point not in points[:place]]


def _point(space: Space, fraction: float) -> dict[str, Value]:
    """The point that lies `fraction` of the way through every range, on its scale."""
    return {
        name: entry.at(fraction) if isinstance(entry, (Range, Choice)) else entry
        for name, entry in space.items()
    }


def _batch_sizes(
    given: list[int | str] | BatchLadder, workload: str, train_size: int | None
) -> list[int]:
    if isinstance(given, BatchLadder):
        high = _resolve_full(given.high, workload, train_size)
        if given.low > high:
            raise BadInput(f"batch_sizes: `from <= to` must hold, but got {given.low} and {high}.")
        rungs = math.ceil(round(math.log(high / given.low, given.factor), 9))
        sizes = [round(given.low * given.factor**rung) for rung in range(rungs)] + [high]
    else:
        sizes = [_resolve_full(size, workload, train_size) for size in given]
    if not sizes:
        raise BadInput("batch_sizes: at least one is needed, but the list is empty.")
    for size in sizes:
        if train_size is not None and size > train_size:
            raise BadInput(
                f"batch_sizes: {size} is more than the {train_size} training examples of "
                f"{workload}. Write `full` for the whole training set."
            )
    return sorted(set(sizes))


def _resolve_full(size: int | str, workload: str, train_size: int | None) -> int:
    if isinstance(size, int):
        return size
    if train_size is None:
        raise BadInput(f"batch_sizes: {workload} has no end of examples, so none is `full`.")
    return train_size


def _refuse_repeats(kind: str, names: list[str]) -> None:
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise BadInput(f"Each {kind} must be named once, but got {', '.join(repeated)} again.")


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


def _explain(path: Path, document: Mapping[str, Any], error: Mapping[str, Any]) -> str:
    """One line for one of pydantic's errors: file, key, value, and what would be accepted."""
    location = [part for part in error["loc"] if part not in ("list", "ladder")]
    key = ".".join(map(str, location)) or "the file"
    if error["type"] == "extra_forbidden":
        known = _keys_at(location[:-1])
        return f"{path}: {unknown('key', key, [*map(str, known)])}"
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "missing":
        return f"{path}: {key}: this key is required."
    return f"{path}: {key}: {message[0].lower() + message[1:]} (got {error['input']!r})."


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
    "resources": Resources,
}
