"""Whether large batches degrade quality: generalisation gaps, and which batch sizes are large."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orchestrator.records import BadInput, Goal
from orchestrator.results import BestRow, FrontierRow

ACCURACY_SHARE = 0.995
"""Share of the baseline's accuracy that a batch size must keep in order not to be large or huge."""

LOSS_RATIO = 1.2
"""Largest ratio to the baseline's validation loss at which a batch size is not large."""


@dataclass(frozen=True, kw_only=True)
class Gap:
    """How much better a winner was on the training set than on the goal's split."""

    recipe: str
    batch_size: int
    trained: float
    judged: float
    value: float
    """The gap in units of the metric; below 0 if the winner was better on the goal's split."""


def gaps(rows: Iterable[FrontierRow | BestRow], goal: Goal) -> list[Gap]:
    """The gaps of the winners that measured the goal's metric on the training set as well."""
    trained_metric = f"train/{goal.metric.partition('/')[2]}"
    sign = 1 if goal.direction == "<" else -1
    return [
        Gap(
            recipe=row.recipe,
            batch_size=row.batch_size,
            trained=row.metrics[trained_metric],
            judged=row.metrics[goal.metric],
            value=sign * (row.metrics[goal.metric] - row.metrics[trained_metric]),
        )
        for row in rows
        if trained_metric != goal.metric
        and {trained_metric, goal.metric} <= row.metrics.keys()
        and not row.censored
    ]


@dataclass(frozen=True, kw_only=True)
class Quality:
    """The results of one recipe at one batch size, relative to the baseline."""

    recipe: str
    batch_size: int
    accuracy_share: float
    loss_ratio: float | None
    """Validation loss over the baseline's; None if the loss wasn't measured."""


@dataclass(frozen=True, kw_only=True)
class Largeness:
    """The batch sizes that are large, huge and full by the definitions of You et al. (2020)."""

    recipe: str
    """Recipe of the baseline, whose learning rate follows the batch size by a scaling rule."""
    batch_size: int
    examples: int
    """Budget of the baseline in examples, which all batch sizes were given."""
    accuracy: float
    held: tuple[Quality, ...]
    large_from: int | None
    """Batch size from which on the baseline's recipe no longer keeps its accuracy and its loss."""
    huge_from: int | None
    """Batch size from which on no recipe keeps the baseline's accuracy."""
    full: int | None
    """The whole training set as a batch size, if it was tested."""


def largeness(
    rows: Sequence[BestRow], baseline: tuple[str, int], goal: Goal, train_size: int | None
) -> Largeness:
    """The classification of the batch sizes of one workload, from the best values within the budget
    of the `baseline`, which is (recipe, batch size). Studies with a smaller budget are left out."""
    if any(row.censored for row in rows):
        raise BadInput(
            "trials were ended at their goals or when they could no longer win, so their best "
            "values are not known; a sweep with `stop: {at_goal: false}` measures them",
            code="cut-short",
        )
    usable = [row for row in rows if row.value is not None and row.trained_enough]
    base = next((row for row in usable if (row.recipe, row.batch_size) == baseline), None)
    if base is None:
        raise BadInput(f"{baseline[0]} has no batch size {baseline[1]:,}", code="not-measured")
    reference, loss = _accuracy(base, goal), f"{goal.metric.partition('/')[0]}/loss"
    if not (_is_share(goal) and 0 < reference <= 1):
        raise BadInput(f"{goal.metric} is neither an error rate nor an accuracy", code="no-share")
    unit = base.metrics.get(loss)
    held = tuple(
        Quality(
            recipe=row.recipe,
            batch_size=row.batch_size,
            accuracy_share=_accuracy(row, goal) / reference,
            loss_ratio=row.metrics[loss] / unit if unit and loss in row.metrics else None,
        )
        for row in usable
    )
    tested = [row for row in rows if row.trained_enough and row.trials_used]
    tested = [row for row in tested if row.batch_size >= base.batch_size]
    sizes = {row.batch_size for row in tested}
    own_sizes = {row.batch_size for row in tested if row.recipe == base.recipe}
    accurate = [one for one in held if one.accuracy_share >= ACCURACY_SHARE]
    own = [one for one in accurate if one.recipe == base.recipe]
    ordinary = {one.batch_size for one in own if (one.loss_ratio or 0) <= LOSS_RATIO}
    return Largeness(
        recipe=base.recipe,
        batch_size=base.batch_size,
        examples=round(float((base.within or "").partition("=")[2] or 0)),
        accuracy=reference,
        held=held,
        large_from=_lost_for_good(own_sizes, ordinary),
        huge_from=_lost_for_good(sizes, {one.batch_size for one in accurate}),
        full=train_size if train_size in sizes else None,
    )


def _accuracy(row: BestRow, goal: Goal) -> float:
    assert row.value is not None
    return row.value if goal.direction == ">" else 1 - row.value


def _lost_for_good(sizes: Iterable[int], holding: Iterable[int]) -> int | None:
    """The first size after the last one in `holding`; None if the last size is in it."""
    last = max(holding, default=0)
    return min((size for size in sizes if size > last), default=None)


def _is_share(goal: Goal) -> bool:
    """Whether a metric that is minimised is an error rate, and not a sum of errors."""
    name = goal.metric.rpartition("/")[2]
    kinds = ("squared", "absolute", "entropy")
    return goal.direction == ">" or (name.endswith("error") and not any(k in name for k in kinds))
