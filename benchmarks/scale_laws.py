"""Do 90 % intervals of exponents hold those that were planted, and is a change of exponent told?

    python benchmarks/scale_laws.py
    python benchmarks/scale_laws.py --smoke

Best batch sizes: each repetition is a run of nine workloads, three amounts of data D for each of
three models of N parameters, ten batch sizes and a grid of eight learning rates, a factor of two
apart. A training at batch size B and rate r ends at the loss

    2 + c (B / B*)^a / a + c (B / B*)^-b / b + k (log2 r / r*)^2,    B* ~ D^(a / (a + b)) N^q

which the analysis assumes nowhere: the valley is steeper on one side, unless a = b, and a rate that
is too large costs more than one that is too small. Seeds scatter the logarithm of the loss. In some
kinds, B* scatters about its law as well. The analysis reads the run's files.

B_crit: nine curves of steps to goal with B_crit ~ D^p N^q, each a sweep of benchmarks/coverage.py.

A change of exponent: best batch sizes grow like D^0.7 for two of four amounts of data, and then no
more. What is said of 16 times the largest amount is in silence if no change is told and neither
interval holds the truth.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from command_line import parser_of, print_result
from coverage import EACH, WHOLE, swept
from numpy.typing import NDArray
from tables import Table, bounded

from orchestrator.analysis import scalings
from orchestrator.analysis.scale_laws import BEST_BATCH, Law, laws_of_critical, scale_answer
from orchestrator.records import (
    EvaluationGrid,
    FinishedTrial,
    Measurement,
    Outcome,
    Range,
    Study,
    Trial,
)
from orchestrator.results import RunFiles

Truth = Callable[[float, float], float]
"""(data, model) -> batch size"""

DATA, MODEL = (2.0**18, 2.0**20, 2.0**22), (1e6, 4e6, 16e6)
SIZES = 2 ** np.arange(1, 12)
RATES = 2.0 ** np.arange(-11, -3)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A law of the best batch size, and how its runs scatter."""

    left: float
    """The exponent b of the valley, where batch sizes are too small."""
    right: float
    """The exponent a, where they are too large."""
    model: float
    """The exponent q."""
    noise: float
    """Standard deviation of the loss between seeds, as a share of it."""
    scatter: float = 0.0
    """Standard deviation of B* about its law, in natural logarithms."""

    @property
    def data(self) -> float:
        return self.right / (self.left + self.right)


KINDS = {
    "best, even valleys": Kind(left=0.5, right=0.5, model=0.0, noise=0.002),
    "best, steep to the right": Kind(left=0.4, right=1.0, model=-0.3, noise=0.001),
    "best, steep to the left": Kind(left=1.0, right=0.4, model=0.2, noise=0.004),
    "best, much noise": Kind(left=0.5, right=0.7, model=0.0, noise=0.01),
    "best, off the law": Kind(left=0.5, right=0.5, model=-0.3, noise=0.001, scatter=0.2),
}
CRITICAL = {"B_crit, 0.5 and 0": (0.5, 0.0, 0.12), "B_crit, 0.3 and 0.3": (0.3, 0.3, 0.2)}
"""Exponents of data and model, and the scatter of seeds."""
MOST_SILENT = 0.1
CURVES = 64
"""Runs of each law of B_crit, at least: they are quick, and 24 may miss a bound by chance."""


def main() -> int:
    parser = parser_of(__doc__ or "")
    parser.add_argument("--repetitions", type=int, default=24, help="runs of each kind")
    arguments = parser.parse_args()
    repetitions = 1 if arguments.smoke else arguments.repetitions
    more = 1 if arguments.smoke else max(repetitions, CURVES)
    kinds = 1 if arguments.smoke else None
    found = {name: of_best(kind, repetitions) for name, kind in [*KINDS.items()][:kinds]}
    found |= {name: of_critical(*law, more) for name, law in [*CRITICAL.items()][:kinds]}
    shares = {name: float(np.mean(held)) for name, (held, _, _) in found.items()}
    whole = float(np.mean([*shares.values()]))
    told, silent = of_change(repetitions)
    rows = [
        [
            name,
            *(f"{share:.1%}" for share in np.mean(held, axis=0)),
            bounded(f"{shares[name]:.1%}", shares[name] >= EACH),
            f"{np.median(widths):.2f}",
            f"{np.mean(itself):.1%}",
        ]
        for name, (held, widths, itself) in found.items()
    ]
    together = bounded(f"{whole:.1%}", WHOLE[0] <= whole <= WHOLE[1])
    rows.append(["together", "", "", together, "", ""])
    rows_of_change = [[f"{told:.0%}", bounded(f"{silent:.0%}", silent <= MOST_SILENT)]]
    tables = {
        "exponents": Table(
            ["planted", "D", "N", "both", "width of D", "largest D predicted"], rows
        ),
        "change": Table(["a change was told", "nothing warned of it"], rows_of_change),
    }
    figures = {
        "together": round(whole, 3),
        "least": round(min(shares.values()), 3),
        "change_told": round(told, 3),
        "change_in_silence": round(silent, 3),
    }
    ok = min(shares.values()) >= EACH and WHOLE[0] <= whole <= WHOLE[1] and silent <= MOST_SILENT
    return print_result("scale_laws", tables, figures, arguments, ok=ok)


