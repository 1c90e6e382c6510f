"""Whether every question about a finished run is answered in seconds.

Synthetic runs as sweeps leave them, with all trials of a study in one file and its repeats in
another: one in the shape of the quickstart, three of 50,000 trials in few studies, in many and in
one, and the 454 published studies (archive.py), with a fiftieth of their trials.

CPU       seconds of processor time of a cold process, the start of Python included: the median of
          three, and one for the larger runs
memory    the most that it held
page      of the report, of which plotly itself is 4.7 MB

Bounds in seconds are in the table, and a page of 50,000 trials has at most 15 MB.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import archive
import numpy as np
import pyarrow as pa
from command_line import orchestrate, parser_of, print_result, slowness
from tables import Table, bounded

from orchestrator.planning.sweep import Sweep
from orchestrator.records import STAYS, Choice, EvaluationGrid, Goal, Range, Space, Study
from orchestrator.results import RunFiles
from orchestrator.results.tables import MEASUREMENTS, REPEAT, TRIALS

COMMANDS = {
    "status": ("--json",),
    "frontier": ("--json",),
    "best": ("val/error", "--json"),
    "advise": ("--json",),
    "report": (),
}
MAX_MB = 15

SLOTS = 8
REPEATS, REPEAT_BEST = 10, 5
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

    recipes: int
    powers: range
    """The batch sizes are powers of two."""
    trials: int
    """Of each study."""
    workloads: int = 1
    measured: int = 30
    """Measurements of each trial."""
    repeats: int = 0

    @property
    def studies(self) -> list[Study]:
        return [
            Study(
                workload=f"workload-{workload}", recipe=f"recipe-{recipe}", optimizer="nesterov",
                batch_size=2**power, goals=(GOAL,), budget_steps=BUDGET,
                grid=EvaluationGrid(spacing=0, min_gap=BUDGET // (self.measured - 1)), space=SPACE,
                trials=self.trials, train_size=60_000, repeats=self.repeats,
                repeat_best=REPEAT_BEST, repeats_stay=True,
            )
            for workload in range(self.workloads)
            for recipe in range(self.recipes)
            for power in self.powers
        ]  # fmt: skip

    @property
    def sweep(self) -> dict[str, Any]:
        """The sweep file that gives such studies, but for the names of what they train."""
        document = {
            "name": "synthetic",
            "workloads": [f"workload-{workload}" for workload in range(self.workloads)],
            "goals": [str(GOAL)],
            "recipes": [
                {"name": f"recipe-{recipe}", "optimizer": "nesterov"}
                for recipe in range(self.recipes)
            ],
            "batch_sizes": [2**power for power in self.powers],
            "search": {"trials": self.trials},
            "budget": {"steps": BUDGET},
            "repeats": {"count": self.repeats, "of": REPEAT_BEST},
        }
        return Sweep.model_validate(document).resolved()


BUDGET = 2900
QUICKSTART = Shape(recipes=3, powers=range(0, 14, 2), trials=64, measured=57, repeats=REPEATS)
FEW = Shape(recipes=2, powers=range(10), trials=2500, repeats=REPEATS)
MANY = Shape(workloads=10, recipes=10, powers=range(10), trials=50)
ONE = Shape(recipes=1, powers=range(1), trials=50_000)
SMOKE = Shape(recipes=2, powers=range(2), trials=20, repeats=2)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Questions about a run."""

    name: str
    write: Callable[[Path], object]
    bounds: Mapping[str, float]
    """Command -> the most seconds of processor time."""
    times: int = 1
    words: tuple[str, ...] = ()
    """Options of each command."""


def write_archive(folder: Path, factor: float, studies: int | None = None) -> None:
    archive.write_archive(folder, archive.planted(factor, studies))


