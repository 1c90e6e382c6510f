"""Does the gradient noise scale forecast the critical batch size that was measured?

Reads the runs of the atlas that measured both. The forecast is the B_crit that the noise scale
predicts, from repeated trainings of the goal's winner at each batch size. Goals that must hold, and
curves without a B_crit, are left out. A ratio is bold if its 90 % interval excludes 1. The second
table has the forecast of each batch size, for the last goal of a run.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from command_line import parser_of, print_result
from tables import Table, bounded

import orchestrator
from orchestrator.analysis.forecasts import Comparison
from orchestrator.analysis.words import factor_in_words, in_words
from orchestrator.records import Goal

RUNS = Path(__file__).parent.parent / "atlas" / "runs"
MEASURED = ("digits_mlp", "digits_cnn", "fashion_mnist")


def beside_measured(found: Sequence[Comparison]) -> Table:
    rows = [
        [
            f"`{one.workload}`",
            one.recipe,
            f"`{one.goal}`",
            in_words(one.forecast),
            in_words(one.measured),
            bounded(factor_in_words(one.ratio), one.ratio.holds(1)),
        ]
        for one in found
        if one.measured is not None and one.ratio is not None
    ]
    return Table(["workload", "recipe", "goal", "forecast", "measured", "ratio"], rows)


def of_each_size(found: Sequence[Comparison]) -> Table:
    last = {(one.workload, one.recipe): one.forecasts for one in found}
    rows = [
        [
            f"`{workload}`",
            recipe,
            ", ".join(f"{at.batch_size:,}: {at.noise_scale.value:,.0f}" for at in forecasts),
        ]
        for (workload, recipe), forecasts in last.items()
    ]
    return Table(["workload", "recipe", "batch size: forecast"], rows)


def main() -> int:
    options = parser_of(__doc__ or "").parse_args()
    found = [
        one
        for name in (MEASURED[-1:] if options.smoke else MEASURED)
        for one in orchestrator.open_run(RUNS / f"{name}.zip").forecasts()
        if not Goal.parse(one.goal).holds
    ]
    tables = {"measured": beside_measured(found), "of each batch size": of_each_size(found)}
    figures = {"comparisons": [one.to_json() for one in found]}
    return print_result("forecasts", tables, figures, options)


if __name__ == "__main__":
    sys.exit(main())
