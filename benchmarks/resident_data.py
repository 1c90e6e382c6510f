"""What it is worth to keep small data on the device, beside fetching it through a DataLoader.

digits/mlp at batch size 32, one thread per process, plain SGD. Compared in steps per second of
training, each over whole epochs:

    resident     ours: the data set is one tensor, batches are gathered there
    loaded       ours: worker processes fetch batches ahead, as for data that doesn't fit
    by hand      a loop as one would write it: TensorDataset, DataLoader(shuffle=True), SGD;
                 with two workers started anew in each epoch, with two that persist, and
                 without any (torch's default; nothing is prefetched then)

The ways take turns; figures are medians over rounds of the ratio within a round.
Bound: resident is at least 10 times as fast as the DataLoader whose workers start in each epoch.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from orchestrator.records import EvaluationGrid, Study, Trial
from orchestrator.training import Ranks, train
from orchestrator.workloads import Loaded, load_workload
from orchestrator.workloads.digits import DigitsMLP

BATCH_SIZE = 32
EPOCHS = 4
STEPS = EPOCHS * 1400 // BATCH_SIZE
LEARNING_RATE = 0.05
ROUNDS = 5

MIN_RATIO = 10


class LoadedDigits(DigitsMLP):
    """The digits, treated as if they did not fit."""

    def data(self, data_dir: Path | None) -> Any:
        splits = dict(super().data(data_dir))
        return {**splits, "train": Loaded(splits["train"].batch, splits["train"].size)}


def ours(workload: str) -> float:
    study = Study(
        workload=workload,
        recipe="sgd",
        optimizer="sgd",
        batch_size=BATCH_SIZE,
        goals=(),
        budget_steps=STEPS,
        grid=EvaluationGrid(spacing=0, min_gap=STEPS),
        space={"learning_rate": LEARNING_RATE},
        trials=1,
    )
    trial = Trial(study=study, index=0, seed=0, params={"learning_rate": LEARNING_RATE})
    training = train(trial, Ranks())
    while True:
        try:
            next(training)
        except StopIteration as end:
            return STEPS / end.value.seconds


def by_hand(**options: Any) -> float:
    workload = load_workload("digits/mlp")
    dataset = TensorDataset(*workload.data(None)["train"].tensors)
    loader = DataLoader(dataset, batch_size=BATCH_SIZE, shuffle=True, drop_last=True, **options)
    model = workload.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    steps, began = 0, time.perf_counter()
    for _ in range(EPOCHS):
        for inputs, labels in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            steps += 1
    return steps / (time.perf_counter() - began)


WAYS: dict[str, Callable[[], float]] = {
    "resident": lambda: ours("digits/mlp"),
    "loaded": lambda: ours(f"{__file__}:LoadedDigits"),
    "by hand, 2 workers": lambda: by_hand(num_workers=2),
    "by hand, 2 persistent workers": lambda: by_hand(num_workers=2, persistent_workers=True),
    "by hand, no workers": by_hand,
}


def main() -> int:
    torch.set_num_threads(1)
    for way in WAYS.values():
        way()
    rounds = [{name: way() for name, way in WAYS.items()} for _ in range(ROUNDS)]
    rates = {name: statistics.median(r[name] for r in rounds) for name in WAYS}
    ratios = {name: statistics.median(r["resident"] / r[name] for r in rounds) for name in WAYS}
    print(f"digits/mlp, batch size {BATCH_SIZE}, {STEPS} steps, {ROUNDS} rounds")
    print(f"{'':<32}{'steps per second':>18}{'resident over it':>18}")
    for name, rate in rates.items():
        print(f"{name:<32}{rate:>18,.0f}{ratios[name]:>18.1f}")
    ok = ratios["by hand, 2 workers"] >= MIN_RATIO
    result = {
        "benchmark": "resident_data",
        "steps_per_second": {name: round(rate, 1) for name, rate in rates.items()},
        "ratios": {name: round(ratio, 2) for name, ratio in ratios.items()},
        "min_ratio": MIN_RATIO,
        "ok": ok,
    }
    print(json.dumps(result))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
