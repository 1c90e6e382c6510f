"""What a batch size costs: work against time, and which one to take on how many devices."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from orchestrator.analysis.points import Point, points_of
from orchestrator.analysis.scaling import USEFUL_TOLERANCE
from orchestrator.records import ENOUGH_SIZES
from orchestrator.results import FrontierRow, StepTime

BUSY = 0.5
"""A device counts as busy from this share of its best rate of examples on: with less, twice the
devices take less off the time than they add to the work."""


EXTRAPOLATED = 4
"""From more devices on than so many times those that were timed, it is said."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """What one device does: a step on `examples` takes `overhead` + `per_example` x `examples`
    seconds, fitted to the measured step times by their relative errors."""

    overhead: float
    per_example: float
    residual: float | None
    """Root mean square relative error of the fit; None where two sizes leave none."""
    smallest: int
    largest: int
    """Examples per device and step that were measured."""
    most: int = 1
    """Devices that these were measured on together."""

    @property
    def busy_from(self) -> int:
        """Examples per step that keep it busy, but no fewer and no more than were measured."""
        if not self.per_example:
            return self.largest
        wanted = self.overhead / self.per_example * BUSY / (1 - BUSY)
        return max(self.smallest, round(min(wanted, self.largest)))

    def devices(self, batch_size: int) -> list[int]:
        """From as few as were given no more examples than was measured, by doublings, to as many as
        a batch keeps busy."""
        fewest = math.ceil(batch_size / self.largest)
        most = max(fewest, batch_size // self.busy_from)
        return [fewest * 2**n for n in range(math.ceil(math.log2(most / fewest)))] + [most]

    def step_seconds(self, batch_size: int, devices: int) -> float:
        """What they need for each other's gradients is in it only as far as it was measured."""
        return self.overhead + self.per_example * math.ceil(batch_size / devices)


@dataclass(frozen=True, kw_only=True)
class Priced:
    """What reaching the goal takes on so many devices."""

    devices: int
    seconds: float
    device_seconds: float
    money: float | None
    """At the price that was given."""
    timed_on: int
    """The most devices that steps were timed on."""
    pareto: bool
    """Whether no other batch size, recipe and number needs both less time and fewer device-seconds.
    """

    @property
    def extrapolated(self) -> bool:
        """Whether nothing like it was timed: what their exchange of gradients takes isn't known."""
        return self.devices > EXTRAPOLATED * self.timed_on


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What reaching the goal took at one batch size."""

    recipe: str
    batch_size: int
    steps: float
    examples: float
    is_median: bool
    """Of the winner's repeats; else these are the winner's own."""
    tells: bool
    """Whether it may be recommended: its study has finished, and its steps are enough to tell."""
    seconds: float | None
    """Of training, as measured of the winner, which may have shared its machine with others."""
    pareto: bool
    """Whether no other batch size or recipe needs both fewer steps and fewer examples."""
    priced: tuple[Priced, ...] = ()
    """On so many devices as `Device.devices` has it; empty where step times aren't known."""


@dataclass(frozen=True, kw_only=True)
class Advice:
    """Which batch size to take, on how many devices: each with one price. Time and work are seconds
    and device-seconds where step times are known for all that is compared, else steps and examples.
    """

    fastest: Cost
    """The least work among those within a tenth of the least time."""
    cheapest: Cost
    """The least time among those within a tenth of the least work."""
    balanced: Cost
    """The least product of both: in steps and examples a hyperbola's B_crit, where each is twice
    its minimum."""
    by_step_times: bool

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def devices_of(times: Iterable[StepTime]) -> dict[str, Device]:
    """What was measured of a workload, by recipe; where at least two sizes were."""
    by_recipe: dict[str, list[StepTime]] = {}
    for time in times:
        by_recipe.setdefault(time.recipe, []).append(time)
    return {
        recipe: replace(
            fit_device([(math.ceil(t.batch_size / t.ranks), t.seconds) for t in mine]),
            most=max(t.ranks for t in mine),
        )
        for recipe, mine in by_recipe.items()
        if len({math.ceil(t.batch_size / t.ranks) for t in mine}) > 1
    }


