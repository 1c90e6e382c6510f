"""What is said from the first 20 trials of each study, held against what all of them show.

A complete run is made first, or taken from FOLDER: every trial trained until it reaches the goal,
diverges or has spent its budget, so that the best of any number of trials is known. Digits:
100 trials of digits/mlp at seven batch sizes with SGD and with momentum, 8 minutes on two cores.
Fashion-MNIST (with `--data-dir`): 40 trials of a small CNN at three batch sizes, 30 minutes.

foretold    the fewest steps of all trials, from the first 20, with a 90 % interval
found       the fewest steps of all trials
B_crit      from the first 20 as they are, at equal quality of tuning, and from all as they are
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from command_line import orchestrate, parser_with_smoke, print_result

from orchestrator.analysis import Estimate, Scaling, in_words, scalings
from orchestrator.results import FrontierRow, Run, frontier_of

FIRST = 20

COMMON = {"search": {"algorithm": "halton", "trials": 100}, "stop": {"dominated": False}}

DIGITS = {
    "name": "digits100",
    "workloads": ["digits/mlp"],
    "goals": ["val/error < 0.04"],
    "recipes": ["sgd", "momentum"],
    "batch_sizes": {"from": 1, "to": "full", "factor": 4},
    "budget": {"epochs": 6, "at_least_steps": 500},
    **COMMON,
}

FASHION = {
    "name": "fashion40",
    "workloads": ["fashion_mnist/simple_cnn_tiny"],
    "goals": ["val/error < 0.15"],
    "recipes": ["nesterov"],
    "batch_sizes": [32, 128, 512],
    "budget": {"examples": 100_000, "at_least_steps": 300},
    **COMMON,
    "search": {"algorithm": "halton", "trials": 40},
}

SMOKE = {
    **DIGITS,
    "recipes": ["sgd"],
    "batch_sizes": [4, 16],
    "goals": ["val/error < 0.5"],
    "budget": {"steps": 40},
    "search": {"algorithm": "halton", "trials": FIRST + 2},
}


def complete_run(sweep: dict[str, Any], folder: Path, *options: str, smoke: bool = False) -> Run:
    """The run of a sweep, as it is there or made anew."""
    file, out = folder / f"{sweep['name']}.json", folder / sweep["name"]
    if out.exists():
        return Run.open(out)
    file.write_text(json.dumps(sweep))
    print(orchestrate("sweep", file, "--out", out, "--yes", *options, smoke=smoke).printed)
    return Run.open(out)


def minima_of(run: Run, first: int | None = None) -> list[FrontierRow]:
    return [replace(row, repeats=None) for row in frontier_of(run, first=first)]


def held_against_all(run: Run) -> Iterator[dict[str, Any]]:
    """Of each curve: what its first trials say, and what all of them show."""
    few, many = minima_of(run, FIRST), minima_of(run)
    for early, late in zip(scalings(few), scalings(many), strict=True):
        found = {row.batch_size: row for row in many if row.recipe == early.recipe}
        points = []
        for one in early.best_of:
            row = found[one.batch_size]
            foretold = one.best_of(row.trials_used)
            points.append(
                {
                    "batch_size": one.batch_size,
                    "first": one.steps,
                    "foretold": _ends(foretold),
                    "found": row.steps,
                    "trials": row.trials_used,
                    "why_not": one.reason,
                }
            )
        yield {
            "workload": early.workload,
            "recipe": early.recipe,
            "points": points,
            "critical": {
                f"first {FIRST}": _ends(early.critical_batch_size),
                f"first {FIRST}, equally well tuned": _ends(_equal(early)),
                "all": _ends(late.critical_batch_size),
            },
            "law": [scaling.law and scaling.law.law for scaling in (early, late)],
        }


def _equal(scaling: Scaling) -> Estimate | None:
    equal = scaling.equal_quality
    return None if equal is None else equal.critical_batch_size


def _ends(estimate: Estimate | None) -> list[float | None] | None:
    return None if estimate is None else [estimate.value, estimate.low, estimate.high]


def print_curves(curves: Sequence[dict[str, Any]]) -> None:
    for curve in curves:
        print(f"{curve['workload']}, {curve['recipe']}")
        print(f"{'batch size':>10} {'first ' + str(FIRST):>10} {'foretold':>24} {'found':>8}")
        for point in curve["points"]:
            said = _said(point["foretold"]) or point["why_not"] or "not known"
            first, found = (
                "never" if steps is None else f"{steps:,}"
                for steps in (point["first"], point["found"])
            )
            print(f"{point['batch_size']:>10,} {first:>10} {said:>24} {found:>8}")
        for name, ends in curve["critical"].items():
            print(f"B_crit, {name}: {_said(ends) or 'not known'}")
        print(f"law: {' -> '.join(str(law) for law in curve['law'])}\n")


def _said(ends: list[float | None] | None) -> str:
    if ends is None or ends[0] is None:
        return ""
    return in_words(Estimate(value=ends[0], low=ends[1], high=ends[2]))


def share_within(curves: Sequence[dict[str, Any]]) -> tuple[int, int]:
    """How many of the foretold fewest steps were found within their interval, and of how many."""
    told = [
        (point["foretold"], point["found"])
        for curve in curves
        for point in curve["points"]
        if point["foretold"] is not None and point["found"] is not None
    ]
    within = sum(ends[1] <= found <= ends[2] for ends, found in told if ends[1] is not None)
    return within, len(told)


def main() -> int:
    parser = parser_with_smoke(__doc__)
    parser.add_argument("--folder", type=Path, help="where the complete runs are, or go")
    parser.add_argument("--data-dir", type=Path, help="with Fashion-MNIST")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stdout(sys.stderr):
        folder = options.folder or Path(name)
        if options.smoke:
            runs = [complete_run(SMOKE, folder, "--no-ray", smoke=True)]
        else:
            runs = [complete_run(DIGITS, folder)]
            if options.data_dir:
                more = complete_run(FASHION, folder, "--data-dir", str(options.data_dir))
                runs.append(more)
        curves = [curve for run in runs for curve in held_against_all(run)]
    print_curves(curves)
    within, told = share_within(curves)
    print(f"{within} of {told} foretold fewest steps were found within their 90 % interval")
    figures = {"curves": curves, "within": within, "told": told}
    return print_result("first_trials", figures, smoke=options.smoke)


if __name__ == "__main__":
    sys.exit(main())
