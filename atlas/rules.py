"""How claims are decided: what a claim is, and the rules that several claims share.

A claim asks for some numbers: most are products of powers of steps, such as the steps of momentum
over those of SGD. A rule decides from the numbers and their covariance. It says *agrees*,
*disagrees* or *equal* only if whole 90 % intervals say so, and otherwise *undecided*. Where a claim
needs several numbers at once, their intervals are widened so that all of them hold together with
90 % (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from orchestrator.analysis import Estimate

Answer = Literal["agrees", "disagrees", "equal", "undecided", "not measured"]

Floats = NDArray[np.float64]

CONFIDENCE = 0.9


class At(NamedTuple):
    """A point of the atlas: the steps of one study to one goal."""

    group: str
    workload: str
    recipe: str
    goal: str
    batch_size: int


Product = Mapping[At, float]
"""Powers of steps: {a: 1, b: -1} stands for the steps at a over those at b."""


def over(first: Product, second: Product) -> Product:
    """The ratio of two products."""
    return {at: first.get(at, 0.0) - second.get(at, 0.0) for at in dict.fromkeys([*first, *second])}


def mean(products: Sequence[Product]) -> Product:
    """The geometric mean of products."""
    found: dict[At, float] = {}
    for product in products:
        for at, power in product.items():
            found[at] = found.get(at, 0.0) + power / len(products)
    return found


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """Numbers with names, by which a claim is decided, and what is known of their errors."""

    names: Sequence[str]
    values: Floats
    """In doublings, if `doublings`."""
    covariance: Floats
    doublings: bool = True
    degrees: Floats | float = math.inf
    """Degrees of freedom of the errors, of each or of all."""
    open: Sequence[bool] = ()
    """Which have no upper end, because so many repeats missed the goal; none, if empty."""
    speaks: Sequence[int] = ()
    """1 for each comparison that has no number because only one of two sides reaches the goal and
    that speaks for the claim, and -1 for each that speaks against it."""

    def reach(self, together: int = 1) -> Floats:
        """Half the widths of intervals which hold for so many numbers together."""
        # `stats.t.ppf` is the same and takes eighty times as long.
        quantile = special.stdtrit(self.degrees, 1 - (1 - CONFIDENCE) / 2 / together)
        found: Floats = quantile * np.sqrt(np.diag(self.covariance))
        return found

    def ends(self, together: int = 1) -> tuple[Floats, Floats]:
        reach = self.reach(together)
        return self.values - reach, self.values + np.where(self.open or False, math.inf, reach)

    def mean(self, chosen: Sequence[int] | None = None) -> Numbers:
        """The mean of these numbers, or of some: the geometric mean, if they are in doublings. Its
        degrees of freedom are Satterthwaite's."""
        places = [*range(len(self.names))] if chosen is None else [*chosen]
        weights = np.zeros(len(self.names))
        weights[places] = 1 / len(places)
        variances = np.diag(self.covariance)[places]
        degrees = np.broadcast_to(self.degrees, len(self.names))[places]
        return Numbers(
            names=["mean"],
            values=np.array([weights @ self.values]),
            covariance=np.array([[weights @ self.covariance @ weights]]),
            doublings=self.doublings,
            degrees=variances.sum() ** 2 / max((variances**2 / degrees).sum(), 1e-300),
            open=[any(self.open[place] for place in places)] if self.open else (),
            speaks=self.speaks,
        )

    def estimates(self) -> list[Estimate]:
        low, high = self.ends()
        shown = np.exp2 if self.doublings else np.asarray
        return [
            Estimate(value=float(shown(value)), low=float(shown(a)), high=float(shown(b)))
            for value, a, b in zip(self.values, low, high, strict=True)
        ]


NEVER = Estimate(value=math.inf, low=math.inf, high=math.inf)
"""The steps to a goal that most repeats never reach, over those of others that do."""

Decide = Callable[[Numbers], Answer]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a claim asks for, and how it is decided."""

    products: Mapping[str, Product] = field(default_factory=dict)
    numbers: Numbers | None = None
    """Numbers that are no products of steps, in place of `products`."""
    decide: Decide
    speaks: Sequence[int] = ()
    """As in `Numbers`, for `products`."""
    matters: Floats | float
    """The numbers if the claim is true by the margin that matters; in doublings, as `numbers`."""
    false: Floats | float = 0.0
    """The numbers if it is false, at the bound of the rule."""
    said: Callable[[Numbers], str]
    """What was measured, in a sentence."""
    axis: str
    bounds: tuple[float, ...] = ()
    """The bounds of the rule, on that axis."""
    beside: Sequence[tuple[str, Estimate]] = ()
    """Estimates that are shown, but do not decide."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim of a paper."""

    title: str
    groups: tuple[str, ...]
    """The names of the runs that decide it."""
    rule: Callable[[], Asked]
    """What it asks for. Its docstring has the claim, and how it is decided."""
    advice: Mapping[Answer, str]
    """What an answer means for somebody who chooses a batch size tomorrow."""

    @property
    def name(self) -> str:
        return self.rule.__name__


REGISTERED: list[Claim] = []
"""The claims so far, in the order of the page."""


def claim(
    *, title: str, groups: Iterable[str], **advice: str
) -> Callable[..., Callable[[], Asked]]:
    """Makes a claim of the function that says what it asks for. `advice` maps answers to what they
    mean."""

    def register(rule: Callable[[], Asked]) -> Callable[[], Asked]:
        REGISTERED.append(
            Claim(
                title=title,
                groups=tuple(groups),
                rule=rule,
                advice=dict(advice),  # type: ignore[arg-type]
            )
        )
        return rule

    return register


def more(margin: float) -> Decide:
    """The mean is above 1. *Equal*, which goes first: its interval lies within a factor `margin` of
    1. Otherwise *agrees* if the interval lies above 1, and *disagrees* if it lies below. None of
    these while a comparison without a number speaks against it."""

    def decide(numbers: Numbers) -> Answer:
        if not len(numbers.names):
            return "undecided"
        (low,), (high,) = numbers.mean().ends()
        inside = math.log2(margin)
        if -inside < low and high < inside and not numbers.speaks:
            return "equal"
        if low > 0 and -1 not in numbers.speaks:
            return "agrees"
        return "disagrees" if high < 0 and 1 not in numbers.speaks else "undecided"

    return decide


def same(margin: float) -> Decide:
    """The mean is about 1. *Agrees* if its interval lies within a factor `margin` of 1 and no
    number lies outside with its whole interval, widened for all. *Disagrees* if the mean lies
    outside."""

    def decide(numbers: Numbers) -> Answer:
        if not len(numbers.names):
            return "undecided"
        (low,), (high,) = numbers.mean().ends()
        inside = math.log2(margin)
        if low > inside or high < -inside:
            return "disagrees"
        below, above = numbers.ends(len(numbers.names))
        is_outside = (below > inside).any() or (above < -inside).any()
        near = -inside < low and high < inside and not is_outside and not numbers.speaks
        return "agrees" if near else "undecided"

    return decide


def each_within(low: float, high: float) -> Decide:
    """Every number lies between the bounds. *Agrees* if the interval of each does, and *disagrees*
    if one lies outside even when intervals are widened for all numbers."""
    least, most = math.log2(low), math.log2(high)

    def decide(numbers: Numbers) -> Answer:
        if not len(numbers.names):
            return "undecided"
        below, above = numbers.ends()
        if (below > least).all() and (above < most).all():
            return "agrees"
        below, above = numbers.ends(len(numbers.names))
        return "disagrees" if (above < least).any() or (below > most).any() else "undecided"

    return decide
