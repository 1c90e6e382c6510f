"""Whether the seconds that are kept of a trial agree with a stopwatch outside of it.

one rank     `orchestrate trial` of digits/mlp at batch size 32, a process of its own, and once more
             with twice the steps. Starting, loading, both evaluations and ending are in both, so
two ranks    that what the second takes longer is so many steps and nothing else. Beside that, by
             the clock on the wall: what the command itself says a step took.
a sweep      ten thousand trials of 20 steps on two slots. What they trained and evaluated, as
             `trials` has it, and the busy share of the run's session; beside that, the processor
             time of the processes that trained, in the same window, as the system counts it.

Ratios are the command's figure over the stopwatch's, medians over rounds. Bounds: between 0.85 and
1.15 for a step; a sweep keeps no more seconds than its slots had.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from command_line import orchestrate, parser_of, print_result, training
from tables import Table, bounded

from orchestrator.planning.studies import plan
from orchestrator.planning.sweep import Sweep
from orchestrator.results import RunFiles

WORKLOAD, BATCH_SIZE = "digits/mlp", 32
STEPS, ROUNDS, TRIALS = 10_000, 5, 10_000
SMOKE_STEPS, SMOKE_ROUNDS, SMOKE_TRIALS = 50, 1, 4
STEPS_IN_SWEEP = 20

LEAST_RATIO, MOST_RATIO = 0.85, 1.15

TRAINING = ("ray::Gang", "ray::ResourceTrainable")
"""Titles of the processes that train."""


def run_trial(ranks: int, steps: int, *, smoke: bool) -> tuple[float, float]:
    """Seconds by the clock on the wall, and those of training as the command says."""
    command = orchestrate(
        "trial", WORKLOAD, "--optimizer", "sgd", "--set", "learning_rate=0.01",
        "--batch-size", BATCH_SIZE, "--steps", steps, "--ranks", ranks,
        "--evaluate", "spacing=0", "--evaluate", f"min_examples={BATCH_SIZE * steps}", "--json",
        smoke=smoke, quiet=True,
    )  # fmt: skip
    told = json.loads(command.printed)
    assert told["steps"] == steps
    return command.seconds, told["seconds"]


def time_steps(ranks: int, steps: int, rounds: int, *, smoke: bool) -> dict[str, Any]:
    ratios, outside, told = [], [], []
    for _ in range(rounds):
        short, long = (run_trial(ranks, count, smoke=smoke) for count in (steps, 2 * steps))
        outside.append((long[0] - short[0]) / steps)
        told.append((long[1] - short[1]) / steps)
        ratios.append(told[-1] / outside[-1])
    return {
        "ranks": ranks,
        "outside_us": 1e6 * statistics.median(outside),
        "told_us": 1e6 * statistics.median(told),
        "ratio": statistics.median(ratios),
        "ratios": ratios,
    }


@contextlib.contextmanager
def counting_processor_time() -> Iterator[dict[int, float]]:
    """Within, what each process that trains has used so far, by its id."""
    used: dict[int, float] = {}
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.5):
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if process.cmdline()[0].startswith(TRAINING):
                        times = process.cpu_times()
                        used[process.pid] = times.user + times.system

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield used
    finally:
        over.set()
        thread.join()


def time_sweep(trials: int, *, smoke: bool) -> dict[str, Any]:
    document = {
        "name": "stopwatch",
        "workloads": [WORKLOAD],
        "goals": ["val/loss < 0"],
        "recipes": ["sgd"],
        "batch_sizes": [BATCH_SIZE],
        "search": {"trials": trials},
        "budget": {"steps": STEPS_IN_SWEEP},
        "evaluate": {"spacing": 0, "min_examples": BATCH_SIZE * STEPS_IN_SWEEP},
    }
    planned = plan(Sweep.model_validate(document))
    with tempfile.TemporaryDirectory() as folder, training(smoke=smoke) as train:
        run = RunFiles(Path(folder))
        with counting_processor_time() as used:
            assert train(run, planned.sweep, planned.studies)
        (session,) = run.sessions()
        rows = run.trials(planned.studies[0].key).to_pylist()
    return {
        "trials": len(rows),
        "slot_seconds": session["slots"] * session["seconds"],
        "trained_seconds": sum(row["seconds"] for row in rows),
        "evaluated_seconds": sum(row["evaluation_seconds"] for row in rows),
        "busy_share": session["busy_share"] or 0.0,
        "processor_seconds": sum(used.values()),
    }


def main() -> int:
    options = parser_of(__doc__).parse_args()
    smoke = options.smoke
    steps, rounds = (SMOKE_STEPS, SMOKE_ROUNDS) if smoke else (STEPS, ROUNDS)
    counts = (1,) if smoke else (1, 2)
    single = [time_steps(ranks, steps, rounds, smoke=smoke) for ranks in counts]
    # Ray and Tune have things to print: not where the figures go.
    with contextlib.redirect_stdout(sys.stderr):
        sweep = time_sweep(SMOKE_TRIALS if smoke else TRIALS, smoke=smoke)
    held = [LEAST_RATIO <= found["ratio"] <= MOST_RATIO for found in single]
    ok = 0 <= sweep["busy_share"] <= 1 and all(held)
    steps_table = Table(
        ["ranks", "stopwatch, us", "recorded, us", "ratio", "of rounds"],
        [
            [
                str(found["ranks"]),
                f"{found['outside_us']:.0f}",
                f"{found['told_us']:.0f}",
                bounded(f"{found['ratio']:.2f}", kept),
                f"{min(found['ratios']):.2f} to {max(found['ratios']):.2f}",
            ]
            for found, kept in zip(single, held, strict=True)
        ],
    )
    sweep_table = Table(
        ["trials", "slots, s", "trained, s", "evaluated, s", "busy", "processor time of gangs, s"],
        [
            [
                f"{sweep['trials']:,}",
                *(f"{sweep[f'{name}_seconds']:.0f}" for name in ("slot", "trained", "evaluated")),
                f"{sweep['busy_share']:.1%}",
                f"{sweep['processor_seconds']:.0f}",
            ]
        ],
    )
    figures = {"least_ratio": LEAST_RATIO, "most_ratio": MOST_RATIO, "trial": single, **sweep}
    tables = {"steps": steps_table, "a sweep": sweep_table}
    return print_result("stopwatch", tables, figures, options, ok=ok)


if __name__ == "__main__":
    sys.exit(main())
