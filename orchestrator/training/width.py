"""Decides how many trials to train as one model. It counts operations and bytes and measures no
time, so the answer is the same in every run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from orchestrator.records import Trial
from orchestrator.training.ranks import Ranks
from orchestrator.training.trainer import Trainer
from orchestrator.training.uncompiled import flop_counter
from orchestrator.workloads import prepare

Kind = Literal["cpu", "cuda"]
"""Type of device."""

WIDEST: dict[Kind, int] = {"cpu": 64, "cuda": 256}
"""Largest number of slots."""
NARROWEST = 4
"""Smallest number of slots that saves enough time."""

FAST_BYTES: dict[Kind, int] = {"cpu": 16 * 2**20, "cuda": 2 * 2**30}
"""Largest number of bytes of the weights, gradients and moments of all slots. On a CPU, it is what
the caches hold; with more, each step waits for memory."""

BUSY_FLOPS: dict[Kind, float] = {"cpu": 8e7, "cuda": 2e10}
"""Number of floating-point operations of one trial's step above which a single trial keeps a device
busy."""

PER_WEIGHT = 4
"""Numbers per weight: the weight, its gradient and two moments."""


def best_width(trial: Trial, kind: Kind, data_dir: Path | None) -> tuple[int, str]:
    """Returns the number of trials of the study of `trial` that are trained fastest as one model,
    and the reason if it is 1, in words. Whether they can be stacked at all is decided by
    `stackable`."""
    ranks = Ranks()
    workload, splits = prepare(trial.study.workload, data_dir, ranks.device)
    examples = min(2, trial.study.batch_size)
    study = trial.study.with_batches_of(examples)
    trainer = Trainer(replace(trial, study=study), workload, splits["train"], ranks)
    try:
        weights = sum(p.numel() * p.element_size() for p in trainer.parameters)
        width = int(FAST_BYTES[kind] / (PER_WEIGHT * weights))
        if width < NARROWEST:
            return 1, f"several models of {weights / 2**20:,.3g} MiB do not fit into a cache"
        with flop_counter() as counter:
            trainer.advance(1)
    finally:
        trainer.close()
    flops = counter.get_total_flops() / examples * trial.study.batch_size
    if flops > BUSY_FLOPS[kind]:
        return 1, f"a step of {flops:.2g} operations keeps a device busy by itself"
    return min(width, WIDEST[kind]), ""
