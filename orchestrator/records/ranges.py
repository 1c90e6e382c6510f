"""Metaparameters: their values, and the ranges that are searched."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
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

LARGEST, SMALLEST = 1e100, 1e-100
"""Bounds on the ends of a range. They lie beyond any sensible metaparameter, and so far within the
limits of float64 that the width or the ratio of a range never overflows."""


@dataclass(frozen=True, kw_only=True)
class Range:
    """An interval of one metaparameter, and the scale on which points are drawn uniformly."""

    low: float
    high: float
    scale: Scale = "linear"
    """`log`: log(x) is uniform. `reverse_log`: log(1 - x) is uniform, which suits a momentum near
    1."""
    integer: bool = False

    def __post_init__(self) -> None:
        ends = (self.low, self.high)
        if not all(abs(end) <= LARGEST for end in ends):
            raise wrong_value("`low` and `high`", f"numbers from {-LARGEST:g} to {LARGEST:g}", ends)
        if self.low > self.high:
            raise BadInput(
                f"`low <= high` must hold, not {self.low:g} <= {self.high:g}.", code="range-order"
            )
        if self.integer and math.ceil(self.low) > self.high:
            raise wrong_value("a range of integers", "one that holds an integer", ends)
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
        if self.integer:  # which the ends need not be
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


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A metaparameter that takes one of a few values."""

    options: tuple[Value, ...]

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


def searched(space: Mapping[str, object]) -> list[str]:
    """The metaparameters that vary. They are the dimensions of the search."""
    return [name for name, entry in space.items() if isinstance(entry, Range | Choice)]


NEAR_BOUND = 0.05
"""Share of a range: if the best trial lies closer than this to an end of the range, better values
may lie beyond that end."""


def near_bounds(space: Space, params: Mapping[str, Value]) -> list[tuple[str, Side]]:
    """The ranges that have the point near an end, with that side. A lower end of 0 does not count,
    as hardly any metaparameter has values below."""
    found: list[tuple[str, Side]] = []
    for name, entry in space.items():
        if not isinstance(entry, Range) or name not in params or entry.low == entry.high:
            continue
        fraction = entry.fraction(float(params[name]))
        if fraction < NEAR_BOUND and entry.low != 0:
            found.append((name, "low"))
        if fraction > 1 - NEAR_BOUND:
            found.append((name, "high"))
    return found