def asked(*, smoke: bool) -> list[Asked]:
    small = dict(zip(COMMANDS, (1, 1, 1, 2, 4), strict=True))
    large = dict(zip(COMMANDS, (3, 5, 5, 10, 20), strict=True))
    few, many, one = (SMOKE, SMOKE, SMOKE) if smoke else (FEW, MANY, ONE)
    published = (archive.SMOKE_FACTOR, archive.SMOKE_STUDIES) if smoke else (0.02, None)
    return [
        Asked(name="quickstart", write=partial(write_run, shape=SMOKE if smoke else QUICKSTART),
              bounds=small, times=1 if smoke else 3),
        Asked(name="20 x 2,500", write=partial(write_run, shape=few), bounds=large),
        Asked(name="1,000 x 50", write=partial(write_run, shape=many), bounds={"report": 20}),
        Asked(name="1 x 50,000", write=partial(write_run, shape=one), bounds={"report": 20}),
        Asked(name="published", write=lambda folder: write_archive(folder, *published),
              bounds={"report": 15}, words=("--goal", str(archive.GOAL))),
    ]  # fmt: skip


Columns = dict[str, Any]


def make(study: Study, measured: int) -> tuple[Columns, Columns]:
    """Its trials, half of which reach the goal, and their measurements."""
    chance = np.random.default_rng(zlib.crc32(str(study.key).encode()))
    count = study.trials
    passes = 60 * (1 + 64 / study.batch_size) * np.exp(np.abs(chance.normal(0, 2, count)))
    status = np.where(
        passes < BUDGET, "reached", chance.choice([*ENDED], count, p=[*ENDED.values()])
    )
    steps = np.where(status == "exhausted", BUDGET, chance.integers(measured, BUDGET, count))
    steps = np.where(status == "reached", np.maximum(passes, measured), steps).astype(np.int64)
    step = np.linspace(0, steps, measured, axis=1).astype(np.int64)
    error = np.linspace(0.9, np.where(status == "reached", 0.09, 0.3), measured, axis=1)
    params = [
        json.dumps({name: entry.at(place) if isinstance(entry, Range) else float(place > 0.5)
                    for (name, entry), place in zip(SPACE.items(), point, strict=True)})
        for point in chance.random((count, len(SPACE))).tolist()
    ]  # fmt: skip
    trials = {"trial": np.arange(count), "status": status, "steps": steps, "params": params}
    return trials, {"trial": np.arange(count), "step": step, "error": error}


def repeated(study: Study, searched: Columns, measured: int) -> tuple[Columns, Columns]:
    """Repeats of its best trials. They stay after the goal, which some of them lose again."""
    chance = np.random.default_rng(zlib.crc32(f"repeats of {study.key}".encode()))
    order = np.argsort(searched["steps"], kind="stable")
    best = order[searched["status"][order] == "reached"][:REPEAT_BEST]
    passes = np.repeat(searched["steps"][best], study.repeats)
    passes = passes * np.exp(chance.normal(0.2, 0.1, len(passes)))
    steps = np.minimum(STAYS * passes, BUDGET).astype(np.int64)
    step = np.linspace(0, steps, measured, axis=1).astype(np.int64)
    error = np.where(step < passes[:, None], 0.9 - 0.8 * step / passes[:, None],
                     0.09 + 0.005 * np.abs(chance.normal(0, 1, step.shape)))  # fmt: skip
    trial = np.repeat(best, study.repeats)
    repeat = np.tile(np.arange(1, study.repeats + 1), len(best))
    trials = {
        "trial": trial, "repeat": repeat, "status": ["reached"] * len(trial), "steps": steps,
        "params": [searched["params"][index] for index in trial.tolist()],
    }  # fmt: skip
    return trials, {"trial": trial, "repeat": repeat, "step": step, "error": error}


