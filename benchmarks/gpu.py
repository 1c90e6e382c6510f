"""What must hold on a GPU, with the figures: run it where there is one.

    invariance    float32 on CUDA: 1 rank against accumulation and, with two GPUs, against 2 NCCL
                  ranks; the same loss to 1e-4 after 20 steps (a network that memorises makes
                  1 % of the last bit in 200, on a CPU as well)
    precision     bfloat16 trains to nearly the loss of float32
    repetition    two trainings give the same bits
    memory        allocated CUDA memory returns to its baseline after 50 warm trials
    out of memory a batch that can't fit is trained in smaller micro-batches
    overhead      microseconds per step beside a loop written by hand
    stacks        steps per second of all trials together, in stacks of 1 (alone) to 256, of the
                  paper's Simple CNN on random images and of digits/mlp
    models        milliseconds per step of ResNet-50 and of a GPT of 85 million weights on made-up
                  data, by precision, layout and compiler, and seconds of an evaluation

Prints a table and one JSON line; exit code 1 if anything does not hold. In smoke mode, and without
a GPU, the CPU goes through the same checks.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from command_line import parser_of, print_result
from tables import Table, Tables, bounded
from torch import nn
from torch.nn import functional

from orchestrator.records import EvaluationGrid, Measurement, Outcome, Study, Trial
from orchestrator.training import Ranks, open_ranks, train, train_on_ranks
from orchestrator.training.engine import Engine, Single
from orchestrator.training.memory import OutOfMemory
from orchestrator.training.stack import Stack
from orchestrator.workloads import Classification, Split, Tensors, with_ghosts
from orchestrator.workloads.gpt import REGISTERED, VOCABULARY
from orchestrator.workloads.imagenet import Standardised
from orchestrator.workloads.mnist import simple_cnn
from orchestrator.workloads.resnet import resnet_50


@dataclass(frozen=True, kw_only=True)
class Sizes:
    steps: int
    batch_size: int
    micro_batch: int
    examples: int
    """In the data set."""
    warm_trials: int
    """After which the memory has to be back at its baseline."""
    hungry: int
    """Examples in the batch that can't fit."""
    overhead_steps: int
    stacked_sizes: tuple[int, ...]
    widths: tuple[int, ...]
    stacked_steps: int
    image_size: int
    images: int
    """In a batch of ResNet-50."""
    layers: int
    """Of the GPT."""
    sequences: int
    """In its batch."""
    length: int
    """Tokens in each."""
    timed_steps: int
    """Steps of ResNet-50 and the GPT that are timed."""


FULL = Sizes(
    steps=200, batch_size=256, micro_batch=64, examples=6000, warm_trials=50,
    hungry=2000, overhead_steps=3000,
    stacked_sizes=(1, 8, 32, 128), widths=(1, 2, 4, 8, 16, 32, 64, 128, 256), stacked_steps=100,
    image_size=224, images=256, layers=12, sequences=32, length=512, timed_steps=25,
)  # fmt: skip
SMOKE = Sizes(
    steps=4, batch_size=64, micro_batch=32, examples=600, warm_trials=2,
    hungry=8, overhead_steps=20,
    stacked_sizes=(8,), widths=(1, 2), stacked_steps=2,
    image_size=32, images=2, layers=1, sequences=2, length=16, timed_steps=1,
)  # fmt: skip


@dataclass(frozen=True)
class Images(Classification):
    """Random images of 32x32 whose labels can be learned; a small CNN with ghost batch norm."""

    goal: ClassVar[str] = "val/error < 0.01"

    examples: int = FULL.examples

    def data(self, data_dir: Path | None) -> Mapping[str, Split]:
        generator = torch.Generator().manual_seed(0)
        inputs = torch.randn(self.examples, 3, 32, 32, generator=generator)
        labels = (inputs.mean(dim=(2, 3)).argmax(dim=1)).long()
        cut = self.examples * 5 // 6
        return {
            "train": Tensors(inputs[:cut], labels[:cut]),
            "val": Tensors(inputs[cut:], labels[cut:]),
        }

    def model(self) -> nn.Module:
        layers: list[nn.Module] = []
        for before, after in ((3, 32), (32, 64), (64, 64)):
            layers += [nn.Conv2d(before, after, 3, stride=2), nn.BatchNorm2d(after), nn.ReLU()]
        model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
        return with_ghosts(model, ghost_size=32)


