"""How many trials an hour a stack trains, beside the same trials one after another.

digits/mlp with momentum at batch sizes 1, 8 and 32, and with Adam and Muon at 32, on one thread:
whole trainings of a thousand steps with their evaluations, as a sweep has them, at widths 4, 16
and 64.
Each slot gets a second trial when its first ends. Alone: `orchestrator.training.train`. Learning
rates are such that none diverges, so all trials take as long. The sides take turns; figures are
medians over rounds, and ratios are medians over rounds of the ratio within a round. `set-up` is the
time until a new stack has taken its first step and its first measurement; that is once per study,
and not in the others.

Then every workload that there is, on small copies of its data, at batch sizes from 1 to 256: the
time of a trial where `resources.stack: auto` has chosen how many train together, beside alone.

Then the last trials of a stack: the time of a step with 50 trials in 50 slots, with one of them
left, and after the stack has given up free slots, for as many trials as slots.

Bounds: at the best width, at least 5, 4 and 3 times as many as alone at batch sizes 1, 8 and 32;
no workload takes more than 1.05 times as long as alone.
"""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from command_line import parser_of, print_result
from tables import Table, bounded

from orchestrator.planning.studies import plan
from orchestrator.planning.sweep import Sweep
from orchestrator.records import Study, Trial
from orchestrator.records.standing import Standing
from orchestrator.training import Ranks, train
from orchestrator.training.entry import Task
from orchestrator.training.loop import train_all
from orchestrator.training.same_bits import ask_for_same_bits
from orchestrator.training.stack import Stack
from orchestrator.training.stackable import best_width, why_not
from orchestrator.workloads import REGISTRY, load_workload, prepare, splits_of

CPU = torch.device("cpu")

WORKLOAD = "digits/mlp"
BOUNDS = {1: 5.0, 8: 4.0, 32: 3.0}
SLOWEST = 1.05

MAKE_DATA = Path(__file__).parent.parent / "tests/make_data.py"
TRIALS = 20
"""Of a study; as many as there are for each in the quickstart."""

