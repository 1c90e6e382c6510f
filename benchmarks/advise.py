"""Does advice narrow the interval of B_crit, and more than the same number of trainings elsewhere?

(i) Simulated studies, in which nothing is trained: the steps of a trial follow a planted law. They
are S_min (1 + B_crit / B) at the best point and grow with the square of the distance from it, the
more so the larger the batch; the best point moves with the batch size; seeds scatter. Points are
the project's (Halton) in 2 or 3 dimensions, and measurements lie 0.1 to 4 % apart. Each study
begins with 20 trials and 5 repeats at 6 batch sizes, the last of which is the whole training set;
the steps of its 5 best trials are known. In three rounds the advice spends a third of the trainings
of the beginning. The same number of trainings is spread evenly over the 6 batch sizes in a copy, as
many trials for each repeat as the study has. The advice is told that all trainings cost the same.

median_width     of the 90 % interval of B_crit as the report has it, in doublings; 24 where it says
                 that there is no B_crit
covers           share of the studies in which that interval holds the true B_crit
median_examples  of all trainings, if trials are ended as soon as they can't win any more

Bound: the interval is narrower with advice in at least 8 of 10 studies.

(ii) With --quickstart (or --sweep FILE), in place of (i): the sweep is run by `orchestrate sweep`,
and then three times the command that `orchestrate advise` names for a third of its examples.

python benchmarks/advise.py [--smoke] [--studies 100] [--quickstart | --sweep FILE]
"""

from __future__ import annotations

import json
import math
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
from command_line import parser_with_smoke, print_result
from numpy.typing import NDArray

from orchestrator.analysis import scalings
from orchestrator.analysis.additions import Addition, Price
from orchestrator.analysis.candidates import Ground
from orchestrator.analysis.estimates import Estimate
from orchestrator.analysis.known_curves import deciding_sizes, known_curves
from orchestrator.analysis.next_trials import within_budget
from orchestrator.cli.advising import advised_for
from orchestrator.records import EvaluationGrid, Goal, Study, StudyKey
from orchestrator.results import FrontierRow, Run, frontier_of, median_interval, spent
from orchestrator.results.frontier import Leader
from orchestrator.results.repeats import Repeats
from orchestrator.search.proposer import halton

ORCHESTRATE = str(Path(sys.executable).parent / "orchestrate")

ROUNDS = 3

SIZES = (2, 8, 32, 128, 512, 2048)

TRIALS, REPEATS = 20, 5

KEPT = 5
"""Best trials of each study that are not ended early."""

MOST_TRIALS = 2000
"""In the table of points."""

SHARE = 1 / 3
"""Each round has so many times the trainings, or with a sweep the examples, of the beginning."""

NARROWER = 0.8
"""Share of the studies in which advice must beat an even spread."""

UNBOUNDED = 24.0
"""Doublings that an interval counts which nothing bounds."""


@dataclass(frozen=True, kw_only=True)
class Planted:
    """How many steps trials take, by their points and seeds."""

    seed: int
    dimensions: int
    critical: float
    steps_min: float
    curvature: float
    """Doublings from the best point to a distance of one range, at small batch sizes."""
    growth: float
    """The power of 1 + B / B_crit with which the curvature grows."""
    noise: float
    """Standard deviation from seed to seed, in doublings."""
    spacing: float
    """Between measurements, as a share of the steps."""
    points: NDArray[np.float64]
    best: NDArray[np.float64]

    @classmethod
    def drawn(cls, seed: int) -> Planted:
        draw = np.random.default_rng(seed)
        dimensions = int(draw.integers(2, 4))
        return cls(
            seed=seed,
            dimensions=dimensions,
            critical=float(2 ** draw.uniform(4.5, 7.5)),
            steps_min=float(draw.uniform(40, 400)),
            curvature=float(draw.uniform(1, 6)),
            growth=float(draw.uniform(0.1, 0.4)),
            noise=float(draw.uniform(0.1, 0.3)),
            spacing=float(2 ** draw.uniform(-10, -4.5)),
            points=halton(seed, dimensions, MOST_TRIALS),
            best=draw.uniform(0.25, 0.75, dimensions),
        )

    def steps(self, batch_size: int, trial: int, repeat: int = 0) -> int:
        """Of one training: the first measurement at which it has passed the goal."""
        draw = np.random.default_rng([self.seed, batch_size, trial, repeat])
        ratio = batch_size / self.critical
        # The best point moves with the batch size, as a good learning rate does.
        best = self.best + 0.02 * math.log2(ratio)
        off = float(((self.points[trial] - best) ** 2).sum())
        bowl = self.curvature * (1 + ratio) ** self.growth * off
        level = math.log2(self.steps_min * (1 + 1 / ratio))
        wanted = float(2 ** (level + bowl + self.noise * draw.standard_normal()))
        gap = self.gap(wanted)
        return math.ceil(wanted / gap) * gap

    def gap(self, steps: float) -> int:
        """Between two measurements after so many steps."""
        return max(1, round(steps * self.spacing))