@dataclass(frozen=True)
class Wide(Images):
    """Keeps so much of each example that few of them fit."""

    megabytes: int = 1
    """Of each wide tensor, for each example."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(3072, 10), _Hungry(self.megabytes))


class _Hungry(nn.Module):
    def __init__(self, megabytes: int) -> None:
        super().__init__()
        self._copies = megabytes * 2**18 // 10  # ten logits of four bytes each

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        wide = torch.tanh(logits.repeat(1, self._copies))
        return logits + wide.mean(dim=1, keepdim=True).exp()


@dataclass(frozen=True)
class Digits(Images):
    """As large as those of MNIST, for the Simple CNN of Shallue et al."""

    def data(self, data_dir: Path | None) -> Mapping[str, Split]:
        generator = torch.Generator().manual_seed(0)
        inputs = torch.randn(self.examples, 1, 28, 28, generator=generator)
        labels = torch.randint(10, (self.examples,), generator=generator)
        cut = self.examples * 5 // 6
        return {
            "train": Tensors(inputs[:cut], labels[:cut]),
            "val": Tensors(inputs[cut:], labels[cut:]),
        }

    def model(self) -> nn.Module:
        return simple_cnn((32, 64), 1024, 10)


@dataclass(frozen=True)
class Photographs(Images):
    """Random bytes for ResNet-50."""

    size: int = FULL.image_size
    channels_last: bool = False

    def data(self, data_dir: Path | None) -> Mapping[str, Split]:
        pixels = torch.randint(256, (self.examples, 3, self.size, self.size), dtype=torch.uint8)
        every = Tensors(pixels, torch.arange(self.examples) % 1000)
        return {"train": every, "val": every}

    def model(self) -> nn.Module:
        model = nn.Sequential(Standardised(), resnet_50(1000))
        return model.to(memory_format=torch.channels_last) if self.channels_last else model  # type: ignore[call-overload]


class RandomText(REGISTERED["sympy/gpt_100m"]):  # type: ignore
    """Random tokens for a GPT of width 768."""

    def data(self, data_dir: Path | None) -> Mapping[str, Split]:
        windows = torch.randint(VOCABULARY, (256, self.length + 1))
        return {"train": Tensors(windows), "val": Tensors(windows[:4])}


def toy(
    workload: str, *, batch_size: int, steps: int, gap: int = 20, **params: float | str
) -> Trial:
    study = Study(
        workload=workload,
        recipe="momentum",
        optimizer="momentum",
        batch_size=batch_size,
        goals=(),
        budget_steps=steps,
        grid=EvaluationGrid(spacing=0, min_gap=gap),
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


def train_on(
    device: torch.device, trial: Trial, **options: Any
) -> tuple[list[Measurement], Outcome]:
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


def check_overhead(device: torch.device, steps: int) -> dict[str, float]:
    """digits/mlp at batch size 32, as benchmarks/loop_overhead.py does on the CPU."""
    trial = toy("digits/mlp", batch_size=32, steps=steps, gap=steps)
    train_on(device, trial)
    ours = train_on(device, trial)[1].seconds / steps
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    inputs = torch.randn(1400, 64, device=device)
    labels = torch.randint(10, (1400,), device=device)
    order = [torch.randint(1400, (32,), device=device) for _ in range(steps)]
    ranks = Ranks(device=device)
    for _ in range(2):
        ranks.synchronise()
        began = time.perf_counter()
        for index in order:
            optimizer.zero_grad()
            logits = model(inputs.index_select(0, index))
            loss = functional.cross_entropy(logits, labels.index_select(0, index))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        ranks.synchronise()
        by_hand = (time.perf_counter() - began) / steps
    return {"ours_us": ours * 1e6, "by_hand_us": by_hand * 1e6, "ratio": ours / by_hand}


def check_stacks(device: torch.device, sizes: Sizes) -> list[dict[str, Any]]:
    """Steps of all trials together per second, by workload, batch size and width."""
    found = []
    for name in (f"{__file__}:Digits?examples={sizes.examples}", "digits/mlp"):
        for batch_size in sizes.stacked_sizes:
            trial = toy(name, batch_size=batch_size, steps=10**6)
            paces = {
                width: _pace(device, trial, width, sizes.stacked_steps) for width in sizes.widths
            }
            found.append({"workload": name, "batch_size": batch_size, "steps_per_second": paces})
    return found


def _pace(device: torch.device, trial: Trial, width: int, steps: int) -> float | None:
    """None where memory does not suffice."""
    ranks = Ranks(device=device)
    try:
        engine: Engine = Single(trial, ranks) if width == 1 else Stack(trial, ranks, width)
        for slot in range(width):
            engine.put(slot, replace(trial, index=slot, seed=slot))
        engine.advance(max(steps // 4, 1))
        engine.advance(steps)
    except OutOfMemory:
        return None
    pace = width / engine.rate
    for slot in range(width):
        engine.clear(slot)
    return pace


def check_models(device: torch.device, sizes: Sizes) -> list[dict[str, Any]]:
    found = []
    for layout in ("", "&channels_last=true"):
        options = f"examples={4 * sizes.images}&size={sizes.image_size}{layout}"
        name = f"{__file__}:Photographs?{options}"
        trial = toy(name, batch_size=sizes.images, steps=10**6)
        ways: list[dict[str, Any]] = [{}, {"precision": "bfloat16"}]
        if layout and device.type == "cuda":
            ways.append({"precision": "bfloat16", "compile": True})
        found += [_speed(device, trial, sizes, way) for way in ways]
    trial = toy(
        f"{__file__}:RandomText?length={sizes.length}&layers={sizes.layers}",
        batch_size=sizes.sequences,
        steps=10**6,
    )
    for way in [{"compile": True}, {}] if device.type == "cuda" else [{}]:
        found.append(_speed(device, trial, sizes, {"precision": "bfloat16", **way}))
    return found


def _speed(
    device: torch.device, trial: Trial, sizes: Sizes, way: Mapping[str, Any]
) -> dict[str, Any]:
    extras = replace(trial.study.extras, precision=way.get("precision", "float32"))
    study = replace(trial.study, extras=extras)
    engine: Engine = Single(trial, Ranks(device=device))
    engine.put(0, replace(trial, study=study, params={**trial.params, **way}))
    began = time.perf_counter()
    engine.advance(1)
    first = time.perf_counter() - began
    engine.advance(min(sizes.timed_steps, 5))
    engine.advance(sizes.timed_steps)
    milliseconds = 1000 * engine.rate
    engine.evaluated([0], test=False)
    began = time.perf_counter()
    engine.evaluated([0], test=False)
    evaluation = time.perf_counter() - began
    engine.clear(0)
    name = trial.study.workload.rpartition(":")[2]
    return {"workload": name, **way, "ms": milliseconds, "first": first, "evaluation": evaluation}


def check_memory(device: torch.device, trial: Trial, warm_trials: int) -> int:
    """Bytes of CUDA memory that are held after so many trials and weren't before; 0 on the CPU."""
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    for _ in range(warm_trials):
        train_on(device, trial)
    return torch.cuda.memory_allocated() - before