ABOUT_SECONDS = 0.2
"""Of a trial alone, where it is compared with others for every workload."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    widths: tuple[int, ...]
    steps: int
    alone: int
    """Trials that are trained one after another in each round."""
    rounds: int
    workloads: tuple[str, ...]
    batch_sizes: tuple[int, ...]
    """Of each workload."""
    narrower: tuple[int, ...] = (50, 32, 8, 2)
    narrow_at: tuple[int, ...] = (1, 64, 256, 1024)


FULL = Sizes(
    widths=(4, 16, 64),
    steps=1000,
    alone=3,
    rounds=5,
    # The networks of Fashion-MNIST are those of MNIST.
    workloads=tuple(name for name in REGISTRY if not name.startswith("fashion_mnist/")),
    batch_sizes=(1, 4, 16, 64, 256),
)
SMOKE = Sizes(
    widths=(2,),
    steps=5,
    alone=1,
    rounds=1,
    workloads=("mnist/simple_cnn_tiny",),
    batch_sizes=(4,),
    narrower=(3, 2),
    narrow_at=(4,),
)


PARAMS = {
    "momentum": {"momentum": 0.9},
    "adam": {"beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8},
    "muon": {"momentum": 0.9, "adamw_lr": 0.001},
}


def study_of(
    batch_size: int,
    steps: int,
    workload: str = WORKLOAD,
    data: Path | None = None,
    recipe: str = "momentum",
) -> Study:
    document = {
        "name": "stack",
        "workloads": [workload],
        "goals": ["val/loss < 0"],
        "recipes": [recipe],
        "batch_sizes": [batch_size],
        "budget": {"steps": steps},
    }
    (study,) = plan(Sweep.model_validate(document), data).studies
    return study


def trials_of(study: Study, count: int) -> list[Trial]:
    return [
        Trial(
            study=study,
            index=index,
            seed=index,
            params={"learning_rate": 0.001 * 1.02 ** (index % 50), **PARAMS[study.recipe]},
        )
        for index in range(count)
    ]


def train_alone(trials: Sequence[Trial], data: Path | None = None) -> float:
    """Seconds per trial."""
    began = time.perf_counter()
    for trial in trials:
        for _ in train(trial, Ranks(), data_dir=data):
            pass
    return (time.perf_counter() - began) / len(trials)


def train_stacked(
    trials: Sequence[Trial], width: int, data: Path | None = None
) -> tuple[float, float]:
    """Seconds per trial, and until the slots have taken a step and a measurement, which is once per
    study."""
    began = time.perf_counter()
    engine = Stack(trials[0], Ranks(), width, data_dir=data)
    standings = {slot: Standing(trials[0].study) for slot in range(width)}
    for slot in standings:
        engine.put(slot, trials[slot])
    engine.advance(1)
    engine.measure(standings)
    for slot in standings:
        engine.clear(slot)
    ready = time.perf_counter()
    for _ in train_all(engine, [Task(trial=trial) for trial in trials]):
        pass
    return (time.perf_counter() - ready) / len(trials), ready - began


def compare(recipe: str, batch_size: int, sizes: Sizes) -> list[dict[str, Any]]:
    study = study_of(batch_size, sizes.steps, recipe=recipe)
    train_alone(trials_of(study, 1))
    alone: list[float] = []
    stacked: dict[int, list[float]] = {width: [] for width in sizes.widths}
    set_ups: dict[int, list[float]] = {width: [] for width in sizes.widths}
    for _ in range(sizes.rounds):
        alone.append(train_alone(trials_of(study, sizes.alone)))
        for width in sizes.widths:
            seconds, set_up = train_stacked(trials_of(study, 2 * width), width)
            stacked[width].append(seconds)
            set_ups[width].append(set_up)
    per_hour = 3600 / statistics.median(alone)
    results = []
    for width, each in stacked.items():
        ratios = [a / s for a, s in zip(alone, each, strict=True)]
        ratio = statistics.median(ratios)
        rate = 3600 / statistics.median(each)
        set_up = statistics.median(set_ups[width])
        results.append(
            {
                "recipe": recipe,
                "batch_size": batch_size,
                "width": width,
                "alone_trials_per_hour": round(per_hour),
                "stacked_trials_per_hour": round(rate),
                "ratio": round(ratio, 2),
                "ratios": [round(value, 2) for value in ratios],
                "set_up_seconds": round(set_up, 3),
            }
        )
    return results


def narrowed(batch_size: int, widths: Sequence[int]) -> dict[str, Any]:
    """Seconds per step of the widest stack, full and with one trial, and of narrower ones."""
    trials = trials_of(study_of(batch_size, 1000), widths[0])

    def stack() -> Stack:
        engine = Stack(trials[0], Ranks(), widths[0])
        for slot, trial in enumerate(trials):
            engine.put(slot, trial)
        engine.advance(2)
        engine.measure({slot: Standing(trials[0].study) for slot in range(widths[0])})
        return engine

    def step(engine: Stack) -> float:
        engine.advance(2)
        began = time.perf_counter()
        engine.advance(10)
        return (time.perf_counter() - began) / 10

    engine = stack()
    full = step(engine)
    for slot in range(1, widths[0]):
        engine.clear(slot)
    steps, waited, engine = {"full": full, "one left": step(engine)}, [], stack()
    for width in widths[1:]:
        for slot in engine.occupied[width:]:
            engine.clear(slot)
        # As if the free slots had cost enough.
        began, engine._idle = time.perf_counter(), math.inf
        engine.narrow()
        engine.advance(1)
        waited.append(time.perf_counter() - began)
        steps[str(engine.width)] = step(engine)
    return {"batch_size": batch_size, "seconds": steps, "narrowing_seconds": waited}


def compare_all(sizes: Sizes) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        subprocess.run([sys.executable, MAKE_DATA, data], check=True)
        found = []
        for name in sizes.workloads:
            examples = splits_of(load_workload(name, data), data)["train"].size
            for batch_size in sizes.batch_sizes:
                if examples is not None and batch_size > examples:
                    break
                if (case := compare_workload(name, batch_size, data, sizes.rounds)) is None:
                    break  # nor are larger batches trained together
                found.append(case)
    return found


def compare_workload(name: str, batch_size: int, data: Path, rounds: int) -> dict[str, Any] | None:
    """None where trials are trained alone anyway."""
    (few,) = trials_of(study_of(batch_size, 10, name, data), 1)
    width = min(best_width(few, "cpu", data)[0], TRIALS)
    if width == 1 or why_not(few, *prepare(name, data, CPU), CPU) is not None:
        return None
    train_alone([few], data)
    steps = int(few.study.budget_steps * ABOUT_SECONDS / train_alone([few], data))
    steps = min(max(steps, few.study.budget_steps), 500)
    trials = trials_of(study_of(batch_size, steps, name, data), width)
    ratios = [
        train_stacked(trials, width, data)[0] / train_alone(trials[:1], data) for _ in range(rounds)
    ]
    ratio = statistics.median(ratios)
    return {
        "workload": name, "batch_size": batch_size, "width": width, "time_ratio": round(ratio, 3),
    }  # fmt: skip


def table_of_paces(results: list[dict[str, Any]], best: Mapping[int, float]) -> Table:
    """Trials per hour by recipe and batch size; ratios to those trained alone, with their range."""
    rows: dict[tuple[str, int], list[str]] = {}
    for one in results:
        recipe, size = key = one["recipe"], one["batch_size"]
        alone = f"{one['alone_trials_per_hour']:,}"
        missed = recipe == "momentum" and best[size] < BOUNDS[size]
        cell = "{:,}: {:.1f} ({:.1f} to {:.1f})".format(
            one["stacked_trials_per_hour"], one["ratio"], min(one["ratios"]), max(one["ratios"])
        )
        rows.setdefault(key, [recipe, str(size), alone]).append(bounded(cell, not missed))
    widths = dict.fromkeys(f"{one['width']} slots" for one in results)
    return Table(["recipe", "batch size", "alone", *widths], [*rows.values()])


def table_of_workloads(cases: list[dict[str, Any]], sizes: Sizes) -> Table:
    rows: dict[str, dict[int, str]] = {}
    for case in cases:
        ratio = case["time_ratio"]
        cell = bounded(f"{ratio:.2f}", ratio <= SLOWEST)
        rows.setdefault(case["workload"], {})[case["batch_size"]] = cell
    return Table(
        ["workload", *map(str, sizes.batch_sizes)],
        [
            [f"`{name}`", *(cells.get(size, "") for size in sizes.batch_sizes)]
            for name, cells in rows.items()
        ],
    )


def table_of_last_trials(cases: list[dict[str, Any]], sizes: Sizes) -> Table:
    full, *narrower = sizes.narrower
    heads = ["batch size", f"{full} trials", f"one trial in {full} slots"]
    heads += [f"{width} in {width}" for width in narrower]
    rows = [
        [
            f"{case['batch_size']:,}",
            *(f"{1000 * seconds:.2g}" for seconds in case["seconds"].values()),
            f"{1000 * statistics.median(case['narrowing_seconds']):.0f}",
        ]
        for case in cases
    ]
    return Table([*heads, "to give slots up"], rows)


def main() -> int:
    options = parser_of(__doc__).parse_args()
    sizes = SMOKE if options.smoke else FULL
    torch.set_num_threads(1)
    ask_for_same_bits()
    results = [result for size in BOUNDS for result in compare("momentum", size, sizes)]
    best = {
        size: max(result["ratio"] for result in results if result["batch_size"] == size)
        for size in BOUNDS
    }
    for recipe in ("adam", "muon"):
        results += compare(recipe, max(BOUNDS), sizes)
    last_trials = [narrowed(size, sizes.narrower) for size in sizes.narrow_at]
    everywhere = compare_all(sizes)
    slowest = max(case["time_ratio"] for case in everywhere)
    ok = all(best[size] >= bound for size, bound in BOUNDS.items()) and slowest <= SLOWEST
    figures = {
        "steps": sizes.steps,
        "bounds": BOUNDS,
        "best": best,
        "cases": results,
        "last_trials": last_trials,
        "everywhere": everywhere,
        "slowest": slowest,
    }
    tables = {
        "trials per hour": table_of_paces(results, best),
        "every workload": table_of_workloads(everywhere, sizes),
        "last trials": table_of_last_trials(last_trials, sizes),
    }
    return print_result("stack", tables, figures, options, ok=ok)


if __name__ == "__main__":
    sys.exit(main())
