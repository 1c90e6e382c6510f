"""What the command lines of all benchmarks share: `--smoke`, and one line of JSON at the end.

`python benchmarks/NAME.py --smoke` goes the same way through the code with tiny sizes, in seconds,
without data sets and without a GPU. Its figures mean nothing, so no bound is held against them: it
shows that the benchmark still runs. tests/test_benchmarks.py does that for every benchmark.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping
from typing import Any


def parser_with_smoke(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--smoke",
        action="store_true",
        help="only show that it runs: tiny sizes, no data sets, no GPU, no bounds",
    )
    return parser


REFERENCE_SECONDS = 0.045
"""What `slowness` times takes on the machine of docs/measurements.md while nobody else uses it."""


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
    benchmark: str, figures: Mapping[str, Any], *, smoke: bool, ok: bool | None = None
) -> int:
    """Prints the line of JSON and returns the exit code. `ok` is whether every bound was kept; None
    where there are none. It is neither printed nor heeded in smoke mode."""
    judgement = {} if smoke or ok is None else {"ok": ok}
    print(json.dumps({"benchmark": benchmark, "smoke": smoke, **figures, **judgement}))
    return 1 if judgement.get("ok") is False else 0
