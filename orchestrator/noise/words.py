"""Puts a noise scale into words."""

from __future__ import annotations

import math

from orchestrator.noise.estimates import Estimate

NEARLY_FREE = 0.2
"""Share of the noise scale up to which larger batches are called nearly free: at this batch size, a
training takes a fifth more examples than at the smallest batch size."""


def in_words(estimate: Estimate) -> str:
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
        f"{rounded(scale)} a training takes more than twice the examples"
    )


def rounded(value: float) -> str:
    """Rounds to two significant digits."""
    return f"{float(f'{value:.2g}'):,.0f}" if value >= 10 else f"{value:.2g}"