def fit_device(points: Sequence[tuple[int, float]]) -> Device:
    """Of (examples, seconds) of one device's steps."""
    examples, seconds = (np.array(column, dtype=np.float64) for column in zip(*points, strict=True))
    # overhead / seconds + per_example x examples / seconds is to be 1, with neither below 0: where
    # the best of both is, or else the better of each alone. (scipy.optimize takes 0.5 s to load.)
    parts = np.stack([1 / seconds, examples / seconds], axis=1)
    best = np.linalg.lstsq(parts, np.ones(len(points)))[0]
    if best.min() < 0:
        alone = np.diag(parts.sum(axis=0) / (parts**2).sum(axis=0))
        best = min(alone, key=lambda one: float(((parts @ one - 1) ** 2).sum()))
    off = float(np.sqrt(((parts @ best - 1) ** 2).mean()))
    return Device(
        overhead=float(best[0]),
        per_example=float(best[1]),
        residual=off if len(set(examples)) > 2 else None,
        smallest=int(examples.min()),
        largest=int(examples.max()),
    )


def costs(
    rows: Sequence[FrontierRow],
    devices: Mapping[str, Device] | None = None,
    price_per_device_hour: float | None = None,
) -> list[Cost]:
    """Of one workload and goal, in order of recipe and batch size as given; `devices` by recipe. A
    goal that was reached before the first step costs nothing, and is left out."""
    points = [point for point in points_of(rows) if point.steps]
    pairs = _on_front([(point.steps, point.examples) for point in points])
    priced = _priced(points, devices or {}, price_per_device_hour)
    return [
        Cost(
            recipe=point.recipe,
            batch_size=point.batch_size,
            steps=point.steps,
            examples=point.examples,
            is_median=point.is_median,
            tells=point.tells,
            seconds=point.row.seconds,
            pareto=pareto,
            priced=one,
        )
        for point, pareto, one in zip(points, pairs, priced, strict=True)
    ]


def advice(costs: Sequence[Cost]) -> Advice | None:
    """The choice among those that tell; None if they are too few batch sizes to choose from."""
    costs = [cost for cost in costs if cost.tells]
    if len({cost.batch_size for cost in costs}) < ENOUGH_SIZES:
        return None
    by_times = all(cost.priced for cost in costs)
    time, work = (_seconds, _device_seconds) if by_times else (_steps, _examples)
    choices = [replace(cost, priced=(one,)) for cost in costs for one in cost.priced]
    choices = choices if by_times else [replace(cost, priced=()) for cost in costs]
    return Advice(
        fastest=min(_within_a_tenth(choices, time), key=work),
        cheapest=min(_within_a_tenth(choices, work), key=time),
        balanced=min(choices, key=lambda choice: time(choice) * work(choice)),
        by_step_times=by_times,
    )


def _priced(
    points: Sequence[Point], devices: Mapping[str, Device], price: float | None
) -> list[tuple[Priced, ...]]:
    amounts: list[list[tuple[int, float, int]]] = []
    for point in points:
        device, size = devices.get(point.recipe), point.batch_size
        amounts.append(
            []
            if device is None
            else [
                (n, point.steps * device.step_seconds(size, n), device.most)
                for n in device.devices(size)
            ]
        )
    front = iter(_on_front([(time, time * n) for some in amounts for n, time, _ in some]))
    return [
        tuple(
            Priced(
                devices=n,
                seconds=time,
                device_seconds=n * time,
                money=None if price is None else n * time * price / 3600,
                timed_on=most,
                pareto=next(front),
            )
            for n, time, most in some
        )
        for some in amounts
    ]


def _on_front(pairs: Sequence[tuple[float, float]]) -> list[bool]:
    """Which pairs no other is at most as large as in both."""
    return [
        not any(a <= time and b <= work and (a, b) != (time, work) for a, b in pairs)
        for time, work in pairs
    ]


def _within_a_tenth(costs: Sequence[Cost], amount: Callable[[Cost], float]) -> list[Cost]:
    least = min(map(amount, costs))
    return [cost for cost in costs if amount(cost) <= (1 + USEFUL_TOLERANCE) * least]


def _steps(cost: Cost) -> float:
    return cost.steps


def _examples(cost: Cost) -> float:
    return cost.examples


def _seconds(cost: Cost) -> float:
    return cost.priced[0].seconds


def _device_seconds(cost: Cost) -> float:
    return cost.priced[0].device_seconds
