"""Tells whether evaluations take a large share of a training's time."""

from __future__ import annotations

DEAR_SHARE, FAIR_SHARE = 1 / 3, 0.15
"""Shares of the time. If evaluations take more than the first, they are reported, and a distance
between evaluations is proposed at which they take the second."""


def dear_evaluations(
    *, examples: int, evaluations: int, training: float, evaluating: float
) -> str | None:
    """A sentence that says which share of the time evaluations took, and how to lower it. None if
    the share is at most DEAR_SHARE. `training` and `evaluating` are seconds."""
    share = evaluating / (training + evaluating or 1)
    if share <= DEAR_SHARE:
        return None
    fewer = share / (1 - share) / FAIR_SHARE * (1 - FAIR_SHARE) if share < 1 else 100
    apart = float(f"{fewer * examples / evaluations:.1e}")
    return (
        f"Evaluations take {share:.0%} of the time. With at least {apart:.0f} training examples "
        f"between two of them they would take about {FAIR_SHARE:.0%}: "
        f"`evaluate: {{min_examples: {apart:.0f}}}` in a sweep file, "
        f"`--evaluate min_examples={apart:.0f}` for `orchestrate trial`."
    )
