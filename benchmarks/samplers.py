"""Which search finds the better point of the noisy quadratic model with the same number of trials?

Momentum, learning rate and momentum searched, in this process without Ray; every seed of the sweep
is another design, another sampler seed, and other noise. Prints the median over seeds of the
frontier's steps, and all of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch

from orchestrator.records import FinishedTrial
from orchestrator.search import Director, ending
from orchestrator.studies import plan
from orchestrator.sweep import Sweep
from orchestrator.training import Ranks, train

ALGORITHMS = ("halton", "tpe", "gp", "cmaes")


def search(algorithm: str, seed: int, sizes: list[int], trials: int) -> tuple[list[int], float]:
    """The frontier's steps at each batch size, and the seconds that choosing points took."""
    sweep = Sweep.model_validate(
        {
            "name": "samplers",
            "seed": seed,
            "workloads": ["noisy_quadratic?d=30&replicas=50"],
            "goals": ["val/loss < 0.1"],
            "recipes": ["momentum"],
            "batch_sizes": sizes,
            "search": {"algorithm": algorithm, "trials": trials, "generation": 5},
            "budget": {"steps": 800},
            "evaluate": {"spacing": 0.02},
        }
    )
    studies = plan(sweep).studies
    director = Director(studies, seed)
    began, trained = time.perf_counter(), 0.0
    director.begin()
    while (proposal := director.next()) is not None:
        trial, start = proposal.trial, time.perf_counter()
        measurements = []
        training = train(
            trial,
            Ranks(),
            ending=lambda unmet, upcoming, p=proposal: ending(
                p.trial.study,
                p.bounds,
                p.limit,
                unmet=unmet,
                upcoming=upcoming,
                index=p.trial.index,
            ),
        )
        while True:
            try:
                measurements.append(next(training))
            except StopIteration as end:
                outcome = end.value
                break
        trained += time.perf_counter() - start
        director.record(
            FinishedTrial(trial=trial, outcome=outcome, measurements=tuple(measurements))
        )
    found = [director.searches[study.key].frontier_step() or 801 for study in studies]
    return found, time.perf_counter() - began - trained


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    sizes = [4, 64]
    found = {
        algorithm: [search(algorithm, seed, sizes, options.trials) for seed in range(options.seeds)]
        for algorithm in ALGORITHMS
    }
    print(f"{options.trials} trials, {options.seeds} seeds: median of steps to goal (all seeds)\n")
    print("| search | " + " | ".join(f"batch size {size}" for size in sizes) + " | choosing, s |")
    print("|---|" + "---|" * (len(sizes) + 1))
    rows = {}
    for algorithm, runs in found.items():
        columns = list(zip(*(steps for steps, _ in runs), strict=True))
        rows[algorithm] = [statistics.median(column) for column in columns]
        cells = [
            f"{statistics.median(column):g} ({', '.join(map(str, sorted(column)))})"
            for column in columns
        ]
        seconds = statistics.median(seconds for _, seconds in runs)
        print(f"| {algorithm} | " + " | ".join(cells) + f" | {seconds:.1f} |")
    print(json.dumps({"benchmark": "samplers", "trials": options.trials, "median_steps": rows}))


if __name__ == "__main__":
    main()
