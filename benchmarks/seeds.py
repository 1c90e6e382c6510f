"""Does the interval of one sweep hold what other seeds of the same sweep find?

    python benchmarks/seeds.py --folder runs/seeds
    python benchmarks/seeds.py --smoke

Trains the quickstart with twenty seeds (40 minutes on two cores), or takes the runs that are in the
folder already. Each run is held against the others: the steps of each batch size against the median
of theirs, and the batch size that takes a fifth more examples against the one of the curve through
these medians. Nothing here is simulated. Bounds: for each recipe, 15 of 20 intervals hold it, and
50 of 60 together.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from statistics import median

import numpy as np
from command_line import orchestrate, parser_of, print_result
from tables import Table, bounded

from orchestrator.analysis import scalings
from orchestrator.analysis.curve import curves_through
from orchestrator.analysis.errors import errors_of
from orchestrator.analysis.points import points_of
from orchestrator.analysis.scaling import CRITICAL_TOLERANCE
from orchestrator.results import FrontierRow, RunFiles, frontier_of

SEEDS = 20
OF_EACH, TOGETHER = 15 / 20, 50 / 60

SMOKE = [
    "--set", "batch_sizes=[16, 32, 64, 256]", "--set", "search={trials: 4}",
    "--set", "repeats={count: 2, of: 3}", "--set", "recipes=[sgd]", "--no-ray",
    "--set", "stop={repeats_stay: false}", "--set", "budget={epochs: 20}",
]  # fmt: skip


def runs_in(folder: Path, *, smoke: bool) -> list[RunFiles]:
    """The runs of all seeds, as they are there or made now."""
    places = [folder / f"seed-{seed}" for seed in range(1, (2 if smoke else SEEDS) + 1)]
    for seed, place in enumerate(places, start=1):
        how = ["--out", place, "--set", f"seed={seed}", "--yes", *(SMOKE if smoke else [])]
        orchestrate("sweep", "quickstart", *how, smoke=smoke)
    return [RunFiles.open(str(place)) for place in places]


def held(frontiers: list[list[FrontierRow]], recipe: str) -> dict[str, list[bool]]:
    """Which intervals of a recipe hold what the other runs find."""
    found: dict[str, list[bool]] = {"fifth more": [], "points": []}
    for place, rows in enumerate(frontiers):
        points = [point for point in points_of(rows) if point.recipe == recipe and point.tells]
        others = [
            point
            for other in (*frontiers[:place], *frontiers[place + 1 :])
            for point in points_of(other)
            if point.recipe == recipe and point.tells
        ]
        sizes = [point.batch_size for point in points]
        steps = [median(one.steps for one in others if one.batch_size == s) for s in sizes]
        found["points"] += [
            (interval.low or 0) <= true <= (interval.high or np.inf)
            for interval, true in zip(errors_of(points).intervals(points), steps, strict=True)
        ]
        # The medians of many sweeps are known to a part of the error of one.
        error = errors_of(points).covariance / max(len(frontiers) - 1, 1)
        true = curves_through(np.log2(sizes), np.log2(steps), error)
        pooled = true.examples_within(CRITICAL_TOLERANCE).value
        (scaling,) = scalings([row for row in rows if row.recipe == recipe])
        fifth = scaling.critical_by_examples
        if fifth is not None and fifth.low is not None and fifth.high is not None:
            found["fifth more"].append(fifth.low <= pooled <= fifth.high)
    return found


def main() -> int:
    parser = parser_of(__doc__ or "")
    parser.add_argument("--folder", type=Path, help="where the runs are, or go")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        frontiers = [
            frontier_of(run) for run in runs_in(options.folder or Path(name), smoke=options.smoke)
        ]
        recipes = list(dict.fromkeys(row.recipe for row in frontiers[0]))
        found = {recipe: held(frontiers, recipe) for recipe in recipes}
    rows = [
        [
            recipe,
            *(
                bounded(f"{sum(of)} of {len(of)}", sum(of) >= OF_EACH * len(of))
                for of in one.values()
            ),
        ]
        for recipe, one in found.items()
    ]
    shares = np.array([[np.mean(of) for of in one.values()] for one in found.values()])
    of_all = zip(*(one.values() for one in found.values()), strict=True)
    sums = [(sum(map(sum, column)), sum(map(len, column))) for column in of_all]
    rows.append(
        [
            "together",
            *(bounded(f"{part} of {whole}", part >= TOGETHER * whole) for part, whole in sums),
        ]
    )
    ok = bool((shares >= OF_EACH).all() and (shares.mean(axis=0) >= TOGETHER).all())
    figures = {
        recipe: {name: [sum(of), len(of)] for name, of in one.items()}
        for recipe, one in found.items()
    }
    table = Table(["recipe", "fifth more", "points"], rows)
    return print_result("seeds", {"": table}, {"sweeps": len(frontiers), **figures}, options, ok=ok)


if __name__ == "__main__":
    sys.exit(main())
