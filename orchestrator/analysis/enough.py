"""Were there enough trials? What the number of trials did to the points of a curve, and what the
errors of these points are made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from orchestrator.analysis.best_of import Tried, medians_up_to_all
from orchestrator.analysis.estimates import Estimate
from orchestrator.analysis.hyperbola import rounding_variance
from orchestrator.analysis.points import Point
from orchestrator.analysis.tails import FEWEST_KNOWN, Tails, tails_of
from orchestrator.records import ENOUGH_SIZES

MANY_TRIALS = 100
"""Number of trials that the number of trials made is compared with."""

MOST_TIMES = 5
"""Up to how many times the trials that were made the fewest steps of more trials are said."""


@dataclass(frozen=True, kw_only=True)
class BestOf:
    """The fewest steps that more or fewer trials would have found at one batch size."""

    batch_size: int
    trials: int
    """N: how many competed."""
    steps: int | None
    """The fewest of them; None where no trial is known to be the best."""
    medians: tuple[tuple[int, int], ...]
    """(n, median fewest steps of the best of n), as far as the best trials determine it."""
    beyond: tuple[tuple[int, Estimate], ...] = ()
    """(n, median fewest steps of n trials over `steps`) for more than N, with 90 % intervals."""
    limit: Estimate | None = None
    """The same of ever more trials. It has no interval: the lucky seeds among many trials go below
    any limit of the points, so that intervals covered it too seldom."""
    reason: str = ""
    """Why nothing is said of more trials."""

    def best_of(self, count: int) -> Estimate | None:
        """The median fewest steps of `count` trials, where it is known."""
        ratio = dict(self.beyond).get(count)
        if ratio is None or self.steps is None:
            steps = dict(self.medians).get(count)
            return None if steps is None else Estimate(value=steps)
        ends = [None if end is None else self.steps * end for end in (ratio.low, ratio.high)]
        return Estimate(value=self.steps * ratio.value, low=ends[0], high=ends[1])

    @property
    def hundred(self) -> Estimate | None:
        """The fewest steps of `MANY_TRIALS` trials over those that were found."""
        return dict(self.beyond).get(MANY_TRIALS)


@dataclass(frozen=True, kw_only=True)
class Contributions:
    """What the intervals of a curve are made from: standard deviations of log2 steps (doublings),
    root mean squares over its batch sizes."""

    resolution: float
    """Part that comes from the distance between measurements."""
    seeds: float | None
    """From the seeds of repeats; None where no repeats tell. For a minimum over trials, seeds are
    part of what few trials do."""
    few_trials: float | None
    """Part that comes from few points; None if the best trials do not tell."""
    scatter: float
    """Scatter of the points about the curve beyond the other parts."""

    @property
    def total(self) -> float:
        return math.hypot(self.resolution, self.seeds or 0, self.few_trials or 0, self.scatter)


@dataclass(frozen=True, kw_only=True)
class EqualQuality:
    """The answer if every batch size were tuned equally well, that is, with ever more trials."""

    critical_batch_size: Estimate
    steps_min: Estimate
    perfect_scaling_until: Estimate
    max_useful_batch_size: Estimate
    critical_by_examples: Estimate
    contributions: Contributions
    left_out: tuple[int, ...]
    """Batch sizes of which too few of the best trials are known."""


@dataclass(frozen=True, kw_only=True)
class Errors:
    """The known errors of log2 steps of a curve's points, in their order."""

    seeds: NDArray[np.float64] | None = None
    """Variance of each median of repeats."""
    luck: NDArray[np.float64] | None = None
    """Covariance that comes from how few trials there were."""
    told: tuple[int, ...] = ()
    """Places of the points of which more trials are known to find fewer steps, and how many."""
    shift: NDArray[np.float64] | None = None
    """What ever more trials would add to log2 steps of these points; at most 0."""
    of_shift: NDArray[np.float64] | None = None
    """The covariance of that."""
    reason: str = "how the best trials did is not known"
    """Why there is no shift."""

    @property
    def known(self) -> NDArray[np.float64] | None:
        """The covariance of the points as they are, resolution aside."""
        if self.seeds is None:
            return self.luck
        known: NDArray[np.float64] = np.diag(self.seeds)
        if self.luck is not None:
            known = known + self.luck
        return known

    def contributions(
        self, steps: NDArray[np.float64], resolutions: NDArray[np.float64], scatter: float
    ) -> Contributions:
        """Returns what the errors of the points, as measured, are made of."""
        return contributions_of(steps, resolutions, self.seeds, self.luck, scatter)


