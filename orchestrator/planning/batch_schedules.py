"""Batch sizes along a training, from what a recipe says of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from orchestrator.planning.sweep import BatchStage, Recipe
from orchestrator.records import BadInput, BatchSchedule

POWERS = {"constant": 0.0, "sqrt": 0.5, "linear": 1.0}
"""Rule -> with which power of the batch size the learning rate grows."""


def batches_of(
    recipe: Recipe, sizes: Sequence[int], workload: str, train_size: int | None
) -> Iterator[BatchSchedule]:
    """One for each study of a recipe: of each of the batch sizes, or the recipe's own."""
    if not recipe.batch_schedule:
        yield from map(BatchSchedule.constant, sizes)
        return
    try:
        schedule = _schedule(recipe.batch_schedule)
        if train_size is not None and schedule.largest > train_size:
            raise BadInput(
                f"{schedule.largest:,} is more than the {train_size:,} training examples of "
                f"{workload}"
            )
    except BadInput as error:
        raise BadInput(f"recipe {recipe.name!r}: batch_schedule: {error}.") from None
    yield schedule


def _schedule(stages: Sequence[BatchStage]) -> BatchSchedule:
    first, *later = stages
    if first.examples or first.steps or first.learning_rate not in POWERS:
        raise BadInput(
            "the first stage is the beginning, at the learning rate of the recipe: it has a "
            "`batch_size` alone"
        )
    schedule, before, factor = BatchSchedule.constant(first.batch_size), first, 1.0
    for stage in later:
        if (stage.examples is None) == (stage.steps is None):
            has = "neither" if stage.steps is None else "both"
            raise BadInput(
                f"each stage but the first begins at so many `examples` or `steps`, but that of "
                f"batch size {stage.batch_size:,} has {has}"
            )
        if isinstance(stage.learning_rate, str):
            factor *= math.pow(stage.batch_size / before.batch_size, POWERS[stage.learning_rate])
        else:
            factor = stage.learning_rate
        at = stage.examples if stage.steps is None else schedule.examples(stage.steps)
        assert at is not None
        schedule, before = schedule.then(batch_size=stage.batch_size, factor=factor, at=at), stage
    return schedule
