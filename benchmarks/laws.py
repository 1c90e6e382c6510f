"""Whether the law of a curve is chosen rightly, and whether the recommended batch size decides it.

Curves of each kind are planted: 5, 7 or 10 batch sizes, a factor of 2 or 4 apart, whose bend lies
anywhere from near the smallest to near the largest of them. log2 of the steps scatters by what the
published curves in tests/published_steps.csv scatter about the bend that fits them best.

Bounds: of each kind at most 5 % are called by another law (undecided is not wrong). Of the
undecided ones a measurement at the recommended batch size decides as many as one at the best batch
size, within two standard errors. The best one is found by trying all candidates.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
from command_line import parser_with_smoke, print_result
from numpy.typing import NDArray

from orchestrator.analysis import Law, LawChoice, choose_law, measured_of
from orchestrator.analysis.law_fits import Measured, fit_bend
from orchestrator.analysis.law_sizes import candidate_sizes

PUBLISHED = Path(__file__).parent.parent / "tests" / "published_steps.csv"
MAX_WRONG = 0.05
SMALLEST = 8.0
STEPS_MIN = 2000.0

Floats = NDArray[np.float64]
Curve = Callable[[Floats], Floats]
Planting = Callable[[float, Floats], Curve]
"""A place, from 0 to 1, and the batch sizes -> steps over S_min by batch size."""


def bend(exponent: float) -> Planting:
    """Its place is that of B_c, from near the smallest batch size (0) to near the largest (1)."""

    def plant(place: float, sizes: Floats) -> Curve:
        at = float(sizes[0] * (sizes[-1] / sizes[0]) ** (0.1 + 0.8 * place))
        if exponent == np.inf:
            return lambda size: np.maximum(1, at / size)
        return lambda size: (1 + (at / size) ** exponent) ** (1 / exponent)

    return plant


def smallest_useful(beta: float, gamma: float) -> Planting:
    """B_min lies below the smallest batch size, which needs 1.1 (place 0) to 3 times (1) the fewest
    examples."""

    def plant(place: float, sizes: Floats) -> Curve:
        more = 1.1 * (3 / 1.1) ** place
        at = _smallest_for(more, beta, gamma) * sizes[0]
        return lambda size: (1 - (at / size) ** beta) ** (-1 / gamma)

    return plant


def _smallest_for(more: float, beta: float, gamma: float) -> float:
    """B_min in units of the smallest batch size."""
    fewest = ((beta + gamma) / gamma) ** (1 / beta)
    least = fewest * (1 - fewest**-beta) ** (-1 / gamma)
    places = np.linspace(1 / fewest, 1, 20_001)[:-1]
    examples = (1 - places**beta) ** (-1 / gamma) / places
    return float(places[np.abs(np.log(examples / (more * least))).argmin()])


def rising(place: float, sizes: Floats) -> Curve:
    """A hyperbola times a factor that grows to 2.2 (place 0) or 8 (1) at the largest size."""
    at = sizes[0] * (sizes[-1] / sizes[0]) ** 0.3
    end = sizes[-1] / 2 ** (1 + 2 * place)
    return lambda size: (1 + at / size) * (1 + (size / end) ** 2) ** 0.5


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of planted curves."""

    right: Law
    curves: Sequence[Planting]
    """Each repetition takes the next one."""


KINDS: Mapping[str, Kind] = {
    "hyperbola": Kind(right="hyperbola", curves=[bend(1)]),
    "straight then flat": Kind(right="straight then flat", curves=[bend(np.inf)]),
    "exponent 1.5, 2 or 3": Kind(right="between", curves=[bend(1.5), bend(2), bend(3)]),
    "smallest useful": Kind(
        right="smallest useful batch",
        curves=[smallest_useful(1, 1), smallest_useful(0.7, 0.5), smallest_useful(2, 1)],
    ),
    "rises again": Kind(right="none", curves=[rising]),
}


