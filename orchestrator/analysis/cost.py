"""The time and work that each batch size costs, and which to use on how many devices."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from orchestrator.analysis.errors import errors_of
from orchestrator.analysis.estimates import Estimate
from orchestrator.analysis.points import CurvePoint, curves_of, points_of, trained_points
from orchestrator.analysis.scaling import USEFUL_TOLERANCE
from orchestrator.records import ENOUGH_SIZES, StudyKey, Value
from orchestrator.results import FrontierRow, StepTime

BUSY = 0.5
"""Share of its best rate of examples from which on a device counts as busy. Below that, doubling
the devices reduces the time by less than it adds to the work."""

DISTURBED = 2.0
"""A step that takes so many times as long as one on more examples was timed beside other work. So
were recipes whose seconds per example differ by so much."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """The speed of one device. A step on `examples` takes `overhead` + `per_example` x `examples`
    seconds, fitted to the measured step times of the fewest devices that tell it."""

    overhead: float
    per_example: float
    smallest: int
    largest: int
    """Largest number of examples per device and step that was measured."""
    timed: Mapping[int, tuple[float, float]]
    """Number of devices that were measured together -> the same two, with their exchange."""

    @property
    def busy_from(self) -> int:
        """Fewest examples per step that keep it busy, within those measured."""
        if not self.per_example:
            return self.largest
        wanted = self.overhead / self.per_example * BUSY / (1 - BUSY)
        return max(self.smallest, round(min(wanted, self.largest)))

    def devices(self, batch_size: int) -> list[int]:
        """Numbers of devices for a batch size: those timed, and others, each twice the one before,
        from as many examples per device as were measured down to what keeps it busy. On none are
        there fewer examples than were measured: a line without overhead makes such steps free."""
        fewest = math.ceil(batch_size / self.largest)
        most = max(fewest, batch_size // self.busy_from)
        doubled = (fewest * 2**n for n in range(math.ceil(math.log2(most / fewest))))
        timed = (count for count in self.timed if fewest <= count <= batch_size)
        every = {*doubled, most, *timed}
        return sorted(n for n in every if math.ceil(batch_size / n) >= self.smallest)

    def step_seconds(self, batch_size: int, devices: int) -> float:
        """Seconds of a step, with the exchange of gradients as far as it was measured."""
        line = self.timed.get(devices, (self.overhead, self.per_example))
        return line[0] + line[1] * math.ceil(batch_size / devices)


@dataclass(frozen=True, kw_only=True)
class Priced:
    devices: int
    seconds: float
    device_seconds: float
    money: float | None
    """Cost at the given price of a device-hour; None without a price."""
    timed: bool
    """Whether steps were timed on so many devices; if not, as if exchanges took no time."""
    pareto: bool
    """Whether nothing else that was timed needs both less time and fewer device-seconds."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    recipe: str
    batch_size: int
    steps: float
    examples: float
    is_median: bool
    """Whether the steps are the median of the winner's repeats, rather than the winner's."""
    low: float | None
    high: float | None
    """Ends of the 90 % interval of the steps."""
    params: Mapping[str, Value]
    tells: bool
    """Whether it may be recommended: its study has finished, and it has enough steps."""
    seconds: float | None
    """Seconds that the winner trained; it may have shared its machine with other trials."""
    pareto: bool
    """Whether no other batch size or recipe needs both fewer steps and fewer examples."""
    priced: tuple[Priced, ...] = ()
    """Prices on the numbers of devices of `Device.devices`; empty without step times."""


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What is recommended; each has one price. Time and work are seconds and device-seconds if all
    that is compared was timed, else steps and examples."""

    fastest: Cost
    """The choice with the least work among those whose time is within a tenth of the least."""
    cheapest: Cost
    """The choice with the least time among those whose work is within a tenth of the least."""
    balanced: Cost
    """The choice with the least product of time and work. In steps and examples of a hyperbola this
    is B_crit, where both are twice their minimum."""
    by_step_times: bool


def devices_of(times: Iterable[StepTime]) -> dict[str, Device]:
    """Recipe -> the speed of its devices, for recipes of a workload with step times at two sizes.
    Wrong times are left out, and all of them where it is not known which are right."""
    found = _fitted([*times])
    return {} if _unlike(found) else found


def doubts_about(times: Iterable[StepTime]) -> list[str]:
    times = [*times]
    said = [
        f"The step time of {one.recipe} at batch size {one.batch_size:,} is not used: steps on "
        f"more examples were faster, so it was taken beside other work."
        for one in times
        if _is_disturbed(one, times)
    ]
    return said + doubts_between(_fitted(times))


def doubts_between(devices: Mapping[str, Device]) -> list[str]:
    """Why the step times of these recipes can't be compared; empty if they can."""
    if (pair := _unlike(devices)) is None:
        return []
    slow, fast, ratio = pair
    return [
        f"Step times are not used: an example takes {slow} {ratio:.1f} times as long as {fast}, "
        f"which no optimizer explains, so they were taken beside different work."
    ]


