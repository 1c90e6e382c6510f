"""What share of a trial goes into evaluating, with each workload's own evaluation grid.

Plain SGD at a small learning rate, on one rank and one thread, for a few seconds and at least one
distance between evaluations. From the evaluation of the fresh model on, what is not spent in steps
counts as evaluating. That is the beginning of a trial, where evaluations are closest: over a whole
one the share is smaller.

Workloads whose data are not there are left out: name their folder with --data-dir.
Bound: a fifth.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import torch

from orchestrator.records import BadInput
from orchestrator.studies import single_trial
from orchestrator.training import Ranks, train
from orchestrator.workloads import REGISTRY, load_workload, splits_of

WORKLOADS = (
    "digits/mlp",
    "digits/cnn",
    "fashion_mnist/simple_cnn",
    "fashion_mnist/fc_256_256_256",
    *(name for name in REGISTRY if name.startswith("austen/")),
    "scenes/unet",
)
BATCH_SIZES = (2, 32, 512, 8192)
"""The last, or the whole training set where that is smaller."""
SECONDS = 3

MAX_SHARE = 0.2


def evaluation_share(workload: str, batch_size: int, data_dir: Path | None) -> float:
    trial = single_trial(
        workload,
        "sgd",
        batch_size,
        params={"learning_rate": 1e-3},
        steps=10**6,
        seed=0,
        data_dir=data_dir,
    )
    training = train(trial, Ranks(), data_dir=data_dir)
    next(training)
    began, passed = time.perf_counter(), 0.0
    while passed < SECONDS:
        trained = next(training).seconds
        passed = time.perf_counter() - began
    training.close()
    return 1 - trained / passed


def shares_of(workload: str, data_dir: Path | None) -> dict[int, float] | None:
    """Batch size -> share; None without data."""
    try:
        size = splits_of(load_workload(workload), data_dir)["train"].size
    except BadInput:
        return None
    batch_sizes = sorted({min(batch_size, size or batch_size) for batch_size in BATCH_SIZES})
    return {b: evaluation_share(workload, b, data_dir) for b in batch_sizes}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, help="where data sets are looked for")
    data_dir = parser.parse_args().data_dir
    torch.set_num_threads(1)
    print(f"{'workload':<32}{'batch size':>12}{'evaluating':>12}")
    found: dict[str, dict[int, float]] = {}
    for workload in WORKLOADS:
        shares = shares_of(workload, data_dir)
        if shares is None:
            print(f"{workload:<32}{'no data':>12}")
            continue
        found[workload] = shares
        for batch_size, share in shares.items():
            print(f"{workload:<32}{batch_size:>12,}{share:>12.1%}", flush=True)
    ok = all(share <= MAX_SHARE for shares in found.values() for share in shares.values())
    result = {
        "benchmark": "evaluation_share",
        "shares": {
            workload: {batch_size: round(share, 4) for batch_size, share in shares.items()}
            for workload, shares in found.items()
        },
        "max_share": MAX_SHARE,
        "ok": ok,
    }
    print(json.dumps(result))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
