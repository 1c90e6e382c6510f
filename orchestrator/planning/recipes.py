"""What becomes of a recipe: its batch sizes, its search space at each of them, and the points that
its search is given."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

from orchestrator.planning.parts import MOST_ITEMS, POWERS
from orchestrator.planning.sweep import BatchLadder, BatchStage, Recipe, Search
from orchestrator.records import (
    LARGEST,
    SMALLEST,
    BadInput,
    BatchSchedule,
    Choice,
    Range,
    ScalingRule,
    Space,
    Value,
    mistakes_in,
    refuse_unknown,
    searched,
    shown,
    wrong_value,
)
from orchestrator.records.lr_schedules import SCHEDULE_SETTINGS, check_schedule
from orchestrator.search import Entry, check_value, even_axes, grid, load_space, space_from
from orchestrator.training import check_metaparameters
from orchestrator.workloads import Workload

ONLY = "only"
"""The key of a recipe's `space` that holds all metaparameters it searches. Without this key, the
optimizer's search space supplies those that the recipe does not name."""

USELESS = {"grid": ("max_launches",), "points": ("max_launches", "trials")}
"""Search algorithm -> keys of a search that do nothing beside it."""

COOLDOWN = "cooldown"
"""The key of a recipe's `schedule` that is no metaparameter."""


def batch_sizes_of(
    given: Sequence[int | str] | BatchLadder, workload: str, train_size: int | None
) -> list[int]:
    """The batch sizes of a sweep for a workload, in ascending order."""
    if isinstance(given, BatchLadder):
        high = _resolve_full(given.high, workload, train_size)
        if given.low > high:
            raise BadInput(
                f"batch_sizes: `from` {given.low} is above `to` {high}.", code="range-order"
            )
        rungs = math.ceil(round(math.log(high / given.low, given.factor), 9))
        if rungs >= MOST_ITEMS:
            raise BadInput(
                f"batch_sizes: there must be at most {MOST_ITEMS}, but from {given.low} to {high} "
                f"by a factor of {given.factor!r} there are {rungs + 1:,}. Give a larger factor.",
                code="too-many",
            )
        sizes = [round(given.low * given.factor**rung) for rung in range(rungs)] + [high]
    else:
        sizes = [_resolve_full(size, workload, train_size) for size in given]
    if not sizes:
        raise BadInput("batch_sizes: at least one is needed, but the list is empty.", code="empty")
    for size in sizes:
        if train_size is not None and size > train_size:
            raise BadInput(
                f"batch_sizes: {size} is more than the {train_size} training examples of "
                f"{workload}. Write `full` for the whole training set.",
                code="batch-too-large",
            )
    return sorted(set(sizes))


def _resolve_full(size: int | str, workload: str, train_size: int | None) -> int:
    if isinstance(size, int):
        return size
    if train_size is None:
        raise BadInput(
            f"batch_sizes: `full` needs a finite training set, but that of {workload} never ends "
            f"or belongs to a program without `examples`.",
            code="endless-data",
        )
    return train_size


def batches_of(
    recipe: Recipe, sizes: Sequence[int], workload: str, train_size: int | None
) -> list[BatchSchedule]:
    """The schedule of each study of a recipe: one for each batch size, or its `batch_schedule`."""
    if not recipe.batch_schedule:
        return [BatchSchedule.constant(size) for size in sizes]
    with mistakes_in(f"recipe {recipe.name!r}: batch_schedule"):
        schedule = _schedule(recipe.batch_schedule)
        if train_size is not None and schedule.largest > train_size:
            raise BadInput(
                f"{schedule.largest:,} is more than the {train_size:,} examples of {workload}",
                code="batch-too-large",
            )
    return [schedule]


def _schedule(stages: Sequence[BatchStage]) -> BatchSchedule:
    first, *later = stages
    if first.examples or first.steps or first.learning_rate not in POWERS:
        raise BadInput(
            "the first stage begins at step 0 with the learning rate of the recipe, so it takes "
            "only a `batch_size`",
            code="stage-order",
        )
    schedule, before, factor = BatchSchedule.constant(first.batch_size), first, 1.0
    for stage in later:
        if (stage.examples is None) == (stage.steps is None):
            has = "neither" if stage.steps is None else "both"
            raise BadInput(
                f"each stage but the first must say after how many `examples` or `steps` it "
                f"begins, but that of batch size {stage.batch_size:,} has {has}",
                code="not-together",
            )
        if isinstance(stage.learning_rate, str):
            factor *= math.pow(stage.batch_size / before.batch_size, POWERS[stage.learning_rate])
        else:
            factor = stage.learning_rate
        at = stage.examples if stage.steps is None else schedule.examples(stage.steps)
        assert at is not None
        schedule, before = schedule.then(batch_size=stage.batch_size, factor=factor, at=at), stage
    return schedule


