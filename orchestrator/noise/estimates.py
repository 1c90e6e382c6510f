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

CHUNKS = 32
"""In a sample: one less is an interval's degrees of freedom."""

GRADIENT_SQUARE, VARIANCE = "noise/gradient_square", "noise/variance"
ERRORS = (
    "noise/gradient_square_slope", "noise/gradient_square_floor", "noise/variance_error",
    "noise/covariance",
)  # fmt: skip
PRECONDITIONED = ("noise/preconditioned_gradient_square", "noise/preconditioned_variance")
"""Columns among a trial's measurements."""

Vector = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What is kept of the gradients of a sample, which was drawn in chunks of one size."""

    size: float
    """Examples in a chunk; at the end of a data set, in the mean over chunks."""
    products: Vector
    """Of the mean gradients of every two chunks."""
    squares: Vector | None = None
    """The mean square of an example's gradient in each chunk; None where only chunks were seen."""


@dataclass(frozen=True)
class Estimate:
    gradient_square: float
    """|G|^2"""
    variance: float
    """trS"""
    slope: float = 0.0
    floor: float = 0.0
    """The variance of the estimate of |G|^2 is `slope` times the true |G|^2, plus `floor`."""
    variance_error: float = 0.0
    """The standard error of trS."""
    covariance: float = 0.0
    """The covariance of both estimates."""
    freedom: float = math.inf
    """Degrees of freedom of the errors."""

    @property
    def gradient_square_error(self) -> float:
        """The standard error of |G|^2."""
        return math.sqrt(self.slope * max(self.gradient_square, 0.0) + self.floor)

    @property
    def noise_scale(self) -> float:
        """Infinite where the gradient can't be told from noise."""
        if self.gradient_square <= 0:
            return math.inf
        return max(self.variance, 0.0) / self.gradient_square

    def columns(self, preconditioned: Estimate | None = None) -> dict[str, float]:
        """What is kept of this one, and of that for the gradient as the optimizer scales it."""
        errors = (self.slope, self.floor, self.variance_error, self.covariance)
        kept = {GRADIENT_SQUARE: self.gradient_square, VARIANCE: self.variance}
        kept |= dict(zip(ERRORS, errors, strict=True))
        if preconditioned is not None:
            both = (preconditioned.gradient_square, preconditioned.variance)
            kept |= dict(zip(PRECONDITIONED, both, strict=True))
        return kept

    @classmethod
    def from_columns(cls, row: Mapping[str, float]) -> Estimate:
        """What `columns` made."""
        names = (GRADIENT_SQUARE, VARIANCE, *ERRORS)
        return replace(cls(*(float(row[name]) for name in names)), freedom=CHUNKS - 1)

    @classmethod
    def preconditioned_from(cls, row: Mapping[str, float]) -> Estimate:
        return cls(*(float(row[name]) for name in PRECONDITIONED))

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """The interval of the noise scale: all B for which trS - B |G|^2 is as near to 0 as chance
        would have it if trS / |G|^2 were B (Fieller). Its upper end is infinite where the gradient
        can't be told from noise."""
        from scipy.special import stdtrit  # takes half a second, which no training waits for

        reach = float(stdtrit(self.freedom, (1 + confidence) / 2)) ** 2
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


def of_chunks(sample: Sample, *, population: int | None = None) -> Estimate:
    """Of the `population` that the sample was drawn from without replacement; None: of one without
    an end."""
    products, size = sample.products, sample.size
    count = len(products)
    assert count > 1, "one chunk tells nothing"
    # Without replacement, what is not drawn is all that is not known.
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
    of_square = slope * max(square, 0.0) + left * floor
    of_lengths = left * np.var(per_chunk, ddof=1) / count
    # The rows of different chunks share pairs, which takes 1 / (count - 1) off their covariance.
    shared = (count - 2) / (count - 1) if count > 2 else 1.0
    together = left * 2 / count * np.cov(per_chunk, rows / (count - 1))[0, 1] / shared
    of_variance = of_lengths - 2 * scale * together + scale**2 * of_square
    if sample.squares is None:
        # Of chunks whose gradients are normal: surer than the scatter of a few lengths.
        of_variance = max(of_variance, size**2 * floor * count)
    return Estimate(
        gradient_square=float(square + (variance / population if population else 0.0)),
        variance=float(variance),
        slope=slope,
        floor=left * floor,
        variance_error=math.sqrt(max(of_variance, 0.0)),
        covariance=float(together - scale * of_square),
        freedom=count - 1,
    )


def _errors(off: Vector, lengths: Vector, square: float) -> tuple[float, float]:
    """Slope and floor of the variance of the mean product of two chunks, from the products of all.

    With S the covariance of a chunk's gradient, that variance is about 4 G'SG / count, which grows
    with |G|^2, plus 2 tr(S^2) / count^2, which is there without any gradient. Both follow from
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
    """G'SG"""
    trace = max(both / pairs - level - 2 * along, 0.0)
    """tr(S^2)"""
    # G'SG / |G|^2, in the direction of the mean gradient, whose noise is small where that matters.
    curvature = (along + trace / count) / float((lengths.sum() + rows.sum()) / count**2)
    if square > 0:
        curvature = max(curvature, along / square)
    return 4 * (count - 1) / pairs * curvature, 2 / pairs * trace
