"""Measures the time of a step of a trial that trains alone, for studies whose trials are trained
together."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from orchestrator.records import Trial
from orchestrator.training.engine import Single
from orchestrator.training.ranks import Ranks

TIMED_SECONDS = 0.25
"""Duration of the measurement in seconds."""


def time_alone(trial: Trial, ranks: Ranks, data_dir: Path | None) -> float:
    """Returns the seconds per step of the trial, which is trained for a moment."""
    engine = Single(ranks, data_dir=data_dir)
    engine.put(0, trial)
    try:
        left = trial.study.budget_steps
        engine.advance(1)  # this step also allocates memory and chooses kernels
        paces, steps, began = [engine.rate], 1, engine.seconds
        while engine.seconds - began < TIMED_SECONDS and (left := left - steps) > 0:
            steps = min(2 * steps, left)
            engine.advance(steps)
            paces.append(engine.rate)
    finally:
        engine.clear(0)
    # The last measurements have the most steps, so a pause disturbs them least.
    return median(paces[-3:])