def check_out_of_memory(device: torch.device, sizes: Sizes) -> tuple[dict[str, Any], bool]:
    """The batch and the micro-batches it was trained in, and whether that is how it went."""
    megabytes = 1
    if device.type == "cuda":  # one tensor of the batch alone is larger than the card
        total = torch.cuda.get_device_properties(0).total_memory
        megabytes = 1 + total // (sizes.hungry * 2**20)
    workload = f"{__file__}:Wide?examples={sizes.examples}&megabytes={megabytes}"
    measurements, outcome = train_on(device, toy(workload, batch_size=sizes.hungry, steps=2))
    split = outcome.status == "exhausted" and outcome.micro_batch is not None
    found = {"batch": sizes.hungry, "micro_batch": outcome.micro_batch}
    return found, split and len(measurements) > 0


def check(device: torch.device, sizes: Sizes) -> tuple[dict[str, Any], dict[str, bool]]:
    """The figures, and whether what they are for holds."""
    on_gpu = device.type == "cuda"
    images = partial(
        toy, f"{__file__}:Images?examples={sizes.examples}", batch_size=sizes.batch_size
    )
    trial, short = images(steps=sizes.steps), images(steps=min(sizes.steps, 20))
    (alone, _), (early, _) = train_on(device, trial), train_on(device, short)
    figures: dict[str, Any] = {
        "device": torch.cuda.get_device_name(0) if on_gpu else "cpu",
        "torch": torch.__version__,
        "accumulation": difference(
            early, train_on(device, short, micro_batch=sizes.micro_batch)[0]
        ),
        "two_ranks": None,
        "repetition": difference(alone, train_on(device, trial)[0]),
    }
    if not on_gpu or torch.cuda.device_count() > 1:
        figures["two_ranks"] = difference(early, exhaust(train_on_ranks(short, 2))[0])
    bfloat16, _ = train_on(device, images(steps=sizes.steps, precision="bfloat16"))
    figures["bfloat16_loss"] = bfloat16[-1].metrics["val/loss"]
    figures["float32_loss"] = alone[-1].metrics["val/loss"]
    figures["memory_growth_bytes"] = check_memory(device, images(steps=5), sizes.warm_trials)
    figures["out_of_memory"], was_split = check_out_of_memory(device, sizes)
    figures["overhead"] = check_overhead(device, sizes.overhead_steps)
    figures["stacks"] = check_stacks(device, sizes)
    figures["models"] = check_models(device, sizes)
    return figures, {
        "accumulation": figures["accumulation"] < 1e-4,
        "two_ranks": (figures["two_ranks"] or 0) < 1e-4,
        "repetition": figures["repetition"] == 0,
        "bfloat16": abs(figures["bfloat16_loss"] / figures["float32_loss"] - 1) < 0.1,
        "memory": figures["memory_growth_bytes"] <= 0,
        "out_of_memory": was_split,
    }


