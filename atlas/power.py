"""How often would a claim be said to agree if it were true, and if it were not?

    python atlas/power.py             print the table
    python atlas/power.py --write     write it to atlas/power.json, which the page of findings shows

Nothing here depends on what was measured: batch sizes are those of the sweep files, and how well
each point will be known was taken from an earlier run with half as many points (July 2026). Numbers
are drawn around what they are if the claim is true by the margin that matters, and around the bound
of its rule, with the errors that the planned points will have. The rule decides each draw.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from claims import CLAIMS
from measured import DIGITS, Curve, World, instead, numbers_of
from rules import Claim, Floats, Numbers

from orchestrator.planning.recipes import batch_sizes_of
from orchestrator.planning.sweep_file import load_sweep

FILE = Path(__file__).parent / "power.json"

DRAWS = 4000

SEEDS = {
    "digits_mlp": 0.10,
    "digits_cnn": 0.17,
    "fashion_mnist": 0.11,
    "subsets": 0.10,
    "rules_digits": 0.06,
    "rules_fashion": 0.08,
    "half_life": 0.08,
    "seesaw": 0.1,
    "noisy_quadratic": 0.02,
    "simple_cnn": 0.15,
    "cooled_cnn": 0.13,
    "cooled_gpt": 0.15,
}
"""Run -> standard deviation of a point's median over seeds, in doublings. That of the earlier run,
less for more repeats, as of independent ones."""

FEW_TRIALS, FEW_RATES, RESOLUTION = 0.13, 0.08, 0.05
"""The same from the number of trials, where several metaparameters or a rate alone is searched, and
from the distance between measurements."""


class Planned(World):
    """What is planned. All numbers are 0, and have the errors that they will have."""

    @cache  # noqa: B019 - there is one
    def curve(self, group: str, workload: str, recipe: str, goal: str) -> Curve:
        sizes = self.all_sizes(group, workload)
        variance = SEEDS[group] ** 2
        if group == "noisy_quadratic":
            variance += 0.03**2  # of both
        elif group.startswith("rules") and recipe != "tuned":
            variance += RESOLUTION**2
        elif recipe == "tuned":
            variance += RESOLUTION**2 + FEW_RATES**2
        else:
            variance += RESOLUTION**2 + FEW_TRIALS**2
        return Curve(
            sizes=tuple(sizes), logs=np.zeros(len(sizes)), covariance=variance * np.eye(len(sizes))
        )

    def all_sizes(self, group: str, workload: str) -> list[int]:
        given = load_sweep(Path(__file__).parent / f"{group}.yaml").batch_sizes
        full = 1400 if workload.startswith("digits") else None
        return batch_sizes_of(given, workload, full)

    def never(self, group: str, workload: str, recipe: str, goal: str) -> list[int]:
        return []

    def powers(self, workload: str) -> Numbers:
        recipes = ("sgd", "momentum")
        return Numbers(
            names=[f"{workload}, {recipe}" for recipe in recipes],
            values=np.zeros(len(recipes)),
            covariance=0.1**2 * np.eye(len(recipes)),
            doublings=False,
            degrees=np.full(len(recipes), 4.0 if workload == DIGITS else 3.0),
        )

    def forecast(self, workload: str, recipe: str) -> tuple[float, float]:
        return 7.0, 0.4

    def critical(self, group: str) -> list[tuple[float, float]]:
        return [(0.0, 0.5), (0.0, 0.5)]

    def lowest_errors(self, group: str, batch_size: int | None) -> Floats:
        return np.array([0.0115, 0.0125, 0.0115, 0.0125])  # of four points

    def lowest_of_trials(self, group: str, batch_size: int | None) -> float:
        return 0.0


def shares(claim: Claim) -> dict[str, float]:
    """The shares of draws in which the claim is said to agree: if it is true by the margin that
    matters, and if it is false, at the bound of its rule."""
    asked = claim.rule()
    planned = numbers_of(asked)
    count = len(planned.names)
    chance = np.random.default_rng(0)
    # numpy's own draws depend on singular vectors, of which processors find different ones.
    mixing = np.linalg.cholesky(planned.covariance + 1e-12 * np.eye(count))
    errors = chance.standard_normal((DRAWS, count)) @ mixing.T
    # Errors that are estimated from few points come out smaller or larger than they are.
    degrees = np.minimum(np.broadcast_to(planned.degrees, count), 1e9)
    scales = np.sqrt(chance.chisquare(degrees, (DRAWS, count)) / degrees)
    found = {}
    for name, truth in (("true", asked.matters), ("false", asked.false)):
        decided = [
            asked.decide(
                replace(
                    planned,
                    values=truth + error,
                    covariance=planned.covariance * np.outer(scale, scale),
                )
            )
            for error, scale in zip(errors, scales, strict=True)
        ]
        found[name] = round(decided.count("agrees") / DRAWS, 2)
    return found


def all_shares() -> dict[str, dict[str, float]]:
    with instead(Planned()):
        return {claim.name: shares(claim) for claim in CLAIMS}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help=f"write {FILE.name}")
    is_to_write = parser.parse_args().write
    found = all_shares()
    print(f"{'said to agree if it is':36} true  false")
    for name, of_claim in found.items():
        print(f"{name:36} {of_claim['true']:4.0%}  {of_claim['false']:4.0%}")
    if is_to_write:
        FILE.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
