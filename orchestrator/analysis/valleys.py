"""Where curves of a value against batch size have their minimum.

Each curve is a parabola in log2 of the batch size plus a deviation: a random function whose third
derivative is white noise. So a valley may be steeper on one side than on the other, as the points
ask for. As likely as not, it has a kink as well: a place, all equally likely, from which on its
slope is larger. The size of the deviation is not known, nor is the scatter of points about their
curve. Each of their values, and each place of a kink, counts as much as the points allow; the
scatter is the same for all curves that are given together. From all these curves we draw `DRAWS`
for each valley. The answer is the median of the places of their minima, and the 90 % interval
leaves out a twentieth on either side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.analysis.curve import DRAWS, ENDS
from orchestrator.analysis.estimates import Estimate, Floats
from orchestrator.records import ENOUGH_SIZES

HIGH = 6.0
"""Points further above the lowest one than so many times the fourth lowest, or the next where that
one is as low, are not used: walls say little about the bottom of a valley."""

DEVIATIONS = np.array([0.7, 1.4])
"""Changes of the curvature over one doubling, as shares of the curvature of the parabola."""

LEAST, SCATTERS = 2e-3, 19
"""The least standard deviation of a point about its curve, as a share of the height of the valley,
and the number of those up to the whole height."""

FREE = 30.0
"""Standard deviation of the coefficients of the parabola in heights of the valley: no knowledge."""

TIED = 1e-12
"""Height up to which all values of a valley count as equal."""

KINK = 2.0
"""Size of the change of slope at a kink, in heights of the valley over half its width: the standard
deviation of a normal distribution, of which the positive half counts."""

COMPARED_AT = 101
"""Number of batch sizes, from the smallest to the largest, at which drawn curves are compared."""


@dataclass(frozen=True, kw_only=True)
class Points:
    """A curve: the value at each batch size, from the smallest up."""

    log_sizes: Floats
    values: Floats
    errors: Floats
    """Standard deviations of the values as far as they are known; 0 where they are not."""


def minima(curves: Sequence[Points]) -> list[Estimate]:
    """Each curve's place of the minimum, as a batch size. An end of its interval is 0 or infinite
    if it may lie at an end of what was tried, or beyond. Each needs `ENOUGH_SIZES` points."""
    if not curves:
        return []
    from scipy.special import logsumexp

    valleys = [_Valley(points) for points in curves]
    heights = [valley.height for valley in valleys if valley.height > TIED] or [TIED]
    scatter = np.geomspace(LEAST * min(heights), max(heights), SCATTERS)
    likelihoods = [valley.likelihoods(scatter) for valley in valleys]
    # How likely each scatter is, by all curves.
    marginal = [logsumexp(one, axis=(0, 2)) for one in likelihoods]
    return [
        valley.minimum(scatter, one + (sum(marginal) - own)[:, None])
        for valley, one, own in zip(valleys, likelihoods, marginal, strict=True)
    ]


class _Valley:
    def __init__(self, points: Points) -> None:
        used = _near(points.values)
        self.sizes = points.log_sizes[used]
        self.values = points.values[used] - points.values[used].min()
        self.errors = points.errors[used]
        self.height = max(float(self.values.max()), TIED)
        self.is_whole = used.start == 0, used.stop == len(points.values)
        self.compared_at = np.linspace(self.sizes[0], self.sizes[-1], COMPARED_AT)
        everywhere = np.concatenate([self.sizes, self.compared_at])
        x, half = everywhere - self.sizes[0], (self.sizes[-1] - self.sizes[0]) / 2
        around = x / half - 1
        self._parabola = FREE * self.height * np.stack([np.ones_like(x), around, around**2], axis=1)
        least, apart = np.minimum(x[:, None], x), np.abs(x[:, None] - x)
        # The covariance of white noise that is integrated three times, and a root of it.
        wiggle = least**5 / 20 + apart * least**4 / 8 + apart**2 * least**3 / 12
        values, vectors = np.linalg.eigh(wiggle * (self.height / half**2) ** 2)
        self._wiggle = vectors * np.sqrt(np.maximum(values, 0))
        kinks = np.maximum(everywhere[:, None] - self.compared_at[:-1], 0)
        kinks[:, 0] = 0  # a curve without a kink
        self._kinks = KINK * self.height / half * kinks

    def _covariance(self, share: float, scatter: Floats) -> tuple[Floats, Floats]:
        """Of the curve everywhere with it at the points, and of the points, by scatter."""
        count = len(self.sizes)
        root = np.concatenate([self._parabola, share * self._wiggle], axis=1)
        curve = root @ root[:count].T
        noise = scatter[:, None] ** 2 + self.errors**2
        return curve, curve[:count] + noise[:, :, None] * np.eye(count)

    def likelihoods(self, scatter: Floats) -> Floats:
        """(deviations, scatter, kinks): the logarithm of the likelihood."""
        from scipy.special import log_ndtr

        kinks = self._kinks[: len(self.sizes)]
        of_points = np.stack([self._covariance(share, scatter)[1] for share in DEVIATIONS])
        _, size = np.linalg.slogdet(of_points)
        solved = np.linalg.solve(of_points, np.column_stack([self.values, kinks])[None, None])
        fit = solved[..., 0] @ self.values
        # What the points say of the change of slope: its mean and standard deviation.
        precision = 1 + (solved[..., 1:] * kinks).sum(axis=-2)
        self._changes = (self.values @ solved[..., 1:]) / precision, precision**-0.5
        ratio = self._changes[0] / self._changes[1]
        found: Floats = (ratio**2 - np.log(precision)) / 2 + log_ndtr(ratio)
        found -= ((fit + size) / 2)[..., None]
        found[..., 1:] -= np.log(kinks.shape[1] - 1)
        return found * (self.height > TIED)  # equal values, as of rounding, tell no scatter

    def minimum(self, scatter: Floats, likelihoods: Floats) -> Estimate:
        from scipy.special import logsumexp, ndtr, ndtri

        weights = np.exp(likelihoods - logsumexp(likelihoods))
        chance, count = np.random.default_rng(0), len(self.sizes)
        draws = chance.multinomial(DRAWS, weights.ravel()).reshape(weights.shape)
        at = []
        for row, column in np.argwhere(draws.any(axis=2)):
            # A curve as likely as before the measurements, corrected by what these say.
            normal, one = chance.standard_normal, scatter[[column]]
            kinks = np.repeat(np.arange(weights.shape[2]), draws[row, column])
            number = len(kinks)
            mean, error = (of[row, column, kinks] for of in self._changes)
            # Normal, but positive.
            change = mean - error * ndtri(chance.uniform(size=number) * ndtr(mean / error))
            everywhere, (of_points,) = self._covariance(DEVIATIONS[row], one)
            curves = self._parabola @ normal((3, number)) + self._kinks[:, kinks] * change
            curves += DEVIATIONS[row] * self._wiggle @ normal((len(self._wiggle), number))
            measured = curves[:count] + np.hypot(one, self.errors)[:, None] * normal(
                (count, number)
            )
            curves += everywhere @ np.linalg.solve(of_points, self.values[:, None] - measured)
            at.append(curves[count:].argmin(axis=0))
        low, value, high = np.quantile(np.concatenate(at), ENDS, method="inverted_cdf").tolist()
        sizes = 2.0**self.compared_at
        return Estimate(
            value=float(sizes[value]),
            low=0.0 if low == 0 and self.is_whole[0] else float(sizes[low]),
            high=np.inf if high == COMPARED_AT - 1 and self.is_whole[1] else float(sizes[high]),
        )


def _near(values: Floats) -> slice:
    """The points of the valley: from the first to the last one that is not much higher than the
    lowest. High ones between them are scatter: without them, too few may be left."""
    above = values - values.min()
    fourth = np.sort(above)[min(ENOUGH_SIZES, len(values)) - 1 :]
    near = np.flatnonzero(above <= HIGH * fourth[fourth > 0].min(initial=np.inf))
    return slice(near[0], near[-1] + 1)
