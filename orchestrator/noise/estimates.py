"""Estimates the gradient noise scale from a sample of gradients, with intervals. Needs no torch.

|G|^2 is the squared length of the gradient over all examples. trS is the variance of one example's
gradient, summed over parameters. Their ratio is the noise scale (McCandlish et al. 2018). The
estimates of both are unbiased. Their ratio is biased, so it is taken last. The estimate of |G|^2
may be negative; then the noise scale has a lower bound only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.9

CHUNKS = 32
"""In a sample: one less is an interval's degrees of freedom."""

GRADIENT_SQUARE, VARIANCE = "noise/gradient_square", "noise/variance"
ERRORS = ("noise/gradient_square_error", "noise/variance_error", "noise/correlation")
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
    gradient_square_error: float = 0.0
    """The standard deviation of `gradient_square` from one sample to the next."""
    variance_error: float = 0.0
    correlation: float = 0.0
    """Of the two."""
    freedom: float = math.inf
    """Degrees of freedom of the errors."""

    @property
    def noise_scale(self) -> float:
        """Infinite where the gradient can't be told from noise."""
        if self.gradient_square <= 0:
            return math.inf
        return max(self.variance, 0.0) / self.gradient_square

    def columns(self, preconditioned: Estimate | None = None) -> dict[str, float]:
        """What is kept of this one, and of that for the gradient as the optimizer scales it."""
        errors = (self.gradient_square_error, self.variance_error, self.correlation)
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
        return cls(*(float(row[name]) for name in names), freedom=CHUNKS - 1)

    @classmethod
    def preconditioned_from(cls, row: Mapping[str, float]) -> Estimate:
        return cls(*(float(row[name]) for name in PRECONDITIONED))

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """Of the noise scale, by Fieller: all B for which trS - B |G|^2 may be 0. It has no end
        where |G|^2 may be 0."""
        from scipy.special import stdtrit  # takes half a second, which no training waits for

        reach = float(stdtrit(self.freedom, (1 + confidence) / 2))
        g, s = self.gradient_square, self.variance
        g_reach, s_reach = reach * self.gradient_square_error, reach * self.variance_error
        square = (g - g_reach) * (g + g_reach)
        middle = g * s - self.correlation * g_reach * s_reach
        level = (s - s_reach) * (s + s_reach)
        root = math.sqrt(max(middle * middle - square * level, 0.0))
        if level <= 0 or middle + root <= 0:
            # Not even the noise can be told from nothing, or all of it from a gradient.
            low = 0.0 if level <= 0 else math.inf
        else:
            low = level / (middle + root)
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
    first, second = _variances(off, rows)
    of_square = left * 4 * (count - 2) / pairs * first + left**2 * 2 / pairs * second
    of_lengths = left * np.var(per_chunk, ddof=1) / count
    together = left * 2 / count * np.cov(per_chunk, rows / (count - 1))[0, 1]
    of_variance = max(of_lengths - 2 * scale * together + scale**2 * of_square, 0.0)
    errors = math.sqrt(of_square * of_variance)
    covariance = together - scale * of_square
    return Estimate(
        gradient_square=float(square + (variance / population if population else 0.0)),
        variance=float(variance),
        gradient_square_error=math.sqrt(of_square),
        variance_error=math.sqrt(of_variance),
        correlation=float(np.clip(covariance / errors, -1, 1)) if errors else 0.0,
        freedom=count - 1,
    )


def _variances(off: Vector, rows: Vector) -> tuple[float, float]:
    """Of the product of two chunks' gradients: that of its mean over the second one, and its own.
    Unbiased, from pairs of pairs that have one, both or none of their chunks in common; but not
    below what can be."""
    count = len(rows)
    pairs = count * (count - 1)
    both = float((off**2).sum())
    one = float((rows**2).sum()) - both
    none = float(rows.sum()) ** 2 - 4 * one - 2 * both
    if count < 4:
        mean = float(rows.sum()) / pairs
        return 0.0, max(both / pairs - mean**2, 0.0)
    level = none / (pairs * (count - 2) * (count - 3))
    first = max(one / (pairs * (count - 2)) - level, 0.0)
    return first, max(both / pairs - level, 2 * first)
