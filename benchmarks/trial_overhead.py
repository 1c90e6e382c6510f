"""What orchestration adds to a trial: this project, Ray Tune by itself, and plain torch.

All sides train the same toy trial: digits/mlp, batch size 32, sgd, 200 steps, one thread per rank,
a goal that no trial reaches, evaluated at step 0 and at the end only. All run on two CPUs of one
Ray, which is started before anything is timed.

torch          a hand-written loop in this process and nothing else
ours, 1 slot   `train_apart` with one rank: dispatcher, warm gang, Parquet files; the other CPU is
               held back, so one trial at a time
ours           the same with both CPUs, which two trials share with Tune and this process
ours, 2 ranks  `train_apart` with two gloo ranks for each trial
tune           a Tune function trainable, as in its tutorial
tune + train   a Tune function that runs Train's TorchTrainer with two ranks, as documented

The two Tune sides train with the hand-written loop and are handed their data ready-made, which is
in their favour.

slots          trials that run at once
training       seconds of optimizer steps in a trial; making model and evaluating are not in it
wall           seconds from one trial's start to the next one's: from a trial's start to the start
               `slots` later, divided by `slots`
overhead       that time, not divided, minus the trial's training: all of a slot's time that
               doesn't go into optimizer steps, in ms
trials/hour    3600 / wall

Each is a median over a side's warm trials: all but the first third in order of start.

Bounds: `ours`, with one slot or two, has at most 30 ms of overhead per trial; `ours, 2 ranks` runs
at least 40 times the trials per hour of `tune + train`.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from command_line import parser_of, print_result, slowness
from tables import Table, bounded
from torch import Tensor, nn
from torch.nn import functional

from orchestrator.cluster.connect import connect
from orchestrator.cluster.sweeps import train_apart
from orchestrator.planning.machines import Cluster
from orchestrator.planning.sweep import Sweep
from orchestrator.records import EvaluationGrid, Goal, Range, Study
from orchestrator.results import RunFiles
from orchestrator.workloads import Split, Tensors, load_workload

# Ray reads its settings when imported: after orchestrator.cluster, which makes them.
# isort: split
import ray
from ray import train, tune
from ray.train.torch import TorchTrainer, prepare_model
from ray.tune.integration.ray_train import TuneReportCallback
from ray.util import placement_group, remove_placement_group

WORKLOAD, BATCH_SIZE = "digits/mlp", 32
GOAL = Goal.parse("val/loss < 0")
LEARNING_RATE = Range(low=0.01, high=0.3, scale="log")
CPUS = 2

MAX_OVERHEAD_MS = 30
MIN_SPEED_UP = 40

Timing = tuple[float, float]
"""A trial's start, in seconds since the epoch, and its seconds of training."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    steps: int
    """Of each trial; the others are numbers of trials."""
    by_hand: int
    ours: int
    ours_on_two_ranks: int
    tune: int
    tune_and_train: int


FULL = Sizes(steps=200, by_hand=60, ours=60, ours_on_two_ranks=20, tune=8, tune_and_train=2)
SMOKE = Sizes(steps=5, by_hand=3, ours=0, ours_on_two_ranks=3, tune=1, tune_and_train=0)
"""Each side but the first takes seconds to start, and the rest go the same way as those on Ray."""


@dataclass(frozen=True, kw_only=True)
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
    # So few trials that none was followed by another are for smoke mode: until now, then.
    cycles = cycles or [time.time() - started for started, _ in warm]
    overheads = [cycle - trial[1] for trial, cycle in zip(warm, cycles, strict=False)]
    wall = statistics.median(cycles) / slots
    return Side(
        name=name,
        trials=len(timings),
        slots=slots,
        wall_seconds=wall,
        training_seconds=statistics.median(seconds for _, seconds in warm),
        overhead_ms=1e3 * statistics.median(overheads),
        trials_per_hour=3600 / wall,
    )


def load_data() -> list[Tensor]:
    splits = load_workload(WORKLOAD).data(None)
    return [*tensors_of(splits["train"]), *tensors_of(splits["val"])]


def tensors_of(split: Split) -> tuple[Tensor, ...]:
    assert isinstance(split, Tensors)
    tensors: tuple[Tensor, ...] = split.tensors
    return tensors


