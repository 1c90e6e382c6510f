"""Answers how large the batch may be at one point of a training.

A trunk is a training at batch size b. From a checkpoint of it, branches go on at batch sizes k b,
all for the same number of examples L, with several learning rates and several orders of the
examples. Factor k has the cost c_k = L / e_k, where e_k is the number of examples after which
factor 1 had the loss that the branch of factor k has after its L examples.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import chain, pairwise

import numpy as np

from orchestrator.analysis.branch_costs import (
    COMPARED_AT,
    END,
    critical_batch_size,
    examples_ratio,
    fifth_more,
    loss_falls,
    smoothing,
)
from orchestrator.analysis.estimates import Estimate, Floats
from orchestrator.records import BadInput

STILL = math.log(1.25)
"""Largest change of the logarithm of an answer from one length to the next that still counts as
unchanged, however narrow the intervals are."""


@dataclass(frozen=True, kw_only=True)
class Branch:
    """One training that goes on from the point."""

    factor: int
    """Batch size as a multiple of the trunk's."""
    rate: float
    """Learning rate as a multiple of the trunk's at the point."""
    seed: int
    """Seed of the order of examples, the same at all factors and rates."""
    examples: Floats
    """Examples trained since the point, at each evaluation. They rise, perhaps from 0."""
    loss: Floats


@dataclass(frozen=True, kw_only=True)
class FactorCost:
    factor: int
    rate: float
    examples_ratio: Estimate
    """c_k. Infinite if a branch diverged, or if they end no lower than factor 1 began."""
    not_tried: str = ""
    """`lower` or `higher` if the best rate was the lowest or the highest of several: others may
    cost less, so its interval begins at 1. `any other` if factor 1 had a single rate: at its best
    one, it may need fewer examples, so all others may cost more."""

    @property
    def is_cheaper(self) -> bool:
        """Whether it takes fewer examples than factor 1, which is no scaling and follows no law: as
        with momentum, whose memory is longer in examples at larger batch sizes."""
        high = self.examples_ratio.high
        return high is not None and high < 1


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The answer for one point. An infinite value, or end of an interval, means "at least"."""

    batch_size: int
    """Batch size of the trunk."""
    at_examples: int
    length: int
    """Number of examples of each branch."""
    seeds: int
    is_known: bool
    """Whether the loss of factor 1 falls beyond its noise at its best rate. If not, there is no
    answer, and keeping the trunk's batch size is on the safe side."""
    unknown: str = ""
    """The reason why there is no answer; empty if there is one."""
    costs: tuple[FactorCost, ...]
    """The cost of each factor, in ascending order."""
    critical: Estimate | None
    """B_crit of c_k = (1 + k b / B_crit) / (1 + b / B_crit), by all factors that did not diverge;
    None if all did, if one takes fewer examples than factor 1, or if nothing is known."""
    fifth_more: Estimate
    """The factor that costs a fifth more examples, between those that were measured."""
    fifth_more_batch_size: Estimate

    @property
    def sure_batch_size(self) -> float:
        """Lower bound of the batch size that costs a fifth more examples, within those measured."""
        return min(self.fifth_more_batch_size.ends[0], self.costs[-1].factor * self.batch_size)


def chosen_rates(branches: Collection[Branch], length: int) -> dict[int, float]:
    """Factor -> the rate at which these branches have the lowest mean loss at the end; the lowest
    of equal ones. A rate at which a branch diverged is chosen only if there is no other."""
    losses: dict[tuple[int, float], list[float]] = {}
    for each in branches:
        losses.setdefault((each.factor, each.rate), []).append(_smoothed(each, length)[END])
    if not np.isfinite([*chain(*losses.values())]).any():
        raise BadInput(
            "All branches diverged, at each of their learning rates. Add lower ones.",
            code="branch-count",
        )
    rates: dict[int, float] = {}
    for factor, rate in sorted(losses):
        best = rates.setdefault(factor, rate)
        if np.mean(losses[factor, rate]) < np.mean(losses[factor, best]):
            rates[factor] = rate
    return rates


