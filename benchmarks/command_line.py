"""What the command lines of all benchmarks share: `--smoke`, `--write`, and what they print.

A benchmark prints its tables and one line of JSON. `python benchmarks/NAME.py --write` also puts
the tables into docs/measurements/ (tables.py), as `make bench` does.

`python benchmarks/NAME.py --smoke` goes the same way through the code with tiny sizes, in seconds,
without data sets and without a GPU. Its figures mean nothing, so no bound is held against them: it
shows that the benchmark still runs. tests/test_benchmarks.py does that for every benchmark.

Commands then run in this process, which need not load torch again. Sweeps are then trained without
Ray, whose start would take longer than all the rest. Three benchmarks call Ray even so:
trial_overhead.py, programs.py, and plan.py by `orchestrate plan --calibrate`.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from tables import Tables, write

if TYPE_CHECKING:
    from orchestrator.planning.sweep import Sweep
    from orchestrator.records import Study
    from orchestrator.results import RunFiles

Training = Callable[["RunFiles", "Sweep", Sequence["Study"]], bool]


def parser_of(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--smoke",
        action="store_true",
        help="only show that it runs: tiny sizes, no data sets, no GPU, no bounds",
    )
    parser.add_argument(
        "--write", action="store_true", help="put the tables into docs/measurements/"
    )
    return parser


@dataclass(frozen=True, kw_only=True)
class Command:
    """What an `orchestrate` command printed and took."""

    printed: str
    seconds: float
    cpu_seconds: float
    peak_gb: float
    """Of its largest process."""


def orchestrate(*words: object, smoke: bool, quiet: bool = False) -> Command:
    """Gives a command in a cold process, or in this one in smoke mode; a `quiet` one shows nothing
    of its standard error."""
    began, usage = time.perf_counter(), None
    command = [str(Path(sys.executable).with_name("orchestrate")), *map(str, words)]
    if smoke:
        code, printed = _given_here(command)
    else:
        with tempfile.TemporaryFile("w+") as out:
            stderr = subprocess.DEVNULL if quiet else None
            process = subprocess.Popen(command, stdout=out, stderr=stderr)
            _, code, usage = os.wait4(process.pid, 0)
            out.seek(0)
            code, printed = os.waitstatus_to_exitcode(code), out.read()
    # 3: a goal was not reached, as it may be at some batch size.
    assert code in (0, 3), (command, code)
    return Command(
        printed=printed,
        seconds=time.perf_counter() - began,
        cpu_seconds=usage.ru_utime + usage.ru_stime if usage else 0,
        peak_gb=usage.ru_maxrss / 1e6 if usage else 0,
    )


def _given_here(command: list[str]) -> tuple[Any, str]:
    from orchestrator.cli import main

    code: Any = 0
    with mock.patch.object(sys, "argv", command), redirect_stdout(io.StringIO()) as out:
        try:
            main()
        except SystemExit as end:
            code = end.code
    return code, out.getvalue()


@contextmanager
def training(*, smoke: bool) -> Iterator[Training]:
    """What trains studies in a new run: a Ray that is started on this machine, or this process in
    smoke mode."""
    if smoke:
        yield _in_this_process
        return
    from orchestrator.cluster.connect import connect
    from orchestrator.cluster.sweeps import train_apart

    with (
        tempfile.TemporaryDirectory() as folder,
        connect(None, Path(folder) / "log.txt") as cluster,
    ):
        yield partial(train_apart, cluster=cluster)


def _in_this_process(run: RunFiles, sweep: Sweep, studies: Sequence[Study]) -> bool:
    from orchestrator.search import Director
    from orchestrator.sweeping.executor import Job
    from orchestrator.sweeping.local import in_this_process
    from orchestrator.sweeping.progress import Progress
    from orchestrator.sweeping.session import dispatcher_of

    run.create(sweep.resolved(), studies, {})
    director = Director(studies, sweep.seed)
    director.begin()
    with in_this_process(Job(run=run, sweep=sweep, studies=studies)) as executor:
        return dispatcher_of(run, director, sweep, executor, Progress(studies)).train()


FEW_TRIALS = ("search.trials=20", "repeats={count: 5, of: 1}")
"""Settings that make the quickstart small, for benchmarks that run it several times."""

REFERENCE_SECONDS = 0.045
"""What `slowness` times takes on the machine of docs/measurements/ while nobody else uses it."""


def slowness() -> float:
    """How many times as long a plain loop of Python takes as on that machine, at least 1. Bounds in
    seconds are multiplied with it: on a shared machine the same code may take twice as long."""
    times = []
    for _ in range(9):
        began, counts = time.process_time(), dict[int, int]()
        for number in range(300_000):
            counts[number % 1000] = counts.get(number % 1000, 0) + number
        times.append(time.process_time() - began)
    return max(1.0, statistics.median(times) / REFERENCE_SECONDS)


def print_result(
    benchmark: str,
    tables: Tables,
    figures: Mapping[str, Any],
    options: argparse.Namespace,
    *,
    ok: bool | None = None,
) -> int:
    """Prints the tables and the line of JSON, and returns the exit code. `ok` is whether every
    bound was kept; None where there are none. It is neither printed nor heeded in smoke mode."""
    for name, table in tables.items():
        print(f"{name}\n" if name else "", table.for_terminal(), "\n", sep="")
    judgement = {} if options.smoke or ok is None else {"ok": ok}
    told = {"benchmark": benchmark, "smoke": options.smoke, "tables": [*tables]}
    print(json.dumps({**told, **figures, **judgement}))
    if options.write and not options.smoke:
        write(benchmark, tables)
    return 1 if judgement.get("ok") is False else 0