def _fitted(times: Sequence[StepTime]) -> dict[str, Device]:
    found = {}
    for recipe in dict.fromkeys(time.recipe for time in times):
        mine = [t for t in times if t.recipe == recipe and not _is_disturbed(t, times)]
        if len({_per_device(t) for t in mine}) > 1:
            found[recipe] = _device_of(mine)
    return found


def _device_of(times: Sequence[StepTime]) -> Device:
    """The device of a recipe. Each number of devices has a line of its own, since exchanging
    gradients takes time. Where one was not timed up to the largest batch size, the line is that of
    all times together."""
    largest = max(time.batch_size for time in times)
    timed = {}
    for count in sorted({time.ranks for time in times}):
        own = [time for time in times if time.ranks == count]
        told = len({_per_device(t) for t in own}) > 1 and max(t.batch_size for t in own) == largest
        timed[count] = fit_line([(_per_device(t), t.seconds) for t in (own if told else times)])
    overhead, per_example = next(iter(timed.values()))
    return Device(
        overhead=overhead,
        per_example=per_example,
        smallest=min(map(_per_device, times)),
        largest=max(map(_per_device, times)),
        timed=timed,
    )


def _per_device(time: StepTime) -> int:
    return math.ceil(time.batch_size / time.ranks)


def _is_disturbed(time: StepTime, times: Sequence[StepTime]) -> bool:
    """Whether a step of the same recipe on more examples was clearly faster."""
    return any(
        _per_device(other) > _per_device(time) and time.seconds > DISTURBED * other.seconds
        for other in times
        if (other.recipe, other.ranks) == (time.recipe, time.ranks)
    )


def _unlike(devices: Mapping[str, Device]) -> tuple[str, str, float] | None:
    """The recipes with the most and the fewest seconds per example, and their ratio, if it is more
    than an optimizer explains: its work does not depend on the number of examples."""
    rates = {
        device.per_example: recipe
        for recipe, device in devices.items()
        if device.per_example * device.largest > device.overhead
    }
    if not rates or max(rates) < DISTURBED * min(rates):
        return None
    return rates[max(rates)], rates[min(rates)], max(rates) / min(rates)