def tables_of(figures: Mapping[str, Any], held: Mapping[str, bool]) -> Tables:
    overhead, memory = figures["overhead"]["ratio"], figures["memory_growth_bytes"]
    losses = f"{figures['bfloat16_loss']:.3f}, {figures['float32_loss']:.3f}"
    split = "{batch:,} in {micro_batch}".format(**figures["out_of_memory"])
    two_ranks = "-" if figures["two_ranks"] is None else f"{figures['two_ranks']:.0e}"
    checks = [
        ["accumulation changes the loss by", f"{figures['accumulation']:.0e}", "accumulation"],
        ["two ranks change it by", two_ranks, "two_ranks"],
        ["a second training changes it by", f"{figures['repetition']:.0e}", "repetition"],
        ["loss in bfloat16 and float32", losses, "bfloat16"],
        ["bytes held after warm trials", f"{memory:,}", "memory"],
        ["a batch that can't fit, in micro-batches of", split, "out_of_memory"],
        ["a step over one by hand", f"{overhead:.2f}", ""],
    ]
    stacks = figures["stacks"]
    paces = [
        [
            one["workload"].rpartition(":")[2].partition("?")[0],
            str(one["batch_size"]),
            *(
                "-" if pace is None else f"{pace / (one['steps_per_second'][1] or math.nan):.1f}"
                for pace in one["steps_per_second"].values()
            ),
        ]
        for one in stacks
    ]
    models = [
        [
            one["workload"].partition("?")[0],
            ", ".join(
                [
                    one.get("precision", "float32"),
                    *(["channels_last"] if "channels_last" in one["workload"] else []),
                    *(["compiled"] if one.get("compile") else []),
                ]
            ),
            *(
                f"{one[name]:.{digits}f}"
                for name, digits in (("ms", 0), ("first", 0), ("evaluation", 2))
            ),
        ]
        for one in figures["models"]
    ]
    widths = [f"{width}" for width in stacks[0]["steps_per_second"]]
    return {
        "checks": Table(
            [f"{figures['device']}, torch {figures['torch']}", "measured"],
            [[what, bounded(cell, held.get(name, True))] for what, cell, name in checks],
        ),
        "stacks": Table(["workload", "batch size", *widths], paces),
        "models": Table(["model", "how", "ms per step", "first step, s", "evaluation, s"], models),
    }


def main() -> int:
    options = parser_of(__doc__).parse_args()
    smoke = options.smoke
    there = torch.cuda.is_available()
    if not (there or smoke):
        print("There is no GPU here: nothing was checked.")
        return 0
    device = torch.device("cuda", 0) if there else torch.device("cpu")
    if not there:
        torch.set_num_threads(1)
    figures, held = check(device, SMOKE if smoke else FULL)
    if not smoke:
        figures["held"] = held
    return print_result("gpu", tables_of(figures, held), figures, options, ok=all(held.values()))


if __name__ == "__main__":
    sys.exit(main())
