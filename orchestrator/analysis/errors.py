"""The errors of the points of one curve, as the covariance of log2 of their steps.

Three things are known of a point. Its median would be another one with other seeds: the repeats say
how far apart seeds lie. The goal was passed somewhere between two measurements. And the best of
other trials would be another point: all batch sizes try the same points, so we take two thirds of
them by chance, the same at all batch sizes, and look at how the best of a part differs from part to
part. What all points have in common in this moves no transition.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.analysis.estimates import Estimate, Floats, reach_of
from orchestrator.analysis.points import CurvePoint
from orchestrator.results.repeats import WinnerRepeats

PART = 2 / 3
"""Share of the trials of which a part consists. From part to part the best varies as much as it
would between searches whose points are independent, if two metaparameters matter. If four do, its
variance comes out 0.6 times as large; but points of a design, which lie evenly, vary less, too."""

RESAMPLED = 1000

OWN_WEIGHT = 4
"""The scatter over all batch sizes counts as much as this many more repeats of the point itself,
because the spread of five numbers is a poor estimate."""

LEAST_VARIANCE = 1e-12
"""In doublings: repeats that all take the same steps differ by the rounding of logarithms."""

FEWEST_KNOWN = 3
"""Number of trials of a batch size that must be known, best first, for parts to say anything."""

FEWEST_TRIALS = 16
"""Number of trials that must have competed: parts of four trials say nothing of four others."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Standard deviations of log2 steps behind a curve's intervals, as root mean squares."""

    resolution: float
    seeds: float | None
    """None without repeats. For a minimum over trials, seeds are part of `few_trials`."""
    few_trials: float | None
    """None where too few of the best trials are known."""
    scatter: float
    """The remaining distance of the points from the curve."""


@dataclass(frozen=True, kw_only=True)
class Errors:
    """The known errors of the points of a curve, in the order of the points."""

    resolution: Floats
    """Variances that come from the distance between measurements."""
    seeds: Floats | None = None
    """Variances of medians of repeats."""
    few_trials: Floats | None = None
    """Covariance that comes from the small number of trials."""
    by_part: Floats | None = None
    """How many more steps two thirds of the trials take in the mean, in doublings."""

    @property
    def covariance(self) -> Floats:
        whole: Floats = np.diag(self.resolution + (0 if self.seeds is None else self.seeds))
        return whole if self.few_trials is None else whole + self.few_trials

    def intervals(self, points: Sequence[CurvePoint]) -> list[Estimate]:
        """The steps that each point would take in the median over seeds and other trials. The goal
        was passed after the measurement before. There is no upper end where repeats missed it so
        often that the true median may, and no end where nothing is known of luck."""
        if self.seeds is None and self.few_trials is None:
            return [Estimate(value=point.steps) for point in points]
        ends = [math.inf if p.again and p.again.high is None else p.steps for p in points]
        without = np.diag(self.covariance) - self.resolution
        reach = 2 ** (reach_of(math.inf) * np.sqrt(np.maximum(without, 0)))
        return [
            Estimate(
                value=point.steps,
                low=float((point.steps - point.resolution) / apart),
                high=float(end * apart),
            )
            for point, end, apart in zip(points, ends, reach, strict=True)
        ]

    def of_first(self, count: int) -> Errors:
        """Those of the first points only."""
        seeds, few, part = self.seeds, self.few_trials, self.by_part
        return Errors(
            resolution=self.resolution[:count],
            seeds=None if seeds is None else seeds[:count],
            few_trials=None if few is None else few[:count, :count],
            by_part=None if part is None else part[:count],
        )

    def parts(self, scatter: float) -> Parts:
        seeds, few = self.seeds, self.few_trials
        return Parts(
            resolution=float(np.sqrt(self.resolution.mean())),
            seeds=None if seeds is None else float(np.sqrt(seeds.mean())),
            few_trials=None if few is None else float(np.sqrt(np.diag(few).mean())),
            scatter=scatter,
        )


def errors_of(points: Sequence[CurvePoint]) -> Errors:
    """What the run knows of the errors of the points of one curve."""
    repeats = [point.again for point in points if point.again]
    luck = luck_of(repeats) if len(repeats) == len(points) else None
    # Where each point was trained again but once, seeds can't be told from points.
    few = None if repeats and luck is None else _few_trials(points, luck)
    return Errors(
        resolution=np.array([rounding_variance(point.steps, point.resolution) for point in points]),
        seeds=None
        if luck is None
        else np.array([_seed_variance(luck, again) for again in repeats]),
        few_trials=None if few is None else np.atleast_2d(np.cov(few, rowvar=False, bias=True)),
        by_part=None if few is None else few.mean(axis=0),
    )