def fit_line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Overhead and seconds per example by (examples, seconds) of steps: of all lines through two of
    them, or through one of them with an overhead of 0 or without a price per example, the one with
    the least sum of relative errors. A single time that is far off does not move it."""
    examples, seconds = (np.array(column, dtype=np.float64) for column in zip(*points, strict=True))
    lines = [(0.0, s / e) for e, s in points] + [(s, 0.0) for _, s in points]
    for (e, s), (other, longer) in combinations(points, 2):
        if e != other:
            slope = (longer - s) / (other - e)
            lines.append((s - slope * e, slope))
    allowed = np.array([line for line in lines if min(line) >= 0])
    off = abs((allowed[:, :1] + allowed[:, 1:] * examples) / seconds - 1)
    overhead, per_example = allowed[off.sum(axis=1).argmin()].tolist()
    return overhead, per_example


def costs(
    rows: Sequence[FrontierRow],
    devices: Mapping[str, Device] | None = None,
    price_per_device_hour: float | None = None,
) -> list[Cost]:
    """The costs for one workload and goal, in the order of the rows, given devices by recipe. A
    goal reached before the first step costs nothing and is left out."""
    points = [point for point in points_of(rows) if point.steps]
    amounts = [(point.steps, point.examples) for point in points]
    devices = devices or {}
    priced = [
        _prices(p, devices[p.recipe], price_per_device_hour) if p.recipe in devices else []
        for p in points
    ]
    timed = [(one.seconds, one.device_seconds) for each in priced for one in each if one.timed]

    def is_best(one: Priced) -> bool:
        return one.timed and _is_pareto((one.seconds, one.device_seconds), timed)

    intervals: dict[StudyKey, Estimate] = {}
    for curve in map(trained_points, curves_of(rows).values()):
        for point, interval in zip(curve, errors_of(curve).intervals(curve), strict=True):
            intervals[point.row.key] = interval
    return [
        Cost(
            recipe=point.recipe,
            batch_size=point.batch_size,
            steps=point.steps,
            examples=point.examples,
            is_median=point.is_median,
            low=intervals[point.row.key].low,
            high=intervals[point.row.key].high,
            params=point.params,
            tells=point.tells,
            seconds=point.row.seconds,
            pareto=_is_pareto(of_point, amounts),
            priced=tuple(replace(one, pareto=is_best(one)) for one in prices),
        )
        for point, of_point, prices in zip(points, amounts, priced, strict=True)
    ]


def _prices(point: CurvePoint, device: Device, price: float | None) -> list[Priced]:
    """Prices on all numbers of devices, as if none were Pareto-optimal."""
    found = []
    for count in device.devices(point.batch_size):
        seconds = point.steps * device.step_seconds(point.batch_size, count)
        found.append(
            Priced(
                devices=count,
                seconds=seconds,
                device_seconds=count * seconds,
                money=None if price is None else count * seconds * price / 3600,
                timed=count in device.timed,
                pareto=False,
            )
        )
    return found


def _is_pareto(pair: tuple[float, float], pairs: Sequence[tuple[float, float]]) -> bool:
    """Whether no other of the pairs is at most as large in both."""
    return not any(a <= pair[0] and b <= pair[1] and (a, b) != pair for a, b in pairs)


def advice(costs: Sequence[Cost]) -> Advice | None:
    """The advice from the costs that may be recommended; None for too few batch sizes."""
    costs = [cost for cost in costs if cost.tells]
    if len({cost.batch_size for cost in costs}) < ENOUGH_SIZES:
        return None
    by_times = all(any(one.timed for one in cost.priced) for cost in costs)

    def time(choice: Cost) -> float:
        return choice.priced[0].seconds if by_times else choice.steps

    def work(choice: Cost) -> float:
        return choice.priced[0].device_seconds if by_times else choice.examples

    choices = [replace(cost, priced=()) for cost in costs]
    if by_times:
        choices = [
            replace(cost, priced=(price,)) for cost in costs for price in cost.priced if price.timed
        ]
    return Advice(
        fastest=min(_within_a_tenth(choices, time), key=work),
        cheapest=min(_within_a_tenth(choices, work), key=time),
        balanced=min(choices, key=lambda choice: time(choice) * work(choice)),
        by_step_times=by_times,
    )


def _within_a_tenth(costs: Sequence[Cost], amount: Callable[[Cost], float]) -> list[Cost]:
    least = min(map(amount, costs))
    return [cost for cost in costs if amount(cost) <= (1 + USEFUL_TOLERANCE) * least]
