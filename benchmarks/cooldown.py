"""What a goal that is reached by cooling down costs beside its alternatives.

Three searches of the same optimizer at the same points, each stopped as `orchestrate sweep` stops
it: at a constant rate; with cooldowns of a fifth of the training; and with the horizon of a decay
as one more metaparameter, as published studies searched it, with more and more points until its
best trial needs as few steps as the cooldowns found, or sixteen times the points. Printed are the
fewest steps and the examples that the search trained, of all batch sizes together, for each seed.

Bounds: the search with cooldowns trains at most 1.6 times the examples of the constant rate, and at
most half of those with the horizon, in the median over seeds.
"""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from command_line import parser_of, print_result
from tables import Table, bounded

import orchestrator
from orchestrator.results import RunFiles

POINTS, SMOKE_POINTS = 16, 2
MOST_TIMES = 16
MAX_OVER_CONSTANT, MAX_OVER_HORIZON = 1.6, 0.5

TASKS: dict[str, dict[str, Any]] = {
    "digits/cnn": {
        "goals": ["val/error < 0.03"],
        "batch_sizes": [16, 64],
        "budget": {"examples": 60_000},
        "recipe": {"optimizer": "momentum"},
    },
    "sympy/gpt": {
        "goals": ["val/loss < 2"],
        "batch_sizes": [12, 36],
        "budget": {"examples": 60_000, "at_least_steps": 800},
        "recipe": {
            "optimizer": "adamw",
            "space": {
                "only": {
                    "learning_rate": {"low": 1e-3, "high": 3e-2, "scale": "log"},
                    "beta1": {"low": 0.8, "high": 0.98, "scale": "reverse_log"},
                    "beta2": {"low": 0.9, "high": 0.999, "scale": "reverse_log"},
                }
            },
        },
    },
}

Found = tuple[list[int | None], int]
"""The fewest steps at each batch size, and the examples that were trained."""


def searched(
    task: str,
    recipe: dict[str, Any],
    seed: int,
    points: int,
    *,
    smoke: bool,
    folder: Path,
    data_dir: Path | None,
) -> Found:
    asked = TASKS[task]
    made = {
        "name": "cost",
        "seed": seed,
        "workloads": [task],
        "goals": ["val/error < 0.5"] if smoke else asked["goals"],
        "batch_sizes": [16] if smoke else asked["batch_sizes"],
        "budget": {"steps": 100} if smoke else asked["budget"],
        "recipes": [{"name": "any", **asked["recipe"], **recipe}],
        "search": {"trials": points},
    }
    out = folder / f"{len(list(folder.iterdir()))}"
    orchestrator.sweep(
        {k: v for k, v in made.items() if v}, out=out, data_dir=data_dir, ray=False, quiet=True
    )
    run = RunFiles.open(str(out))
    trained = sum(
        study.examples(steps)
        for study in run.studies()
        for steps in run.trials(study.key, ["steps"])["steps"].to_pylist()
    )
    rows = sorted(orchestrator.open_run(out).frontier(), key=lambda row: row.batch_size)
    return [row.steps for row in rows], trained


def as_few(found: Found, wanted: Found) -> bool:
    never = 10**12
    return all((a or never) <= (b or never) for a, b in zip(found[0], wanted[0], strict=True))


def compare(
    task: str, seed: int, *, smoke: bool, folder: Path, data_dir: Path | None
) -> dict[str, Any]:
    points = SMOKE_POINTS if smoke else POINTS
    find = partial(searched, task, seed=seed, smoke=smoke, folder=folder, data_dir=data_dir)
    constant = find({}, points=points)
    cooled = find({"schedule": {"cooldown": {"fraction": 0.2}}}, points=points)
    horizon = {
        "decay": "linear",
        "decay_fraction": {"low": 0.01, "high": 1.0, "scale": "log"},
    }
    times = 1
    while True:
        decayed = find({"schedule": horizon}, points=points * times)
        if smoke or as_few(decayed, cooled) or times >= MOST_TIMES:
            break
        times *= 2
    return {
        "seed": seed,
        "constant_steps": constant[0],
        "cooled_steps": cooled[0],
        "horizon_steps": decayed[0],
        "horizon_points": points * times,
        "horizon_found_as_few": as_few(decayed, cooled),
        "over_constant": round(cooled[1] / constant[1], 2),
        "over_horizon": round(cooled[1] / decayed[1], 2),
    }


def main() -> int:
    parser = parser_of(__doc__ or "")
    parser.add_argument("--task", choices=[*TASKS], default="digits/cnn")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            compare(
                given.task, seed, smoke=given.smoke, folder=Path(folder), data_dir=given.data_dir
            )
            for seed in range(1, 1 + (1 if given.smoke else given.seeds))
        ]
    over = {name: median(row[name] for row in rows) for name in ("over_constant", "over_horizon")}
    most = {"over_constant": MAX_OVER_CONSTANT, "over_horizon": MAX_OVER_HORIZON}
    ok = all(over[name] <= most[name] for name in most)
    figures = {"task": given.task, **over, "rows": rows}
    heads = (
        "seed", "constant: fewest steps", "cooled", "horizon", "its points",
        "examples: cooled over constant", "over horizon",
    )  # fmt: skip
    cells = [
        [
            str(row["seed"]),
            *(
                ", ".join("-" if steps is None else str(steps) for steps in row[f"{way}_steps"])
                for way in ("constant", "cooled", "horizon")
            ),
            str(row["horizon_points"]),
            *(f"{row[name]:.2f}" for name in most),
        ]
        for row in rows
    ]
    medians = [bounded(f"{over[name]:.2f}", over[name] <= most[name]) for name in most]
    cells += [["median", *[""] * 4, *medians], ["bound", *[""] * 4, *map(str, most.values())]]
    return print_result("cooldown", {"": Table(heads, cells)}, figures, given, ok=ok)


if __name__ == "__main__":
    sys.exit(main())
