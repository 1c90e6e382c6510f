"""Whether large batches degrade quality: generalisation gaps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.records import Goal
from orchestrator.results import BestRow, FrontierRow


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
