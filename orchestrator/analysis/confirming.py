"""Compares trainings with a schedule of batch sizes to trainings with the constant batch size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.special import stdtrit

from orchestrator.analysis.estimates import CONFIDENCE, Estimate
from orchestrator.records import FinishedTrial


@dataclass(frozen=True, kw_only=True)
class Confirmed:
    """The comparison of trainings with a schedule and without it, for the same seeds and number of
    examples."""

    recipe: str
    seeds: int
    """Number of seeds whose trainings came to the end with and without the schedule."""
    failed: int
    """Number of trainings that diverged or failed with the schedule."""
    steps: int
    constant_steps: int
    differences: Mapping[str, Estimate]
    """Metric -> the difference at the end, with the schedule minus without it, and its 90 %
    interval."""

    @property
    def steps_saved(self) -> float:
        return 1 - self.steps / self.constant_steps

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "steps_saved": self.steps_saved}


def confirmed(
    recipe: str, ours: list[FinishedTrial], constant: list[FinishedTrial], metrics: list[str]
) -> Confirmed | None:
    """The comparison; None if fewer than two seeds came to the end with and without the
    schedule."""
    constant_by_seed = {
        trained.trial.repeat: trained for trained in constant if trained.outcome.status in ENDED
    }
    pairs = [
        (trained, constant_by_seed[trained.trial.repeat])
        for trained in ours
        if trained.outcome.status in ENDED and trained.trial.repeat in constant_by_seed
    ]
    if len(pairs) < 2:
        return None
    return Confirmed(
        recipe=recipe,
        seeds=len(pairs),
        failed=sum(trained.outcome.status not in ENDED for trained in ours),
        steps=pairs[0][0].outcome.steps,
        constant_steps=pairs[0][1].outcome.steps,
        differences={
            name: _mean([_last(trained, name) - _last(other, name) for trained, other in pairs])
            for name in metrics
        },
    )


ENDED = ("exhausted", "reached")


def _last(trained: FinishedTrial, metric: str) -> float:
    return trained.measurements[-1].metrics[metric]


def _mean(values: list[float]) -> Estimate:
    mean, count = float(np.mean(values)), len(values)
    reach = stdtrit(count - 1, (1 + CONFIDENCE) / 2) * np.std(values, ddof=1) / count**0.5
    return Estimate(value=mean, low=mean - float(reach), high=mean + float(reach))
