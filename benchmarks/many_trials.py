"""Whether ten thousand trials cost what the first hundred did: the driver must not slow down.

A sweep of instant trials goes the way of any other: director, Tune searcher, warm gangs, Parquet.
Each trains one step of a quadratic in one dimension; nothing diverges and no goal is reached, so
that every study trains all its points and the director always has all of them to look at.

seconds per trial   wall time from the first trial's end to the last one's, divided by their number
growth              the last quarter's seconds per trial over the first quarter's
driver              this process: CPU seconds per trial, and the most memory it ever held

Bounds: at most 25 ms per trial, growth of at most 1.5, and less than 2 GB held.
"""

from __future__ import annotations

import contextlib
import itertools
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from command_line import parser_of, print_result, slowness, training
from tables import Table, bounded

from orchestrator.planning.studies import plan
from orchestrator.planning.sweep import Sweep
from orchestrator.records import FinishedTrial
from orchestrator.results import RunFiles

TRIALS, STUDIES = 10_000, 50
SMOKE_TRIALS, SMOKE_STUDIES = 12, 2

MAX_MS_PER_TRIAL = 25
MAX_GROWTH = 1.5
MAX_DRIVER_GB = 2


class TimedRun(RunFiles):
    """Notes when each trial was written."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.times: list[float] = []

    def write(self, *group: FinishedTrial) -> None:
        super().write(*group)
        self.times += [time.perf_counter()] * len(group)


def describe(trials: int, studies: int) -> dict[str, Any]:
    return {
        "name": "many-trials",
        "workloads": ["noisy_quadratic?d=1"],
        "goals": ["val/loss < 0"],
        "recipes": ["sgd"],
        "batch_sizes": list(range(1, studies + 1)),
        "search": {"trials": max(trials // studies, 1)},
        "budget": {"steps": 1},
        "resources": {"stack": 1},  # each goes its own way
    }


def measure(trials: int, studies: int, *, smoke: bool) -> dict[str, Any]:
    planned = plan(Sweep.model_validate(describe(trials, studies)))
    with tempfile.TemporaryDirectory() as folder, training(smoke=smoke) as train:
        run = TimedRun(Path(folder))
        began, cpu_began = time.perf_counter(), time.process_time()
        assert train(run, planned.sweep, planned.studies)
        wall, cpu = time.perf_counter() - began, time.process_time() - cpu_began
        statuses = [row for s in planned.studies for row in run.trials(s.key)["status"].to_pylist()]
    count = len(run.times)
    assert statuses == ["exhausted"] * count, set(statuses)
    edges = [round(part * (count - 1) / 4) for part in range(5)]
    quarters = [
        (run.times[last] - run.times[first]) / (last - first)
        for first, last in itertools.pairwise(edges)
    ]
    return {
        "trials": count,
        "studies": studies,
        "wall_seconds": wall,
        "ms_per_trial": 1e3 * statistics.fmean(quarters),
        "quarters_ms": [1e3 * quarter for quarter in quarters],
        "growth": quarters[-1] / quarters[0],
        "driver_cpu_ms_per_trial": 1e3 * cpu / count,
        # In kilobytes, on Linux.
        "driver_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
    }


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--trials", type=int, default=TRIALS)
    options = parser.parse_args()
    trials, studies = (SMOKE_TRIALS, SMOKE_STUDIES) if options.smoke else (options.trials, STUDIES)
    # Ray and Tune have things to print: not where the figures go.
    with contextlib.redirect_stdout(sys.stderr):
        most = MAX_MS_PER_TRIAL * slowness()
        found = measure(trials, studies, smoke=options.smoke)
    ok = (
        found["ms_per_trial"] <= most
        and found["growth"] <= MAX_GROWTH
        and found["driver_gb"] < MAX_DRIVER_GB
    )

    each, growth, memory = (found[name] for name in ("ms_per_trial", "growth", "driver_gb"))
    rows = [
        ["ms per trial", bounded(f"{each:.1f}", each <= most), f"{most:.0f}"],
        [
            "last quarter over first",
            bounded(f"{growth:.2f}", growth <= MAX_GROWTH),
            f"{MAX_GROWTH}",
        ],
        ["GB held", bounded(f"{memory:.2f}", memory < MAX_DRIVER_GB), f"{MAX_DRIVER_GB}"],
    ]
    table = Table([f"{found['trials']:,} trials", "measured", "bound"], rows)
    bounds = {
        "max_ms_per_trial": round(most, 1),
        "max_growth": MAX_GROWTH,
        "max_driver_gb": MAX_DRIVER_GB,
    }
    return print_result("many_trials", {"": table}, {**found, **bounds}, options, ok=ok)


if __name__ == "__main__":
    sys.exit(main())