Found = tuple[list[tuple[bool, bool]], list[float], list[bool]]
"""Whether the exponents of data and model were held, the widths of the first, and whether the
largest scales were predicted."""


def of_best(kind: Kind, repetitions: int) -> Found:
    found: Found = ([], [], [])
    for seed in range(repetitions):
        law = law_of_run(kind, seed)
        note(found, law, kind.data, kind.model)
    return found


def note(found: Found, law: Law, data: float, model: float) -> None:
    (low, high), (least, most) = (law.exponents[name].ends for name in ("data", "model"))
    found[0].append((low <= data <= high, least <= model <= most))
    found[1].append(high - low)
    found[2].extend(one.holds for one in law.held)


def law_of_run(
    kind: Kind, seed: int, data: Sequence[float] = DATA, truth: Truth | None = None
) -> Law:
    """The law of best batch sizes in a run that is written and read."""
    chance = np.random.default_rng(seed)
    law = truth or (lambda d, n: 48 * (d / 2**20) ** kind.data * (n / 4e6) ** kind.model)
    with tempfile.TemporaryDirectory() as folder:
        run, scales, studies = RunFiles(folder), {}, []
        for d in data:
            for n in MODEL:
                best = law(d, n) * np.exp(kind.scatter * chance.standard_normal())
                workload = f"{d:g} {n:g}"
                scales[workload] = {"data": d, "model": n}
                studies += [
                    (study_of(workload, size, d), losses(kind, size, best, chance))
                    for size in SIZES.tolist()
                ]
        run.create({"name": "planted", "scales": scales}, [study for study, _ in studies], {})
        for study, of_rates in studies:
            run.replace(study, [trained(study, *one) for one in enumerate(of_rates)])
        answer = scale_answer({"": run}, "val/loss")
    return next(law for law in answer.laws if law.quantity == BEST_BATCH)


def study_of(workload: str, size: int, data: float) -> Study:
    return Study(
        workload=workload, recipe="planted", optimizer="sgd", batch_size=size, goals=(),
        budget_steps=max(round(data / size), 1), grid=EvaluationGrid(spacing=1, min_gap=1),
        space={"learning_rate": Range(low=RATES[0], high=RATES[-1], scale="log")},
        trials=len(RATES), stop_at_goal=False, stop_dominated=False,
    )  # fmt: skip


def losses(kind: Kind, size: int, best: float, chance: np.random.Generator) -> list[float]:
    """The loss at each rate."""
    above = size / best
    excess = 0.05 * (above**kind.right / kind.right + above**-kind.left / kind.left)
    off = np.log2(RATES) - (-7.3 + 0.3 * np.log2(size / 48) + 0.1 * np.log2(best))
    cost = 0.02 * np.where(off > 0, 1.6, 1.0) * off**2
    found = (2 + excess + cost) * np.exp(kind.noise * chance.standard_normal(len(RATES)))
    return [float(loss) for loss in found]


def trained(study: Study, index: int, loss: float) -> FinishedTrial:
    return FinishedTrial(
        trial=Trial(
            study=study, index=index, seed=index, params={"learning_rate": float(RATES[index])}
        ),
        outcome=Outcome(status="exhausted", steps=study.budget_steps, seconds=1.0),
        measurements=(
            Measurement(step=study.budget_steps, seconds=1.0, metrics={"val/loss": loss}),
        ),
    )


def hyperbola(critical: float, sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1 + critical / sizes


def of_critical(data: float, model: float, noise: float, repetitions: int) -> Found:
    found: Found = ([], [], [])
    for seed in range(repetitions):
        rows, scales = [], {}
        for place, (d, n) in enumerate((d, n) for d in DATA for n in MODEL):
            at = 128 * (d / 2**20) ** data * (n / 4e6) ** model
            scales[f"{place}"] = {"data": d, "model": n}
            of_place = swept(partial(hyperbola, at), noise, 100 * seed + place)
            rows += [replace(row, workload=f"{place}") for row in of_place]
        for law in laws_of_critical(scalings(rows), scales):
            if len(law.exponents) == 2:
                note(found, law, data, model)
    return found


def of_change(repetitions: int) -> tuple[float, float]:
    """In which share of runs the change is told, and in which nothing warns of it."""
    kind, told, silent = replace(KINDS["best, even valleys"], noise=0.001), [], []
    data = [2.0**16, 2.0**18, 2.0**20, 2.0**22]

    def truth(d: float, n: float) -> float:
        return float(100 * min(d / 2**19, 1.0) ** 0.7)

    for seed in range(repetitions):
        law = law_of_run(kind, seed, data, truth)
        far = {"data": 2.0**26, "model": 4e6}
        predicted, true = law.at(far), truth(2.0**26, 4e6)
        intervals = [one.ends for one in (predicted.value, predicted.if_bent) if one is not None]
        told.append("data" in law.bent)
        silent.append(not told[-1] and not any(low <= true <= high for low, high in intervals))
    return float(np.mean(told)), float(np.mean(silent))


if __name__ == "__main__":
    sys.exit(main())
