"""Lists additions to a sweep that may be worth their price: more trials, more repeats, another
batch size or wider ranges."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from orchestrator.analysis.additions import Addition, Kind, Prices, price_at
from orchestrator.analysis.known_points import KnownCurve, KnownPoint
from orchestrator.analysis.points import ENOUGH_STEPS
from orchestrator.records import StudyKey

TIMES_TRIALS, TIMES_REPEATS = 2, 3
"""Factors by which the numbers of trials and of repeats are multiplied in a suggestion."""

WIDE_GAP = 2.5
"""Smallest ratio of two neighbouring batch sizes between which another one is suggested. If the law
is not exactly right, close neighbours have the same error, so they add little."""

FARTHER = 4
"""Smallest factor between the outermost batch size and one that is suggested beyond it."""

FAR_FROM_CRITICAL = 8
"""Factor beyond B_crit from which on no batch sizes further out are suggested."""


@dataclass(frozen=True, kw_only=True)
class Ground:
    """The studies of a sweep, and the ways in which it may grow."""

    workloads: tuple[str, ...]
    recipes: tuple[str, ...]
    """Recipes that are trained at every batch size of the sweep."""
    batch_sizes: tuple[int, ...]
    trials: int
    """Number of trials of the search at a batch size that is added."""
    largest: int | None
    """Number of examples of the smallest training set; None if the examples never end."""
    fixed: Collection[StudyKey] = ()
    """Studies that can't be given more trials."""
    deciding: Collection[int] = ()
    """Batch sizes at which a measurement would decide between laws."""

    def with_sizes(self, sizes: Iterable[int]) -> Ground:
        found = tuple(sorted({*self.batch_sizes, *sizes}))
        return replace(self, batch_sizes=found, deciding={*self.deciding} - {*sizes})


def candidates(curves: Sequence[KnownCurve], prices: Prices, ground: Ground) -> list[Addition]:
    """All candidate additions, each once."""
    found = [*_sizes(ground, curves), *_wider(ground, curves)]
    for curve in curves:
        free = [point for point in curve.points if _key(curve, point) not in ground.fixed]
        found += _several("trials", curve, free, prices)
        found += _several("repeats", curve, curve.points, prices)
    return list(dict.fromkeys(found))


def _key(curve: KnownCurve, point: KnownPoint) -> StudyKey:
    return StudyKey(workload=curve.workload, recipe=curve.recipe, batch_size=point.batch_size)


def _wider(ground: Ground, curves: Sequence[KnownCurve]) -> Iterator[Addition]:
    """Wider ranges of all studies whose winners lie near the end of a range."""
    narrow = {point.batch_size: point for c in curves for point in c.points if point.beyond}
    if narrow:
        yield Addition(
            kind="range",
            workloads=ground.workloads,
            recipes=tuple(dict.fromkeys(c.recipe for c in curves)),
            totals=tuple((size, p.trials + p.beyond) for size, p in sorted(narrow.items())),
        )


def _several(
    kind: Kind, curve: KnownCurve, points: Sequence[KnownPoint], prices: Prices
) -> Iterator[Addition]:
    """More trials or repeats at the batch sizes that contribute most to the interval, or most for
    their price: at the first one, the first two, and so on up to all."""

    def variance(point: KnownPoint) -> float:
        return point.finite if kind == "trials" else point.seeds * bool(point.repeats)

    def for_its_price(point: KnownPoint) -> float:
        price = price_at(prices[curve.workload, curve.recipe], point.batch_size)
        examples = point.trials * price.trial if kind == "trials" else point.repeats * price.repeat
        return variance(point) / max(examples, 1e-9)

    contributing = [point for point in points if variance(point) > 0]
    for order in (variance, for_its_price):
        ordered = sorted(contributing, key=order, reverse=True)
        for count in range(1, len(ordered) + 1):
            chosen = sorted(ordered[:count], key=lambda point: point.batch_size)
            yield Addition(
                kind=kind,
                workloads=(curve.workload,),
                recipes=(curve.recipe,),
                totals=tuple((point.batch_size, _more(kind, point)) for point in chosen),
            )


def _more(kind: Kind, point: KnownPoint) -> int:
    return TIMES_TRIALS * point.trials if kind == "trials" else TIMES_REPEATS * point.repeats


def _sizes(ground: Ground, curves: Sequence[KnownCurve]) -> Iterator[Addition]:
    """Batch sizes in the middle between two others, one beyond each end, and the deciding ones."""
    sizes = sorted(ground.batch_sizes)
    beyond = [
        size
        for size in _beyond(sizes, ground.largest)
        if any(_bends_beyond(curve, sizes[0] if size < sizes[0] else sizes[-1]) for curve in curves)
    ]
    asked = [*ground.deciding, *middles(sizes), *beyond]
    for size in dict.fromkeys(asked):
        # A deciding batch size is suggested even if no curve has a B_crit.
        tells = size in ground.deciding or any(
            curve.log2_steps(size) >= math.log2(ENOUGH_STEPS) for curve in curves
        )
        apart = all(max(size, at) / min(size, at) >= math.sqrt(WIDE_GAP) for at in sizes)
        if apart and tells and size <= (ground.largest or size):
            yield Addition(
                kind="batch size",
                workloads=ground.workloads,
                recipes=ground.recipes,
                totals=((size, ground.trials),),
                decides=size in ground.deciding,
            )


def middles(sizes: Sequence[int]) -> list[int]:
    """The geometric middles of the gaps between these batch sizes, the widest gap first."""
    gaps = sorted(pairwise(sizes), key=lambda pair: pair[1] / pair[0], reverse=True)
    return [
        round(math.sqrt(low * high))
        for low, high in gaps
        if high / low > WIDE_GAP and low < round(math.sqrt(low * high)) < high
    ]


def _bends_beyond(curve: KnownCurve, end: int) -> bool:
    """Whether the law still bends beyond this end of the batch sizes. At more than
    FAR_FROM_CRITICAL times B_crit it is flat, or a straight line, to within an eighth."""
    return abs(math.log2(end) - curve.critical) < math.log2(FAR_FROM_CRITICAL)


def _beyond(sizes: Sequence[int], largest: int | None) -> Iterator[int]:
    """One batch size below the smallest and one above the largest, at least as far away as their
    neighbours are from each other."""
    if len(sizes) < 2:
        return
    low = round(sizes[0] / max(sizes[1] / sizes[0], FARTHER))
    if low >= 1 and sizes[0] / low > WIDE_GAP:
        yield low
    high = round(sizes[-1] * max(sizes[-1] / sizes[-2], FARTHER))
    high = high if largest is None else min(high, largest)
    if high / sizes[-1] > WIDE_GAP:
        yield high
