"""Whether large batches degrade quality: gaps, how much is large, and how far the weights went."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from orchestrator.records import BadInput, Goal
from orchestrator.results import BestRow, FrontierRow

ACCURACY_SHARE = 0.995
"""Of the baseline's accuracy: what a batch size must come to that is not large, or huge."""

LOSS_RATIO = 1.2
"""Of the baseline's validation loss: the most it may come to that is not large."""


@dataclass(frozen=True, kw_only=True)
class Gap:
    """How much better a winner was on what it trained on than on what it was judged by."""

    recipe: str
    batch_size: int
    trained: float
    judged: float
    value: float
    """Below 0 where it was better on what it was judged by."""


def gaps(rows: Iterable[FrontierRow | BestRow], goal: Goal) -> list[Gap]:
    """Of the winners whose metrics have the goal's on the training set as well."""
    own, sign = f"train/{goal.metric.partition('/')[2]}", 1 if goal.direction == "<" else -1
    return [
        Gap(
            recipe=row.recipe,
            batch_size=row.batch_size,
            trained=row.metrics[own],
            judged=row.metrics[goal.metric],
            value=sign * (row.metrics[goal.metric] - row.metrics[own]),
        )
        for row in rows
        if own != goal.metric and {own, goal.metric} <= row.metrics.keys() and not row.censored
    ]


@dataclass(frozen=True, kw_only=True)
class Held:
    """What one recipe came to at one batch size, beside the baseline."""

    recipe: str
    batch_size: int
    accuracy_share: float
    loss_ratio: float | None
    """None where the loss wasn't measured."""

    @property
    def accurate(self) -> bool:
        return self.accuracy_share >= ACCURACY_SHARE

    @property
    def all_holds(self) -> bool:
        return self.accurate and (self.loss_ratio is None or self.loss_ratio <= LOSS_RATIO)


@dataclass(frozen=True, kw_only=True)
class Largeness:
    """Where a batch is large, huge and full, by the definitions of You et al. (2020)."""

    recipe: str
    """The baseline's, whose learning rate goes with the batch size by a rule ..."""
    batch_size: int
    examples: int
    """... and its budget, which all were given."""
    accuracy: float
    held: tuple[Held, ...]
    large_from: int | None
    """From where on the baseline's recipe no longer holds its accuracy and its loss."""
    huge_from: int | None
    """From where on no recipe holds its accuracy."""
    full: int | None
    """The training set, if it was tested."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def largeness(
    rows: Sequence[BestRow], baseline: tuple[str, int], goal: Goal, train_size: int | None
) -> Largeness:
    """Of the best values of one workload, all within the budget of the baseline, which is (recipe,
    batch size). What was trained for less than that is left out."""
    if any(row.censored for row in rows):
        raise BadInput(
            "trials were ended as soon as they had reached their goals, or could no longer win; a "
            "sweep with `stop: {at_goal: false}` tells"
        )
    usable = [row for row in rows if row.value is not None and row.trained_enough]
    base = next((row for row in usable if (row.recipe, row.batch_size) == baseline), None)
    if base is None:
        raise BadInput(f"nothing was measured of {baseline[0]} at batch size {baseline[1]:,}")
    reference, loss = _accuracy(base, goal), f"{goal.metric.partition('/')[0]}/loss"
    if not (_is_share(goal) and 0 < reference <= 1):
        raise BadInput(f"{goal.metric} is neither a share of errors nor of what is right")
    held = tuple(
        Held(
            recipe=row.recipe,
            batch_size=row.batch_size,
            accuracy_share=_accuracy(row, goal) / reference,
            loss_ratio=_ratio(row.metrics, base.metrics, loss),
        )
        for row in usable
    )
    tested = [row for row in rows if row.trained_enough and row.trials_used]
    tested = [row for row in tested if row.batch_size >= base.batch_size]
    sizes = {row.batch_size for row in tested}
    own_sizes = {row.batch_size for row in tested if row.recipe == base.recipe}
    ordinary = {o.batch_size for o in held if o.recipe == base.recipe and o.all_holds}
    held_by_any = {o.batch_size for o in held if o.accurate}
    return Largeness(
        recipe=base.recipe,
        batch_size=base.batch_size,
        examples=round(float((base.within or "").partition("=")[2] or 0)),
        accuracy=reference,
        held=held,
        large_from=_lost_for_good(own_sizes, ordinary),
        huge_from=_lost_for_good(sizes, held_by_any),
        full=train_size if train_size in sizes else None,
    )


def _accuracy(row: BestRow, goal: Goal) -> float:
    assert row.value is not None
    return row.value if goal.direction == ">" else 1 - row.value


def _ratio(of: Mapping[str, float], base: Mapping[str, float], loss: str) -> float | None:
    return of[loss] / base[loss] if loss in of and base.get(loss) else None


def _lost_for_good(sizes: Iterable[int], kept: Iterable[int]) -> int | None:
    """The first size after the last that is kept; None if the last one is."""
    last = max(kept, default=0)
    return min((size for size in sizes if size > last), default=None)


def _is_share(goal: Goal) -> bool:
    """Whether a metric to be made small is a share of errors, and no sum of them."""
    name = goal.metric.partition("/")[2]
    kinds = ("squared", "absolute", "entropy")
    return goal.direction == ">" or (name.endswith("error") and not any(k in name for k in kinds))


def wander(steps: Sequence[int], distances: Sequence[float]) -> float | None:
    """The power of the logarithm of the step with which weights move away from where they began;
    2 / power is the alpha of a random walk on a random potential. None where that isn't told by at
    least three measurements after the first steps."""
    pairs = [(t, d) for t, d in zip(steps, distances, strict=True) if t >= 3 and 0 < d < math.inf]
    if len(pairs) < 3:
        return None
    x, y = np.log([math.log(t) for t, _ in pairs]), np.log([d for _, d in pairs])
    return float(np.polyfit(x, y, 1)[0])
