"""How many trials are worth training as one model: by arithmetic and bytes, not by a clock."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from orchestrator.records import Trial
from orchestrator.training.ranks import Ranks
from orchestrator.training.trainer import Trainer
from orchestrator.training.uncompiled import flop_counter
from orchestrator.training.warm import prepare

Kind = Literal["cpu", "cuda"]
"""Of device."""

WIDEST: dict[Kind, int] = {"cpu": 64, "cuda": 256}
NARROWEST = 4
"""Fewer slots save too little."""

FAST_BYTES: dict[Kind, int] = {"cpu": 16 * 2**20, "cuda": 2 * 2**30}
"""What the weights, gradients and moments of all slots may take: on a CPU what its caches hold,
beyond which each step waits for memory."""

BUSY_FLOPS: dict[Kind, float] = {"cpu": 8e7, "cuda": 2e10}
"""Arithmetic of one trial's step that keeps a device busy by itself."""

PER_WEIGHT = 4
"""Numbers: itself, its gradient and two moments."""


def best_width(trial: Trial, kind: Kind, data_dir: Path | None) -> tuple[int, str]:
    """How many trials of the study of `trial` are trained quickest as one model, and why no more,
    in words. Whether they can be is another question."""
    ranks = Ranks()
    workload, splits = prepare(trial.study.workload, data_dir, ranks.device)
    few = min(2, trial.study.batch_size)
    study = trial.study.with_batches_of(few)
    trainer = Trainer(replace(trial, study=study), workload, splits["train"], ranks)
    try:
        weights = sum(p.numel() * p.element_size() for p in trainer.parameters)
        width = int(FAST_BYTES[kind] / (PER_WEIGHT * weights))
        if width < NARROWEST:
            return 1, f"no cache holds several models of {weights / 2**20:,.3g} MiB"
        with flop_counter() as counter:
            trainer.advance(1)
    finally:
        trainer.close()
    flops = counter.get_total_flops() / few * trial.study.batch_size
    if flops > BUSY_FLOPS[kind]:
        return 1, f"a step of {flops:.2g} operations keeps a device busy by itself"
    return min(width, WIDEST[kind]), ""