def space_of(recipe: Recipe, name: str, workload: Workload | None) -> dict[str, Entry]:
    """The space of a recipe for a workload, or, if that is None, for a program, which takes what
    the recipe names and nothing else."""
    space, given = {} if workload is None else load_space(recipe.optimizer, name), recipe.space
    with mistakes_in(f"recipe {recipe.name!r}"):
        if ONLY in given:
            if len(given) > 1 or not isinstance(given[ONLY], dict):
                raise BadInput(
                    f"space: `{ONLY}` must be the only key, with the whole space in braces.",
                    code="not-together",
                )
            space, given = {}, given[ONLY]
        schedule = {name: entry for name, entry in recipe.schedule.items() if name != COOLDOWN}
        if twice := sorted(given.keys() & schedule.keys()):
            raise BadInput(f"{twice[0]!r} is in space and schedule. Drop one.", code="given-twice")
        refuse_unknown("setting of schedule:", schedule, {*SCHEDULE_SETTINGS, COOLDOWN})
        for key, entries in {"space": given, "schedule": schedule}.items():
            space |= space_from(entries, key)
        if workload is not None:
            check_metaparameters(recipe.optimizer, space, workload)
            decay = space.get("decay", "constant")
            check_schedule(space, decay.options if isinstance(decay, Choice) else [str(decay)])
    return space


def scaled_to(recipe: Recipe, space: Mapping[str, Entry], batch_size: int, examples: int) -> Space:
    """The space of a recipe with every scaling rule replaced by its value at the batch size, in a
    training that is for this number of examples."""
    with mistakes_in(f"recipe {recipe.name!r}"):
        return {
            name: entry.at(batch_size, rate=partial(_rate, space, name), data=examples)
            if isinstance(entry, ScalingRule)
            else entry
            for name, entry in space.items()
        }


def _rate(space: Mapping[str, Entry], follows: str, batch_size: float) -> float:
    """The learning rate at a batch size, for a metaparameter that follows it."""
    name = "adamw_lr" if follows == "adamw_wd" else "learning_rate"  # Muon has two of each
    rate = space.get(name)
    if isinstance(rate, ScalingRule) and rate.rule != "timescale":
        rate = rate.at(batch_size)
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not rate > 0:
        raise BadInput(
            f"{follows!r} has rule timescale, so {name!r} must be a number above 0 in `space`, or "
            f"follow another rule there, but got {shown(rate)}.",
            code="wrong-value",
        )
    return rate


def chosen_points(
    recipe: Recipe, search: Search, space: Space, *, shared: bool
) -> tuple[dict[str, Value], ...]:
    """The points that a search of algorithm `points` lists; empty for other algorithms. A `shared`
    search is that of other recipes, and does not apply where there is nothing to search."""
    names = searched(space)
    if shared and not names and search.algorithm in ("grid", "points"):
        return grid(space, {})
    with mistakes_in(f"recipe {recipe.name!r}: {search.algorithm}"):
        # Here, since runs that have such a key go on.
        for key in USELESS.get(search.algorithm, ()):
            if getattr(search, key) != Search.model_fields[key].default:
                raise BadInput(f"`{key}` has no effect. Leave it out.", code="no-effect")
        if search.algorithm == "grid":
            return grid(space, search.grid or even_axes(space, search.trials))
        for point in search.points:
            refuse_unknown("metaparameter", point, names)
            if missing := [name for name in names if name not in point]:
                raise BadInput(f"{shown(point)} has no {', '.join(missing)}.", code="missing-value")
            for name, value in point.items():
                with mistakes_in(name):
                    _check_point(check_value(value), space[name])
    fixed = {name: entry for name, entry in space.items() if name not in names}
    return tuple({**fixed, **point} for point in search.points)


def _check_point(value: Value, entry: Range | Choice | Value) -> None:
    """Raises `BadInput` for a value of a point that does not exist on the scale of its range."""
    if isinstance(entry, Range):
        if isinstance(value, (bool, str)) or not abs(value) <= LARGEST:
            raise wrong_value("it", "a number, as it has a range", value)
        if {"log": value < SMALLEST, "reverse_log": value >= 1}.get(entry.scale):
            raise wrong_value("it", f"on the {entry.scale} scale of its range", value)
