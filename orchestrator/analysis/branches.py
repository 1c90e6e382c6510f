"""Answers how large the batch may be at one point of a training.

A trunk is a training at batch size b. From a checkpoint of it, branches go on at batch sizes k b,
all for the same number of examples L, with several learning rates and several orders of the
examples. Factor k has the cost c_k = L / e_k, where e_k is the number of examples after which
factor 1 had the loss that the branch of factor k has after its L examples.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from orchestrator.analysis.branch_costs import (
    COMPARED_AT,
    END,
    ENOUGH_EVALUATIONS,
    critical_batch_size,
    examples_ratio,
    fifth_more,
    loss_falls,
    smoothing,
)
from orchestrator.analysis.estimates import Estimate, Floats
from orchestrator.records import BadInput

FEWEST_SEEDS = 2
"""Smallest number of seeds that judge: a single one shows no scatter."""

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
    cost less, so its interval begins at 1."""

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


def choosing_seeds(branches: Collection[Branch]) -> tuple[int, ...]:
    """The seeds that choose learning rates and do not judge: a rate is chosen partly because it was
    lucky, so its luck must not count. They are the seeds of the first half that have all factors
    and rates. If each factor has one rate, none are needed.

    With a third instead of half of the seeds, rates are chosen badly so often that 90 % intervals
    cover 86 to 89 % (noisy quadratic, six seeds)."""
    settings = {(each.factor, each.rate) for each in branches}
    if len(settings) == len({factor for factor, _ in settings}):
        return ()
    seeds = sorted({each.seed for each in branches})
    complete = Counter(each.seed for each in branches)
    return tuple(seed for seed in seeds[: len(seeds) // 2] if complete[seed] == len(settings))


def chosen_rates(branches: Collection[Branch]) -> dict[int, float]:
    """Factor -> the rate at which these branches have the lowest mean loss at the end; the lowest
    of equal ones. A rate at which a branch diverged is chosen only if there is no other."""
    length = _length_of(branches)
    losses: dict[tuple[int, float], list[float]] = {}
    for each in branches:
        losses.setdefault((each.factor, each.rate), []).append(_smoothed(each, length)[END])
    rates: dict[int, float] = {}
    for factor, rate in sorted(losses):
        best = rates.setdefault(factor, rate)
        if np.mean(losses[factor, rate]) < np.mean(losses[factor, best]):
            rates[factor] = rate
    return rates


def verdict_of(branches: Collection[Branch], *, batch_size: int, at_examples: int) -> Verdict:
    """The verdict on one point. Judging seeds need no branches at rates that weren't chosen."""
    length = _length_of(branches)
    choosing = choosing_seeds(branches)
    rates = chosen_rates([each for each in branches if not choosing or each.seed in choosing])
    judging = sorted({each.seed for each in branches} - set(choosing))
    _check(branches, rates, choosing, judging)
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
    unknown = _unknown(curves[1], ends[1], round(length), batch_size)
    costs = tuple(
        _cost(factor, rates[factor], ends[factor], curves, known=not unknown) for factor in curves
    )
    limit = Estimate(value=1.0, low=1.0, high=math.inf)
    if not unknown:
        limit = fifth_more({cost.factor: cost.examples_ratio for cost in costs})
    sure = {factor: losses for factor, losses in curves.items() if not ends[factor]}
    return Verdict(
        batch_size=batch_size,
        at_examples=at_examples,
        length=round(length),
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
    if len(tried) == 1 or min(tried) < rate < max(tried):
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
    if not_tried:
        return f"factor 1 is best at the {not_tried[:-2]}est rate, and no {not_tried} one was tried"
    return ""


def _check(
    branches: Collection[Branch],
    rates: Mapping[int, float],
    choosing: Collection[int],
    judging: Sequence[int],
) -> None:
    counts = Counter((each.factor, each.rate, each.seed) for each in branches)
    several = len({(factor, rate) for factor, rate, _ in counts}) > len(rates)
    if min(rates) != 1 or len(rates) < 2:
        raise BadInput(
            f"A verdict needs factor 1 and larger ones, not {sorted(rates)}.", code="branch-count"
        )
    if len(judging) < FEWEST_SEEDS or (several and not choosing):
        raise BadInput(
            f"A verdict needs {FEWEST_SEEDS} seeds that judge and, if a factor has several rates, "
            f"one more in the first half of all that has every factor and rate. But {len(judging)} "
            f"judge and {len(choosing)} choose; add seeds, or give each factor one rate.",
            code="branch-count",
        )
    wanted = [(factor, rate, seed) for factor, rate in rates.items() for seed in judging]
    for factor, rate, seed in (key for key in (*wanted, *counts) if counts[key] != 1):
        raise BadInput(
            f"A verdict needs one branch of factor {factor} at {rate:g} times the learning rate "
            f"for seed {seed}, but has {counts[factor, rate, seed]}.",
            code="branch-count",
        )


def _length_of(branches: Collection[Branch]) -> float:
    """The number of examples of each branch. A branch that diverged may have ended early."""
    sound = [each for each in branches if np.isfinite(each.loss).all()]
    lengths = sorted({float(each.examples[-1]) for each in sound})
    fewest = min((int((each.examples > 0).sum()) for each in sound), default=0)
    if len(lengths) != 1 or fewest < ENOUGH_EVALUATIONS:
        raise BadInput(
            f"Branches must not all diverge, and need one length and {ENOUGH_EVALUATIONS} "
            f"evaluations, but have lengths of {lengths} examples and {fewest} evaluations.",
            code="branch-count",
        )
    return lengths[0]


def _smoothed(branch: Branch, length: float) -> Floats:
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
