"""What share of a trial goes into evaluating, with each workload's own evaluation grid.

Plain SGD at a small learning rate, on one rank and one thread, for a few seconds and at least one
distance between evaluations. From the evaluation of the fresh model on, what is not spent in steps
counts as evaluating. That is the beginning of a trial, where evaluations are closest: over a whole
one the share is smaller.

Workloads whose data are not there are left out: name their folder with --data-dir.
Bound: a fifth.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from command_line import parser_of, print_result
from tables import Table, bounded

from orchestrator.planning.single import single_trial
from orchestrator.records import BadInput
from orchestrator.training import Ranks, train
from orchestrator.workloads import load_workload, splits_of

MAX_SHARE = 0.2


@dataclass(frozen=True, kw_only=True)
class Sizes:
    workloads: tuple[str, ...]
    batch_sizes: tuple[int, ...]
    """The last, or the whole training set where that is smaller."""
    seconds: float
    """Of training and evaluating at each batch size, at least."""


FULL = Sizes(
    workloads=(
        "digits/mlp",
        "digits/cnn",
        "fashion_mnist/simple_cnn",
        "fashion_mnist/fc_256_256_256",
    ),
    batch_sizes=(2, 32, 512, 8192),
    seconds=3,
)
SMOKE = Sizes(workloads=("digits/mlp", "digits/cnn"), batch_sizes=(32, 8192), seconds=0.05)


def evaluation_share(
    workload: str, batch_size: int, seconds: float, data_dir: Path | None
) -> float:
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
    while passed < seconds:
        trained = next(training).seconds
        passed = time.perf_counter() - began
    training.close()
    return 1 - trained / passed


def shares_of(workload: str, sizes: Sizes, data_dir: Path | None) -> dict[int, float] | None:
    """Batch size -> share; None without data."""
    try:
        size = splits_of(load_workload(workload), data_dir)["train"].size
    except BadInput:
        return None
    batch_sizes = sorted({min(batch_size, size or batch_size) for batch_size in sizes.batch_sizes})
    return {b: evaluation_share(workload, b, sizes.seconds, data_dir) for b in batch_sizes}


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--data-dir", type=Path, help="where data sets are looked for")
    options = parser.parse_args()
    sizes = SMOKE if options.smoke else FULL
    torch.set_num_threads(1)
    every = {workload: shares_of(workload, sizes, options.data_dir) for workload in sizes.workloads}
    found = {workload: shares for workload, shares in every.items() if shares is not None}
    heads = [f"{size:,}" for size in sizes.batch_sizes]
    heads[-1] += " or all"
    rows = [
        [
            f"`{workload}`",
            *(bounded(f"{share:.1%}", share <= MAX_SHARE) for share in shares.values()),
        ]
        for workload, shares in found.items()
    ]
    ok = all(share <= MAX_SHARE for shares in found.values() for share in shares.values())
    figures = {
        "shares": {
            workload: {batch_size: round(share, 4) for batch_size, share in shares.items()}
            for workload, shares in found.items()
        },
        "max_share": MAX_SHARE,
    }
    return print_result(
        "evaluation_share", {"": Table(["workload", *heads], rows)}, figures, options, ok=ok
    )


if __name__ == "__main__":
    sys.exit(main())
