"""How many trials an hour a stack trains, beside the same trials one after another.

digits/mlp with momentum at batch sizes 1, 8 and 32, on one thread: whole trainings of a thousand
steps with their evaluations, as a sweep has them, at widths 4, 16 and 64. Each slot gets a second
trial when its first ends. Alone: `orchestrator.training.train`. Learning rates are such that none
diverges, so all trials take as long. The sides take turns; figures are medians over rounds, and
ratios are medians over rounds of the ratio within a round. `set-up` is the time until a new stack
has taken its first step and its first measurement; that is once per study, and not in the others.

Bounds: at the best width, at least 5, 4 and 3 times as many as alone at batch sizes 1, 8 and 32.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from command_line import parser_with_smoke, print_result

from orchestrator.planning.studies import plan
from orchestrator.planning.sweep import Sweep
from orchestrator.records import Study, Trial
from orchestrator.training import Ranks, train
from orchestrator.training.alike import ask_for_alike
from orchestrator.training.loop import Task, train_all
from orchestrator.training.standing import Standing
from orchestrator.training.together import Together

WORKLOAD = "digits/mlp"
BOUNDS = {1: 5.0, 8: 4.0, 32: 3.0}


@dataclass(frozen=True, kw_only=True)
class Sizes:
    widths: tuple[int, ...]
    steps: int
    alone: int
    """Trials that are trained one after another in each round."""
    rounds: int


FULL = Sizes(widths=(4, 16, 64), steps=1000, alone=3, rounds=5)
SMOKE = Sizes(widths=(2,), steps=5, alone=1, rounds=1)


def study_of(batch_size: int, steps: int) -> Study:
    document = {
        "name": "stack",
        "workloads": [WORKLOAD],
        "goals": ["val/loss < 0"],
        "recipes": ["momentum"],
        "batch_sizes": [batch_size],
        "budget": {"steps": steps},
    }
    (study,) = plan(Sweep.model_validate(document)).studies
    return study


def trials_of(study: Study, count: int) -> list[Trial]:
    return [
        Trial(
            study=study,
            index=index,
            seed=index,
            params={"learning_rate": 0.001 * 1.02 ** (index % 50), "momentum": 0.9},
        )
        for index in range(count)
    ]


def train_alone(trials: Sequence[Trial]) -> float:
    """Seconds per trial."""
    began = time.perf_counter()
    for trial in trials:
        for _ in train(trial, Ranks()):
            pass
    return (time.perf_counter() - began) / len(trials)


def train_stacked(trials: Sequence[Trial], width: int) -> tuple[float, float]:
    """Seconds per trial, and until the first slots are there, which is once per study."""
    began = time.perf_counter()
    engine = Together(trials[0], width, Ranks())
    engine.put(0, trials[0])
    engine.advance(1)
    engine.measure({0: Standing(trials[0].study)})
    engine.clear(0)
    ready = time.perf_counter()
    for _ in train_all(engine, [Task(trial=trial) for trial in trials]):
        pass
    return (time.perf_counter() - ready) / len(trials), ready - began


def compare(batch_size: int, sizes: Sizes) -> list[dict[str, Any]]:
    study = study_of(batch_size, sizes.steps)
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
        print(
            f"{batch_size:>6}{width:>7}{per_hour:>12,.0f}{rate:>12,.0f}{ratio:>8.1f}  "
            f"({min(ratios):.1f} to {max(ratios):.1f}){set_up:>9.2f}"
        )
        results.append(
            {
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


def main() -> int:
    smoke = parser_with_smoke(__doc__).parse_args().smoke
    sizes = SMOKE if smoke else FULL
    torch.set_num_threads(1)
    ask_for_alike()
    print(f"{WORKLOAD}, momentum, {sizes.steps} steps, {sizes.rounds} rounds; trials per hour")
    print(f"{'batch':>6}{'width':>7}{'alone':>12}{'stacked':>12}{'ratio':>8}  (rounds)  set-up, s")
    results = [result for size in BOUNDS for result in compare(size, sizes)]
    best = {
        size: max(result["ratio"] for result in results if result["batch_size"] == size)
        for size in BOUNDS
    }
    ok = all(best[size] >= bound for size, bound in BOUNDS.items())
    figures = {"steps": sizes.steps, "bounds": BOUNDS, "best": best, "cases": results}
    return print_result("stack", figures, smoke=smoke, ok=ok)


if __name__ == "__main__":
    sys.exit(main())
