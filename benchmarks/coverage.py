"""Do 90 % intervals hold the planted truth, whatever curve was planted?

    python benchmarks/coverage.py
    python benchmarks/coverage.py --smoke

Each repetition is a sweep of eight batch sizes as it comes by default: 64 points, the same at all
batch sizes; the five best are trained five times again, which chooses one of them, and five more
trainings of this one give its median. A point x needs curve(B) g_B(x) steps, times the luck of its
seed. The curves are bends of exponents 0.7 to infinity, which no choice of a law tells apart, and
curves with a smallest useful batch size; they bend well inside the tested range or at its end.
Seeds scatter as the repeats of atlas/runs/digits_mlp.zip do, widened or narrowed to a standard
deviation of 0.05 to 0.3 in natural logarithms. g_B is a bowl whose best point moves as the batch
grows, and which is narrower at large batch sizes; it is 1 where the median best of 64 points lies,
so that curve(B) is what the sweep is about. The analysis sees the best trials and the repeats,
nothing else.

For comparison: the interval of the same batch size by the hyperbola alone, as the answer was
before.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from command_line import parser_of, print_result
from numpy.typing import NDArray
from tables import Table, bounded

import orchestrator
from orchestrator.analysis import Estimate, scalings
from orchestrator.analysis.curve import curves_through
from orchestrator.analysis.errors import errors_of
from orchestrator.analysis.points import points_of
from orchestrator.analysis.scaling import CRITICAL_TOLERANCE, USEFUL_TOLERANCE
from orchestrator.results import FrontierRow
from orchestrator.results.frontier import Leader
from orchestrator.results.repeats import WinnerRepeats, median_interval
from orchestrator.search import DESIGNS

Numbers = NDArray[np.float64]
Curve = Callable[[Numbers], Numbers]
"""Batch sizes -> steps over S_min."""

REPEATED = Path(__file__).parent.parent / "atlas" / "runs" / "digits_mlp.zip"

SIZES = 8 * 2 ** np.arange(8)
STEPS_MIN = 2000.0
TRIALS, KEPT, REPEATS = 64, 5, 10
NOISE = (0.05, 0.12, 0.3)
APART = 0.02
"""Distance between two measurements, as a share of the steps."""

GOOD = np.geomspace(0.25, 0.1, len(SIZES))
"""Share of the search space where points need less than 1.5 times the fewest steps."""

BUDGET = 6.0
"""Trials end at so many times the fewest steps."""

TYPICAL = 200
"""Sweeps of which the best of 64 points is the median."""

FIELDS = {
    "fifth more": "critical_by_examples",
    "useful": "max_useful_batch_size",
    "B_crit": "critical_batch_size",
}
NAMES = (*FIELDS, "points")
JUDGED = ("fifth more", "B_crit", "points")

WHOLE = (0.87, 0.97)
EACH = 0.83


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of curve, with the places of its bend."""

    name: str
    curves: tuple[Curve, ...]


def bend_at(place: float) -> float:
    return float(SIZES[0] * (SIZES[-1] / SIZES[0]) ** place)


def bend(exponent: float, place: float) -> Curve:
    """Its bend lies at a place from the smallest batch size (0) to the largest (1)."""
    at = bend_at(place)
    if math.isinf(exponent):
        return lambda size: np.maximum(1, at / size)
    return lambda size: (1 + (at / size) ** exponent) ** (1 / exponent)


def smallest_useful(share: float, beta: float, gamma: float) -> Curve:
    """B_min is this share of the smallest batch size."""
    return lambda size: (1 - (share * SIZES[0] / size) ** beta) ** (-1 / gamma)