def contributions_of(
    steps: NDArray[np.float64],
    resolutions: NDArray[np.float64],
    seeds: NDArray[np.float64] | None,
    few_trials: NDArray[np.float64] | None,
    scatter: float,
) -> Contributions:
    """Sums up the variances of all points and the covariance `few_trials`."""
    return Contributions(
        resolution=float(np.sqrt(rounding_variance(steps, resolutions).mean())),
        seeds=None if seeds is None else float(np.sqrt(seeds.mean())),
        few_trials=None if few_trials is None else float(np.sqrt(np.diag(few_trials).mean())),
        scatter=scatter,
    )


def enough_trials(points: Sequence[Point]) -> tuple[tuple[BestOf, ...], Errors]:
    """Returns what is known of the trials behind the points of one curve."""
    tried = [Tried.of_row(point.row) for point in points]
    told = tuple(
        place
        for place, one in enumerate(tried)
        if len(one.steps) >= FEWEST_KNOWN and one.steps[0] > 0
    )
    seeds = seed_variances(points)
    if len(told) < ENOUGH_SIZES:
        reason = (
            f"the best {FEWEST_KNOWN} trials are known of {len(told)} batch sizes, and it takes "
            f"{ENOUGH_SIZES}: `stop: {{keep: 5}}` keeps the best 5"
        )
        return _without_tails(tried, reason), Errors(seeds=seeds, reason=reason)
    searched = {points[place].row.searched for place in told}
    tails = tails_of(
        [tried[place] for place in told], searched.pop() if len(searched) == 1 else None
    )
    if isinstance(tails, str):
        return _without_tails(tried, tails), Errors(seeds=seeds, reason=tails)
    shift, of_shift = tails.to_limit()
    places = {place: among for among, place in enumerate(told)}
    bests = [_best_of(one, tails, places.get(place)) for place, one in enumerate(tried)]
    errors = Errors(
        seeds=seeds,
        luck=_for_all(tails.luck(), told, len(points)),
        told=told,
        shift=shift,
        of_shift=of_shift,
        reason="",
    )
    return tuple(bests), errors


def _without_tails(tried: Sequence[Tried], reason: str) -> tuple[BestOf, ...]:
    return tuple(
        BestOf(
            batch_size=one.batch_size,
            trials=one.competed,
            steps=one.steps[0] if one.steps else None,
            medians=medians_up_to_all(one),
            reason=reason,
        )
        for one in tried
    )


def _best_of(tried: Tried, tails: Tails, place: int | None) -> BestOf:
    if place is None:
        return _without_tails([tried], f"fewer than {FEWEST_KNOWN} of its best trials are known")[0]
    asked = sorted({2 * tried.competed, MOST_TIMES * tried.competed, MANY_TRIALS})
    return BestOf(
        batch_size=tried.batch_size,
        trials=tried.competed,
        steps=tried.steps[0],
        medians=medians_up_to_all(tried),
        beyond=tuple(
            (count, tails.ratio(place, count))
            for count in asked
            if tried.competed < count <= MOST_TIMES * tried.competed
        ),
        limit=Estimate(value=tails.ratio(place, None).value),
    )


def _for_all(
    covariance: NDArray[np.float64], told: Sequence[int], count: int
) -> NDArray[np.float64]:
    """The covariance of all points, where some have none: as much variance as the largest, and
    independent."""
    whole: NDArray[np.float64] = np.eye(count) * np.diag(covariance).max()
    whole[np.ix_(told, told)] = covariance
    return whole


def seed_variances(points: Sequence[Point]) -> NDArray[np.float64] | None:
    """The variance of log2 steps of each point that comes from the seeds of its repeats. How much
    single repeats differ is taken from all batch sizes together, since few seeds tell little of
    how much they differ. None unless all points are medians."""
    repeats = [point.row.repeats for point in points]
    squares, freedom = 0.0, 0
    for again in repeats:
        if again is not None and len(again.steps) > 1:
            logs = np.log2(np.maximum(again.steps, 1))
            squares += float(((logs - logs.mean()) ** 2).sum())
            freedom += len(logs) - 1
    if not freedom or not all(point.is_median for point in points):
        return None
    return np.array(
        [squares / freedom * variance_of_median(again.count) for again in repeats if again]
    )


def variance_of_median(count: int) -> float:
    """The variance of the median of so many normal draws over that of one; within 2 %."""
    return math.pi / 2 / (count + math.pi / 2 - 1)
