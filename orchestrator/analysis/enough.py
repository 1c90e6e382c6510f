"""Estimates whether there were enough trials: how the number of trials affects the points of a
curve, and which errors these points have."""

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
"""The number of trials with which the number that was made is compared."""

MOST_TIMES = 5
"""The fewest steps of more trials are estimated for up to this many times the trials made."""


@dataclass(frozen=True, kw_only=True)
class BestOf:
    """The fewest steps that more or fewer trials would have found at one batch size."""

    batch_size: int
    trials: int
    """N, the number of trials that competed."""
    steps: int | None
    """The fewest steps of any of these trials; None where no trial is known to be the best."""
    medians: tuple[tuple[int, int], ...]
    """(n, median fewest steps of the best of n), as far as the best trials determine it."""
    beyond: tuple[tuple[int, Estimate], ...] = ()
    """(n, ratio) for n above N: the median fewest steps of n trials over `steps`, with a 90 %
    interval."""
    limit: Estimate | None = None
    """The same ratio in the limit of infinitely many trials. It has no interval: lucky seeds among
    many trials go below any limit of the points, so intervals covered the truth too seldom."""
    reason: str = ""
    """The reason why nothing is known about more trials; empty if it is known."""

    def best_of(self, count: int) -> Estimate | None:
        """Returns the median fewest steps of `count` trials, where it is known."""
        ratio = dict(self.beyond).get(count)
        if ratio is None or self.steps is None:
            steps = dict(self.medians).get(count)
            return None if steps is None else Estimate(value=steps)
        ends = [None if end is None else self.steps * end for end in (ratio.low, ratio.high)]
        return Estimate(value=self.steps * ratio.value, low=ends[0], high=ends[1])

    @property
    def hundred(self) -> Estimate | None:
        """The fewest steps of `MANY_TRIALS` trials over the fewest steps that were found."""
        return dict(self.beyond).get(MANY_TRIALS)


@dataclass(frozen=True, kw_only=True)
class Contributions:
    """The errors behind the intervals of a curve: standard deviations of log2 steps (in doublings),
    as root mean squares over its batch sizes."""

    resolution: float
    """The error that comes from the distance between measurements, in doublings."""
    seeds: float | None
    """The error that comes from the seeds of repeats, in doublings; None without repeats. For a
    minimum over trials, the effect of seeds is part of `few_trials`."""
    few_trials: float | None
    """The error that comes from the small number of points tried, in doublings; None where the best
    trials do not determine it."""
    scatter: float
    """The remaining distance of the points from the curve, in doublings."""

    @property
    def total(self) -> float:
        return math.hypot(self.resolution, self.seeds or 0, self.few_trials or 0, self.scatter)


@dataclass(frozen=True, kw_only=True)
class EqualQuality:
    """The answer if every batch size were tuned equally well, that is, with infinitely many
    trials."""

    critical_batch_size: Estimate
    steps_min: Estimate
    perfect_scaling_until: Estimate
    max_useful_batch_size: Estimate
    critical_by_examples: Estimate
    contributions: Contributions
    left_out: tuple[int, ...]
    """Batch sizes at which too few of the best trials are known."""


@dataclass(frozen=True, kw_only=True)
class Errors:
    """The known errors of log2 steps of a curve's points, in the order of the points."""

    seeds: NDArray[np.float64] | None = None
    """Variance of each median of repeats."""
    luck: NDArray[np.float64] | None = None
    """Covariance of the points that comes from the small number of trials."""
    told: tuple[int, ...] = ()
    """Indices of the points for which it is known how many fewer steps more trials would find."""
    shift: NDArray[np.float64] | None = None
    """The change of log2 steps of these points with infinitely many trials; never above 0."""
    of_shift: NDArray[np.float64] | None = None
    """The covariance of `shift`."""
    reason: str = "how the best trials did is not known"
    """The reason why there is no shift; empty if there is one."""

    @property
    def known(self) -> NDArray[np.float64] | None:
        """The covariance of the points as measured, without the part from resolution."""
        if self.seeds is None:
            return self.luck
        known: NDArray[np.float64] = np.diag(self.seeds)
        if self.luck is not None:
            known = known + self.luck
        return known

    def contributions(
        self, steps: NDArray[np.float64], resolutions: NDArray[np.float64], scatter: float
    ) -> Contributions:
        """Returns the sources of error of the points as measured."""
        return contributions_of(steps, resolutions, self.seeds, self.luck, scatter)


def contributions_of(
    steps: NDArray[np.float64],
    resolutions: NDArray[np.float64],
    seeds: NDArray[np.float64] | None,
    few_trials: NDArray[np.float64] | None,
    scatter: float,
) -> Contributions:
    """Returns the sources of error, from the variances of all points and their covariance
    `few_trials`."""
    return Contributions(
        resolution=float(np.sqrt(rounding_variance(steps, resolutions).mean())),
        seeds=None if seeds is None else float(np.sqrt(seeds.mean())),
        few_trials=None if few_trials is None else float(np.sqrt(np.diag(few_trials).mean())),
        scatter=scatter,
    )


def enough_trials(points: Sequence[Point]) -> tuple[tuple[BestOf, ...], Errors]:
    """Returns what is known about the trials behind the points of one curve."""
    tried = [Tried.of_row(point.row) for point in points]
    told = tuple(
        place
        for place, one in enumerate(tried)
        if len(one.steps) >= FEWEST_KNOWN and one.steps[0] > 0
    )
    seeds = seed_variances(points)
    if len(told) < ENOUGH_SIZES:
        reason = (
            f"this takes the best {FEWEST_KNOWN} trials of {ENOUGH_SIZES} batch sizes, "
            f"and they are known of {len(told) or 'none'}: `stop: {{keep: 5}}` keeps the best 5"
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
    """Returns the covariance of all points. A point without a known variance gets the largest one,
    and is independent of the others."""
    whole: NDArray[np.float64] = np.eye(count) * np.diag(covariance).max()
    whole[np.ix_(told, told)] = covariance
    return whole


def seed_variances(points: Sequence[Point]) -> NDArray[np.float64] | None:
    """Returns the variance of log2 steps of each point that comes from the seeds of its repeats.
    The spread of single repeats is estimated from all batch sizes together, because a few seeds
    determine it poorly. Returns None unless all points are medians."""
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
    """Returns the variance of the median of `count` normal draws over the variance of one draw, to
    within 2 %."""
    return math.pi / 2 / (count + math.pi / 2 - 1)
