"""A synthetic archive of the size and shape of the published one, with known steps to goal.

454 studies as released (published_studies.csv: workload, optimizer, batch size and trials by
status), scaled to the 168,160 trials and 71.6 million measurements that the paper counts. In a
study with batch size B, a trial passes its goal at S_min (1 + B_crit / B) times a factor of its
own, at least one. `--factor 0.02` makes a fiftieth of the trials, each as long as ever.

    python benchmarks/archive.py RUN [--factor F]

With `--smoke`, RUN may be left out: the run is then made in a temporary folder.
"""

from __future__ import annotations

import csv
import itertools
import json
import sys
import tempfile
import zlib
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from command_line import parser_of, print_result
from numpy.typing import NDArray
from pyarrow.csv import WriteOptions, write_csv

from orchestrator.records import Choice, EvaluationGrid, Goal, Range, Space, Study
from orchestrator.results import RunFiles
from orchestrator.results.archive import IMPORTED_TRIALS
from orchestrator.results.archive_documents import STATUS_IN

STUDIES = Path(__file__).with_name("published_studies.csv")
COUNTED_TRIALS, MEASUREMENTS = 168_160, 71_638_836
RELEASED_COMPLETE, RELEASED = 108_194, 194_399

GOAL = Goal.parse("val/classification_error < 0.1")
EXAMPLES = 5000
"""In each evaluated set: errors are multiples of 1 / EXAMPLES."""

SMOKE_FACTOR, SMOKE_STUDIES = 0.001, 6

