"""What the best trials of a curve say of trials that were not made: those of a longer search.

Near the fewest steps a that any point of the search space needs, the share of points that need at
most y steps is F(y) = ((y - a) / (b - a))^(c / 2). c is the number of metaparameters that matter.
It belongs to the recipe and is the same at all batch sizes of a curve; a and b belong to a batch
size. With the k best of N known, w = F(y_k) follows a beta distribution. Given y_k, the likelihood
of c and a is the product of [F(y_i) - F(y_i - resolution_i)] / F(y_k). We average over all a, b
and c instead of taking the likeliest ones, because five trials leave much open.

Before the measurements every a from `LEAST_OF_BEST` y_1 to y_1 is equally likely, and so is every
logarithm of b - a: for a known c, without a bound and with independent points, 90 % intervals of a
then cover it in 90 % of cases. c lies between 1 and twice the number of metaparameters that were
searched, because one whose optimum is a cliff counts double; its density is 1 / c^2. Bound and
density were chosen so that intervals cover the truth of planted laws under quasi-random points
(`python benchmarks/coverage.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

from orchestrator.analysis.best_of import Tried
from orchestrator.analysis.estimates import Estimate
from orchestrator.analysis.hyperbola import CONFIDENCE

Numbers = NDArray[np.float64]

LEAST_OF_BEST = 0.4
"""The fewest steps that any point needs are at least so many times those of the best trial."""

TAIL_SHARE = 0.25
"""Only the best quarter of the trials is used, for further up the law does not hold."""

FEWEST_KNOWN = 3
"""Best trials that must be known of a batch size."""

WORST_FIT = 1.3
"""Largest distance between the trials and the law, of `_distance` and per root of the batch sizes
that are as good as independent, up to which the law is used. 99 % of planted studies come to less
than 1.0 where all batch sizes share their points (`benchmarks/coverage.py`); a single batch size
with three trials between the first and the last comes to 1.4."""

CALIBRATION = (0.75, 4.5)
"""Variances for the curve are 0.75 min(c / 6, 1) + 4.5 / k times those of the average over a, b and
c. The first part is below 1 because quasi-random points lie more evenly than independent ones, and
the more so the fewer metaparameters matter. The second part is there because few trials say too
little of whether the law holds as far as they go (`python benchmarks/coverage.py`)."""

INDEPENDENT = 6.0
"""The c from which on quasi-random points count as independent ones."""

APART = 0.12
"""The correlation of errors shrinks by exp(-0.12) for each doubling between two batch sizes, beside
what their best trials say. Two batch sizes can share several of their best trials although the very
best ones, which decide how far the minimum lies above the limit, have nothing in common."""

EXPONENTS, FEWEST, SHARES = 10, 64, 9
"""Values of c, a and w that are averaged over."""


@dataclass(frozen=True, kw_only=True)
class _Size:
    """The tail at one batch size, in steps."""

    best: float
    """Steps of the best trial, to the middle of the interval in which it passed the goal."""
    competed: int
    """N"""
    known: int
    """k"""
    fewest: Numbers
    """a"""
    last: float
    """y_k"""
    shares: Numbers
    """w = F(y_k), equally likely values."""
    weights: Numbers
    """Probability of each c and a, given all trials of the curve. They add up to one."""


@dataclass(frozen=True, kw_only=True)
class Tails:
    """What more trials would find at each batch size of a curve, as a distribution."""

    exponents: Numbers
    """c"""
    sizes: tuple[_Size, ...]
    together: Numbers
    """The correlation of the errors of two batch sizes."""

    def ratio(self, place: int, count: int | None) -> Estimate:
        """The steps of the median best of `count` trials, or with None of ever more, over those of
        the best trial that was found, at the batch size in that place."""
        size = self.sizes[place]
        logs, weights = self._log_ratios(size, count)
        order = np.argsort(logs, axis=None)
        below = np.cumsum(weights.ravel()[order])
        ends = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)
        low, high = np.interp(ends, below / below[-1], logs.ravel()[order])
        return Estimate(
            value=float(2 ** (logs * weights).sum()), low=float(2**low), high=float(2**high)
        )

    def to_limit(self) -> tuple[Numbers, Numbers]:
        """The logarithms (base 2) of the ratios of ever more trials at all batch sizes, and the
        covariance of their errors."""
        return self._shifts([None for _ in self.sizes])

    def luck(self) -> Numbers:
        """The covariance (base 2) of the errors of the best of N as an estimate of its median."""
        shift, covariance = self._shifts([size.competed for size in self.sizes])
        return covariance + self.together * np.outer(abs(shift), abs(shift))

    def _shifts(self, counts: Sequence[int | None]) -> tuple[Numbers, Numbers]:
        """Those of the best of so many trials at each batch size. c is the same at all of them, so
        what is unknown of it moves all of them together."""
        means, spreads = [], []
        for size, count in zip(self.sizes, counts, strict=True):
            logs, weights = self._log_ratios(size, count)
            of_each = np.maximum(weights.sum(axis=(1, 2)), 1e-300)
            mean = (logs * weights).sum(axis=(1, 2)) / of_each
            square = (logs**2 * weights).sum(axis=(1, 2)) / of_each
            means.append(mean)
            evenness = np.minimum(self.exponents / INDEPENDENT, 1)
            calibrated = CALIBRATION[0] * evenness + CALIBRATION[1] / size.known
            spreads.append((np.maximum(square - mean**2, 0) * of_each * calibrated).sum())
        of_exponent = self.sizes[0].weights.sum(axis=1)
        shift = np.array([(mean * of_exponent).sum() for mean in means])
        off = np.array(means) - shift[:, None]
        deviations = np.sqrt(spreads)
        covariance = self.together * np.outer(deviations, deviations)
        return shift, covariance + (off * of_exponent) @ off.T

    def _log_ratios(self, size: _Size, count: int | None) -> tuple[Numbers, Numbers]:
        """The logarithm for each c, a and w, and how likely each is."""
        steps = size.fewest[None, :, None]
        if count is not None:
            # Where the best of `count` lies in half of all cases, as a share of all points.
            share = -np.expm1(np.log(0.5) / count)
            part = np.minimum(share / size.shares, 1)[None, None, :]
            reach = (size.last - size.fewest)[None, :, None]
            steps = steps + reach * part ** (2 / self.exponents)[:, None, None]
        shape = (len(self.exponents), len(size.fewest), len(size.shares))
        logs = np.broadcast_to(np.log2(steps / size.best), shape)
        weights = np.broadcast_to(size.weights[:, :, None] / len(size.shares), shape)
        return logs, weights


def tails_of(curve: Sequence[Tried], searched: int | None) -> Tails | str:
    """The tails of the batch sizes of one curve, each with at least `FEWEST_KNOWN` trials, of which
    `searched` metaparameters were varied; or why there are none, in words."""
    if searched is None:
        return "the points were not chosen by a design, so they are no sample of the search space"
    if not searched or not curve:
        return "nothing was searched"
    exponents = np.linspace(1, 2 * max(searched, 1), EXPONENTS)
    used = [one.best(tail_length(one)) for one in curve]
    likelihoods = [_likelihood(one, exponents) for one in used]
    evidence = np.array([likelihood.sum(axis=1) for _, likelihood in likelihoods])
    logs = np.log(np.maximum(evidence, 1e-300)).sum(axis=0) - 2 * np.log(exponents)
    of_exponent = np.exp(logs - logs.max())
    of_exponent /= of_exponent.sum()
    sizes = tuple(
        _Size(
            best=one.steps[0] - one.resolutions[0] / 2,
            competed=one.competed,
            known=len(one.steps),
            fewest=fewest,
            last=float(one.steps[-1]),
            shares=_shares(one),
            weights=likelihood / np.maximum(mine, 1e-300)[:, None] * of_exponent[:, None],
        )
        for one, (fewest, likelihood), mine in zip(used, likelihoods, evidence, strict=True)
    )
    together = _together(used)
    # Batch sizes that share their best trials are as good as one.
    independent = len(used) / max(together.sum(), 1)
    if _distance(used, sizes, exponents) * np.sqrt(independent) > WORST_FIT:
        return "the best trials do not lie as in F(y) = ((y - a) / (b - a))^(c / 2)"
    places = np.log2([one.batch_size for one in used])
    doublings = abs(np.subtract.outer(places, places))
    return Tails(exponents=exponents, sizes=sizes, together=together * np.exp(-APART * doublings))


def tail_length(tried: Tried) -> int:
    """Returns how many of the best trials are used."""
    return min(len(tried.steps), max(FEWEST_KNOWN, int(TAIL_SHARE * tried.competed)))


def _likelihood(tried: Tried, exponents: Numbers) -> tuple[Numbers, Numbers]:
    """Values of a, and how likely each is with each c, up to a factor."""
    steps = np.array(tried.steps, dtype=np.float64)
    # More of them close to the best trial, where the likelihood changes fastest.
    place = (np.arange(FEWEST) + 0.5) / FEWEST
    fewest = steps[0] * (1 - (1 - LEAST_OF_BEST) * place**3)
    beyond = steps - fewest[:, None]
    earlier = np.maximum(beyond - np.maximum(tried.resolutions, 1), 0)
    half = exponents[:, None, None] / 2
    last = beyond[:, -1:]
    within = (beyond / last) ** half - (earlier / last) ** half
    logs = np.log(np.maximum(within, 1e-300)).sum(axis=2) + np.log(place**2)
    return fewest, np.exp(logs - logs.max())


def _shares(tried: Tried) -> Numbers:
    """Equally likely values of F(y_k)."""
    known = len(tried.steps)
    places = (np.arange(SHARES) + 0.5) / SHARES
    shares: Numbers = betaincinv(known, tried.competed - known + 1, places)
    return shares


def _together(curve: Sequence[Tried]) -> Numbers:
    """The correlation of which trials are among the best of two batch sizes."""
    count = max(one.competed for one in curve)
    count = max(count, 1 + max(trial for one in curve for trial in one.trials))
    among = np.zeros((len(curve), count))
    for row, one in zip(among, curve, strict=True):
        row[list(one.trials)] = 1
    centred = among - among.mean(axis=1, keepdims=True)
    # Where all trials there are are among the best, they are the same at every batch size.
    centred = np.where(centred.any(axis=1, keepdims=True), centred, among)
    centred /= np.linalg.norm(centred, axis=1, keepdims=True)
    together: Numbers = centred @ centred.T
    return together


def _distance(curve: Sequence[Tried], sizes: Sequence[_Size], exponents: Numbers) -> float:
    """How far the trials between the best and the last one are from where the law has them. Given
    these two, F of the others is an even sample between F(y_1) and F(y_k). This is the largest
    distance between the shares of all batch sizes together and even ones, times the root of their
    number (Kolmogorov and Smirnov)."""
    found = []
    for one, size in zip(curve, sizes, strict=True):
        middles = np.array(one.steps) - np.array(one.resolutions) / 2
        beyond = np.maximum(middles - size.fewest[:, None], 0)
        last = np.maximum(beyond[:, -1:], 1e-300)
        shares = (beyond / last) ** (exponents[:, None, None] / 2)
        span = np.maximum(shares[..., -1:] - shares[..., :1], 1e-300)
        between = (shares[..., 1:-1] - shares[..., :1]) / span
        found += (between * size.weights[:, :, None]).sum(axis=(0, 1)).tolist()
    places = np.sort(found)
    even = np.arange(len(places)) / len(places)
    distance = max((places - even).max(), (even + 1 / len(places) - places).max())
    return float(distance * np.sqrt(len(places)))
