"""By what factor does the critical batch size grow if a goal must hold, and why?

    python benchmarks/holding.py --folder runs/holding
    python benchmarks/holding.py --smoke

Trains `sweeps/holding.yaml` (ten minutes on two cores), or takes the run that is in the folder: the
digits, searched for the first measurement that passes the goal and for three that do. The factor
between the two critical batch sizes has two parts. *Noise*: the points that won the first passage,
judged by repeats that trained on until the goal held. *Other winners*: what the search for the goal
that holds found beyond that. Intervals are 90 %, as for independent errors; the two searches share
their trials, so they are wider rather than too narrow.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from command_line import orchestrate, parser_of, print_result
from tables import Table

from orchestrator.analysis import Estimate, scalings
from orchestrator.analysis.estimates import ratio_of
from orchestrator.analysis.holding import holdings
from orchestrator.analysis.words import factor_in_words, in_words
from orchestrator.records import Goal
from orchestrator.results import RunFiles, frontier_of

SMOKE = [
    "--set", "batch_sizes=[16, 32, 64, 256]", "--set", "search={trials: 4}",
    "--set", "repeats={count: 2, of: 1}", "--set", "recipes=[sgd]",
]  # fmt: skip


def critical(run: RunFiles) -> dict[str, tuple[Estimate | None, ...]]:
    """Recipe -> B_crit with the first passage, with the same points if the goal must hold, and with
    the points of the search for that."""
    rows = frontier_of(run)
    found = {(one.recipe, one.goal): one for one in scalings(rows)}
    same = {one.first.recipe: one.held for one in holdings(rows, [*found.values()])}
    both = {}
    for (recipe, goal), first in found.items():
        searched = found.get((recipe, str(Goal.parse(goal).held)))
        if not Goal.parse(goal).holds and searched is not None and recipe in same:
            curves = (first, same[recipe], searched)
            both[recipe] = tuple(one.critical_batch_size for one in curves)
    return both


def factors(first: Estimate | None, same: Estimate | None, searched: Estimate | None) -> list[str]:
    """The whole factor, that of noise, and that of other winners, in words."""
    pairs = ((searched, first), (same, first), (searched, same))
    ratios = [one and ratio_of(one, other) for one, other in pairs]
    return ["not known" if ratio is None else factor_in_words(ratio) for ratio in ratios]


def main() -> int:
    parser = parser_of(__doc__ or "")
    parser.add_argument("--folder", type=Path, help="where the run is, or goes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        place = options.folder or Path(name) / "run"
        how = ["--out", place, "--yes", "--no-ray", *(SMOKE if options.smoke else [])]
        orchestrate("sweep", "holding", *how, smoke=options.smoke)
        found = critical(RunFiles.open(str(place)))
    heads = (
        "recipe", "B_crit, first passage", "the same points, holding", "searched for it", "factor",
        "noise", "other winners",
    )  # fmt: skip
    figures = {}
    for recipe, known in found.items():
        sizes = ["not known" if one is None else in_words(one) for one in known]
        figures[recipe] = dict(zip(heads[1:], [*sizes, *factors(*known)], strict=True))
    table = Table(heads, [[recipe, *cells.values()] for recipe, cells in figures.items()])
    return print_result("holding", {"": table}, figures, options, ok=bool(found))


if __name__ == "__main__":
    sys.exit(main())