def ladder(count: int, factor: int) -> Floats:
    return np.array([SMALLEST * factor**place for place in range(count)])


def planted(curve: Curve, sizes: Floats, scatter: Floats) -> Measured:
    steps = STEPS_MIN * curve(sizes) * 2**scatter
    return measured_of(sizes, np.maximum(np.rint(steps), 1), np.zeros_like(sizes))


def is_wrong(kind: Kind, law: Law, count: int) -> bool:
    """With fewer than seven batch sizes the law with a smallest useful one is never chosen, so that
    no law fits its curves."""
    too_few = kind.right == "smallest useful batch" and count < 7
    return law not in {"undecided", kind.right} and not (too_few and law == "none")


def published_scatter() -> dict[str, float]:
    """Standard deviation, in doublings, about the best bend of each published curve."""
    curves: dict[str, list[tuple[float, float]]] = {}
    with PUBLISHED.open(newline="") as file:
        for row in csv.DictReader(file):
            point = float(row["batch_size"]), float(row["steps"])
            curves.setdefault(row["workload"], []).append(point)
    found = {}
    for workload, points in curves.items():
        sizes, steps = np.array(points).T
        squares = fit_bend(measured_of(sizes, steps, np.zeros_like(sizes)), 0.9).best.squares
        found[workload] = float(np.sqrt(squares / (len(sizes) - 3)))
    return found


def decisions(*, smoke: bool) -> dict[str, dict[str, float]]:
    repetitions = 3 if smoke else 200
    counts, scatters = ([7], [0.03]) if smoke else ([5, 7, 10], [0.03, 0.07, 0.15])
    print(f"\n{'kind':<22}{'sizes':>6}{'scatter':>9}{'right':>8}{'wrong':>8}{'undecided':>11}")
    found: dict[str, dict[str, float]] = {}
    for seed, (name, kind) in enumerate(KINDS.items()):
        chance = np.random.default_rng(seed)
        worst, outcomes = 0.0, []
        for count, scatter in product(counts, scatters):
            laws = []
            for factor, repetition in product((2, 4), range(repetitions)):
                sizes = ladder(count, factor)
                plant = kind.curves[repetition % len(kind.curves)]
                curve = plant(chance.uniform(), sizes)
                measured = planted(curve, sizes, scatter * chance.normal(size=count))
                laws.append(choose_law(measured, recommend=False).law)
            cell = [(law == kind.right, is_wrong(kind, law, count)) for law in laws]
            outcomes += cell
            right, wrong = np.mean(cell, axis=0)
            worst = max(worst, float(wrong))
            print(
                f"{name:<22}{count:>6}{scatter:>9.2f}{right:>8.1%}{wrong:>8.1%}"
                f"{1 - right - wrong:>11.1%}",
                flush=True,
            )
        right, wrong = np.mean(outcomes, axis=0)
        print(f"{name:<22}{'all':>6}{'':>9}{right:>8.1%}{wrong:>8.1%}{1 - right - wrong:>11.1%}")
        found[name] = {
            "right": round(float(right), 4),
            "wrong": round(float(wrong), 4),
            "worst_cell": round(worst, 4),
        }
    return found


FURTHER: Sequence[tuple[str, Planting, float, int, float]] = [
    ("hyperbola", bend(1), 0.5, 5, 0.04),
    ("hyperbola", bend(1), 0.9, 5, 0.04),
    ("hyperbola", bend(1), 0.5, 8, 0.15),
    ("straight then flat", bend(np.inf), 0.5, 5, 0.04),
    ("straight then flat", bend(np.inf), 0.9, 5, 0.04),
    ("straight then flat", bend(np.inf), 0.5, 8, 0.1),
    ("exponent 2", bend(2), 0.5, 5, 0.04),
    ("smallest useful, hidden", smallest_useful(1, 1), 0.3, 7, 0.07),
    ("smallest useful", smallest_useful(1, 1), 0.6, 8, 0.15),
]
"""Kind, curve, its place, batch sizes and scatter. The curve is the same in all repetitions, so
that one batch size is the best for all of them. The hidden one needs the fewest examples between
the two smallest batch sizes, which need as many as each other."""