SPACE: Space = {
    "learning_rate": Range(low=1e-4, high=10, scale="log"),
    "momentum": Range(low=0.9, high=0.9999, scale="reverse_log"),
    "label_smoothing": Choice(options=(0, 0.01, 0.1)),
}


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A study, and the law by which its trials pass the goal."""

    study: Study
    trials: dict[str, int]
    """Status -> how many."""
    steps_min: float
    critical: float

    @property
    def steps(self) -> float:
        return self.steps_min * (1 + self.critical / self.study.batch_size)


def planted(factor: float, studies: int | None = None) -> list[Planted]:
    """The first so many `studies` of the archive, or all of them."""
    with STUDIES.open(newline="") as file:
        rows = list(csv.DictReader(file))[:studies]
    more = factor * COUNTED_TRIALS / RELEASED_COMPLETE
    found = []
    for row in rows:
        family = f"{row['base_dir']}/{row['model']}"
        chance = np.random.default_rng(zlib.crc32(f"{family}/{row['optimizer']}".encode()))
        steps_min, critical = 10 ** chance.uniform(2, 3.5), 10 ** chance.uniform(1.5, 4)
        size = int(row["batch_size"])
        steps = steps_min * (1 + critical / size)
        trials = {name.upper(): round(int(row[name]) * more) for name in
                  ("complete", "incomplete", "infeasible")}  # fmt: skip
        trials["COMPLETE"] = max(trials["COMPLETE"], 1)
        study = Study(
            workload=family, recipe=row["optimizer"], optimizer=row["optimizer"], batch_size=size,
            goals=(), budget_steps=round(4 * steps), grid=EvaluationGrid(spacing=0, min_gap=1),
            space=SPACE, trials=trials["COMPLETE"], stop_at_goal=False, stop_dominated=False,
        )  # fmt: skip
        found.append(Planted(study=study, trials=trials, steps_min=steps_min, critical=critical))
    return found


def make(plant: Planted) -> tuple[pa.Table, pa.Table]:
    """The trials and measurements of a study; those that were not completed are measured less."""
    study = plant.study
    chance = np.random.default_rng(zlib.crc32(str(study.key).encode()))
    statuses = np.repeat([*plant.trials], [*plant.trials.values()])
    chance.shuffle(statuses)
    count = len(statuses)
    # What the others have beside is made up for here, so that all measurements come to the total.
    others = (RELEASED - RELEASED_COMPLETE) / RELEASED_COMPLETE / 4
    usual = MEASUREMENTS / COUNTED_TRIALS / (1 + others)
    share = np.where(statuses == "COMPLETE", 1.0, chance.uniform(0, 0.5, count))
    lengths = np.maximum((share * usual * chance.uniform(0.9, 1.1, count)).astype(int), 2)
    index = np.repeat(np.arange(count), lengths)
    place = np.arange(len(index)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    spacing = max(study.budget_steps / usual, 1)
    step = np.rint(place * spacing).astype(np.int64)
    # Half of all trials never get there within the budget.
    passes = plant.steps * np.exp(np.abs(chance.normal(0, 1.5, count)))
    progress = np.log((step + 0.02 * plant.steps) / (passes[index] + 0.02 * plant.steps))
    columns = {
        "trial": pa.array(index, pa.int32()),
        "step": pa.array(step),
        "examples": pa.array(step * study.batch_size),
        "seconds": pa.nulls(len(index), pa.float64()),
    }
    for split, gap in (("train", 0.8), ("val", 1.0), ("test", 1.02)):
        error = GOAL.bound * gap * np.exp(-0.45 * progress)
        noise = 1 + 0.02 * chance.normal(size=len(index))
        columns[f"{split}/classification_error"] = pa.array(
            _counted(np.minimum(error, 0.9) * noise)
        )
        entropy = 3.5 * error * (1 + 0.02 * chance.normal(size=len(index)))
        # As a float32 comes out of a training program.
        columns[f"{split}/cross_entropy_error"] = pa.array(entropy.astype(np.float32).astype(float))
    params = _points(chance, count)
    trials = pa.Table.from_pylist(
        [
            {
                "trial": number, "optimizer": study.optimizer, "status": STATUS_IN[status],
                "steps": int(last), "params": point, "archive_status": status,
            }
            for number, status, last, point in zip(
                range(count), statuses.tolist(), step[np.cumsum(lengths) - 1], params, strict=True
            )
        ],
        schema=IMPORTED_TRIALS,
    )  # fmt: skip
    return trials, pa.table(columns)


def _counted(errors: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.rint(errors * EXAMPLES) / EXAMPLES


def _points(chance: np.random.Generator, count: int) -> list[str]:
    ranges = [entry for entry in SPACE.values() if isinstance(entry, Range)]
    names = [*SPACE]
    return [
        json.dumps(
            dict(
                zip(
                    names,
                    [*(r.at(u) for r, u in zip(ranges, row, strict=True)), float(choice)],
                    strict=True,
                )
            )
        )
        for row, choice in zip(
            chance.random((count, len(ranges))), chance.choice([0, 0.01, 0.1], count), strict=True
        )
    ]


def _write(path: Path, plant: Planted) -> int:
    trials, measurements = make(plant)
    RunFiles(path).write_study(plant.study.key, trials, measurements)
    return len(measurements)


def write_archive(path: Path, plants: Sequence[Planted]) -> int:
    """Makes the run; returns the number of its measurements."""
    with ProcessPoolExecutor() as pool:
        rows = sum(pool.map(_write, itertools.repeat(path), plants))
    RunFiles(path).create(
        {"name": "synthetic archive", "imported": True}, [plant.study for plant in plants], {}
    )
    return rows


def _publish(path: Path, plant: Planted) -> None:
    study, (trials, measurements) = plant.study, make(plant)
    folder = path / study.workload / study.recipe / str(study.batch_size)
    folder.mkdir(parents=True)
    *_, dataset, model = study.workload.split("/")
    document = {
        "batch_size": study.batch_size, "dataset": dataset, "model": model,
        "optimizer": study.optimizer, "early_stopping": False, "train_steps": study.budget_steps,
        "parameter_configs": {},
    }  # fmt: skip
    (folder / "study.json").write_text(json.dumps(document))
    of = measurements["trial"].to_numpy()
    columns = measurements.drop_columns(["trial", "examples", "seconds"])
    for row in trials.to_pylist():
        own = folder / str(row["trial"])
        own.mkdir()
        metadata = {
            "trial_id": row["trial"], "status": row["archive_status"], "steps": row["steps"],
            "parameters": json.loads(row["params"]),
        }  # fmt: skip
        (own / "metadata.json").write_text(json.dumps(metadata))
        begin, end = np.searchsorted(of, [row["trial"], row["trial"] + 1]).tolist()
        with (own / "measurements.csv").open("wb") as file:
            file.write(f"{','.join(columns.column_names)}\n".encode())  # Arrow would quote them
            write_csv(columns.slice(begin, end - begin), file, WriteOptions(include_header=False))


def publish_archive(path: Path, plants: Sequence[Planted]) -> None:
    """Writes the same in the published layout."""
    with ProcessPoolExecutor() as pool:
        list(pool.map(_publish, itertools.repeat(path), plants))


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("--factor", type=float, default=1.0)
    options = parser.parse_args()
    if options.smoke:
        plants = planted(SMOKE_FACTOR, SMOKE_STUDIES)
    elif options.run is None:
        parser.error("RUN, the folder to make, must be given.")
    else:
        plants = planted(options.factor)
    with tempfile.TemporaryDirectory() as folder:
        rows = write_archive(options.run or Path(folder) / "run", plants)
    trials = sum(sum(plant.trials.values()) for plant in plants)
    print(f"{len(plants)} studies, {trials:,} trials, {rows:,} measurements")
    figures = {"studies": len(plants), "trials": trials, "measurements": rows}
    return print_result("archive", {}, figures, options)


if __name__ == "__main__":
    sys.exit(main())
