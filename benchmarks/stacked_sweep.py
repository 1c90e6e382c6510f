"""A whole sweep with trials trained together, beside the same one with each alone.

`orchestrate sweep` of the small quickstart, from start to exit: (a) as it comes, (b) with
`resources.stack=1`, and (c) as it comes, but with a hundred trials for each batch size. (a) and (b)
take turns; figures are medians over rounds, ratios are medians of those within a round.

Bounds: (a) takes at most 0.6 times as long as (b); (c) at most 2.5 times as long as (b); steps to
the goal in (a) and (b) lie within one evaluation of each other in at least 19 of 21 studies.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from statistics import median

from command_line import FEW_TRIALS, orchestrate, parser_of, print_result
from tables import Table, bounded

from orchestrator.planning.sweep_file import find_sweep_file
from orchestrator.records import StudyKey
from orchestrator.results import FrontierRow, RunFiles, frontier_of

ROUNDS = 3
MORE_TRIALS = 100
MOST_TIME, MOST_TIME_OF_MORE, LEAST_ALIKE = 0.6, 2.5, 19 / 21

SMOKE_SWEEP = {
    "name": "stacked-sweep",
    "workloads": ["digits/mlp"],
    "goals": ["val/error < 0.9"],
    "recipes": ["sgd"],
    "batch_sizes": [64],
    "search": {"trials": 2},
    "budget": {"steps": 20},
}


def frontier(run: Path) -> dict[StudyKey, FrontierRow]:
    return {row.key: row for row in frontier_of(RunFiles.open(run))}


def alike(one: FrontierRow, other: FrontierRow) -> bool:
    if one.steps is None or other.steps is None:
        return one.reached == other.reached
    return abs(one.steps - other.steps) <= max(one.resolution or 0, other.resolution or 0)


def main() -> int:
    options = parser_of(__doc__).parse_args()
    smoke = options.smoke
    together, alone = list[float](), list[float]()
    with tempfile.TemporaryDirectory() as name:
        folder, file = Path(name), find_sweep_file(None)
        how = [f"--set={one}" for one in FEW_TRIALS]
        if smoke:
            file, how = folder / "sweep.yaml", ["--no-ray"]
            file.write_text(json.dumps(SMOKE_SWEEP))

        def train(name: str, *options: str) -> float:
            words = ("sweep", file, "--out", folder / name, "--yes", *how, *options)
            return orchestrate(*words, smoke=smoke, quiet=True).seconds

        for number in range(1 if smoke else ROUNDS):
            together.append(train(f"together-{number}"))
            alone.append(train(f"alone-{number}", "--set", "resources.stack=1"))
        more = 0.0
        if not smoke:
            more = train("more", "--set", f"search.trials={MORE_TRIALS}")
        found, expected = frontier(folder / "together-0"), frontier(folder / "alone-0")
    same = sum(alike(row, expected[key]) for key, row in found.items())
    for key, row in found.items():
        if not alike(row, expected[key]):
            print(f"{key}: {row.steps} steps together, {expected[key].steps} alone")
    time_ratio = median(t / a for t, a in zip(together, alone, strict=True))
    more_ratio = more / median(alone)
    alike_enough = same >= LEAST_ALIKE * len(found)
    ok = time_ratio <= MOST_TIME and more_ratio <= MOST_TIME_OF_MORE and alike_enough
    seconds = [", ".join(f"{one:.0f}" for one in some) + " s" for some in (alone, together)]
    rows = [
        ["one at a time", seconds[0], "", ""],
        [
            "stacked",
            seconds[1],
            bounded(f"{time_ratio:.2f}", time_ratio <= MOST_TIME),
            f"{MOST_TIME}",
        ],
        [
            f"stacked, {MORE_TRIALS} trials for each batch size",
            f"{more:.0f} s",
            bounded(f"{more_ratio:.2f}", more_ratio <= MOST_TIME_OF_MORE),
            f"{MOST_TIME_OF_MORE}",
        ],
        [
            "studies with the same steps",
            bounded(f"{same} of {len(found)}", alike_enough),
            "",
            f"{LEAST_ALIKE:.0%}",
        ],
    ]
    table = Table(["trials", "from start to exit", "over one at a time", "bound"], rows)
    figures = {
        "together_seconds": together,
        "alone_seconds": alone,
        "time_ratio": round(time_ratio, 3),
        "more_trials": MORE_TRIALS,
        "more_seconds": round(more, 1),
        "more_ratio": round(more_ratio, 3),
        "studies": len(found),
        "alike": same,
    }
    return print_result("stacked_sweep", {"": table}, figures, options, ok=ok)


if __name__ == "__main__":
    sys.exit(main())