@dataclass
class Simulated:
    """A run whose trials are those of a planted law: how many it has at each batch size."""

    law: Planted
    trials: dict[int, int] = field(default_factory=lambda: dict.fromkeys(SIZES, TRIALS))
    repeats: dict[int, int] = field(default_factory=lambda: dict.fromkeys(SIZES, REPEATS))

    def copy(self) -> Simulated:
        return Simulated(self.law, dict(self.trials), dict(self.repeats))

    @property
    def trainings(self) -> int:
        return sum(self.trials.values()) + sum(self.repeats.values())

    def row(self, size: int) -> FrontierRow:
        best = sorted((self.law.steps(size, trial), trial) for trial in range(self.trials[size]))
        fewest, winner = best[0]
        again = self.again(size, winner)
        gap = self.law.gap(fewest)
        return FrontierRow(
            workload="planted",
            recipe="sgd",
            optimizer="sgd",
            batch_size=size,
            goal="val/error < 0.1",
            reached=True,
            censored=False,
            steps=fewest,
            examples=size * fewest,
            resolution=gap,
            trial=winner,
            trials={"reached": KEPT, "dominated": len(best) - KEPT},
            trials_used=len(best),
            leaders=tuple(
                Leader(trial=trial, steps=steps, resolution=self.law.gap(steps))
                for steps, trial in best[:KEPT]
            ),
            searched=self.law.dimensions,
            repeats=_repeats(again, gap),
            warnings=(),
        )

    def again(self, size: int, winner: int) -> list[int]:
        numbers = range(1, self.repeats[size] + 1)
        return sorted(self.law.steps(size, winner, number) for number in numbers)

    def rows(self) -> list[FrontierRow]:
        return [self.row(size) for size in sorted(self.trials)]

    def studies(self) -> dict[StudyKey, Study]:
        return {study.key: study for study in map(self.study, self.trials)}

    def study(self, size: int) -> Study:
        return Study(
            workload="planted",
            recipe="sgd",
            optimizer="sgd",
            batch_size=size,
            goals=(Goal.parse("val/error < 0.1"),),
            budget_steps=10**9,
            grid=EvaluationGrid(spacing=self.law.spacing, min_gap=1),
            space={},
            trials=self.trials[size],
            repeats=self.repeats[size],
        )

    def prices(self, rows: Sequence[FrontierRow]) -> dict[int, Price]:
        """A trial that does not win is ended when it can't win any more."""
        return {
            row.batch_size: Price(
                trial=float(row.examples or 0),
                repeat=row.batch_size * float((row.repeats and row.repeats.median) or 0),
                seconds_per_example=None,
            )
            for row in rows
        }

    def examples(self) -> float:
        """That all its trainings take, if a trial is ended when it can't win any more."""
        rows = self.rows()
        prices = self.prices(rows)
        return sum(
            self.trials[size] * price.trial + self.repeats[size] * price.repeat
            for size, price in prices.items()
        )

    def advised(self, trainings: float) -> list[Addition]:
        """What the advice names for so many trainings."""
        rows = self.rows()
        found = scalings(rows)
        ground = Ground(
            workloads=("planted",),
            recipes=("sgd",),
            batch_sizes=tuple(sorted(self.trials)),
            trials=TRIALS,
            largest=SIZES[-1],
            deciding=deciding_sizes(found),
        )
        curves = known_curves(rows, self.studies(), found)
        # Both ways of spending are given the same number of trainings, so each has the same price.
        alike = Price(trial=1.0, repeat=1.0, seconds_per_example=None)
        prices = {("planted", "sgd"): dict.fromkeys(self.trials, alike)}
        return [step.addition for step in within_budget(curves, prices, ground, trainings)]

    def take(self, addition: Addition) -> None:
        for size, number in addition.totals:
            if addition.kind == "repeats":
                self.repeats[size] = number
            else:
                self.trials[size] = number
                self.repeats.setdefault(size, REPEATS)

    def spread(self, trainings: int) -> None:
        """So many more over all batch sizes, trials and repeats in the numbers that there are."""
        per_size, rest = divmod(trainings, len(self.trials))
        for place, size in enumerate(sorted(self.trials)):
            more = per_size + (place < rest)
            again = round(more * REPEATS / (TRIALS + REPEATS))
            self.trials[size] += more - again
            self.repeats[size] += again

    def interval(self) -> tuple[float, float]:
        """Of log2(B_crit), as the report has it; everything where it says that there is none."""
        (scaling,) = scalings(self.rows())
        critical = scaling.critical_batch_size
        if critical is None or critical.low is None or critical.high is None:
            return -math.inf, math.inf
        low = math.log2(critical.low) if critical.low else -math.inf
        return low, math.log2(critical.high) if critical.high < math.inf else math.inf


