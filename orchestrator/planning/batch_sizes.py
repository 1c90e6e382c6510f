"""The batch sizes of studies: constant ones of the sweep, or a recipe's schedule of batch sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from orchestrator.planning.parts import MOST_ITEMS, POWERS
from orchestrator.planning.sweep import BatchLadder, BatchStage, Recipe
from orchestrator.records import BadInput, BatchSchedule, mistakes_in


def batch_sizes_of(
    given: list[int | str] | BatchLadder, workload: str, train_size: int | None
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
            f"batch_sizes: `full` needs a finite training set, but {workload} never ends.",
            code="endless-data",
        )
    return train_size


def batches_of(
    recipe: Recipe, sizes: Sequence[int], workload: str, train_size: int | None
) -> list[BatchSchedule]:
    """One schedule for each study of a recipe: a constant one for each batch size, or the
    `batch_schedule` of the recipe."""
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
