"""Whether a run of 50,000 trials is still reported in seconds, on a page that a browser opens.

Synthetic runs as sweeps leave them, with all trials of a study in one file: 30 measurements a
trial, three metaparameters, eight slots on two machines. The same number of trials lies in few
studies, in many, and in one.

seconds   of `orchestrate report`, a cold process, and how many of them a processor was busy with it
memory    the most that it held
page      of which plotly itself is 4.7 MB

Bounds: 20 s of a processor, and 15 MB.
"""

from __future__ import annotations

import json
import sys
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from command_line import orchestrate, parser_with_smoke, print_result, slowness

from orchestrator.records import Choice, EvaluationGrid, Goal, Range, Space, Study
from orchestrator.results import Run
from orchestrator.results.tables import MEASUREMENTS, TRIALS

MAX_CPU_SECONDS = 20
MAX_MB = 15

MEASURED = 30
SLOTS = 8
ENDED = {"exhausted": 0.4, "dominated": 0.5, "diverged": 0.1}
GOAL = Goal.parse("val/error < 0.1")
SPACE: Space = {
    "learning_rate": Range(low=1e-3, high=10, scale="log"),
    "momentum": Range(low=0.5, high=0.999, scale="reverse_log"),
    "label_smoothing": Choice(options=(0.0, 0.1)),
}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a run consists of."""

    workloads: int
    recipes: int
    batch_sizes: int
    trials: int
    """Of each study."""

    @property
    def studies(self) -> list[Study]:
        return [
            Study(
                workload=f"workload-{workload}", recipe=f"recipe-{recipe}", optimizer="nesterov",
                batch_size=2**power, goals=(GOAL,), budget_steps=BUDGET,
                grid=EvaluationGrid(spacing=0, min_gap=BUDGET // (MEASURED - 1)), space=SPACE,
                trials=self.trials, train_size=60_000,
            )
            for workload in range(self.workloads)
            for recipe in range(self.recipes)
            for power in range(self.batch_sizes)
        ]  # fmt: skip


BUDGET = 2900
SHAPES = (
    Shape(workloads=1, recipes=2, batch_sizes=10, trials=2500),
    Shape(workloads=10, recipes=10, batch_sizes=10, trials=50),
    Shape(workloads=1, recipes=1, batch_sizes=1, trials=50_000),
)
SMOKE_SHAPES = (Shape(workloads=1, recipes=2, batch_sizes=2, trials=20),)


def make(study: Study) -> tuple[pa.Table, pa.Table]:
    """Its trials, half of which reach the goal, and their measurements."""
    chance = np.random.default_rng(zlib.crc32(str(study.key).encode()))
    count = study.trials
    passes = 60 * (1 + 64 / study.batch_size) * np.exp(np.abs(chance.normal(0, 2, count)))
    status = np.where(
        passes < BUDGET, "reached", chance.choice([*ENDED], count, p=[*ENDED.values()])
    )
    steps = np.where(status == "exhausted", BUDGET, chance.integers(MEASURED, BUDGET, count))
    steps = np.where(status == "reached", np.maximum(passes, MEASURED), steps).astype(np.int64)
    step = np.linspace(0, steps, MEASURED, axis=1).astype(np.int64).ravel()
    error = np.linspace(0.9, np.where(status == "reached", 0.09, 0.3), MEASURED, axis=1).ravel()
    # Slots take trials in turns, study after study.
    seconds = steps / 500
    where = np.arange(count) % SLOTS
    started = zlib.crc32(study.key.recipe.encode()) % 1000 + study.batch_size + np.zeros(count)
    for slot in range(SLOTS):
        mine = where == slot
        started[mine] += np.cumsum(seconds[mine]) - seconds[mine]
    params = [
        json.dumps({name: entry.at(place) if isinstance(entry, Range) else float(place > 0.5)
                    for (name, entry), place in zip(SPACE.items(), point, strict=True)})
        for point in chance.random((count, len(SPACE))).tolist()
    ]  # fmt: skip
    columns: dict[str, Any] = {
        "trial": np.arange(count), "optimizer": [study.optimizer] * count, "status": status,
        "steps": steps, "params": params, "seed": np.arange(count), "seconds": seconds,
        "evaluation_seconds": np.zeros(count), "resumed_seconds": np.zeros(count),
        "resumed_steps": np.zeros(count, dtype=np.int64),
        "ranks": np.ones(count, int), "micro_batch": [None] * count, "memory": [None] * count,
        "width": np.ones(count, int), "started": started, "error": [None] * count,
        "where": [f"machine-{slot % 2}:{1000 + slot}" for slot in where.tolist()],
    }  # fmt: skip
    measured = {
        "trial": np.repeat(np.arange(count), MEASURED), "step": step,
        "examples": step * study.batch_size, "seconds": step / 500,
    }  # fmt: skip
    table = pa.table({name: measured[name] for name in MEASUREMENTS.names}).cast(MEASUREMENTS)
    for metric, factor in (("train/error", 0.8), ("val/error", 1.0), ("val/loss", 3.0)):
        table = table.append_column(metric, pa.array(factor * error))
    return pa.table([pa.array(columns[f.name], f.type) for f in TRIALS], schema=TRIALS), table


def write_run(folder: Path, shape: Shape) -> None:
    run = Run(folder)
    studies = shape.studies
    for study in studies:
        run.write_study(study.key, *make(study))
    stop = {"at_goal": True, "dominated": None}
    run.create({"name": "large", "seed": 0, "stop": stop}, studies, {})


def report(run: Path, *, smoke: bool) -> dict[str, float]:
    command = orchestrate("report", run, smoke=smoke)
    return {
        "seconds": command.seconds,
        "cpu_seconds": command.cpu_seconds,
        "peak_gb": command.peak_gb,
        "page_mb": (run / "report.html").stat().st_size / 1e6,
    }


def main() -> int:
    smoke = parser_with_smoke(__doc__).parse_args().smoke
    found, most = [], MAX_CPU_SECONDS * slowness()
    print(f"{'studies':>8}{'trials of each':>16}{'seconds':>9}{'CPU':>7}{'memory':>9}{'page':>10}")
    for shape in SMOKE_SHAPES if smoke else SHAPES:
        with tempfile.TemporaryDirectory() as folder:
            write_run(Path(folder) / "run", shape)
            seen = report(Path(folder) / "run", smoke=smoke)
        studies = len(shape.studies)
        print(
            f"{studies:>8,}{shape.trials:>16,}{seen['seconds']:>9.1f}"
            f"{seen['cpu_seconds']:>7.1f}{seen['peak_gb']:>6.2f} GB{seen['page_mb']:>7.1f} MB"
        )
        found.append({"studies": studies, "trials": shape.trials, **seen})
    ok = all(one["cpu_seconds"] < most and one["page_mb"] < MAX_MB for one in found)
    print(f"Bounds: {most:.0f} s of processor time on this machine as it is now, {MAX_MB} MB")
    figures = {"runs": found, "max_cpu_seconds": round(most, 1), "max_mb": MAX_MB}
    return print_result("large_run", figures, smoke=smoke, ok=ok)


if __name__ == "__main__":
    sys.exit(main())