def luck_of(repeats: Sequence[WinnerRepeats]) -> Floats | None:
    """log2 of repeats' steps over their mean, of all batch sizes: a few seeds tell little."""
    found = []
    for again in repeats:
        logs = _logs(again)
        if (count := len(logs)) > 1:
            found.append((logs - logs.mean()) * math.sqrt(count / (count - 1)))
    return np.concatenate(found) if found else None


def _logs(again: WinnerRepeats) -> Floats:
    """log2 of repeats' steps. Those that missed the goal count as far above the median as the
    fewest lie below: those that reached it differ less than all would."""
    logs = np.log2(np.maximum(again.steps, 1))
    fewest = logs[: again.count - len(logs)]
    return np.append(logs, 2 * math.log2(max(again.median or 1, 1)) - fewest)


def _seed_variance(luck: Floats, again: WinnerRepeats) -> float:
    """The variance of a median of repeats. Their own scatter counts as much as that of all batch
    sizes: a point whose repeats lie far apart is less well known than others."""
    logs, own, whole = _logs(again), 1.0, float(luck.var())
    if (count := len(logs)) > 1 and whole > LEAST_VARIANCE:
        own = float(logs.var(ddof=1)) / whole
    apart = (OWN_WEIGHT + max(count - 1, 0) * own) / freedom_of(again)
    return apart * variance_of_median(luck, again.count)


def freedom_of(again: WinnerRepeats) -> int:
    """Degrees of freedom of the variance of a median of repeats."""
    return OWN_WEIGHT + max(len(again.steps) - 1, 0)


def variance_of_median(luck: Floats, count: int) -> float:
    """The variance of the median of `count` trainings whose luck is drawn from the one known."""
    chance = np.random.default_rng(0)
    drawn = chance.choice(luck, (RESAMPLED, max(count, 1)))
    return float(np.median(drawn, axis=1).var())


def rounding_variance(steps: float, resolution: float) -> float:
    """The variance of log2 steps that comes from the distance d between measurements: d^2 / 12."""
    return math.log2(max(steps, 1) / max(steps - resolution, 1)) ** 2 / 12


def _few_trials(points: Sequence[CurvePoint], luck: Floats | None) -> Floats | None:
    """log2 of how many more steps the best of each part takes than the best of all (parts, batch
    sizes); None if too few trials are known of some batch size."""
    known = [_known(point) for point in points]
    if not known or min(map(len, known)) < FEWEST_KNOWN:
        return None
    if any(p.row.trials_used < FEWEST_TRIALS or not p.row.searched for p in points):
        return None  # and parts of what a sampler chose say nothing of what it would have chosen
    logs = [np.log2(np.maximum([*one.values()], 1)) for one in known]
    if luck is not None:
        # What differs between medians is partly their seeds, which count by themselves.
        counts = Counter(count for p in points if p.again for _, _, count in p.again.medians)
        by_seeds = sum(times * variance_of_median(luck, n) for n, times in counts.items())
        apart = float(np.mean([of_size.var(ddof=1) for of_size in logs]))
        kept = max(1 - by_seeds / counts.total() / max(apart, 1e-12), 0)
        logs = [of_size.mean() + kept * (of_size - of_size.mean()) for of_size in logs]
    trials = sorted({trial for one in known for trial in one})
    is_in = np.random.default_rng(0).random((RESAMPLED, len(trials))) < PART
    found = []
    for one, of_size in zip(known, logs, strict=True):
        mine = is_in[:, [trials.index(trial) for trial in one]]
        # Where none of the known is among them, an unknown one is the best: at least the last.
        best = np.where(mine, of_size, of_size.max()).min(axis=1)
        found.append(best - of_size.min())
    return np.stack(found, axis=1)


def _known(point: CurvePoint) -> dict[int, float]:
    """Trial -> its steps: medians of repeats, or those of the trials themselves."""
    if point.again is not None:
        return {trial: median for trial, median, _ in point.again.medians}
    return {leader.trial: leader.steps for leader in point.row.leaders}
