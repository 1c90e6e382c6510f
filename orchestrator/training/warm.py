"""Keeps workloads and their data in a warm process from one trial to the next."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch

from orchestrator.workloads import Split, Workload, load_workload, splits_of


@lru_cache(maxsize=4)
def prepare(
    name: str, data_dir: Path | None, device: torch.device
) -> tuple[Workload, dict[str, Split]]:
    """Returns the workload, and its splits on the device. They are cached, since a warm process
    trains many trials."""
    workload = load_workload(name, data_dir)
    splits = splits_of(workload, data_dir)
    return workload, {split: data.to(device) for split, data in splits.items()}