def train_by_hand(
    data: list[Tensor],
    learning_rate: float,
    steps: int,
    prepare: Callable[[nn.Module], nn.Module] = lambda model: model,
    rank: int = 0,
    ranks: int = 1,
) -> float:
    """A toy trial, or one rank's share of it. Returns the seconds of its steps."""
    torch.set_num_threads(1)
    inputs, labels, val_inputs, val_labels = data
    model = prepare(load_workload(WORKLOAD).model())
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    batches = [torch.randint(len(inputs), (BATCH_SIZE,))[rank::ranks] for _ in range(steps)]
    with torch.no_grad():
        functional.cross_entropy(model(val_inputs), val_labels).item()
    began = time.perf_counter()
    for index in batches:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs[index]), labels[index])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    seconds = time.perf_counter() - began
    with torch.no_grad():
        functional.cross_entropy(model(val_inputs), val_labels).item()
    return seconds


def time_torch(trials: int, steps: int) -> list[Timing]:
    data, learning_rate = load_data(), LEARNING_RATE.at(0.5)
    return [(time.time(), train_by_hand(data, learning_rate, steps)) for _ in range(trials)]


def time_ours(cluster: Cluster, trials: int, steps: int, **resources: float) -> list[Timing]:
    sweep = Sweep.model_validate(
        {
            "name": "trial-overhead",
            "workloads": [WORKLOAD],
            "recipes": ["sgd"],
            "batch_sizes": [BATCH_SIZE],
            "resources": {"gpus_per_device": 0, "stack": 1, **resources},
        }
    )
    study = Study(
        workload=WORKLOAD,
        recipe="sgd",
        optimizer="sgd",
        batch_size=BATCH_SIZE,
        goals=(GOAL,),
        budget_steps=steps,
        grid=EvaluationGrid(spacing=0, min_gap=steps),
        space={"learning_rate": LEARNING_RATE},
        trials=trials,
    )
    with tempfile.TemporaryDirectory() as folder:
        run = RunFiles(Path(folder))
        assert train_apart(run, sweep, [study], cluster)
        rows = run.trials(study.key).to_pylist()
    assert [row["steps"] for row in rows] == [steps] * trials, rows
    return [(row["started"], row["seconds"]) for row in rows]


def time_tune(trainable: Any, trials: int, folder: str, slots: int) -> list[Timing]:
    tuner = tune.Tuner(
        trainable,
        param_space={"learning_rate": tune.loguniform(LEARNING_RATE.low, LEARNING_RATE.high)},
        tune_config=tune.TuneConfig(num_samples=trials, max_concurrent_trials=slots),
        run_config=tune.RunConfig(storage_path=folder, verbose=0),
    )
    results = tuner.fit()
    assert not results.errors, results.errors
    reports = [results[number].metrics or {} for number in range(len(results))]
    return [(report["started"], report["seconds"]) for report in reports]


def time_function(trials: int, steps: int, slots: int) -> list[Timing]:
    def function(config: dict[str, Any], data: list[Tensor]) -> None:
        started = time.time()
        seconds = train_by_hand(data, config["learning_rate"], steps)
        tune.report({"started": started, "seconds": seconds})

    with tempfile.TemporaryDirectory() as folder:
        return time_tune(tune.with_parameters(function, data=load_data()), trials, folder, slots)


def time_torch_trainer(trials: int, steps: int, ranks: int) -> list[Timing]:
    def train_rank(config: dict[str, Any]) -> None:
        rank = train.get_context().get_world_rank()
        data, learning_rate = config["data"], config["learning_rate"]
        seconds = train_by_hand(data, learning_rate, steps, prepare_model, rank, ranks)
        train.report({"started": config["started"], "seconds": seconds})

    def run_trainer(config: dict[str, Any], data: list[Tensor], folder: str) -> None:
        TorchTrainer(
            train_rank,
            train_loop_config={**config, "data": data, "started": time.time()},
            # A Tune function has to take a bit of a CPU; this leaves it one.
            scaling_config=train.ScalingConfig(
                num_workers=ranks, resources_per_worker={"CPU": 0.9}
            ),
            run_config=train.RunConfig(
                name=tune.get_context().get_trial_id(),
                storage_path=folder,
                # Ray's types are those of Train's first version, which had Tune's callbacks.
                callbacks=[TuneReportCallback()],  # type: ignore[no-untyped-call, list-item]
            ),
        ).fit()

    with tempfile.TemporaryDirectory() as folder:
        function = tune.with_parameters(run_trainer, data=load_data(), folder=folder)
        return time_tune(tune.with_resources(function, {"CPU": 0.1}), trials, folder, slots=1)


