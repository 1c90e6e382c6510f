"""What our training loop costs beside a hand-written one.

Compared: `orchestrator.training.train` on one rank, evaluating only at step 0 and at the last step,
against the shortest loop one would write by hand in torch: `index_select` from tensors in memory,
the mean cross-entropy, `torch.optim.SGD` with its defaults. Both train digits/mlp at batch size 32
and, where Fashion-MNIST is found ($ORCHESTRATE_DATA), Simple CNN at 128, the latter against a model
written by hand, too. One thread, the same first weights, the same batches; the hand-written loop is
given their indices ready-made. Seconds are those of the steps alone, without set-up and evaluation
(`Outcome.seconds` for ours). The two take turns, in the other order every other time, and the
figure is the median over pairs of ours divided by theirs.

Bounds: each median ratio is at most 1.10, and both end at the same validation loss, to 1e-4.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from command_line import parser_of, print_result
from tables import Table, bounded
from torch import Tensor, nn
from torch.nn import functional

from orchestrator.records import EvaluationGrid, Stage, Study, Trial, derive_seed
from orchestrator.training import Ranks, train
from orchestrator.training.batches import BatchOrder
from orchestrator.workloads import Classification, Split, Tensors, load_workload
from orchestrator.workloads.data.catalogue import data_set

LEARNING_RATE = 0.05
WARM_UP_PAIRS = 1

MAX_RATIO = 1.10
MAX_LOSS_DIFFERENCE = 1e-4


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(64, 64)
        self.out = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.out(functional.relu(self.hidden(x)))
        return logits


class SimpleCNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 5, padding=2)
        self.conv2 = nn.Conv2d(32, 64, 5, padding=2)
        self.hidden = nn.Linear(3136, 1024)
        self.out = nn.Linear(1024, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        logits: Tensor = self.out(functional.relu(self.hidden(x.flatten(1))))
        return logits


class Noise(Classification):
    """Simple CNN on noise in place of Fashion-MNIST, for smoke mode."""

    goal = "val/error < 0.1"

    def data(self, data_dir: Path | None) -> Mapping[str, Split]:
        generator = torch.Generator().manual_seed(0)
        inputs = torch.rand(48, 1, 28, 28, generator=generator)
        labels = torch.randint(10, (48,), generator=generator)
        return {
            "train": Tensors(inputs[:32], labels[:32]),
            "val": Tensors(inputs[32:], labels[32:]),
        }

    def model(self) -> nn.Module:
        return load_workload("fashion_mnist/simple_cnn").model()


@dataclass(frozen=True)
class Case:
    workload: str
    by_hand: Callable[[], nn.Module]
    batch_size: int
    steps: int
    pairs: int

    @property
    def name(self) -> str:
        return self.workload.removeprefix(f"{__file__}:")


CASES = [
    Case("digits/mlp", MLP, batch_size=32, steps=3000, pairs=11),
    Case("fashion_mnist/simple_cnn", SimpleCNN, batch_size=128, steps=30, pairs=7),
]
SMOKE_CASES = [
    Case("digits/mlp", MLP, batch_size=32, steps=20, pairs=2),
    Case(f"{__file__}:Noise", SimpleCNN, batch_size=8, steps=3, pairs=2),
]


def toy_trial(case: Case) -> Trial:
    study = Study(
        workload=case.workload,
        recipe="sgd",
        optimizer="sgd",
        batch_size=case.batch_size,
        goals=(),
        budget_steps=case.steps,
        grid=EvaluationGrid(spacing=0, min_gap=case.steps),
        space={"learning_rate": LEARNING_RATE},
        trials=1,
    )
    return Trial(study=study, index=0, seed=0, params={"learning_rate": LEARNING_RATE})


def train_ours(trial: Trial) -> tuple[float, float]:
    """Seconds of training and the final validation loss."""
    training = train(trial, Ranks())
    while True:
        try:
            measurement = next(training)
        except StopIteration as end:
            return end.value.seconds, measurement.metrics["val/loss"]


def tensors_of(split: Split) -> tuple[Tensor, ...]:
    assert isinstance(split, Tensors)
    tensors: tuple[Tensor, ...] = split.tensors
    return tensors


class ByHand:
    """The same training without the project, but for its data, first weights and batches."""

    def __init__(self, case: Case, trial: Trial) -> None:
        workload = load_workload(case.workload)
        splits = workload.data(None)
        self._inputs, self._labels = tensors_of(splits["train"])
        self._val_inputs, self._val_labels = tensors_of(splits["val"])
        stage = Stage(batch_size=case.batch_size)
        order = BatchOrder(size=len(self._inputs), stage=stage, seed=trial.seed)
        self._indices = [index for (index,) in order.walk(range(case.steps))]
        torch.manual_seed(derive_seed(trial.seed, "init"))
        self._first = list(workload.model().parameters())
        self._model = case.by_hand

    def train(self) -> tuple[float, float]:
        """Seconds of training and the final validation loss."""
        model = self._model()
        with torch.no_grad():
            for weights, first in zip(model.parameters(), self._first, strict=True):
                weights.copy_(first)
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        began = time.perf_counter()
        for index in self._indices:
            inputs = self._inputs.index_select(0, index)
            labels = self._labels.index_select(0, index)
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(inputs), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        seconds = time.perf_counter() - began
        with torch.no_grad():
            val_loss = functional.cross_entropy(model(self._val_inputs), self._val_labels)
        return seconds, float(val_loss)


def compare(case: Case) -> dict[str, Any]:
    trial = toy_trial(case)
    by_hand = ByHand(case, trial)
    ours, theirs = [], []
    for pair in range(WARM_UP_PAIRS + case.pairs):
        if pair % 2:
            theirs.append(by_hand.train())
            ours.append(train_ours(trial))
        else:
            ours.append(train_ours(trial))
            theirs.append(by_hand.train())
    ours, theirs = ours[WARM_UP_PAIRS:], theirs[WARM_UP_PAIRS:]
    ratios = [mine[0] / other[0] for mine, other in zip(ours, theirs, strict=True)]
    ratio = statistics.median(ratios)
    loss_difference = max(abs(a[1] - b[1]) for a, b in zip(ours, theirs, strict=True))
    microseconds = {
        name: statistics.median(seconds for seconds, _ in runs) / case.steps * 1e6
        for name, runs in (("by_hand", theirs), ("ours", ours))
    }
    return {
        "workload": case.name,
        "batch_size": case.batch_size,
        "ours_us_per_step": round(microseconds["ours"], 2),
        "by_hand_us_per_step": round(microseconds["by_hand"], 2),
        "ratio": round(ratio, 4),
        "ratios": [round(value, 4) for value in ratios],
        "loss_difference": loss_difference,
    }


def main() -> int:
    options = parser_of(__doc__).parse_args()
    torch.set_num_threads(1)
    results = []
    for case in SMOKE_CASES if options.smoke else CASES:
        needed = case.workload.partition("/")[0]
        if needed == "fashion_mnist" and data_set(needed).find(None) is None:
            print(f"{case.workload} is left out: {data_set(needed).get}", file=sys.stderr)
            continue
        results.append(compare(case))
    heads = ("workload", "batch size", "by hand, us", "ours, us", "ratio", "of pairs")
    rows = [
        [
            f"`{result['workload']}`",
            str(result["batch_size"]),
            f"{result['by_hand_us_per_step']:,.0f}",
            f"{result['ours_us_per_step']:,.0f}",
            bounded(f"{result['ratio']:.2f}", result["ratio"] <= MAX_RATIO),
            f"{min(result['ratios']):.2f} to {max(result['ratios']):.2f}",
        ]
        for result in results
    ]
    ok = all(
        result["ratio"] <= MAX_RATIO and result["loss_difference"] <= MAX_LOSS_DIFFERENCE
        for result in results
    )
    bounds = {"max_ratio": MAX_RATIO, "max_loss_difference": MAX_LOSS_DIFFERENCE}
    figures = {**bounds, "cases": results}
    return print_result("loop_overhead", {"": Table(heads, rows)}, figures, options, ok=ok)


if __name__ == "__main__":
    sys.exit(main())
