"""What it costs to train trials by a program, beside what a user would do otherwise.

1. The same sweep for the same answer: a script of numpy trains the noisy quadratic model at each
batch size and learning rate of a list. The answer is the fewest steps to the goal at each batch
size.

ours                `orchestrate sweep` on a Ray that it starts; the script's output is read
ours, --no-ray      the same without Ray, one trial at a time
tune                a Tune function that trains with the script's own function and reports each
                    measurement; `stop` ends a trial at the goal
optuna              threads of Optuna, which start the script, read its output, and kill it at the
                    goal

Each is a cold process. All but --no-ray train two trials at a time.

seconds     from its start to its exit
trainings   that were started, those included that began anew after a stage of the search
steps       which they made, up to the last report that was heard

2. From a trial's end to the next program's first line, in ms: the program notes the time in its
first line and after its last report. Median of a run with one slot. `python -c pass` is timed
before and after.

3. What `report` takes in the program, in microseconds: median and the hundredth that is longest.

4. A trial of ten thousand reports, made as fast as possible, beside a class that is evaluated as
often, at each step of a quadratic in one dimension.

seconds     of this sweep of one trial, from start to end
to disk     ms from the last report until the trial is written, the program's own end included; of
            the class: from its last measurement
driver      microseconds of processor time of this process for each report; of the class: for each
            measurement, beyond what its steps take without

Bounds: the same answers; at most 300 ms more than `python -c pass` to the next program; at most
1 ms for a report; ten thousand reports in no more time and processor time than the class takes.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import math
import os
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from command_line import Training, orchestrate, parser_of, print_result, slowness, training
from tables import Table, bounded

TRAIN = '''
import argparse
from collections.abc import Iterator

import numpy as np


def train(learning_rate: float, batch_size: int, steps: int) -> Iterator[tuple[int, float]]:
    """Trains the noisy quadratic model. Yields its step and loss."""
    curvature = 1 / np.arange(1, 3001)
    weights, noise = np.ones(3000), np.random.default_rng(0)
    for step in range(1, steps + 1):
        drawn = noise.standard_normal((batch_size, 3000)).mean(axis=0)
        weights -= learning_rate * (curvature * weights + np.sqrt(curvature) * drawn)
        if step % 10 == 0:
            yield step, float((curvature * weights**2).sum() / 2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--steps", type=int)
    given = parser.parse_args()
    for step, loss in train(given.lr, given.batch_size, given.steps):
        print(f"step {step} loss {loss:.6f}", flush=True)
'''
PATTERN = r"step (?P<step>\d+) loss (?P<loss>\S+)"
GOAL = 0.8

TIMES = """
import time

began = time.time()
import sys

from orchestrator.programs.reporting import report

assert sys.argv[2]
report(1, {"loss": 1.0})
with open(sys.argv[1], "a") as times:
    times.write(f"{began} {time.time()}\\n")
"""

REPORTS = """
import sys
import time

from orchestrator import report

assert sys.argv[1]
took = 0.0
for step in range(int(sys.argv[2]) + 1):
    began = time.perf_counter()
    report(step, {"loss": 1 + 1 / (step + 1), "took": took, "sent": time.time()})
    took = time.perf_counter() - began
"""

MAX_MS_BEYOND_PYTHON = 300
MAX_REPORT_MS = 1


@dataclass(frozen=True, kw_only=True)
class Sizes:
    batch_sizes: tuple[int, ...]
    rates: int
    steps: int
    trials: int
    """From whose end to the next one's start."""
    reports: int

    @property
    def points(self) -> list[float]:
        """The learning rates."""
        each = math.log(1.8 / 0.01) / (self.rates - 1)
        return [0.01 * math.exp(number * each) for number in range(self.rates)]


FULL = Sizes(batch_sizes=(4, 8, 16, 32), rates=16, steps=2000, trials=30, reports=10_000)
SMOKE = Sizes(batch_sizes=(4,), rates=2, steps=200, trials=3, reports=20)

Course = tuple[int, int | None, int]
"""Batch size of a training, its steps to the goal, if it reached it, and its steps."""


@dataclass(frozen=True, kw_only=True)
class Side:
    name: str
    seconds: float
    trainings: int
    steps: int
    frontier: dict[int, int]
    """Batch size -> fewest steps to the goal."""


