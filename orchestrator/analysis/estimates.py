"""The type of a number with its interval, which all answers use, and ratios and means of these."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.9

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A number and, if it could be computed, its 90 % interval."""

    value: float
    low: float | None = None
    high: float | None = None
    """Upper end of the interval; infinite if nothing bounds it."""

    @property
    def ends(self) -> tuple[float, float]:
        """Both ends of an interval of which it is known that it has them."""
        assert self.low is not None
        assert self.high is not None
        return self.low, self.high

    def holds(self, value: float) -> bool:
        return self.ends[0] <= value <= self.ends[1]

    def times(self, factor: float) -> Estimate:
        low, high = (end and factor * end for end in (self.low, self.high))
        return Estimate(value=factor * self.value, low=low, high=high)


def reach_of_mean(values: Floats) -> Floats:
    """From the mean over the first axis to the ends of its 90 % interval, by Student's t."""
    reach: Floats = reach_of(len(values) - 1) * values.std(axis=0, ddof=1) / len(values) ** 0.5
    return reach


def reach_of(freedom: float) -> float:
    """The reach of a 90 % interval in standard deviations of so many degrees of freedom; infinitely
    many are those of a normal distribution."""
    from scipy.special import stdtrit  # here and in other functions: it takes half a second to load

    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))


def together(parts: Sequence[Estimate]) -> Estimate:
    """The geometric mean of estimates that are assumed to differ by chance. If some are infinite,
    it is, too, and their lower ends bound it."""
    if len(parts) < 2:
        return parts[0]
    ends = [part.low or 0 if part.value == math.inf else part.value for part in parts]
    if not 0 < min(ends) <= max(ends) < math.inf:
        return Estimate(value=math.inf, low=0, high=math.inf)
    logs = np.log(ends)
    middle, reach = float(logs.mean()), float(reach_of_mean(logs))
    low, value, high = (math.exp(middle + far) for far in (-reach, 0, reach))
    if math.inf in (part.value for part in parts):
        value = high = math.inf
    return Estimate(value=value, low=low, high=high)


def ratio_of(first: Estimate, second: Estimate | None) -> Estimate | None:
    """The ratio of two estimates; None if one is not known or not above 0. Distances of the ends
    are added in logarithms by their squares, as of independent errors."""
    if second is None or not (0 < first.value < math.inf and 0 < second.value < math.inf):
        return None
    value = first.value / second.value
    down = distance(first.low, first.value), distance(second.value, second.high)
    up = distance(first.value, first.high), distance(second.low, second.value)
    return Estimate(
        value=value,
        low=value * math.exp(-math.hypot(*down)),
        high=value * math.exp(math.hypot(*up)) if max(up) < math.inf else math.inf,
    )


def distance(low: float | None, high: float | None) -> float:
    """The distance between two ends of an interval in natural logarithms; 0 if one is unknown."""
    if low is None or high is None:
        return 0.0
    return math.log(high / low) if low > 0 and high < math.inf else math.inf
