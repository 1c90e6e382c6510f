"""How much of the time trials train: a sweep whose trials take about a second each.

digits/mlp, batch size 32, 5,000 steps, a goal that no trial reaches; as many slots as there are
CPUs, which the trials share with Tune and this process.

busy       the share of the slots' time that went into training and evaluating, from the first
           trial's start until there was none left to start (`orchestrate sweep` prints it)
seconds    of training and evaluating in a trial, median

Bound: busy at least 90 %.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from command_line import parser_with_smoke, print_result, training

from orchestrator.planning.studies import plan
from orchestrator.planning.sweep import Sweep
from orchestrator.results import Run

TRIALS, STEPS = 40, 5000
SMOKE_TRIALS, SMOKE_STEPS = 4, 500

MIN_BUSY = 0.9


def describe(trials: int, steps: int) -> dict[str, Any]:
    return {
        "name": "slot-share",
        "workloads": ["digits/mlp"],
        "goals": ["val/error < 0"],
        "recipes": ["sgd"],
        "batch_sizes": [32],
        "search": {"trials": trials},
        "budget": {"steps": steps},
        "stop": {"dominated": False},
        "resources": {"stack": 1},
    }


def measure(trials: int, steps: int, *, smoke: bool) -> dict[str, Any]:
    planned = plan(Sweep.model_validate(describe(trials, steps)))
    (study,) = planned.studies
    with tempfile.TemporaryDirectory() as folder, training(smoke=smoke) as train:
        run = Run(Path(folder))
        assert train(run, planned.sweep, planned.studies)
        session = run.sessions()[-1]
        rows = run.trials(study.key).to_pylist()
    seconds = [row["seconds"] + row["evaluation_seconds"] for row in rows]
    statuses = [row["status"] for row in rows]
    return {
        "trials": len(rows),
        "statuses": {status: statuses.count(status) for status in sorted(set(statuses))},
        "slots": session["slots"],
        "trial_seconds": statistics.median(seconds),
        "window_seconds": session["seconds"],
        "busy_share": session["busy_share"],
    }


def main() -> int:
    smoke = parser_with_smoke(__doc__).parse_args().smoke
    sizes = (SMOKE_TRIALS, SMOKE_STEPS) if smoke else (TRIALS, STEPS)
    # Ray and Tune have things to print: not where the figures go.
    with contextlib.redirect_stdout(sys.stderr):
        found = measure(*sizes, smoke=smoke)
    # None where all trials started at once: there are as many slots.
    share = found["busy_share"]
    ok = share is not None and share >= MIN_BUSY

    busy = "-" if share is None else f"{share:.1%}"
    print(f"{'trials':>7}{'slots':>6}{'seconds':>9}{'all s':>8}{'busy':>7}")
    print(f"{found['trials']:>7}{found['slots']:>6}{found['trial_seconds']:>9.2f}", end="")
    print(f"{found['window_seconds']:>8.1f}{busy:>7}")
    print(f"slots were busy {busy} of the time (at least {MIN_BUSY:.0%})")
    figures = {**found, "min_busy_share": MIN_BUSY}
    return print_result("slot_share", figures, smoke=smoke, ok=ok)


if __name__ == "__main__":
    sys.exit(main())
