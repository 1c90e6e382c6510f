"""What must hold on a GPU, with the figures: run it where there is one.

    invariance    float32 on CUDA: 1 rank against accumulation and, with two GPUs, against 2 NCCL
                  ranks; the same curve to 1e-3 over 200 steps
    precision     bfloat16 trains to nearly the loss of float32
    repetition    two trainings give the same bits
    memory        allocated CUDA memory returns to its baseline after 50 warm trials
    out of memory a batch that can't fit is trained in smaller micro-batches
    overhead      microseconds per step beside a loop written by hand

Prints a table and one JSON line; exit code 1 if anything does not hold.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from orchestrator.records import EvaluationGrid, Measurement, Outcome, Study, Trial
from orchestrator.training import open_ranks, train, train_on_ranks
from orchestrator.workloads import Classification, Split, Tensors, with_ghosts

STEPS = 200


class Images(Classification):
    """Random images of 32x32 whose labels can be learned; a small CNN with ghost batch norm."""

    goal = "val/error < 0.01"

    def data(self, data_dir: Path | None) -> Mapping[str, Split]:
        generator = torch.Generator().manual_seed(0)
        inputs = torch.randn(6000, 3, 32, 32, generator=generator)
        labels = (inputs.mean(dim=(2, 3)).argmax(dim=1)).long()
        return {
            "train": Tensors(inputs[:5000], labels[:5000]),
            "val": Tensors(inputs[5000:], labels[5000:]),
        }

    def model(self) -> nn.Module:
        layers: list[nn.Module] = []
        for before, after in ((3, 32), (32, 64), (64, 64)):
            layers += [nn.Conv2d(before, after, 3, stride=2), nn.BatchNorm2d(after), nn.ReLU()]
        model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
        return with_ghosts(model, ghost_size=32)


class Wide(Images):
    """Keeps so much of each example that few of them fit."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(3072, 10), _Hungry())


class _Hungry(nn.Module):
    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        # 256 MiB for each example.
        return logits + torch.tanh(logits.repeat(1, 2**23 // 10)).mean(dim=1, keepdim=True).exp()


def toy(workload: str = "Images", *, batch_size: int = 256, **params: Any) -> Trial:
    study = Study(
        workload=f"{__file__}:{workload}" if "/" not in workload else workload,
        recipe="momentum",
        optimizer="momentum",
        batch_size=batch_size,
        goals=(),
        budget_steps=params.pop("steps", STEPS),
        grid=EvaluationGrid(spacing=0, min_gap=params.pop("gap", 20)),
        space={},
        trials=1,
    )
    params = {"learning_rate": 0.02, "momentum": 0.9, **params}
    return Trial(study=study, index=0, seed=0, params=params)


def exhaust(training: Any) -> tuple[list[Measurement], Any]:
    measurements = []
    while True:
        try:
            measurements.append(next(training))
        except StopIteration as end:
            return measurements, end.value


def on_gpu(trial: Trial, **options: Any) -> tuple[list[Measurement], Outcome]:
    device = torch.device("cuda", 0)
    with open_ranks(rank=0, count=1, host="127.0.0.1", port=0, device=device) as ranks:
        return exhaust(train(trial, ranks, **options))


def difference(one: list[Measurement], other: list[Measurement]) -> float:
    """The largest relative difference of the losses."""
    return max(
        abs(a.metrics[name] - b.metrics[name]) / abs(a.metrics[name])
        for a, b in zip(one, other, strict=True)
        for name in a.metrics
        if name.endswith("loss")
    )


def check_overhead() -> dict[str, float]:
    """digits/mlp at batch size 32, as benchmarks/loop_overhead.py does on the CPU."""
    trial = toy("digits/mlp", batch_size=32, steps=3000, gap=3000)
    on_gpu(trial)
    ours = on_gpu(trial)[1].seconds / 3000
    device = torch.device("cuda", 0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    inputs = torch.randn(1400, 64, device=device)
    labels = torch.randint(10, (1400,), device=device)
    order = [torch.randint(1400, (32,), device=device) for _ in range(3000)]
    for _ in range(2):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for index in order:
            optimizer.zero_grad()
            logits = model(inputs.index_select(0, index))
            functional.cross_entropy(logits, labels.index_select(0, index)).backward()
            optimizer.step()
        torch.cuda.synchronize()
        by_hand = (time.perf_counter() - began) / 3000
    return {"ours_us": ours * 1e6, "by_hand_us": by_hand * 1e6, "ratio": ours / by_hand}


def main() -> int:
    if not torch.cuda.is_available():
        print("There is no GPU here: nothing was checked.")
        return 0
    alone, _ = on_gpu(toy())
    figures: dict[str, Any] = {
        "device": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "accumulation": difference(alone, on_gpu(toy(), micro_batch=64)[0]),
        "two_ranks": None,
        "repetition": difference(alone, on_gpu(toy())[0]),
    }
    if torch.cuda.device_count() > 1:
        figures["two_ranks"] = difference(alone, exhaust(train_on_ranks(toy(), 2))[0])
    bfloat16, _ = on_gpu(toy(precision="bfloat16"))
    figures["bfloat16_loss"] = bfloat16[-1].metrics["val/loss"]
    figures["float32_loss"] = alone[-1].metrics["val/loss"]

    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    for _ in range(50):
        on_gpu(toy(steps=5))
    figures["memory_growth_bytes"] = torch.cuda.memory_allocated() - before

    total = torch.cuda.get_device_properties(0).total_memory
    too_many = min(5000, 2 * total // 2**28)
    hungry, outcome = on_gpu(toy("Wide", batch_size=int(too_many), steps=2))
    figures["out_of_memory"] = {"batch": int(too_many), "micro_batch": outcome.micro_batch}
    figures["overhead"] = check_overhead()

    held = {
        "accumulation": figures["accumulation"] < 1e-3,
        "two_ranks": (figures["two_ranks"] or 0) < 1e-3,
        "repetition": figures["repetition"] == 0,
        "bfloat16": abs(figures["bfloat16_loss"] / figures["float32_loss"] - 1) < 0.1,
        "memory": figures["memory_growth_bytes"] <= 0,
        "out_of_memory": outcome.status == "exhausted" and outcome.micro_batch is not None,
    }
    for name, value in figures.items():
        print(f"{name:<22}{value}")
    ok = all(held.values()) and len(hungry) > 0
    print(json.dumps({"benchmark": "gpu", **figures, "held": held, "ok": ok}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