def next_sizes(*, smoke: bool) -> list[dict[str, object]]:
    """Of undecided curves, those that one more measurement decides."""
    print(
        f"\n{'kind':<26}{'place':>6}{'sizes':>6}{'scatter':>9}{'undecided':>11}{'recommended':>13}"
        f"{'best':>8}{'at':>8}"
    )
    found: list[dict[str, object]] = []
    for name, plant, place, count, scatter in FURTHER:
        repetitions = 4 if smoke else 200
        sizes = ladder(count, 4)
        ours, others = decided_by_one_more(plant(place, sizes), sizes, scatter, repetitions)
        if not ours:
            continue
        share = float(np.mean(ours))
        at = max(others, key=lambda size: sum(others[size]))
        best = sum(others[at]) / len(ours)
        error = ((share * (1 - share) + best * (1 - best)) / len(ours)) ** 0.5
        print(
            f"{name:<26}{place:>6.1f}{count:>6}{scatter:>9.2f}{len(ours) / repetitions:>11.1%}"
            f"{share:>13.1%}{best:>8.1%}{at:>8,}",
            flush=True,
        )
        shares = {"recommended": share, "best": best, "standard_error": error}
        found.append(
            {"kind": name, "place": place, "sizes": count, "undecided": len(ours)}
            | {key: round(value, 4) for key, value in shares.items()}
            | {"within": best - share <= 2 * error}
        )
    return found


def decided_by_one_more(
    curve: Curve, sizes: Floats, scatter: float, repetitions: int
) -> tuple[list[bool], dict[int, list[bool]]]:
    """Of each undecided curve, whether a measurement at the recommended batch size decides; and the
    same for each candidate."""
    chance = np.random.default_rng(7)
    candidates = [
        size
        for size in candidate_sizes(planted(curve, sizes, np.zeros(len(sizes))))
        if is_reachable(curve, size)
    ]
    ours: list[bool] = []
    others: dict[int, list[bool]] = {size: [] for size in candidates}
    for _ in range(repetitions):
        scatters = scatter * chance.normal(size=len(sizes) + 1)
        choice = choose_law(planted(curve, sizes, scatters[:-1]))
        if choice.law == "undecided":
            for size in candidates:
                law = _with(curve, sizes, scatters, size).law
                others[size].append(law != "undecided")
            recommended = choice.deciding_size
            ours.append(recommended in candidates and others[recommended][-1])
    return ours, others


def is_reachable(curve: Curve, size: int) -> bool:
    """Whether any number of steps is enough."""
    with np.errstate(all="ignore"):
        steps = float(curve(np.array([float(size)]))[0])
    return bool(np.isfinite(steps)) and steps > 0


def _with(curve: Curve, sizes: Floats, scatters: Floats, size: int) -> LawChoice:
    """The choice with one more measurement."""
    place = int(np.searchsorted(sizes, size))
    more = np.insert(sizes, place, size), np.insert(scatters[:-1], place, scatters[-1])
    return choose_law(planted(curve, *more), recommend=False)


def main() -> int:
    options = parser_with_smoke(__doc__).parse_args()
    scatter = published_scatter()
    print(f"{'published curve':<34}{'scatter, doublings':>20}")
    for workload, value in scatter.items():
        print(f"{workload:<34}{value:>20.3f}")
    chosen = decisions(smoke=options.smoke)
    further = next_sizes(smoke=options.smoke)
    ok = all(one["wrong"] <= MAX_WRONG for one in chosen.values()) and all(
        bool(one["within"]) for one in further
    )
    figures = {"scatter": scatter, "decisions": chosen, "max_wrong": MAX_WRONG, "further": further}
    return print_result("laws", figures, smoke=options.smoke, ok=ok)


if __name__ == "__main__":
    sys.exit(main())
