"""A noise scale as people say it."""

from __future__ import annotations

import math

from orchestrator.noise.estimates import Estimate

NEARLY_FREE = 0.2
"""Of the noise scale: a batch of so much takes a fifth more examples than the smallest."""


def in_words(estimate: Estimate) -> str:
    low, high = estimate.interval()
    if math.isinf(high):
        if not 0 < low < math.inf:
            return "noise scale: not to be told from this yet"
        return (
            f"noise scale at least {rounded(low)}: up to about {rounded(NEARLY_FREE * low)} "
            f"examples per step are nearly free, and perhaps many more"
        )
    scale = estimate.noise_scale
    return (
        f"noise scale {rounded(scale)} ({rounded(low)} to {rounded(high)}): up to about "
        f"{rounded(NEARLY_FREE * scale)} examples per step are nearly free, beyond "
        f"{rounded(scale)} you pay more than double"
    )


def rounded(value: float) -> str:
    """To two digits."""
    return f"{float(f'{value:.2g}'):,.0f}" if value >= 10 else f"{value:.2g}"