def tables_of(study: Study, trials: Columns, measured: Columns) -> tuple[pa.Table, pa.Table]:
    count, steps = len(trials["trial"]), trials["steps"]
    # Slots take trials in turns, study after study.
    seconds = steps / 500
    where = np.arange(count) % SLOTS
    started = zlib.crc32(study.key.recipe.encode()) % 1000 + study.batch_size + np.zeros(count)
    for slot in range(SLOTS):
        mine = where == slot
        started[mine] += np.cumsum(seconds[mine]) - seconds[mine]
    columns: Columns = {
        **trials, "optimizer": [study.optimizer] * count,
        "seed": np.arange(count), "seconds": seconds,
        "evaluation_seconds": np.zeros(count), "resumed_seconds": np.zeros(count),
        "resumed_steps": np.zeros(count, dtype=np.int64),
        "ranks": np.ones(count, int), "micro_batch": [None] * count, "memory": [None] * count,
        "width": np.ones(count, int), "open_from": [None] * count, "started": started,
        "error": [None] * count,
        "where": [f"machine-{slot % 2}:{1000 + slot}" for slot in where.tolist()],
    }  # fmt: skip
    step, error = measured["step"].ravel(), measured["error"].ravel()
    each = measured["step"].shape[1]
    of_measurements = {
        **{name: np.repeat(measured[name], each) for name in {*measured} - {"step", "error"}},
        "step": step, "examples": step * study.batch_size, "seconds": step / 500,
    }  # fmt: skip
    schemas = [
        schema.insert(1, REPEAT) if "repeat" in trials else schema
        for schema in (TRIALS, MEASUREMENTS)
    ]
    rows, table = (
        pa.table([pa.array(of[f.name], f.type) for f in schema], schema=schema)
        for of, schema in zip((columns, of_measurements), schemas, strict=True)
    )
    for metric, factor in (("train/error", 0.8), ("val/error", 1.0), ("val/loss", 3.0)):
        table = table.append_column(metric, pa.array(factor * error))
    return rows, table


def write_run(folder: Path, shape: Shape) -> None:
    run = RunFiles(folder)
    studies = shape.studies
    for study in studies:
        searched, measured = make(study, shape.measured)
        run.write_study(study.key, *tables_of(study, searched, measured))
        if study.repeats:
            again = repeated(study, searched, shape.measured)
            run.repeats.write_study(study.key, *tables_of(study, *again))
    run.create(shape.sweep, studies, {})


def answer(one: Asked, *, smoke: bool) -> list[dict[str, Any]]:
    """What each command takes."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        one.write(run)
        for command, bound in one.bounds.items():
            words = (command, run, *COMMANDS[command], *one.words)
            asked = [orchestrate(*words, smoke=smoke, quiet=True) for _ in range(one.times)]
            found.append(
                {
                    "command": command,
                    "run": one.name,
                    "cpu_seconds": statistics.median(each.cpu_seconds for each in asked),
                    "bound": bound,
                    "peak_gb": max(each.peak_gb for each in asked),
                }
            )
            if command == "report":
                found[-1]["page_mb"] = (run / "report.html").stat().st_size / 1e6
    return found


def main() -> int:
    options = parser_of(__doc__).parse_args()
    # Where bytecode isn't kept, each process compiles all that it imports.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    slower, ok, found = slowness(), True, list[dict[str, Any]]()
    rows = []
    for one in asked(smoke=options.smoke):
        for each in answer(one, smoke=options.smoke):
            each["bound"] = round(each["bound"] * slower, 1)
            page = each.get("page_mb", 0)
            in_time = each["cpu_seconds"] <= each["bound"]
            ok &= in_time and page <= MAX_MB
            found.append(each)
            rows.append(
                [
                    each["run"],
                    f"`{each['command']}`",
                    bounded(f"{each['cpu_seconds']:.2f}", in_time),
                    f"{each['bound']}",
                    f"{each['peak_gb']:.2f}",
                    bounded(f"{page:.1f}", page <= MAX_MB) if page else "",
                ]
            )
    table = Table(["run", "command", "seconds", "bound", "GB", "page, MB"], rows)
    figures = {"slowness": round(slower, 2), "commands": found, "max_mb": MAX_MB}
    return print_result("reading", {"": table}, figures, options, ok=ok)


if __name__ == "__main__":
    sys.exit(main())
