"""What orchestration adds to a trial: this project, Ray Tune by itself, and plain torch.

All sides train the same toy trial: digits/mlp, batch size 32, sgd, 200 steps on one thread per
rank, no goal, evaluated at step 0 and at the end only.

torch         a hand-written loop in this process and nothing else
ours, 1 slot  `run_trials` with one rank: searcher, warm gang, Parquet files; one trial at a time,
              since all CPUs but one are held back
ours          the same on every CPU, where trials, Tune and the driver share the CPUs
ours, 2 ranks `run_trials` with two gloo ranks for each trial
tune          a Tune function trainable, as in its tutorial
tune + train  a Tune function that runs Train's TorchTrainer with two ranks, as documented

Ray is started once, before anything is timed. The two Tune sides train with the hand-written loop
and are handed their data ready-made, which is in their favour.

slots         trials that run at once
training      seconds of optimizer steps in a trial; making the model and evaluating are not in it
wall          seconds from one trial's start to the next one's: the time from a trial's start to the
              start that is `slots` later, divided by `slots`
overhead      that same time, not divided, minus the trial's training: all of a slot's time that
              doesn't go into optimizer steps, in ms
trials/hour   3600 / wall

Each is a median over a side's warm trials: all but the first third, in order of start.

Bounds: `ours`, with one slot or all, has at most 30 ms of overhead per trial; `ours, 2 ranks` runs
at least 40 times the trials per hour of `tune + train`.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from orchestrator.cluster import Cluster, connect, run_trials
from orchestrator.progress import Progress
from orchestrator.records import EvaluationGrid, Range, Study
from orchestrator.results import Run
from orchestrator.search import propose
from orchestrator.sweep import Resources
from orchestrator.workloads import load_workload

WORKLOAD = "digits/mlp"
BATCH_SIZE = 32
STEPS = 200
LEARNING_RATES = Range(low=0.01, high=0.3, scale="log")
RANKS = 2

MAX_OVERHEAD_MS = 30
MIN_SPEED_UP = 40

Timing = tuple[float, float]
"""A trial's start, in seconds since the epoch, and its seconds of training."""


@dataclass(frozen=True)
class Side:
    name: str
    trials: int
    slots: int
    wall_seconds: float
    training_seconds: float
    overhead_ms: float
    trials_per_hour: float


def summarise(name: str, timings: list[Timing], slots: int) -> Side:
    warm = sorted(timings)[len(timings) // 3 :]
    cycles = [later[0] - trial[0] for trial, later in zip(warm, warm[slots:], strict=False)]
    wall = statistics.median(cycles) / slots
    return Side(
        name=name,
        trials=len(timings),
        slots=slots,
        wall_seconds=wall,
        training_seconds=statistics.median(seconds for _, seconds in warm),
        overhead_ms=1e3
        * statistics.median(c - trial[1] for c, trial in zip(cycles, warm, strict=False)),
        trials_per_hour=3600 / wall,
    )


def load_data() -> dict[str, Tensor]:
    splits = load_workload(WORKLOAD).data(None)
    (inputs, labels), (val_inputs, val_labels) = splits["train"].tensors, splits["val"].tensors
    return {
        "inputs": inputs,
        "labels": labels,
        "val_inputs": val_inputs,
        "val_labels": val_labels,
    }


def train_by_hand(
    data: dict[str, Tensor],
    prepare: Callable[[nn.Module], nn.Module] = lambda model: model,
    rank: int = 0,
    ranks: int = 1,
) -> float:
    """One toy trial, or this rank's part of it. Returns the seconds of its steps."""
    torch.set_num_threads(1)
    model = prepare(load_workload(WORKLOAD).model())
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATES.low)

    def evaluate() -> float:
        with torch.no_grad():
            return float(functional.cross_entropy(model(data["val_inputs"]), data["val_labels"]))

    evaluate()
    began = time.perf_counter()
    for _ in range(STEPS):
        index = torch.randint(len(data["inputs"]), (BATCH_SIZE,))[rank::ranks]
        inputs, labels = data["inputs"][index], data["labels"][index]
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    seconds = time.perf_counter() - began
    evaluate()
    return seconds


def time_torch(trials: int) -> list[Timing]:
    data = load_data()
    return [(time.time(), train_by_hand(data)) for _ in range(trials)]


def time_ours(cluster: Cluster, trials: int, resources: Resources) -> list[Timing]:
    study = Study(
        workload=WORKLOAD,
        recipe="sgd",
        optimizer="sgd",
        batch_size=BATCH_SIZE,
        goals=(),
        budget_steps=STEPS,
        grid=EvaluationGrid(spacing=0, min_gap=STEPS),
        space={"learning_rate": LEARNING_RATES},
        trials=trials,
    )
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder))
        run_trials(
            run,
            propose(study, 0),
            [study],
            cluster=cluster,
            resources=resources,
            progress=Progress([study]),
        )
        rows = run.trials(study.key).to_pylist()
    assert [row["status"] for row in rows] == ["exhausted"] * trials, rows
    return [(row["started"], row["seconds"]) for row in rows]


@contextlib.contextmanager
def cpus_held(count: int) -> Iterator[None]:
    import ray
    from ray.util import placement_group, remove_placement_group

    if count == 0:
        yield
        return
    group = placement_group([{"CPU": 1}] * count)
    ray.get(group.ready())
    try:
        yield
    finally:
        remove_placement_group(group)


def time_tune(trainable: Any, trials: int, **tune_config: Any) -> list[Timing]:
    """Runs a trainable that reports `started` and `seconds`."""
    from ray import tune

    with tempfile.TemporaryDirectory() as folder:
        results = tune.Tuner(
            trainable,
            param_space={"learning_rate": tune.loguniform(LEARNING_RATES.low, LEARNING_RATES.high)},
            tune_config=tune.TuneConfig(num_samples=trials, **tune_config),
            run_config=tune.RunConfig(storage_path=folder, verbose=0),
        ).fit()
    assert not results.errors, results.errors
    return [(result.metrics["started"], result.metrics["seconds"]) for result in results]
