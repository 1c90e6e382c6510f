"""Which search finds the better point of the noisy quadratic model with the same number of trials?

Momentum, learning rate and momentum searched, in this process without Ray; every seed of the sweep
is another design, another sampler seed, and other noise. Prints the median over seeds of the
frontier's steps, and all of them.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from command_line import parser_of, print_result
from tables import Table

from orchestrator.planning.studies import plan
from orchestrator.planning.sweep import Sweep
from orchestrator.records import FinishedTrial, Goal
from orchestrator.search import Director, Proposal, ending
from orchestrator.training import Ranks, train
from orchestrator.training.entry import Ending

ALGORITHMS = ("halton", "tpe", "gp", "cmaes")


@dataclass(frozen=True, kw_only=True)
class Sizes:
    batch_sizes: tuple[int, ...]
    trials: int
    seeds: int
    steps: int
    """Budget of a trial."""


FULL = Sizes(batch_sizes=(4, 64), trials=20, seeds=5, steps=800)
# The samplers draw ten points at random first: there are two that they choose.
SMOKE = Sizes(batch_sizes=(64,), trials=12, seeds=1, steps=40)


def ending_of(proposal: Proposal) -> Ending:
    """Ends the proposed trial where it can no longer win."""
    study, index = proposal.trial.study, proposal.trial.index

    def ends(
        unmet: Mapping[Goal, int], upcoming: int, passed: Mapping[Goal, int]
    ) -> Literal["dominated", "paused"] | None:
        bounds, limit = proposal.bounds, proposal.limit
        return ending(study, bounds, limit, unmet=unmet, upcoming=upcoming, index=index)

    return ends


def search(algorithm: str, seed: int, sizes: Sizes) -> tuple[list[int], float]:
    """The frontier's steps at each batch size, and the seconds that choosing points took."""
    sweep = Sweep.model_validate(
        {
            "name": "samplers",
            "seed": seed,
            "workloads": ["noisy_quadratic?d=30&replicas=50"],
            "goals": ["val/loss < 0.1"],
            "recipes": ["momentum"],
            "batch_sizes": list(sizes.batch_sizes),
            "search": {
                "algorithm": algorithm,
                "trials": sizes.trials,
                **({"generation": 5} if algorithm != "halton" else {}),
            },
            "budget": {"steps": sizes.steps},
            "evaluate": {"spacing": 0.02},
        }
    )
    studies = plan(sweep).studies
    director = Director(studies, seed)
    began, trained = time.perf_counter(), 0.0
    director.begin()
    while proposals := director.next_pack(lambda study, waiting: 1):
        (proposal,) = proposals
        trial, start = proposal.trial, time.perf_counter()
        measurements = []
        training = train(trial, Ranks(), ending=ending_of(proposal))
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
    never = sizes.steps + 1
    found = [director.searches[study.key].frontier_step() or never for study in studies]
    return found, time.perf_counter() - began - trained


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--trials", type=int, default=FULL.trials)
    parser.add_argument("--seeds", type=int, default=FULL.seeds)
    options = parser.parse_args()
    sizes = SMOKE if options.smoke else replace(FULL, trials=options.trials, seeds=options.seeds)
    torch.set_num_threads(1)
    found = {
        algorithm: [search(algorithm, seed, sizes) for seed in range(sizes.seeds)]
        for algorithm in ALGORITHMS
    }
    rows, medians = [], {}
    for algorithm, runs in found.items():
        columns = list(zip(*(steps for steps, _ in runs), strict=True))
        medians[algorithm] = [statistics.median(column) for column in columns]
        cells = [
            f"{statistics.median(column):g} ({', '.join(map(str, sorted(column)))})"
            for column in columns
        ]
        seconds = statistics.median(seconds for _, seconds in runs)
        rows.append([algorithm, *cells, f"{seconds:.1f}"])
    heads = [f"batch size {size}" for size in sizes.batch_sizes]
    table = Table(["search", *heads, "choosing, s"], rows)
    figures = {"trials": sizes.trials, "median_steps": medians}
    return print_result("samplers", {"": table}, figures, options)


if __name__ == "__main__":
    sys.exit(main())