def _repeats(again: Sequence[int], gap: int) -> Repeats:
    low, high, confidence = median_interval(len(again))
    return Repeats(
        count=len(again),
        reached=len(again),
        median=median(again),
        low=again[low],
        high=again[high],
        confidence=confidence,
        resolution=gap,
        steps=tuple(again),
    )


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one simulated study: before, with advice, and spread evenly."""

    widths: tuple[float, ...]
    covers: tuple[bool, ...]
    examples: tuple[float, ...]
    steps: tuple[str, ...]


def simulate(seed: int) -> Outcome:
    begun = Simulated(Planted.drawn(seed))
    advised, steps = begun.copy(), []
    for _ in range(ROUNDS):
        for addition in advised.advised(SHARE * begun.trainings):
            advised.take(addition)
            steps.append(f"{addition.kind} {', '.join(map(str, addition.batch_sizes))}")
    even = begun.copy()
    even.spread(advised.trainings - begun.trainings)
    three = (begun, advised, even)
    truth = math.log2(begun.law.critical)
    intervals = [one.interval() for one in three]
    return Outcome(
        widths=tuple(min(high - low, UNBOUNDED) for low, high in intervals),
        covers=tuple(low <= truth <= high for low, high in intervals),
        examples=tuple(one.examples() for one in three),
        steps=tuple(steps),
    )


def simulated(studies: int, *, smoke: bool) -> int:
    found = []
    print(f"{'study':>5} {'before':>7} {'advice':>7} {'even':>7}  steps taken")
    for seed in range(studies):
        outcome = simulate(seed)
        found.append(outcome)
        widths = " ".join(f"{width:7.2f}" for width in outcome.widths)
        print(f"{seed:5} {widths}  {'; '.join(outcome.steps)}", flush=True)
    thirds = {
        "median_width": [median(one.widths[which] for one in found) for which in range(3)],
        "covers": [mean(one.covers[which] for one in found) for which in range(3)],
        "median_examples": [median(one.examples[which] for one in found) for which in range(3)],
    }
    for name, (before, advice, even) in thirds.items():
        print(f"{name:16} {before:9.3g} before {advice:9.3g} with advice {even:9.3g} evenly")
    narrower = mean(one.widths[1] < one.widths[2] for one in found)
    print(f"Narrower with advice than spread evenly: {narrower:.0%} of {len(found)} studies.")
    figures = {
        "studies": len(found),
        "narrower": narrower,
        **thirds,
    }
    return print_result("advise", figures, smoke=smoke, ok=narrower >= NARROWER)


def trained(sweep: Sequence[str], rounds: int) -> int:
    """A sweep, and then what is advised for a third of its examples, for so many rounds."""
    with tempfile.TemporaryDirectory() as folder:
        place = str(Path(folder) / "run")
        command = ["orchestrate", "sweep", *sweep, "--out", place]
        widths: list[dict[str, float]] = []
        budget = 0.0
        for number in range(rounds + 1):
            print(f"{number}: {shlex.join(command)}", flush=True)
            # Large sweeps ask before they start.
            train = [ORCHESTRATE, *command[1:], "--yes"]
            subprocess.run(train, check=True, stdout=subprocess.DEVNULL)
            widths.append(_widths(Run.open(place)))
            for curve, width in widths[-1].items():
                print(f"   {curve:32} {width:7.2f} doublings", flush=True)
            budget = budget or SHARE * _examples(Run.open(place))
            asked = [ORCHESTRATE, "advise", place, "--json", "--budget", f"examples={budget:.0f}"]
            answer = json.loads(subprocess.run(asked, check=True, stdout=subprocess.PIPE).stdout)
            if answer["command"] is None:
                print("Nothing more is advised.")
                break
            command = shlex.split(answer["command"])
    figures: dict[str, Any] = {"rounds": len(widths) - 1, "widths": widths}
    return print_result("advise", figures, smoke=False)


def _examples(run: Run) -> float:
    """What the run has trained on."""
    numbers = {study.key: (study.trials, study.repeats) for study in run.studies()}
    return sum(
        numbers[one.key][0] * one.trial_examples + numbers[one.key][1] * one.repeat_examples
        for one in spent(run, run.studies())
    )


def _widths(run: Run) -> dict[str, float]:
    """By curve: the interval of B_crit as the report has it, that of the batch size which needs a
    fifth more examples and is there for every law, and that of B_crit as the advice has it."""
    found = {}
    for scaling in scalings(frontier_of(run)):
        found[f"{scaling.recipe}, B_crit"] = _width(scaling.critical_batch_size)
        found[f"{scaling.recipe}, a fifth more examples"] = _width(scaling.critical_by_examples)
    for curve in advised_for(run).curves:
        found[f"{curve.recipe}, advice"] = min(curve.width, UNBOUNDED)
    return found


def _width(estimate: Estimate | None) -> float:
    if estimate is None or not estimate.low or not estimate.high:
        return UNBOUNDED
    return min(math.log2(estimate.high / estimate.low), UNBOUNDED)


def main() -> int:
    parser = parser_with_smoke(__doc__)
    parser.add_argument("--studies", type=int, default=100)
    parser.add_argument("--quickstart", action="store_true")
    parser.add_argument("--sweep", metavar="FILE")
    options = parser.parse_args()
    if options.quickstart or options.sweep:
        return trained([options.sweep] if options.sweep else [], ROUNDS)
    return simulated(1 if options.smoke else options.studies, smoke=options.smoke)


if __name__ == "__main__":
    sys.exit(main())
