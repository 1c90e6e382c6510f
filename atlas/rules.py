"""How claims are decided: what a claim is, and the rules that several claims share.

A rule looks at 90 % intervals. It says *agrees* or *disagrees* only if a whole interval lies on one
side of a bound, and otherwise *undecided*.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from orchestrator.analysis import Estimate, ratio_of, together

Answer = Literal["agrees", "disagrees", "undecided", "not measured"]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One of the numbers that a claim is decided by."""

    name: str
    estimate: Estimate


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What was measured of a claim, and what follows."""

    said: str
    """In a sentence."""
    cells: Sequence[Cell] = ()
    axis: str = ""
    """What the numbers of the cells are."""
    bounds: tuple[float, ...] = ()
    """The bounds of the rule, on that axis."""
    answer: Answer


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim of a paper."""

    title: str
    source: str
    groups: tuple[str, ...]
    """The names of the runs that decide it."""
    rule: Callable[[], Measured]
    """Decides it. Its docstring has the claim, and how it is decided."""

    @property
    def name(self) -> str:
        return self.rule.__name__


REGISTERED: list[Claim] = []
"""The claims so far, in the order of the page."""


def claim(
    *, title: str, source: str, groups: Iterable[str]
) -> Callable[..., Callable[[], Measured]]:
    """Makes a claim of the function that decides it."""

    def register(rule: Callable[[], Measured]) -> Callable[[], Measured]:
        REGISTERED.append(Claim(title=title, source=source, groups=tuple(groups), rule=rule))
        return rule

    return register


def cell(name: str, first: Estimate, second: Estimate) -> Cell:
    """A cell with the ratio of two estimates."""
    ratio = ratio_of(first, second)
    if ratio is None:
        raise ValueError(f"{name}: {first} and {second} have no ratio")
    return Cell(name=name, estimate=ratio)


def low_end(estimate: Estimate) -> float:
    return estimate.value if estimate.low is None else estimate.low


def high_end(estimate: Estimate) -> float:
    return estimate.value if estimate.high is None else estimate.high


def reach_of(estimate: Estimate) -> float:
    """Half the width of an interval, in doublings; that of the lower half if nothing bounds it
    above."""
    low, high = low_end(estimate), high_end(estimate)
    if math.isinf(high):
        return math.log2(estimate.value / low)
    return math.log2(high / low) / 2


def mean_of(cells: Sequence[Cell]) -> Estimate:
    return together([cell.estimate for cell in cells])


def beyond(estimate: Estimate, side: Literal["above", "below"], bound: float) -> Answer:
    """Agrees if the whole interval lies on that side of the bound, and disagrees if it lies on the
    other."""
    is_above, is_below = low_end(estimate) > bound, high_end(estimate) < bound
    agrees, disagrees = (is_above, is_below) if side == "above" else (is_below, is_above)
    return "agrees" if agrees else "disagrees" if disagrees else "undecided"


def within(estimate: Estimate, low: float, high: float) -> Answer:
    """Agrees if the whole interval lies between the bounds, and disagrees if it lies outside."""
    if low < low_end(estimate) and high_end(estimate) < high:
        return "agrees"
    return "disagrees" if high_end(estimate) < low or low_end(estimate) > high else "undecided"


def all_within(cells: Sequence[Cell], low: float, high: float) -> tuple[int, Answer]:
    """The number of values between the bounds. Agrees if all are, and disagrees if the whole
    interval of one lies outside."""
    inside = sum(low <= one.estimate.value <= high for one in cells)
    if any(within(one.estimate, low, high) == "disagrees" for one in cells):
        return inside, "disagrees"
    return inside, "agrees" if cells and inside == len(cells) else "undecided"