@contextlib.contextmanager
def cpus_held(count: int) -> Iterator[None]:
    """Leaves Ray `count` CPUs fewer to give away."""
    held = [placement_group([{"CPU": 1}]) for _ in range(count)]
    ray.get([group.ready() for group in held])
    try:
        yield
    finally:
        for group in held:
            remove_placement_group(group)


def time_all(cluster: Cluster, sizes: Sizes) -> list[Side]:
    assert cluster.cpus >= CPUS, f"this takes {CPUS} CPUs, but the cluster has {cluster.cpus}"
    two_ranks = {"examples_per_device": BATCH_SIZE // 2, "max_devices": 2}
    steps = sizes.steps
    with cpus_held(cluster.cpus - 1):
        by_hand = time_torch(sizes.by_hand, steps)
        one_slot = sizes.ours and time_ours(cluster, sizes.ours, steps)
    with cpus_held(cluster.cpus - CPUS):
        ours = sizes.ours and time_ours(cluster, sizes.ours, steps)
        on_two_ranks = time_ours(cluster, sizes.ours_on_two_ranks, steps, **two_ranks)
        by_tune = time_function(sizes.tune, steps, slots=CPUS)
        with_train = sizes.tune_and_train and time_torch_trainer(sizes.tune_and_train, steps, 2)
    sides = [
        ("torch", by_hand, 1),
        ("ours, 1 slot", one_slot, 1),
        ("ours", ours, CPUS),
        ("ours, 2 ranks", on_two_ranks, 1),
        ("tune", by_tune, CPUS),
        ("tune + train", with_train, 1),
    ]
    return [summarise(name, timings, slots) for name, timings, slots in sides if timings]


def main() -> int:
    options = parser_of(__doc__).parse_args()
    smoke = options.smoke
    # Ray and Tune have things to print: not where the figures go.
    with (
        contextlib.redirect_stdout(sys.stderr),
        tempfile.TemporaryDirectory() as folder,
        connect(None, Path(folder) / "log.txt") as cluster,
    ):
        sides = {side.name: side for side in time_all(cluster, SMOKE if smoke else FULL)}
    one_rank = ("ours, 2 ranks",) if smoke else ("ours", "ours, 1 slot")
    overhead_ms = max(sides[name].overhead_ms for name in one_rank)
    theirs = sides["tune" if smoke else "tune + train"]
    speed_up = sides["ours, 2 ranks"].trials_per_hour / theirs.trials_per_hour
    most = MAX_OVERHEAD_MS * slowness()
    ok = overhead_ms <= most and speed_up >= MIN_SPEED_UP
    rows = [
        [
            side.name,
            str(side.slots),
            f"{side.wall_seconds:.3f}",
            f"{side.training_seconds:.3f}",
            bounded(
                f"{side.overhead_ms:.0f}", side.name not in one_rank or side.overhead_ms <= most
            ),
            f"{most:.0f}" if side.name in one_rank else "",
            f"{side.trials_per_hour:,.0f}",
        ]
        for side in sides.values()
    ]
    heads = (
        "how", "slots", "seconds per trial", "training", "overhead, ms", "bound", "trials per hour",
    )  # fmt: skip
    gain = bounded(f"{speed_up:.0f}", speed_up >= MIN_SPEED_UP)
    tables = {
        "sides": Table(heads, rows),
        "two ranks": Table(
            [f"trials per hour, ours at 2 ranks over {theirs.name}", "bound"],
            [[gain, f"{MIN_SPEED_UP}"]],
        ),
    }
    figures = {
        "sides": [asdict(side) for side in sides.values()],
        "overhead_ms": overhead_ms,
        "max_overhead_ms": round(most, 1),
        "speed_up": speed_up,
        "min_speed_up": MIN_SPEED_UP,
    }
    return print_result("trial_overhead", tables, figures, options, ok=ok)


if __name__ == "__main__":
    sys.exit(main())
