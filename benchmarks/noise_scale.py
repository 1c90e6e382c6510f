"""What the gradient noise scale costs a trial, and whether it is right along a training.

Cost: the digits are trained to their goals with and without the measurement, in turns. Time is that
of training and evaluation together. Bound: in the mean over batch sizes, the median pair takes a
quarter more.

Truth: the noisy quadratic model's own, at each step that was measured: trS / |G|^2 beside what was
estimated from 512 examples, and tr(HS) / G'HG, which critical batch sizes are about and which
B_simple stands in for.
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import replace
from typing import Any

import torch
from command_line import parser_of, print_result
from tables import Table, bounded

from orchestrator.noise.estimates import GRADIENT_SQUARE, NoiseEstimate
from orchestrator.planning.single import single_trial
from orchestrator.records import Extras, Trial
from orchestrator.training import Ranks, train

MAX_COST = 0.25
RATES = {
    "digits/mlp": {8: 0.15, 32: 0.3, 128: 0.6, 512: 0.9},
    "digits/cnn": {8: 0.05, 32: 0.15, 128: 0.3, 512: 0.6},
}
"""Learning rates of plain SGD by batch size."""

D = 1000


def seconds_of(trial: Trial) -> float:
    training = train(trial, Ranks())
    while True:
        try:
            next(training)
        except StopIteration as end:
            return float(end.value.seconds + end.value.evaluation_seconds)


def pair_of(workload: str, batch_size: int, rate: float, steps: int | None) -> tuple[Trial, Trial]:
    """The same trial without and with the measurement."""
    without = single_trial(
        workload, "sgd", batch_size, params={"learning_rate": rate}, steps=steps, seed=1
    )
    study = replace(without.study, extras=Extras(noise_scale="always"))
    return without, replace(without, study=study)


def costs(*, smoke: bool) -> dict[str, dict[int, float]]:
    pairs = 1 if smoke else 9
    found: dict[str, dict[int, float]] = {}
    for workload, rates in RATES.items():
        for batch_size, rate in rates.items():
            trials = pair_of(workload, batch_size, rate, 20 if smoke else None)
            timed = [[seconds_of(trial) for trial in trials] for _ in range(pairs + 1)][1:]
            more = statistics.median(b / a - 1 for a, b in timed)
            found.setdefault(workload, {})[batch_size] = round(more, 4)
    return found


def along_the_recursion(*, smoke: bool) -> list[dict[str, Any]]:
    """One training of the noisy quadratic model, its weights known at each step."""
    size, steps = (100, 16) if smoke else (D, 512)
    trial = pair_of(f"noisy_quadratic?d={size}", 16, 0.3, steps)[1]
    h = 1 / torch.arange(1, size + 1, dtype=torch.float64)
    # The expected square of each coordinate, by the recursion of Zhang et al.
    squares, rate = torch.ones(size, dtype=torch.float64), 0.3
    expected = []
    for _ in range(steps + 1):
        expected.append(squares)
        squares = (1 - rate * h) ** 2 * squares + rate**2 * h / trial.study.batch_size
    found = []
    for measurement in train(trial, Ranks()):
        if GRADIENT_SQUARE not in measurement.metrics:
            continue
        step, estimate = measurement.step, NoiseEstimate.from_columns(measurement.metrics)
        simple = float(h.sum() / (h**2 * expected[step]).sum())
        proper = float((h * h).sum() / (h**3 * expected[step]).sum())
        found.append(
            {
                "step": step,
                "simple": simple,
                "estimated": estimate.noise_scale,
                "interval": estimate.interval(),
                "proper": proper,
            }
        )
    return found


def main() -> int:
    options = parser_of(__doc__).parse_args()
    torch.set_num_threads(1)
    found = costs(smoke=options.smoke)
    along = along_the_recursion(smoke=options.smoke)
    means = {workload: statistics.mean(some.values()) for workload, some in found.items()}
    figures = {"more": found, "max_more": MAX_COST, "along": along}
    ok = all(mean <= MAX_COST for mean in means.values())
    sizes = next(iter(RATES.values()))
    tables = {
        "cost": Table(
            ["workload", *map(str, sizes), "mean"],
            [
                [
                    f"`{workload}`",
                    *(f"{more:.0%}" for more in some.values()),
                    bounded(f"{means[workload]:.0%}", means[workload] <= MAX_COST),
                ]
                for workload, some in found.items()
            ],
        ),
        "truth": Table(
            ["step", "trS / \\|G\\|^2", "estimated", "tr(HS) / G'HG"],
            [
                [
                    f"{one['step']:,}",
                    f"{one['simple']:,.1f}",
                    "{:,.1f} ({:,.1f} to {:,.1f})".format(one["estimated"], *one["interval"]),
                    f"{one['proper']:,.1f}",
                ]
                for one in along
            ],
        ),
    }
    return print_result("noise_scale", tables, figures, options, ok=ok)


if __name__ == "__main__":
    sys.exit(main())
