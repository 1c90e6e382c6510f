"""What to train next: which additions narrow the interval of B_crit most for their price.

Each addition is looked at on the data that it is expected to bring: its points lie on the fitted
law, and their variances are those of today's points, changed by the larger numbers of trials and
repeats. The interval that follows is compared with that of today's points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from orchestrator.analysis.additions import Addition, Amount, Prices, amount_of
from orchestrator.analysis.candidates import Ground, candidates
from orchestrator.analysis.enough import variance_of_median
from orchestrator.analysis.known_points import (
    KnownCurve,
    KnownPoint,
    between,
    lowered,
)
from orchestrator.analysis.points import ENOUGH_STEPS

WORTH = 0.05
"""An addition must be expected to take this share off the width of one curve's interval."""

FEW_DOUBLINGS = 0.2
"""An interval of B_crit of this width is narrow enough: B_crit is known to within 7 % or so."""

DECIDES = 2.0
"""The narrowing by a batch size that decides between laws counts this many times."""

MOST_STEPS = 8
"""The most additions into which a budget is divided."""


@dataclass(frozen=True, kw_only=True)
class Effect:
    """The width of one curve's interval of B_crit, in doublings, today and after an addition."""

    workload: str
    recipe: str
    goal: str
    before: float
    after: float


@dataclass(frozen=True, kw_only=True)
class Step:
    """One addition, with its expected effects and its price."""

    addition: Addition
    effects: tuple[Effect, ...]
    """The effect on each curve that the addition changes."""
    amount: Amount

    @property
    def narrowing(self) -> float:
        """How much the addition narrows the intervals of all curves that are too wide, in
        doublings."""
        return sum(
            effect.before - max(effect.after, FEW_DOUBLINGS)
            for effect in self.effects
            if effect.before > FEW_DOUBLINGS
        )

    @property
    def is_worth_it(self) -> bool:
        return self.addition.decides or any(
            effect.before > FEW_DOUBLINGS and effect.after < (1 - WORTH) * effect.before
            for effect in self.effects
        )

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "narrowing": self.narrowing}


def next_steps(curves: Sequence[KnownCurve], prices: Prices, ground: Ground) -> list[Step]:
    """Returns all additions that are worth their price, ordered by how much they narrow per price.
    The price is in seconds if these are known for all additions, else in examples. An addition that
    decides between laws counts `DECIDES` times."""
    steps = [step_of(curves, prices, addition) for addition in candidates(curves, prices, ground)]
    by_seconds = all(step.amount.seconds is not None for step in steps)

    def order(step: Step) -> float:
        price = step.amount.seconds if by_seconds else step.amount.examples
        weight = DECIDES if step.addition.decides else 1.0
        return weight * step.narrowing / max(price or 0.0, 1e-9)

    return sorted((step for step in steps if step.is_worth_it), key=order, reverse=True)


def within_budget(
    curves: Sequence[KnownCurve], prices: Prices, ground: Ground, examples: float
) -> list[Step]:
    """Returns the best steps for a budget of `examples`, in order. Each step is chosen as if the
    steps before it had brought what is expected of them."""
    found: list[Step] = []
    while len(found) < MOST_STEPS:
        steps = next_steps(curves, prices, ground)
        best = next((step for step in steps if step.amount.examples <= examples), None)
        if best is None:
            break
        found.append(best)
        examples -= best.amount.examples
        curves = [after(curve, best.addition) for curve in curves]
        if best.addition.kind == "batch size":
            ground = ground.with_sizes(best.addition.batch_sizes)
    return found


def step_of(curves: Sequence[KnownCurve], prices: Prices, addition: Addition) -> Step:
    """Returns an addition with its effects and its price."""
    pairs = [(curve, after(curve, addition)) for curve in curves]
    return Step(
        addition=addition,
        effects=tuple(
            Effect(
                workload=old.workload,
                recipe=old.recipe,
                goal=old.goal,
                before=old.width,
                after=new.width,
            )
            for old, new in pairs
            if new is not old
        ),
        amount=amount_of(addition, curves, prices),
    )


def after(curve: KnownCurve, addition: Addition) -> KnownCurve:
    """Returns the curve as it is expected after an addition, or the curve itself if the addition
    does not change it."""
    if not addition.concerns(curve):
        return curve
    if addition.kind == "range":
        low = lowered(curve)
        return low if low.variance < curve.variance else curve
    if addition.kind == "batch size":
        points = _with_sizes(curve, addition)
    else:
        totals = dict(addition.totals)
        points = tuple(
            _with_more(point, addition, totals.get(point.batch_size, 0)) for point in curve.points
        )
    return curve if points == curve.points else replace(curve, points=points)


def _with_more(point: KnownPoint, addition: Addition, number: int) -> KnownPoint:
    if addition.kind == "trials" and number > point.trials:
        finite = point.finite * (point.trials / number) ** point.halvings
        return replace(point, trials=number, finite=finite)
    if addition.kind == "repeats" and number > point.repeats > 0:
        seeds = point.seeds * variance_of_median(number) / variance_of_median(point.repeats)
        return replace(point, repeats=number, seeds=seeds)
    return point


def _with_sizes(curve: KnownCurve, addition: Addition) -> tuple[KnownPoint, ...]:
    """Returns the points and new points on the law, which are as well known as their neighbours. No
    point is added where the law has too few steps to draw conclusions."""
    there = {point.batch_size: point for point in curve.points}

    def beside(name: str, size: int) -> float:
        return between({at: getattr(point, name) for at, point in there.items()}, size)

    new = [
        KnownPoint(
            batch_size=size,
            log2_steps=curve.log2_steps(size),
            rounding=beside("rounding", size),
            seeds=beside("seeds", size),
            finite=beside("finite", size),
            halvings=beside("halvings", size),
            trials=trials,
            repeats=min(point.repeats for point in curve.points),
        )
        for size, trials in addition.totals
        if size not in there and curve.log2_steps(size) >= math.log2(ENOUGH_STEPS)
    ]
    return tuple(sorted([*curve.points, *new], key=lambda point: point.batch_size))