def verdict_of(
    branches: Collection[Branch], *, choosing: int, length: int, batch_size: int, at_examples: int
) -> Verdict:
    """The verdict on one point from branches of a length in examples. Seeds below `choosing` choose
    the learning rates, of which they need all, and do not judge: a rate is chosen partly because it
    was lucky, so its luck must not count. If each factor has one rate, none need to choose.

    If a third instead of half of the seeds choose, rates are chosen badly so often that 90 %
    intervals cover 86 to 89 % (noisy quadratic, six seeds)."""
    rates = chosen_rates(
        [each for each in branches if each.seed < choosing or not choosing], length
    )
    judging = sorted({each.seed for each in branches if each.seed >= choosing})
    table = {(each.factor, each.rate, each.seed): each for each in branches}
    curves = {
        factor: np.array([_smoothed(table[factor, rate, seed], length) for seed in judging])
        for factor, rate in rates.items()
    }
    if not np.isfinite(curves[1]).all():
        raise BadInput(
            f"Factor 1 must not diverge at the best of its learning rates, but it did at "
            f"{rates[1]:g} times the trunk's. Add lower ones."
        )
    ends = {factor: _not_tried(branches, factor, rate) for factor, rate in rates.items()}
    unknown = _unknown(curves[1], ends[1], length, batch_size)
    costs = tuple(
        _cost(factor, rates[factor], ends[factor], curves, known=not unknown) for factor in curves
    )
    limit = Estimate(value=1.0, low=1.0, high=math.inf)
    if not unknown:
        limit = fifth_more({cost.factor: cost.examples_ratio for cost in costs})
    sure = {k: losses for k, losses in curves.items() if k == 1 or not ends[k]}
    return Verdict(
        batch_size=batch_size,
        at_examples=at_examples,
        length=length,
        seeds=len(judging),
        costs=costs,
        is_known=not unknown,
        unknown=unknown,
        critical=None
        if unknown or any(cost.is_cheaper for cost in costs)
        else critical_batch_size(sure, batch_size),
        fifth_more=limit,
        fifth_more_batch_size=limit.times(batch_size),
    )


def _not_tried(branches: Collection[Branch], factor: int, rate: float) -> str:
    """Which rates may be better than the best, if that is an end of those that were tried."""
    tried = {each.rate for each in branches if each.factor == factor}
    if len(tried) == 1:
        return "any other" if factor == 1 else ""
    if min(tried) < rate < max(tried):
        return ""
    return "lower" if rate == min(tried) else "higher"


def _cost(
    factor: int, rate: float, not_tried: str, curves: Mapping[int, Floats], *, known: bool
) -> FactorCost:
    ratio = Estimate(value=1.0, low=1.0, high=1.0)
    if factor > 1:
        ratio = Estimate(value=math.nan, low=0.0, high=math.inf)
        if known:
            ratio = examples_ratio(curves[1], curves[factor])
        if not_tried:
            ratio = replace(ratio, low=min(ratio.ends[0], 1.0))
    return FactorCost(factor=factor, rate=rate, examples_ratio=ratio, not_tried=not_tried)


def _unknown(reference: Floats, not_tried: str, length: int, batch_size: int) -> str:
    if not loss_falls(reference):
        return (
            f"at batch size {batch_size:,} itself the loss does not fall beyond its noise within "
            f"{length:,} examples; longer branches, more seeds or another loss may tell"
        )
    if not_tried in ("lower", "higher"):
        return f"factor 1 is best at the {not_tried[:-2]}est rate, and no {not_tried} one was tried"
    return ""


def _smoothed(branch: Branch, length: int) -> Floats:
    """The smoothed loss at all `COMPARED_AT`; infinite if the loss was not always finite."""
    if np.isfinite(branch.loss).all():
        with np.errstate(over="ignore", invalid="ignore"):
            losses: Floats = smoothing(tuple((branch.examples / length).tolist())) @ branch.loss
        if np.isfinite(losses).all():
            return losses
    return np.full(len(COMPARED_AT), np.inf)


def settled(verdicts: Collection[Verdict]) -> bool:
    """Whether the last three of the verdicts on one point, at doubled lengths, agree with each
    other one after another. Two verdicts agree if the factor that costs a fifth more is the same
    to within a quarter, if each lies in the other's interval, or if both say "at least"."""
    last = sorted(verdicts, key=lambda each: each.length)[-3:]
    return len(last) == 3 and all(
        a.is_known and b.is_known and _agree(a.fifth_more, b.fifth_more) for a, b in pairwise(last)
    )


def _agree(first: Estimate, second: Estimate) -> bool:
    if first.value == second.value or abs(math.log(first.value) - math.log(second.value)) < STILL:
        return True
    return first.holds(second.value) and second.holds(first.value)
