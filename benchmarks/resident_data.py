"""What it is worth to keep small data on the device, beside fetching it through a DataLoader.

digits/mlp at batch size 32, one thread per process, plain SGD. Compared in steps per second of
training, each over whole epochs:

    resident     ours: the data set is one tensor, batches are gathered there
    loaded       ours: worker processes fetch batches ahead, as for data that doesn't fit
    by hand      a loop as one would write it: TensorDataset, DataLoader(shuffle=True), SGD;
                 with two workers started anew in each epoch, with two that persist, and
                 without any (torch's default; nothing is prefetched then)

The ways take turns; figures are medians over rounds of the ratio within a round.
Bound: resident is at least 5 times as fast as the DataLoader whose workers start in each epoch.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from command_line import parser_of, print_result
from tables import Table, bounded
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from orchestrator.records import EvaluationGrid, Study, Trial
from orchestrator.training import Ranks, train
from orchestrator.workloads import Loaded, Tensors, load_workload
from orchestrator.workloads.digits import DigitsMLP

BATCH_SIZE = 32
EPOCHS, ROUNDS = 4, 5
SMOKE_EPOCHS, SMOKE_ROUNDS = 1, 1
LEARNING_RATE = 0.05

MIN_RATIO = 5
"""8 while other work has the machine, 16 to 23 on a quiet one."""


class LoadedDigits(DigitsMLP):
    """The digits, treated as if they did not fit."""

    def data(self, data_dir: Path | None) -> Any:
        splits = dict(super().data(data_dir))
        train_split = splits["train"]
        assert train_split.size is not None
        return {**splits, "train": Loaded(train_split.batch, train_split.size)}


def steps_in(epochs: int) -> int:
    return epochs * 1400 // BATCH_SIZE


def ours(workload: str, epochs: int) -> float:
    steps = steps_in(epochs)
    study = Study(
        workload=workload,
        recipe="sgd",
        optimizer="sgd",
        batch_size=BATCH_SIZE,
        goals=(),
        budget_steps=steps,
        grid=EvaluationGrid(spacing=0, min_gap=steps),
        space={"learning_rate": LEARNING_RATE},
        trials=1,
    )
    trial = Trial(study=study, index=0, seed=0, params={"learning_rate": LEARNING_RATE})
    training = train(trial, Ranks())
    while True:
        try:
            next(training)
        except StopIteration as end:
            seconds: float = end.value.seconds
            return steps / seconds


def by_hand(epochs: int, **options: Any) -> float:
    workload = load_workload("digits/mlp")
    train_split = workload.data(None)["train"]
    assert isinstance(train_split, Tensors)
    dataset = TensorDataset(*train_split.tensors)
    loader = DataLoader(dataset, batch_size=BATCH_SIZE, shuffle=True, drop_last=True, **options)
    model = workload.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    steps, began = 0, time.perf_counter()
    for _ in range(epochs):
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(inputs), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            steps += 1
    return steps / (time.perf_counter() - began)


WAYS: dict[str, Callable[[int], float]] = {
    "resident": partial(ours, "digits/mlp"),
    "loaded": partial(ours, f"{__file__}:LoadedDigits"),
    "by hand, 2 workers": partial(by_hand, num_workers=2),
    "by hand, 2 persistent workers": partial(by_hand, num_workers=2, persistent_workers=True),
    "by hand, no workers": by_hand,
}
"""Each takes the number of epochs and returns steps per second."""


def main() -> int:
    options = parser_of(__doc__).parse_args()
    epochs, count = (SMOKE_EPOCHS, SMOKE_ROUNDS) if options.smoke else (EPOCHS, ROUNDS)
    torch.set_num_threads(1)
    for way in WAYS.values():
        way(epochs)
    rounds = [{name: way(epochs) for name, way in WAYS.items()} for _ in range(count)]
    rates = {name: statistics.median(r[name] for r in rounds) for name in WAYS}
    ratios = {name: statistics.median(r["resident"] / r[name] for r in rounds) for name in WAYS}
    ok = ratios["by hand, 2 workers"] >= MIN_RATIO
    rows = [
        [name, f"{rate:,.0f}", bounded(f"{ratios[name]:.1f}", ok or name != "by hand, 2 workers")]
        for name, rate in rates.items()
    ]
    table = Table(["data", "steps per second", "resident over it"], rows)
    figures = {
        "steps_per_second": {name: round(rate, 1) for name, rate in rates.items()},
        "ratios": {name: round(ratio, 2) for name, ratio in ratios.items()},
        "min_ratio": MIN_RATIO,
    }
    return print_result("resident_data", {"": table}, figures, options, ok=ok)


if __name__ == "__main__":
    sys.exit(main())
