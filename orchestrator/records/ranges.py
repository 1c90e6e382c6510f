"""Metaparameters: their values, and the ranges that are searched."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from orchestrator.records.errors import BadInput, wrong_value

Value = float | int | str | bool
"""The value of one metaparameter."""


def short(value: Value | None) -> str:
    """A value as people read it."""
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def point_text(point: Mapping[str, Value]) -> str:
    """The metaparameters of a point as people read them."""
    return ", ".join(f"{name} {short(value)}" for name, value in point.items())


Scale = Literal["linear", "log", "reverse_log"]

Side = Literal["low", "high"]

When = Mapping[str, tuple[Value, ...]]
"""When a metaparameter exists: other metaparameters, each with the values that it must have."""

LARGEST, SMALLEST = 1e100, 1e-100
"""Bounds on the ends of a range. They lie beyond any sensible metaparameter, and so far within the
limits of float64 that the width, the ratio or a widening of a range never overflows."""


@dataclass(frozen=True, kw_only=True)
class Range:
    """An interval of one metaparameter, and the scale on which points are drawn uniformly."""

    low: float
    high: float
    scale: Scale = "linear"
    """`log`: log(x) is uniform. `reverse_log`: log(1 - x) is uniform, which suits a momentum near
    1."""
    integer: bool = False
    limits: tuple[float | None, float | None] = (None, None)
    """The lowest and the highest value to which a search may widen the range; None: no limit. But a
    range that begins at 0 or above is never widened below 0 without a limit."""
    when: When | None = None
    """The condition under which the metaparameter exists; None: it always does."""

    def __post_init__(self) -> None:
        ends = (self.low, self.high, *(limit for limit in self.limits if limit is not None))
        if not all(abs(end) <= LARGEST for end in ends):
            raise wrong_value(
                "`low`, `high` and `limits`", f"numbers from {-LARGEST:g} to {LARGEST:g}", ends
            )
        if self.low > self.high:
            raise BadInput(
                f"`low <= high` must hold, not {self.low:g} <= {self.high:g}.", code="range-order"
            )
        if self.integer and math.ceil(self.low) > self.high:
            raise wrong_value("a range of integers", "one that holds an integer", ends[:2])
        if self.scale == "log" and self.low < SMALLEST:
            raise wrong_value("`low` of a log scale", f"above 0, at least {SMALLEST:g}", self.low)
        if self.scale == "reverse_log" and self.high >= 1:
            raise wrong_value("`high` of a reverse_log scale", "below 1", self.high)

    def at(self, fraction: float) -> float | int:
        """The value that lies `fraction` (0 to 1) of the way from low to high on the scale."""
        value: float
        if self.scale == "log":
            value = self.low * (self.high / self.low) ** fraction
        elif self.scale == "reverse_log":
            value = 1 - (1 - self.low) * ((1 - self.high) / (1 - self.low)) ** fraction
        else:
            value = self.low + (self.high - self.low) * fraction
        value = min(max(value, self.low), self.high)
        if self.integer:  # the ends may be none, once a search has widened the range
            return min(max(round(value), math.ceil(self.low)), math.floor(self.high))
        return value

    def fraction(self, value: float) -> float:
        """Returns the fraction from which `at` makes `value`. It is below 0 or above 1 for a value
        outside of the range, and infinite for a value that the scale does not have."""
        low, high, at = (self._position(number) for number in (self.low, self.high, value))
        return (at - low) / (high - low) if high > low else 0.5

    def _position(self, value: float) -> float:
        if self.scale == "log":
            return math.log(value) if value > 0 else -math.inf
        if self.scale == "reverse_log":
            return -math.log(1 - value) if value < 1 else math.inf
        return value

    def widened(self, side: Side) -> Range | None:
        """The range widened on one side: by a decade on a log scale, by its width on a linear
        scale, but not beyond the limits or what float64 can hold. None if it can't be widened."""
        lowest, highest = self.limits
        if self.scale == "log":
            low, high = self.low / 10, self.high * 10
        elif self.scale == "reverse_log":
            low, high = 1 - (1 - self.low) * 10, 1 - (1 - self.high) / 10
        else:
            width = self.high - self.low
            low, high = self.low - width, self.high + width
        if side == "low":
            floors = [lowest] if lowest is not None else [0.0] if self.low >= 0 else []
            low = max([low, SMALLEST if self.scale == "log" else -LARGEST, *floors])
            return replace(self, low=low) if low < self.low else None
        highest = LARGEST if highest is None else highest
        high = min(high, highest, math.nextafter(1, 0) if self.scale == "reverse_log" else LARGEST)
        return replace(self, high=high) if high > self.high else None


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A metaparameter that takes one of a few values."""

    options: tuple[Value, ...]
    when: When | None = None

    def __post_init__(self) -> None:
        if not self.options:
            raise BadInput("`options` must name at least one value, but it is empty.", code="empty")

    def at(self, fraction: float) -> Value:
        return self.options[min(int(fraction * len(self.options)), len(self.options) - 1)]


def check_kind(name: str, value: Value, default: Value) -> None:
    """Refuses a value whose kind (a finite number, text, or a bool) differs from the default's."""
    if isinstance(default, (bool, str)):
        kind = "true or false" if isinstance(default, bool) else "text"
        right = type(value) is type(default)
    else:
        kind = "a finite number"
        right = type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]
    if not right:
        raise wrong_value(repr(name), kind, value)


Space = Mapping[str, Range | Choice | Value]
"""Metaparameter -> the range or choice that is searched, or a plain value, which is fixed."""


def searched(space: Space) -> list[str]:
    """The metaparameters that vary. They are the dimensions of the search."""
    return [name for name, entry in space.items() if isinstance(entry, Range | Choice)]


NEAR_BOUND = 0.05
"""Share of a range: if the best trial lies closer than this to an end of the range, better values
may lie beyond that end."""

WIDENINGS = 2
"""Largest number of times that a search may widen its ranges."""


def near_bounds(space: Space, params: Mapping[str, Value]) -> list[tuple[str, Side]]:
    """The ranges that have the point near an end that can be widened, with that side."""
    found: list[tuple[str, Side]] = []
    for name, entry in space.items():
        if not isinstance(entry, Range) or name not in params or entry.low == entry.high:
            continue
        fraction = entry.fraction(float(params[name]))
        sides: dict[Side, bool] = {"low": fraction < NEAR_BOUND, "high": fraction > 1 - NEAR_BOUND}
        found += [(name, side) for side, near in sides.items() if near and entry.widened(side)]
    return found


def widened_to(space: Space, points: Iterable[Mapping[str, Value]]) -> Space:
    """Returns the space, widened as far as a search must have widened it to reach `points`."""
    wide = dict(space)
    for point in points:
        for name, value in point.items():
            for _ in range(WIDENINGS):
                entry = wide.get(name)
                if isinstance(entry, Range) and not 0 <= (at := entry.fraction(float(value))) <= 1:
                    wide[name] = entry.widened("low" if at < 0 else "high") or entry
    return wide
