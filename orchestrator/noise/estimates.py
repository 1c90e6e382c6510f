"""Estimates the gradient noise scale from a sample of gradients, with intervals. Needs no torch.

|G|^2 is the squared length of the gradient over all examples. trS is the variance of one example's
gradient, summed over parameters. Their ratio is the noise scale (McCandlish et al. 2018). The
estimates of both are unbiased. Their ratio is biased, so it is taken last. The estimate of |G|^2
may be negative; then the noise scale has a lower bound only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.9
"""Confidence of an interval."""

CHUNKS = 32
"""Number of chunks of a sample. An interval has one degree of freedom less."""

GRADIENT_SQUARE, VARIANCE = "noise/gradient_square", "noise/variance"
FREEDOM = "noise/freedom"
"""Degrees of freedom of these errors, where a training loop has measured them."""

ERRORS = (
    "noise/gradient_square_slope", "noise/gradient_square_floor", "noise/variance_error",
    "noise/covariance",
)  # fmt: skip

NEARLY_FREE = 0.2
"""Share of the noise scale up to which larger batches are called nearly free: at this batch size, a
training takes a fifth more examples than at the smallest batch size."""

Vector = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Sums over the gradients of a sample of examples, divided into chunks of equal size."""

    size: float
    """Number of examples in a chunk; the mean over chunks if the sizes differ by one."""
    products: Vector
    """Matrix of the scalar products of the mean gradients of every two chunks."""
    squares: Vector | None = None
    """Mean squared length of an example's gradient in each chunk; None if only means are known."""


@dataclass(frozen=True)
class NoiseEstimate:
    """Estimates of |G|^2 and trS, with their errors."""

    gradient_square: float
    """Estimate of |G|^2."""
    variance: float
    """Estimate of trS."""
    slope: float = 0.0
    floor: float = 0.0
    """The variance of the estimate of |G|^2 is `slope` times the true |G|^2, plus `floor`."""
    variance_error: float = 0.0
    """Standard error of the estimate of trS."""
    covariance: float = 0.0
    """Covariance of both estimates."""
    freedom: float = math.inf
    """Degrees of freedom of the errors."""

    @property
    def gradient_square_error(self) -> float:
        """Standard error of the estimate of |G|^2."""
        return math.sqrt(self.slope * max(self.gradient_square, 0.0) + self.floor)

    @property
    def noise_scale(self) -> float:
        """The noise scale in examples; infinite if the gradient can't be told from noise."""
        if self.gradient_square <= 0:
            return math.inf
        return max(self.variance, 0.0) / self.gradient_square

    def columns(self) -> dict[str, float]:
        """Returns this estimate as columns of a measurement."""
        errors = (self.slope, self.floor, self.variance_error, self.covariance)
        columns = {GRADIENT_SQUARE: self.gradient_square, VARIANCE: self.variance}
        return columns | dict(zip(ERRORS, errors, strict=True))

    @classmethod
    def from_columns(cls, row: Mapping[str, float]) -> NoiseEstimate:
        """Returns the estimate that `columns` wrote to a measurement."""
        names = (GRADIENT_SQUARE, VARIANCE, *ERRORS)
        freedom = row.get(FREEDOM) or CHUNKS - 1
        return replace(cls(*(float(row[name]) for name in names)), freedom=float(freedom))

    def interval(self) -> tuple[float, float]:
        """Returns the interval of the noise scale in examples, by Fieller's method: all B for which
        trS - B |G|^2 does not differ significantly from 0. The upper end is infinite if the
        gradient can't be told from noise."""
        from scipy.special import stdtrit  # imported here: it takes half a second

        reach = float(stdtrit(self.freedom, (1 + CONFIDENCE) / 2)) ** 2
        g, s = max(self.gradient_square, 0.0), self.variance
        # If B is the ratio, |G|^2 is trS / B: the variance of B |G|^2 is B slope trS + B^2 floor.
        square = g * g - reach * self.floor
        middle = g * s - reach * (self.covariance - self.slope * s / 2)
        level = s * s - reach * self.variance_error**2
        root = math.sqrt(max(middle * middle - square * level, 0.0))
        if level <= 0:
            low = 0.0  # not even the variance can be told from 0
        else:
            low = level / (middle + root) if middle + root > 0 else math.inf
        return low, (middle + root) / square if g > 0 and square > 0 else math.inf


