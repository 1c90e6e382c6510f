"""Whether evaluations take much of a training's time."""

from __future__ import annotations

DEAR_SHARE, FAIR_SHARE = 1 / 3, 0.15
"""Above the first share of the time, evaluations are said to take much; the second is what is
proposed instead."""


def dear_evaluations(
    *, examples: int, evaluations: int, training: float, evaluating: float
) -> str | None:
    """How much of the time went into evaluations, and how to spend less; None unless it is much."""
    share = evaluating / (training + evaluating or 1)
    if share <= DEAR_SHARE:
        return None
    fewer = share / (1 - share) / FAIR_SHARE * (1 - FAIR_SHARE) if share < 1 else 100
    apart = float(f"{fewer * examples / evaluations:.1e}")
    return (
        f"Evaluations take {share:.0%} of the time. If at least {apart:.0f} training examples lay "
        f"between two of them, they would take about {FAIR_SHARE:.0%}: "
        f"`evaluate: {{min_examples: {apart:.0f}}}` in a sweep file, "
        f"`--evaluate min_examples={apart:.0f}` by hand."
    )