PLACES = (0.2, 0.5, 0.8, 1.0)
KINDS = [
    *(
        Kind(name=f"exponent {exponent:g}", curves=tuple(bend(exponent, at) for at in PLACES))
        for exponent in (0.7, 1, 1.5, 2, 4, math.inf)
    ),
    Kind(
        name="smallest useful",
        curves=(
            smallest_useful(0.8, 1, 1), smallest_useful(0.5, 1, 1), smallest_useful(0.7, 0.7, 0.5),
            smallest_useful(0.8, 2, 1),
        ),
    ),
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Found:
    """What the intervals of one kind came to."""

    held: dict[str, list[bool]]
    widths: list[float]
    """Of the interval of the fifth-more batch size, in doublings."""
    by_hyperbola: list[bool]
    hyperbola_widths: list[float]

    def share(self, name: str) -> float:
        return float(np.mean(self.held[name])) if self.held[name] else math.nan


def main() -> int:
    parser = parser_of(__doc__ or "")
    parser.add_argument(
        "--repetitions", type=int, default=30, help="sweeps of each curve and noise"
    )
    arguments = parser.parse_args()
    repetitions = 1 if arguments.smoke else arguments.repetitions
    kinds = KINDS[1:2] if arguments.smoke else KINDS
    found = {kind.name: held_by(kind, repetitions) for kind in kinds}
    rows = [
        [
            name,
            *(
                bounded(f"{one.share(of):.1%}", of not in JUDGED or one.share(of) >= EACH)
                if one.held[of]
                else ""
                for of in NAMES
            ),
            f"{np.median(one.widths):.2f}",
            f"{np.mean(one.by_hyperbola):.1%}",
            f"{np.median(one.hyperbola_widths):.2f}",
        ]
        for name, one in found.items()
    ]
    by_name = {of: {name: one.share(of) for name, one in found.items()} for of in NAMES}
    known = {of: [s for s in by_name[of].values() if not math.isnan(s)] for of in NAMES}
    whole = {of: float(np.mean(known[of])) for of in NAMES}
    within = {of: of not in JUDGED or WHOLE[0] <= whole[of] <= WHOLE[1] for of in NAMES}
    rows.append(["together", *(bounded(f"{whole[of]:.1%}", within[of]) for of in NAMES), *[""] * 3])
    table = Table(["curve", *NAMES, "width", "hyperbola alone", "its width"], rows)
    figures = {
        "together": {of: round(share, 3) for of, share in whole.items()},
        "least": {of: round(min(known[of]), 3) for of in NAMES},
        "width_fifth_more": round(
            float(np.median([w for o in found.values() for w in o.widths])), 2
        ),
        "by_hyperbola_least": round(min(float(np.mean(o.by_hyperbola)) for o in found.values()), 3),
    }
    ok = all(min(known[of]) >= EACH and within[of] for of in JUDGED)
    return print_result("coverage", {"": table}, figures, arguments, ok=ok)


def held_by(kind: Kind, repetitions: int) -> Found:
    """The intervals of so many sweeps of each curve of one kind, at each noise."""
    held: dict[str, list[bool]] = {name: [] for name in NAMES}
    found = Found(held=held, widths=[], by_hyperbola=[], hyperbola_widths=[])
    for place, curve in zip(PLACES, kind.curves, strict=True):
        truths = truth(curve)
        if kind.name == "exponent 1":
            truths["B_crit"] = bend_at(place)
        for noise in NOISE:
            for seed in range(repetitions):
                note(found, swept(curve, noise, seed), curve, truths)
    return found


def note(found: Found, rows: list[FrontierRow], curve: Curve, truths: Mapping[str, float]) -> None:
    """Notes which of the intervals of one sweep hold the truth."""
    (scaling,), points = scalings(rows), points_of(rows)
    if scaling.curves is not None:
        for name, true in truths.items():
            hold(found.held[name], getattr(scaling, FIELDS[name]), true)
        found.widths.append(width(scaling.critical_by_examples))
        telling = [point for point in points if point.tells]
        sizes = np.log2([point.batch_size for point in telling])
        logs = np.log2([point.steps for point in telling])
        alone = curves_through(sizes, logs, errors_of(telling).covariance, softness=1.0)
        by_hyperbola = alone.examples_within(CRITICAL_TOLERANCE)
        hold(found.by_hyperbola, by_hyperbola, truths["fifth more"])
        found.hyperbola_widths.append(width(by_hyperbola))
    for point, interval in zip(points, errors_of(points).intervals(points), strict=True):
        true = STEPS_MIN * float(curve(np.array([float(point.batch_size)]))[0])
        hold(found.held["points"], interval, true)


def hold(notes: list[bool], estimate: Estimate | None, true: float) -> None:
    """Notes whether the interval holds the truth, to within a thousandth, if one was given."""
    if estimate is not None and estimate.low is not None and estimate.high is not None:
        notes.append(estimate.low <= 1.001 * true and true <= 1.001 * estimate.high)


def width(estimate: Estimate | None) -> float:
    assert estimate is not None
    assert estimate.low
    assert estimate.high
    return math.log2(estimate.high / estimate.low)


def truth(curve: Curve) -> dict[str, float]:
    """Of the curve itself: the last tested batch size within a fifth of the fewest examples, and
    the first within a tenth of the fewest steps."""
    sizes = np.geomspace(SIZES[0], SIZES[-1], 20_001)
    steps = curve(sizes)
    examples = sizes * steps
    last = np.flatnonzero(examples <= (1 + CRITICAL_TOLERANCE) * examples.min())[-1]
    first = np.flatnonzero(steps <= (1 + USEFUL_TOLERANCE) * steps.min())[0]
    return {"fifth more": float(sizes[last]), "useful": float(sizes[first])}


@cache
def luck() -> Numbers:
    """Logarithms of the steps of repeats over their median, with a standard deviation of 1."""
    rows = orchestrator.open_run(REPEATED).frontier()
    logs = [np.log(row.repeats.steps) for row in rows if row.repeats and len(row.repeats.steps) > 3]
    off = np.concatenate([of_one - np.median(of_one) for of_one in logs])
    scaled: Numbers = (off - off.mean()) / off.std()
    return scaled


def swept(curve: Curve, noise: float, seed: int) -> list[FrontierRow]:
    """The frontier of one sweep."""
    chance = np.random.default_rng(seed)
    times = bowls(DESIGNS["halton"](seed, 2, TRIALS)) / typical()[:, None]
    steps = STEPS_MIN * curve(SIZES.astype(float))[:, None] * times
    return [
        row(int(size), of_size, noise, chance) for size, of_size in zip(SIZES, steps, strict=True)
    ]


@cache
def typical() -> Numbers:
    """How many times the fewest steps the best of 64 points takes, in the median."""
    every = [
        bowls(DESIGNS["halton"](seed, 2, TRIALS)).min(axis=1)
        for seed in range(10_000, 10_000 + TYPICAL)
    ]
    middle: Numbers = np.median(every, axis=0)
    return middle


def bowls(points: Numbers) -> Numbers:
    """(batch sizes, points): how many times the fewest steps; infinite beyond the budget."""
    radii = np.sqrt(GOOD / math.pi)
    best = np.stack([np.linspace(0.35, 0.6, len(SIZES)), np.full(len(SIZES), 0.5)], axis=1)
    off = (points[:, :2] - best[:, None]) / radii[:, None, None]
    times = 1 + 0.5 * (off**2).sum(axis=2)
    within: Numbers = np.where(times > BUDGET, np.inf, times)
    return within


def row(size: int, typical: Numbers, noise: float, chance: np.random.Generator) -> FrontierRow:
    """The frontier of one batch size: its best trials, and repeats of these."""
    steps = typical * np.exp(noise * chance.choice(luck(), len(typical)))
    order = np.argsort(steps, kind="stable")[:KEPT]
    again = typical[order, None] * np.exp(noise * chance.choice(luck(), (KEPT, REPEATS)))
    half = REPEATS // 2
    chosen = int(np.median(again[:, :half], axis=1).argmin())
    needed, apart = measured(again[chosen, half:])
    firsts, between = measured(steps[order])
    low, high, confidence = median_interval(half)
    return FrontierRow(
        workload="planted", recipe="planted", optimizer="planted", batch_size=size,
        goal="val/error < 0.1", reached=True, censored=False, steps=int(firsts[0]),
        resolution=int(between[0]), trials={}, trials_used=TRIALS, searched=2, warnings=(),
        leaders=tuple(
            Leader(trial=trial, steps=first, resolution=distance)
            for trial, first, distance in zip(
                order.tolist(), firsts.tolist(), between.tolist(), strict=True
            )
        ),
        repeats=WinnerRepeats(
            trial=int(order[chosen]), count=half, reached=half, median=float(needed[half // 2]),
            low=int(needed[low]), high=int(needed[high]), confidence=confidence,
            resolution=int(apart[half // 2]), steps=tuple(needed.tolist()),
            medians=tuple(
                (trial, float(np.median(measured(of_one)[0])), len(of_one))
                for trial, of_one in zip(
                    order.tolist(),
                    (some if place == chosen else some[:half] for place, some in enumerate(again)),
                    strict=True,
                )
            ),
        ),
    )  # fmt: skip


def measured(steps: Numbers) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first measurement at or after so many steps, fewest first, and the distance to the one
    before."""
    rungs = np.sort(np.ceil(np.log(steps) / math.log1p(APART)))
    upper, lower = (
        np.rint(np.exp(k * math.log1p(APART))).astype(np.int64) for k in (rungs, rungs - 1)
    )
    return upper, np.maximum(upper - lower, 1)


if __name__ == "__main__":
    sys.exit(main())
