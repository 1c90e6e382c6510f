"""What our training loop costs beside a hand-written one.

Compared: `orchestrator.training.train` on one rank, evaluating only at step 0 and at the last step,
against the shortest loop one would write by hand in torch: `index_select` from tensors in memory,
the mean cross-entropy, `torch.optim.SGD` with its defaults. Both train digits/mlp at batch size 32
on one thread, from the same weights, on the same batches; the hand-written loop is given their
indices ready-made. Seconds are those of the steps alone, without set-up and evaluation
(`Outcome.seconds` for ours). The two take turns, in the other order every other time, and the
figure is the median over pairs of ours divided by theirs.

Bounds: the median ratio is at most 1.10, and both end at the same validation loss, to 1e-4.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional

from orchestrator.records import EvaluationGrid, Study, Trial, derive_seed
from orchestrator.training import Ranks, train
from orchestrator.training.batches import BatchOrder
from orchestrator.workloads import load_workload

WORKLOAD = "digits/mlp"
BATCH_SIZE = 32
STEPS = 3000
LEARNING_RATE = 0.05
PAIRS = 11
WARM_UP_PAIRS = 1

MAX_RATIO = 1.10
MAX_LOSS_DIFFERENCE = 1e-4


def toy_trial() -> Trial:
    study = Study(
        workload=WORKLOAD,
        recipe="sgd",
        optimizer="sgd",
        batch_size=BATCH_SIZE,
        goals=(),
        budget_steps=STEPS,
        grid=EvaluationGrid(spacing=0, min_gap=STEPS),
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


class ByHand:
    """The same training without the project, but for its data, first weights and batches."""

    def __init__(self, trial: Trial) -> None:
        self._workload = load_workload(WORKLOAD)
        splits = self._workload.data(None)
        self._inputs, self._labels = splits["train"].tensors
        self._val_inputs, self._val_labels = splits["val"].tensors
        order = BatchOrder(size=len(self._inputs), batch_size=BATCH_SIZE, seed=trial.seed)
        self._indices = [index for (index,) in order.walk(range(STEPS))]
        self._init_seed = derive_seed(trial.seed, "init")

    def train(self) -> tuple[float, float]:
        """Seconds of training and the final validation loss."""
        torch.manual_seed(self._init_seed)
        model: nn.Module = self._workload.model()
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        began = time.perf_counter()
        for index in self._indices:
            inputs = self._inputs.index_select(0, index)
            labels = self._labels.index_select(0, index)
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
        seconds = time.perf_counter() - began
        with torch.no_grad():
            loss = functional.cross_entropy(model(self._val_inputs), self._val_labels)
        return seconds, float(loss)


def main() -> int:
    torch.set_num_threads(1)
    trial = toy_trial()
    by_hand = ByHand(trial)
    ours, theirs = [], []
    for pair in range(WARM_UP_PAIRS + PAIRS):
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
    ok = ratio <= MAX_RATIO and loss_difference <= MAX_LOSS_DIFFERENCE

    microseconds = {
        name: statistics.median(seconds for seconds, _ in runs) / STEPS * 1e6
        for name, runs in (("by hand", theirs), ("ours", ours))
    }
    print(f"{WORKLOAD}, batch size {BATCH_SIZE}, {STEPS:,} steps, {PAIRS} pairs")
    for name, value in microseconds.items():
        print(f"{name:<18}{value:>8.1f} us per step")
    spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
    print(f"{'ratio':<18}{ratio:>8.3f} ({spread}; bound {MAX_RATIO:.2f})")
    print(f"{'loss difference':<18}{loss_difference:>8.1e} (bound {MAX_LOSS_DIFFERENCE:.0e})")
    result = {
        "benchmark": "loop_overhead",
        "ours_us_per_step": round(microseconds["ours"], 2),
        "by_hand_us_per_step": round(microseconds["by hand"], 2),
        "ratio": round(ratio, 4),
        "ratios": [round(value, 4) for value in ratios],
        "max_ratio": MAX_RATIO,
        "loss_difference": loss_difference,
        "max_loss_difference": MAX_LOSS_DIFFERENCE,
        "ok": ok,
    }
    print(json.dumps(result))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