def of_chunks(sample: Sample, *, population: int | None = None) -> NoiseEstimate:
    """Estimates |G|^2 and trS from a sample. It was drawn without replacement from a population of
    so many examples; None: from an endless one."""
    products, size = sample.products, sample.size
    count = len(products)
    assert count > 1, "an estimate needs two chunks"
    # Finite population correction: only the examples that were not drawn are unknown.
    left = 1 - size * count / population if population else 1.0
    lengths = np.diagonal(products)
    off = products - np.diag(lengths)
    rows, pairs = off.sum(axis=1), count * (count - 1)
    if sample.squares is None:
        per_chunk, scale = size * lengths, size
        square = rows.sum() / pairs
        variance = per_chunk.mean() - size * square
    else:
        per_chunk, scale, examples = sample.squares, 1.0, size * count
        square = (examples * products.mean() - per_chunk.mean()) / (examples - 1)
        variance = per_chunk.mean() - square
    slope, floor = (left * part for part in _errors(off, lengths, float(square)))
    square_variance = slope * max(square, 0.0) + left * floor
    length_variance = left * np.var(per_chunk, ddof=1) / count
    # The rows of different chunks share pairs, which reduces their covariance by 1 / (count - 1).
    shared = (count - 2) / (count - 1) if count > 2 else 1.0
    joint = left * 2 / count * np.cov(per_chunk, rows / (count - 1))[0, 1] / shared
    variance_variance = length_variance - 2 * scale * joint + scale**2 * square_variance
    if sample.squares is None:
        # This is the variance for normally distributed gradients of chunks. It is more reliable
        # than the scatter of a few lengths, which may be too small by chance.
        variance_variance = max(variance_variance, size**2 * floor * count)
    return NoiseEstimate(
        gradient_square=float(square + (variance / population if population else 0.0)),
        variance=float(variance),
        slope=slope,
        floor=left * floor,
        variance_error=math.sqrt(max(variance_variance, 0.0)),
        covariance=float(joint - scale * square_variance),
        freedom=count - 1,
    )


def _errors(off: Vector, lengths: Vector, square: float) -> tuple[float, float]:
    """Returns slope and floor of the variance of the mean product of two chunks, estimated from the
    products of all chunks.

    Let S be the covariance of a chunk's gradient. The variance is about 4 G'SG / count, which grows
    with |G|^2, plus 2 tr(S^2) / count^2, which remains without any gradient. Both terms follow from
    pairs of products that have one, both or none of their chunks in common."""
    count, rows = len(off), off.sum(axis=1)
    pairs = count * (count - 1)
    both = float((off**2).sum())
    one = float((rows**2).sum()) - both
    if count < 4:
        return 0.0, 2 / pairs * max(both / pairs - (float(rows.sum()) / pairs) ** 2, 0.0)
    none = float(rows.sum()) ** 2 - 4 * one - 2 * both
    level = none / (pairs * (count - 2) * (count - 3))
    along = max(one / (pairs * (count - 2)) - level, 0.0)
    """Estimate of G'SG."""
    trace = max(both / pairs - level - 2 * along, 0.0)
    """Estimate of tr(S^2)."""
    # This is G'SG / |G|^2 in the direction of the mean gradient. If the slope matters, |G|^2 is
    # large, and then the noise of this direction is small.
    length = float((lengths.sum() + rows.sum()) / count**2)
    # A network that fits every example has gradients of exactly 0, which have no errors.
    curvature = (along + trace / count) / length if length > 0 else 0.0
    if square > 0:
        curvature = max(curvature, along / square)
    return 4 * (count - 1) / pairs * curvature, 2 / pairs * trace


def noise_in_words(estimate: NoiseEstimate) -> str:
    low, high = estimate.interval()
    if math.isinf(high):
        if not 0 < low < math.inf:
            return "noise scale: these steps do not tell it yet"
        return (
            f"noise scale at least {rounded(low)}: up to about {rounded(NEARLY_FREE * low)} "
            f"examples per step are nearly free, and perhaps many more"
        )
    scale = estimate.noise_scale
    return (
        f"noise scale {rounded(scale)} ({rounded(low)} to {rounded(high)}): up to about "
        f"{rounded(NEARLY_FREE * scale)} examples per step are nearly free, beyond "
        f"{rounded(scale)} steps like the recent ones may take more than twice the examples"
    )


def rounded(value: float) -> str:
    return f"{float(f'{value:.2g}'):,.0f}" if value >= 10 else f"{value:.2g}"