def side(name: str, seconds: float, courses: Sequence[Course]) -> Side:
    frontier: dict[int, int] = {}
    for size, reached, _ in courses:
        if reached is not None:
            frontier[size] = min(reached, frontier.get(size, reached))
    steps = sum(steps for _, _, steps in courses)
    return Side(name=name, seconds=seconds, trainings=len(courses), steps=steps, frontier=frontier)


def describe(script: str, **more: Any) -> dict[str, Any]:
    return {
        "name": "programs",
        "workloads": [{"program": script, "name": "program", "goal": "loss < 0", **more}],
        "recipes": [{"name": "sgd", "space": {"learning_rate": {"low": 0.01, "high": 1.8}}}],
        "batch_sizes": [32],
        "resources": {"gpus_per_device": 0},
    }


def by_us(name: str, folder: Path, sizes: Sizes, *options: str, smoke: bool) -> Side:
    from orchestrator.results import RunFiles, frontier_of

    command = (
        f"python {folder / 'train.py'} --lr {{learning_rate}} --batch-size {{batch_size}} "
        "--steps {steps}"
    )
    heard = {"from": "stdout", "pattern": PATTERN}
    sweep = describe(command, metrics=heard, goal=f"loss < {GOAL}") | {
        "batch_sizes": sizes.batch_sizes,
        "search": {"algorithm": "points", "points": [{"learning_rate": r} for r in sizes.points]},
        "budget": {"steps": sizes.steps},
    }
    file, out = folder / "sweep.json", folder / name
    file.write_text(json.dumps(sweep))
    command_ = orchestrate("sweep", file, "--out", out, *options, smoke=smoke, quiet=True)
    run = RunFiles(out)
    session = run.sessions()[-1]
    return Side(
        name=name,
        seconds=command_.seconds,
        trainings=session["trials"],
        steps=sum(n // int(key.split()[-1]) for key, n in session["examples_of"].items()),
        frontier={row.key.batch_size: row.steps for row in frontier_of(run) if row.steps},
    )


def by_other(name: str, folder: Path, sizes: Sizes) -> Side:
    """What this file does with `--way` in a cold process."""
    began = time.perf_counter()
    told = json.dumps({"folder": str(folder), **asdict(sizes)})
    command = [sys.executable, __file__, "--way", name, told]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    seconds = time.perf_counter() - began
    return side(name, seconds, json.loads(done.stdout.splitlines()[-1]))


def tune_way(folder: Path, sizes: Sizes) -> list[Course]:
    import ray
    from ray import tune

    ray.init("local")  # otherwise it would join one that happens to run

    script = str(folder / "train.py")

    def trainable(config: dict[str, Any]) -> None:
        train = runpy.run_path(script)["train"]
        for step, loss in train(config["learning_rate"], config["batch_size"], sizes.steps):
            tune.report({"step": step, "loss": loss, "reached": int(loss < GOAL)})

    results = tune.Tuner(
        trainable,
        param_space={
            "batch_size": tune.grid_search([*sizes.batch_sizes]),
            "learning_rate": tune.grid_search(sizes.points),
        },
        run_config=tune.RunConfig(
            storage_path=str(folder / "tune"), stop={"reached": 1}, verbose=0
        ),
    ).fit()
    assert not results.errors, results.errors
    found = []
    for number in range(len(results)):
        result = results[number]
        assert result.metrics is not None
        assert result.config is not None
        step = result.metrics["step"]
        reached = step if result.metrics["reached"] else None
        found.append((result.config["batch_size"], reached, step))
    return found


def optuna_way(folder: Path, sizes: Sizes) -> list[Course]:
    import re

    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    courses: list[Course] = []

    def objective(trial: optuna.Trial, batch_size: int) -> float:
        rate = trial.suggest_float("learning_rate", 0.009, 2, log=True)
        options = [f"--lr={rate}", f"--batch-size={batch_size}", f"--steps={sizes.steps}"]
        command = [sys.executable, str(folder / "train.py"), *options]
        step, reached = 0, None
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if match := re.search(PATTERN, line):
                    step = int(match["step"])
                    if float(match["loss"]) < GOAL:
                        reached = step
                        process.kill()
                        break
        courses.append((batch_size, reached, step))
        return math.inf if reached is None else reached

    for size in sizes.batch_sizes:
        study = optuna.create_study()
        for rate in sizes.points:
            study.enqueue_trial({"learning_rate": rate})
        study.optimize(functools.partial(objective, batch_size=size), sizes.rates, n_jobs=2)
    return courses


WAYS = {"tune": tune_way, "optuna": optuna_way}


def compare(folder: Path, sizes: Sizes, *, smoke: bool) -> list[Side]:
    (folder / "train.py").write_text(TRAIN)
    # In smoke mode our command runs in this process, which had better not start Ray.
    on_ray = [] if smoke else [by_us("ours", folder, sizes, smoke=smoke)]
    without = by_us("ours, --no-ray", folder, sizes, "--no-ray", smoke=smoke)
    return [*on_ray, without, *(by_other(name, folder, sizes) for name in WAYS)]


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What it took to keep a trial of many measurements."""

    name: str
    measurements: int
    seconds: float
    to_disk_ms: float
    driver_us: float
    report_us: float = 0.0
    longest_report_us: float = 0.0


def trained(
    train: Training, described: dict[str, Any], folder: str
) -> tuple[list[dict[str, Any]], tuple[float, float], float, float]:
    """The measurements of a sweep of one study, the times at which its last trial came and was on
    disk, and the seconds and the processor time of this process."""
    from orchestrator.planning.studies import plan
    from orchestrator.planning.sweep import Sweep
    from orchestrator.records import FinishedTrial
    from orchestrator.results import RunFiles

    class TimedRun(RunFiles):
        came = written = 0.0

        def write(self, *group: FinishedTrial) -> None:
            self.came = time.time()
            super().write(*group)
            self.written = time.time()

    planned = plan(Sweep.model_validate(described))
    (study,) = planned.studies
    run, began, cpu_began = TimedRun(Path(folder)), time.perf_counter(), time.process_time()
    assert train(run, planned.sweep, planned.studies)
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
    rows, measured = run.trials(study.key).to_pylist(), run.measurements(study.key).to_pylist()
    assert not any(row["error"] for row in rows), rows
    return measured, (run.came, run.written), seconds, cpu_seconds


def time_turns(train: Training, trials: int) -> float:
    """Milliseconds from the end of a trial to the first line of the next program."""
    with tempfile.TemporaryDirectory() as folder:
        script, times = Path(folder) / "times.py", Path(folder) / "times.txt"
        script.write_text(TIMES)
        command = f"python {script} {times} {{learning_rate}}-{{batch_size}}"
        one_slot = {"gpus_per_device": 0, "cpus_per_rank": os.cpu_count()}
        sweep = describe(command) | {
            "search": {"trials": trials}, "budget": {"steps": 1}, "resources": one_slot
        }  # fmt: skip
        trained(train, sweep, f"{folder}/run")
        turns = [[float(part) for part in line.split()] for line in times.open()]
    gaps = [later[0] - one[1] for one, later in itertools.pairwise(turns)]
    return 1e3 * statistics.median(gaps)


def time_python(times: int) -> float:
    """Milliseconds that `python -c pass` takes."""
    found = []
    for _ in range(times):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        found.append(time.perf_counter() - began)
    return 1e3 * statistics.median(found)


def keep_reports(name: str, train: Training, reports: int) -> Kept:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "reports.py"
        script.write_text(REPORTS)
        command = f"python {script} {{learning_rate}}-{{batch_size}} {{steps}}"
        sweep = describe(command) | {"search": {"trials": 1}, "budget": {"steps": reports}}
        sweep["stop"] = {"dominated": False}  # otherwise it would pause, and begin anew
        measured, (_, written), seconds, cpu_seconds = trained(train, sweep, f"{folder}/run")
    took = sorted(1e6 * row["took"] for row in measured[1:])
    assert len(measured) == reports + 1, len(measured)
    return Kept(
        name=name,
        measurements=len(measured),
        seconds=seconds,
        to_disk_ms=1e3 * (written - measured[-1]["sent"]),
        driver_us=1e6 * cpu_seconds / reports,
        report_us=statistics.median(took),
        longest_report_us=took[-len(took) // 100],
    )


def keep_class(train: Training, reports: int) -> Kept:
    def once(spacing: dict[str, Any]) -> Any:
        sweep = {
            "name": "class",
            "workloads": ["noisy_quadratic?d=1"],
            "goals": ["val/loss < 0"],
            "recipes": ["sgd"],
            "batch_sizes": [1],
            "search": {"trials": 1},
            "budget": {"steps": reports},
            "evaluate": spacing,
            "stop": {"dominated": False},
            "resources": {"stack": 1},
        }
        with tempfile.TemporaryDirectory() as folder:
            return trained(train, sweep, f"{folder}/run")

    measured, (came, written), seconds, cpu_seconds = once({"spacing": 0, "min_examples": 1})
    *_, cpu_without = once({"spacing": 0, "min_examples": reports})
    assert len(measured) == reports + 1, len(measured)
    return Kept(
        name="class",
        measurements=len(measured),
        seconds=seconds,
        to_disk_ms=1e3 * (written - came),
        driver_us=1e6 * (cpu_seconds - cpu_without) / reports,
    )


def measure(sizes: Sizes, *, smoke: bool) -> tuple[list[Side], dict[str, float], list[Kept]]:
    with tempfile.TemporaryDirectory() as folder:
        sides = compare(Path(folder), sizes, smoke=smoke)
    turns, kept = {"python -c pass": time_python(sizes.trials)}, []
    for name, in_this_process in (("--no-ray", True), ("Ray", False)):
        if smoke and not in_this_process:
            continue
        with training(smoke=in_this_process) as train:
            turns[name] = time_turns(train, sizes.trials)
            kept.append(keep_reports(f"program, {name}", train, sizes.reports))
            if in_this_process:
                kept.append(keep_class(train, sizes.reports))
    again = time_python(sizes.trials)
    turns["python -c pass"] = statistics.mean([turns["python -c pass"], again])
    return sides, turns, kept


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--way", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        name, told = options.way[0], json.loads(options.way[1])
        folder = Path(told.pop("folder"))
        print(json.dumps(WAYS[name](folder, Sizes(**told))))
        return 0
    smoke: bool = options.smoke
    # Ray and Tune have things to print: not where the figures go.
    with contextlib.redirect_stdout(sys.stderr):
        slow = slowness()
        sides, turns, kept = measure(SMOKE if smoke else FULL, smoke=smoke)
    same = all(one.frontier == sides[0].frontier for one in sides)
    python = turns.pop("python -c pass")
    beyond = max(turns.values()) - python
    without, of_class, *_ = kept
    ok = (
        same
        and beyond <= MAX_MS_BEYOND_PYTHON * slow
        and max(one.report_us for one in kept) <= 1e3 * MAX_REPORT_MS * slow
        and without.seconds <= of_class.seconds
        and without.driver_us <= of_class.driver_us
    )

    most = MAX_MS_BEYOND_PYTHON * slow
    tables = {
        "sweep": Table(
            ["way", "seconds", "trainings", "steps trained", "fewest steps at each batch size"],
            [
                [
                    one.name,
                    f"{one.seconds:.0f}",
                    str(one.trainings),
                    f"{one.steps:,}",
                    bounded(
                        ", ".join(str(steps) for _, steps in sorted(one.frontier.items())),
                        one.frontier == sides[0].frontier,
                    ),
                ]
                for one in sides
            ],
        ),
        "starts": Table(
            ["from a trial's last report to the next program", "ms", "bound"],
            [
                *(
                    [name, bounded(f"{ms:.0f}", ms - python <= most), f"{python + most:.0f}"]
                    for name, ms in turns.items()
                ),
                ["`python -c pass` alone", f"{python:.0f}", ""],
            ],
        ),
        "reports": Table(
            [
                f"{kept[0].measurements:,} measurements",
                "seconds",
                "until on disk, ms",
                "processor time of the driver for each, us",
                "`report`, us",
                "one in a hundred, us",
            ],
            [
                [
                    each.name,
                    f"{each.seconds:.1f}",
                    f"{each.to_disk_ms:.0f}",
                    f"{each.driver_us:.0f}",
                    f"{each.report_us:.0f}" if each.report_us else "",
                    f"{each.longest_report_us:.0f}" if each.report_us else "",
                ]
                for each in kept
            ],
        ),
    }
    figures = {
        "sides": [asdict(one) for one in sides],
        "same": same,
        "python_ms": python,
        "turns_ms": turns,
        "kept": [asdict(each) for each in kept],
        "slowness": slow,
    }
    return print_result("programs", tables, figures, options, ok=ok)


if __name__ == "__main__":
    sys.exit(main())
