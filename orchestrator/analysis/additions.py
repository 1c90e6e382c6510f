"""Additions to a sweep, and their prices."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from orchestrator.analysis.known_points import KnownCurve, KnownPoint, between

Kind = Literal["trials", "repeats", "batch size", "range"]


@dataclass(frozen=True, kw_only=True)
class Addition:
    """An addition to a sweep: trials, repeats, batch sizes or wider ranges."""

    kind: Kind
    workloads: tuple[str, ...]
    recipes: tuple[str, ...]
    totals: tuple[tuple[int, int], ...]
    """(batch size, total number of trials after the addition) for each batch size; the number is
    that of repeats if repeats are added."""
    decides: bool = False
    """Whether this batch size is the one that decides between laws."""

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        return tuple(size for size, _ in self.totals)

    def concerns(self, curve: KnownCurve) -> bool:
        return curve.workload in self.workloads and curve.recipe in self.recipes


@dataclass(frozen=True, kw_only=True)
class Price:
    """The price of one training at one batch size."""

    trial: float
    """Examples that a trial of the search trains on."""
    repeat: float
    """Examples that a repeat of the winner trains on."""
    seconds_per_example: float | None
    """Device-seconds per example; None if not known."""


Prices = Mapping[tuple[str, str], Mapping[int, Price]]
"""(workload, recipe) -> batch size -> price."""


@dataclass(frozen=True, kw_only=True)
class Amount:
    """The total price of a number of trainings."""

    trainings: float
    examples: float
    seconds: float | None
    """Device-seconds; None if not known."""


def amount_of(addition: Addition, curves: Sequence[KnownCurve], prices: Prices) -> Amount:
    """The price of an addition for all its workloads and recipes together. A recipe of which
    nothing was trained has no known price and is left out."""
    parts = [
        part
        for names in ((w, r) for w in addition.workloads for r in addition.recipes)
        if prices.get(names)
        for part in _parts(addition, _points(curves, *names), prices[names])
    ]
    seconds = [part.seconds for part in parts if part.seconds is not None]
    return Amount(
        trainings=sum(part.trainings for part in parts),
        examples=sum(part.examples for part in parts),
        seconds=sum(seconds) if len(seconds) == len(parts) else None,
    )


def price_at(prices: Mapping[int, Price], batch_size: int) -> Price:
    """The price at a batch size, measured or not. Beyond the smallest and largest measured ones,
    the examples of a training are at least those at that end, and grow at most in proportion to the
    batch size. The time per example grows at most in proportion to the number of steps."""
    if batch_size in prices:
        return prices[batch_size]
    rates = {
        size: price.seconds_per_example
        for size, price in prices.items()
        if price.seconds_per_example
    }
    return Price(
        trial=_along({size: price.trial for size, price in prices.items()}, batch_size, 0, 1),
        repeat=_along({size: price.repeat for size, price in prices.items()}, batch_size, 0, 1),
        seconds_per_example=_along(rates, batch_size, -1, 0) if rates else None,
    )


def _along(amounts: Mapping[int, float], batch_size: int, least: float, most: float) -> float:
    """Interpolates with a power of the batch size between the two nearest ones. Beyond the ends the
    exponent is limited to `least` ... `most`."""
    sizes = sorted(amounts)
    x, logs = math.log2(batch_size), {size: math.log2(amounts[size] or 1.0) for size in sizes}
    if sizes[0] < batch_size < sizes[-1] or len(sizes) == 1:
        return float(2 ** between(logs, batch_size))
    near, next_ = (sizes[0], sizes[1]) if batch_size < sizes[0] else (sizes[-1], sizes[-2])
    power = (logs[near] - logs[next_]) / (math.log2(near) - math.log2(next_))
    power = min(max(power, least), most)
    return float(2 ** (logs[near] + power * (x - math.log2(near))))


def _points(curves: Sequence[KnownCurve], workload: str, recipe: str) -> dict[int, KnownPoint]:
    """Batch size -> known point of the workload and recipe, for any of the goals."""
    of_recipe = [curve for curve in curves if (curve.workload, curve.recipe) == (workload, recipe)]
    return {point.batch_size: point for curve in of_recipe for point in curve.points}


def _parts(
    addition: Addition, points: Mapping[int, KnownPoint], prices: Mapping[int, Price]
) -> Iterator[Amount]:
    """The amounts of an addition, one for each batch size."""
    for size, number in addition.totals:
        price, point = price_at(prices, size), points.get(size)
        if addition.kind == "batch size":
            trials, repeats = float(number), float(_fewest_repeats(points))
        elif point is None:
            continue
        elif addition.kind == "repeats":
            trials, repeats = 0, point.repeated * max(number - point.repeats, 0)
        else:
            trials = point.beyond if addition.kind == "range" else max(number - point.trials, 0)
            # If one of the new trials wins, the repeats are trained again for it.
            repeats = point.repeats * trials / (point.trials + trials)
        examples = trials * price.trial + repeats * price.repeat
        rate = price.seconds_per_example
        yield Amount(
            trainings=trials + repeats,
            examples=examples,
            seconds=None if rate is None else rate * examples,
        )


def _fewest_repeats(points: Mapping[int, KnownPoint]) -> int:
    return min((point.repeats for point in points.values()), default=0)
