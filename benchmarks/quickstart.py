"""What the quickstart finds, and how long it takes from the command to its report.

    python benchmarks/quickstart.py --folder runs/quickstart
    python benchmarks/quickstart.py --smoke

Runs `orchestrate sweep quickstart` as `make sweep` does, or takes the finished run that is in the
folder. *Busy*: the share of the slots' time in which trials train and are evaluated, from the first
trial's start until none is left to start.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from command_line import orchestrate, parser_of, print_result
from tables import Table, Tables

from orchestrator.analysis import scalings
from orchestrator.analysis.holding import holdings
from orchestrator.analysis.points import points_of
from orchestrator.analysis.words import bend_cells, exponent_in_words, in_words
from orchestrator.results import FrontierRow, RunFiles, frontier_of

SMOKE = [
    "--set", "batch_sizes=[16, 32, 64, 256]", "--set", "search={trials: 4}",
    "--set", "repeats={count: 2, of: 1}", "--set", "recipes=[sgd]", "--no-ray",
]  # fmt: skip


def percent(part: float | None) -> str:
    return "not known" if part is None else f"{100 * (2**part - 1):.1f} %"


def tables_of(rows: Sequence[FrontierRow]) -> Tables:
    found, points = scalings(rows), points_of(rows)
    curves, errors = [], []
    for one in found:
        recipe, *bend = bend_cells(one).values()
        mine = [point for point in points if point.recipe == recipe]
        fewest = min(mine, key=lambda point: point.steps)
        perfect, parts = one.perfect_scaling_until, one.contributions
        curves.append(
            [
                recipe,
                f"{mine[0].steps:,.0f} (at {mine[0].batch_size})",
                f"{fewest.steps:,.0f} (at {fewest.batch_size:,})",
                *bend,
                "" if one.exponent is None else exponent_in_words(one.exponent),
                "" if perfect is None else in_words(perfect),
            ]
        )
        if parts is not None:
            of_each = (parts.few_trials, parts.seeds, parts.resolution, parts.scatter, one.by_part)
            errors.append([recipe, *map(percent, of_each)])
    held = [(one.first.recipe, *one.lost) for one in holdings(rows, found)]
    return {
        "curves": Table(
            [
                "recipe", "median steps", "fewest median steps", "a fifth more examples at",
                "useful until", "B_crit", "exponent", "perfect scaling until",
            ],
            curves,
        ),
        "errors": Table(
            [
                "recipe", "few trials", "seeds", "distance between measurements", "other scatter",
                "more steps with two thirds of the trials",
            ],
            errors,
        ),
        "holding": Table(
            ["recipe", "repeats that lose the goal again"],
            [[recipe, f"{lost} of {reached}"] for recipe, lost, reached in held],
        ),
    }  # fmt: skip


def main() -> int:
    parser = parser_of(__doc__ or "")
    parser.add_argument("--folder", type=Path, help="where the run is, or goes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        place = options.folder or Path(name) / "run"
        how = ["--out", place, "--yes", *(SMOKE if options.smoke else [])]
        orchestrate("sweep", "quickstart", *how, smoke=options.smoke)
        run = RunFiles.open(str(place))
        rows, sessions = frontier_of(run), [one for one in run.sessions() if one["trials"]]
    trained, seconds = (sum(one[name] for one in sessions) for name in ("trials", "seconds"))
    shares = [one["busy_share"] for one in sessions]
    busy = ", ".join("-" if share is None else f"{share:.0%}" for share in shares)
    cost = Table(
        ["starts of trainings", "seconds", "busy"], [[f"{trained:,}", f"{seconds:.0f}", busy]]
    )
    figures = {"trainings": trained, "seconds": seconds, "busy_shares": shares}
    return print_result("quickstart", {"cost": cost, **tables_of(rows)}, figures, options)


if __name__ == "__main__":
    sys.exit(main())
