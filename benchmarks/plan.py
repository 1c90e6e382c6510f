"""Foretold against measured: the time of a step of each study, and of the whole small quickstart.

python benchmarks/plan.py [SWEEP [ARGUMENTS]]
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from command_line import FEW_TRIALS, orchestrate, parser_of, print_result
from tables import Table

from orchestrator.records import StudyKey
from orchestrator.results import RunFiles

SMOKE_SWEEP = {
    "name": "plan",
    "workloads": ["digits/mlp"],
    "goals": ["val/error < 0.9"],
    "recipes": ["sgd"],
    "batch_sizes": [64],
    "search": {"trials": 1},
    "budget": {"steps": 1000},
    "stop": {"at_goal": False, "dominated": False},
}
"""Its trial is just long enough for the time of its steps to be told."""


def measure(
    sweep: list[str], folder: Path, *, smoke: bool
) -> tuple[dict[str, Any], dict[StudyKey, float | None], float]:
    """What is foretold, the measured seconds of a step of each study, and those of the sweep."""
    plan = orchestrate("plan", *sweep, "--calibrate", "--price", 2, "--json", smoke=smoke)
    foretold = json.loads(plan.printed)
    how = ["--no-ray"] if smoke else []
    took = orchestrate("sweep", *sweep, *how, "--out", folder / "run", smoke=smoke).seconds
    run = RunFiles.open(folder / "run")
    return foretold, {study.key: _step_seconds(run, study.key) for study in run.studies()}, took


def main() -> int:
    options, sweep = parser_of(__doc__).parse_known_args()
    sweep = sweep or ["quickstart", *(f"--set={one}" for one in FEW_TRIALS)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.smoke:
            (folder / "sweep.yaml").write_text(json.dumps(SMOKE_SWEEP))
            sweep = [str(folder / "sweep.yaml")]
        foretold, measured, took = measure(sweep, folder, smoke=options.smoke)
    ratios = []
    for study in foretold["studies"]:
        seconds = study["speed"]["step_seconds"]
        key = StudyKey(**{name: study[name] for name in ("workload", "recipe", "batch_size")})
        if (true := measured[key]) is None:
            continue
        ratios.append(seconds / true)
    ((low, high),) = foretold["seconds"].values()
    assert low < high
    assert foretold["money"][0] < foretold["money"][1]
    rows = [
        [
            f"foretold over measured time of a step, {len(ratios)} studies",
            f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
        ],
        ["the sweep, foretold", f"{low:.0f} to {high:.0f} s"],
        ["the sweep, measured", f"{took:.0f} s"],
    ]
    figures = {
        "step_time_ratio": [min(ratios), median(ratios), max(ratios)],
        "foretold_seconds": [low, high],
        "seconds": took,
    }
    return print_result("plan", {"": Table(["", "median (range)"], rows)}, figures, options)


def _step_seconds(run: RunFiles, key: StudyKey) -> float | None:
    """The median over trials, each from half its steps on: how it starts is no matter of steps, nor
    is what else keeps the machine busy now and then. None where trials were too short for that."""
    paces, counted = [], 0
    for trial in run.trials(key)["trial"].to_pylist():
        curve = run.curve(key, trial)
        steps, seconds = curve["step"].to_pylist(), curve["seconds"].to_pylist()
        half = next(n for n, step in enumerate(steps) if 2 * step >= steps[-1])
        if steps[-1] > steps[half]:
            paces.append((seconds[-1] - seconds[half]) / (steps[-1] - steps[half]))
            counted += steps[-1] - steps[half]
    return median(paces) if counted >= 200 else None


if __name__ == "__main__":
    sys.exit(main())
