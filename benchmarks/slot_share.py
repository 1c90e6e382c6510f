"""How much of the time trials train: a sweep whose trials take about a second each.

digits/mlp, batch size 32, 5,000 steps, a goal that no trial reaches; as many slots as there are
CPUs, which the trials share with Tune and this process.

busy       the share of the slots' time that went into training and evaluating, from the first
           trial's start until there was none left to start (`orchestrate sweep` prints it)
with ends  the same from the command to its exit: imports, the start of Ray and of gangs, the last
           trials, the answer and the report included
seconds    of training and evaluating in a trial, median

With `--sweep FILE`, the same of another sweep, such as sweeps/quickstart.yaml.

Bound: busy at least 90 %, without the ends.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml
from command_line import orchestrate, parser_of, print_result
from tables import Table, bounded

from orchestrator.results import RunFiles

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


def measure(folder: Path, sweep: Path, *, smoke: bool) -> dict[str, Any]:
    alone = ["--no-ray"] if smoke else []
    asked = orchestrate("sweep", sweep, "--out", folder / "run", "--yes", *alone, smoke=smoke)
    run = RunFiles.open(folder / "run")
    session = run.sessions()[-1]
    finished = [each for study in run.studies() for each in run.finished(study)]
    # Those of a trial that was paused include its seconds before.
    outcomes = [each.outcome for each in finished]
    seconds = [outcome.seconds + outcome.evaluation_seconds for outcome in outcomes]
    busy = sum(each.ranks * own for each, own in zip(finished, seconds, strict=True))
    statuses = [outcome.status for outcome in outcomes]
    return {
        "trials": len(finished),
        "statuses": {status: statuses.count(status) for status in sorted(set(statuses))},
        "slots": session["slots"],
        "trial_seconds": statistics.median(seconds),
        "window_seconds": session["seconds"],
        "busy_share": session["busy_share"],
        "seconds": asked.seconds,
        "busy_share_with_ends": busy / (session["slots"] * asked.seconds),
    }


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--sweep", type=Path)
    options = parser.parse_args()
    smoke = options.smoke
    sizes = (SMOKE_TRIALS, SMOKE_STEPS) if smoke else (TRIALS, STEPS)
    with tempfile.TemporaryDirectory() as folder:
        sweep = Path(folder, "sweep.yaml")
        sweep.write_text(yaml.safe_dump(describe(*sizes)))
        found = measure(Path(folder), options.sweep or sweep, smoke=smoke)
    # None where all trials started at once: there are as many slots.
    share = found["busy_share"]
    ok = share is not None and share >= MIN_BUSY

    row = [
        f"{found['trials']}",
        f"{found['slots']}",
        f"{found['trial_seconds']:.2f}",
        "-" if share is None else bounded(f"{share:.1%}", ok),
        f"{MIN_BUSY:.0%}",
        f"{found['busy_share_with_ends']:.1%}",
    ]
    heads = ("trials", "slots", "seconds of each", "busy", "bound", "from start to exit")
    figures = {**found, "min_busy_share": MIN_BUSY}
    return print_result("slot_share", {"": Table(heads, [row])}, figures, options, ok=ok)


if __name__ == "__main__":
    sys.exit(main())
