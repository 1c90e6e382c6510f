"""What asking a large run takes while it is being made: status, frontier and report, by command.

50,000 trials over 50 studies are written as a driver writes them, a few of each study after the
other, while a thread of the same process puts them together. It stops where most trials have files
of their own, and the commands are asked. Then `resume` of a run which an older driver left without
anything put together: how long it takes until all is.

write      milliseconds per trial, with what is put together meanwhile, and the most that trials
           which are written together ever took
alone      files of trials that are not merged at the end
status, frontier, report    seconds of a cold process each, and its processor time
together   seconds to put together `--alone` trials that are all in files of their own
repeats    frontier of a finished sweep in the shape of the quickstart, whose repeats are put
           together, against one where they are in files of their own; and the number of files

Bounds: 4 s of processor time for status, 6 s for frontier; a fifth of the time with repeats put
together, and 120 files.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from command_line import orchestrate, parser_of, print_result, slowness
from tables import Table, bounded

from orchestrator.planning.studies import plan
from orchestrator.planning.sweep import Sweep
from orchestrator.records import FinishedTrial, Measurement, Outcome, Study, Trial
from orchestrator.results import RunFiles
from orchestrator.results.merger import MOST_LOOSE, Merger
from orchestrator.results.provenance import provenance

BUDGET = 1000
TOGETHER = 5
"""Number of trials that end in the same second, as in a stacked sweep of digits/mlp."""
MEASUREMENTS = 20
MEASUREMENTS_OF_QUICKSTART = 57
METRICS = ("batch/loss", "val/error", "val/loss", "val/top5_error")
MAX_STATUS_SECONDS = 4
MAX_FRONTIER_SECONDS = 6
MAX_REPEATS_RATIO = 0.2
MAX_FILES = 120


@dataclass(frozen=True, kw_only=True)
class Sizes:
    studies: int
    trials: int
    """Of all studies together."""
    alone: int
    """Trials of the run that an older driver left."""
    loose: int
    """Separate files that a small run may have."""
    repeated: int
    """Studies of the run with repeats."""


FULL = Sizes(studies=50, trials=50_000, alone=10_000, loose=MOST_LOOSE, repeated=21)
SMOKE = Sizes(studies=2, trials=20, alone=20, loose=30, repeated=2)


def studies_of(sizes: Sizes) -> tuple[dict[str, Any], list[Study]]:
    sweep = Sweep.model_validate(
        {
            "name": "in-progress",
            "workloads": ["noisy_quadratic?d=1"],
            "goals": ["val/loss < 0.01"],
            "recipes": ["sgd"],
            "batch_sizes": list(range(1, sizes.studies + 1)),
            "search": {"trials": sizes.trials // sizes.studies},
            "budget": {"steps": BUDGET},
        }
    )
    return sweep.resolved(), list(plan(sweep).studies)


def finished(
    study: Study, index: int, chance: np.random.Generator, measurements: int = MEASUREMENTS
) -> FinishedTrial:
    apart = BUDGET // measurements
    losses = np.exp(-chance.uniform(0, 6) * np.linspace(0, 1, measurements)).tolist()
    return FinishedTrial(
        trial=Trial(study=study, index=index, seed=index, params={"learning_rate": 0.1}),
        outcome=Outcome(status="reached" if losses[-1] < 0.01 else "exhausted",
                        steps=apart * (measurements - 1), seconds=1.0),
        measurements=tuple(
            Measurement(step=apart * place, seconds=place / 20,
                        metrics=dict.fromkeys(METRICS, loss))
            for place, loss in enumerate(losses)
        ),
        started=1e9 + index,
        where="here:1",
    )  # fmt: skip


def write(
    run: RunFiles, studies: list[Study], count: int, wrote: Callable[[Study], None]
) -> list[float]:
    chance, seconds = np.random.default_rng(0), []
    for number in range(count // TOGETHER):
        study, before = studies[number % len(studies)], number // len(studies) * TOGETHER
        group = [finished(study, before + index, chance) for index in range(TOGETHER)]
        began = time.perf_counter()
        run.write(*group)
        wrote(study)
        seconds.append(time.perf_counter() - began)
    return seconds


def measure(folder: Path, sizes: Sizes, *, smoke: bool) -> dict[str, Any]:
    sweep, studies = studies_of(sizes)
    trials = sizes.trials
    keys = [study.key for study in studies]
    run = RunFiles(folder / "run")
    run.create(sweep, studies, provenance())
    with closing(Merger(run, keys)) as merger:
        seconds = write(run, studies, trials, lambda study: merger.wrote(study.key, TOGETHER))
    left = sum(map(run.loose, keys))
    # As many as there may be at most.
    more = [replace(study, trials=study.trials * 2) for study in studies]
    chance, bound = np.random.default_rng(1), max(sizes.loose, trials // 16)
    for number in range(max(bound - left, 0)):
        study = more[number % len(more)]
        run.write(finished(study, trials // len(studies) + number // len(more), chance))
    found: dict[str, Any] = {
        "trials": trials,
        "write_ms": 1e3 * sum(seconds) / trials,
        "write_most_ms": 1e3 * max(seconds),
        "alone": sum(map(run.loose, keys)),
    }
    for command in ("status", "frontier", "report"):
        asked = orchestrate(command, run.place, smoke=smoke)
        found[f"{command}_seconds"] = asked.seconds
        found[f"{command}_cpu_seconds"] = asked.cpu_seconds
    older = RunFiles(folder / "older")
    write(older, studies, sizes.alone, lambda _: None)
    began = time.perf_counter()
    older.in_parallel(partial(older.put_together, finished=False), keys)
    return {**found, "older": sizes.alone, "together_seconds": time.perf_counter() - began}


def with_repeats(folder: Path, sizes: Sizes, *, smoke: bool) -> dict[str, Any]:
    """64 trials of each study, of which five were trained with ten seeds more."""
    sweep, studies = studies_of(replace(sizes, studies=sizes.repeated, trials=64 * sizes.repeated))
    studies = [replace(study, repeats=10, repeat_best=5) for study in studies]
    run, chance = RunFiles(folder / "repeats"), np.random.default_rng(2)
    run.create(sweep, studies, provenance())
    for study in studies:
        for index in range(64):
            run.write(finished(study, index, chance, MEASUREMENTS_OF_QUICKSTART))
    run.in_parallel(lambda study: run.put_together(study.key, finished=True), studies)
    for study in studies:
        for index, repeat in itertools.product(range(5), range(1, 11)):
            again = finished(study, index, chance, MEASUREMENTS_OF_QUICKSTART)
            run.write(replace(again, trial=replace(again.trial, repeat=repeat)))
    times = 1 if smoke else 3
    alone = [orchestrate("frontier", run.place, "--json", smoke=smoke) for _ in range(times)]
    run.in_parallel(lambda study: run.put_together(study.key, finished=True), studies)
    merged = [orchestrate("frontier", run.place, "--json", smoke=smoke) for _ in range(times)]
    assert {each.printed for each in alone} == {each.printed for each in merged}
    seconds = [statistics.median(each.cpu_seconds for each in some) for some in (alone, merged)]
    return {
        "repeats_alone_cpu_seconds": seconds[0],
        "repeats_cpu_seconds": seconds[1],
        "repeats_files": sum(path.is_file() for path in (folder / "repeats").rglob("*")),
    }


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--trials", type=int, default=FULL.trials)
    parser.add_argument("--alone", type=int, default=FULL.alone)
    options = parser.parse_args()
    chosen = replace(FULL, trials=options.trials, alone=options.alone)
    with tempfile.TemporaryDirectory() as folder:
        sizes = SMOKE if options.smoke else chosen
        found = measure(Path(folder), sizes, smoke=options.smoke)
        found |= with_repeats(Path(folder), sizes, smoke=options.smoke)
    slower, files = slowness(), found["repeats_files"]
    ratio = found["repeats_cpu_seconds"] / (found["repeats_alone_cpu_seconds"] or 1)
    most = {"status": MAX_STATUS_SECONDS * slower, "frontier": MAX_FRONTIER_SECONDS * slower}
    held = {command: found[f"{command}_cpu_seconds"] <= bound for command, bound in most.items()}
    asked = [
        [
            f"`{command}`, {found['alone']:,} files beside {found['trials']:,} trials",
            f"{found[f'{command}_seconds']:.1f} s",
            bounded(f"{found[f'{command}_cpu_seconds']:.1f} s", held.get(command, True)),
            f"{most[command]:.1f} s" if command in most else "",
        ]
        for command in ("status", "frontier", "report")
    ]
    rows = [
        *asked,
        [
            "`frontier --json` with merged repeats",
            "",
            f"{found['repeats_cpu_seconds']:.2f} s",
            "",
        ],
        [
            "over the same with repeats in files of their own",
            "",
            bounded(f"{ratio:.2f}", ratio <= MAX_REPEATS_RATIO),
            f"{MAX_REPEATS_RATIO}",
        ],
        ["its files", bounded(f"{files}", files <= MAX_FILES), "", f"{MAX_FILES}"],
        ["to write a trial, mean", f"{found['write_ms']:.2f} ms", "", ""],
        ["to write a trial, at most", f"{found['write_most_ms']:.0f} ms", "", ""],
        [
            f"to merge {found['older']:,} trials of an older driver",
            f"{found['together_seconds']:.1f} s",
            "",
            "",
        ],
    ]
    ok = ratio <= MAX_REPEATS_RATIO and files <= MAX_FILES and all(held.values())
    table = Table(["", "measured", "of the processor", "bound"], rows)
    return print_result("run_in_progress", {"": table}, found, options, ok=ok)


if __name__ == "__main__":
    sys.exit(main())
