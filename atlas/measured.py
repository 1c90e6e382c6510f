"""What the runs of the atlas measured, as the numbers that claims are decided by.

Claims ask a `World`: what was measured, or, before anything is measured, what is planned
(`power.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from rules import CONFIDENCE, Asked, At, Floats, Numbers, Product
from scipy import optimize, stats

import orchestrator
from orchestrator.analysis import Estimate, Scaling, scalings, tuned
from orchestrator.analysis.branches import Verdict
from orchestrator.analysis.errors import errors_of
from orchestrator.analysis.forecasts import Comparison
from orchestrator.analysis.points import CurvePoint, points_of, trained_points
from orchestrator.analysis.tuned import EFFECTIVE
from orchestrator.records import Study
from orchestrator.results import FrontierRow, RunFiles

HERE = Path(__file__).parent
RUNS = HERE / "runs"

DIGITS, CNN = "digits/mlp", "digits/cnn"
FASHION = "fashion_mnist/fc_64_64_64"
GPT = "sympy/gpt"
MIDDLE = {
    DIGITS: "val/error < 0.04",
    CNN: "val/error < 0.03",
    FASHION: "val/error < 0.17",
}
"""The goal of each workload that all claims are about which name no other."""

LOOSE = {DIGITS: "val/error < 0.06", CNN: "val/error < 0.05", FASHION: "val/error < 0.2"}
STRICT = {DIGITS: "val/error < 0.03", CNN: "val/error < 0.03", FASHION: "val/error < 0.17"}
HELD = {workload: f"{goal} for 3 measurements" for workload, goal in MIDDLE.items()}

GROUPS = {DIGITS: "digits_mlp", CNN: "digits_cnn", FASHION: "fashion_mnist"}

FEW_TRIALS = 0.18
"""Standard deviation of the steps, in doublings, because other trials would have been tried, where
a run can't tell it: the root mean square of that of digits/mlp with 48 points."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """log2 of the steps of the studies of a curve, with their covariance."""

    sizes: tuple[int, ...]
    logs: Floats
    covariance: Floats
    open: frozenset[int] = frozenset()
    """The batch sizes whose median has no upper end: so many repeats missed the goal."""

    @property
    def known(self) -> set[int]:
        return {*self.sizes} - self.open


class World:
    """What was measured."""

    @cache  # noqa: B019 - there are two worlds
    def curve(self, group: str, workload: str, recipe: str, goal: str) -> Curve:
        rows = [
            replace(row, batch_schedule=None)
            for row in frontier_of(group)
            if (row.workload, row.recipe, row.goal) == (workload, recipe, goal)
        ]
        if not rows:  # such as a goal that is written in another way
            raise KeyError(f"{group} has no {goal} of {recipe} on {workload}")
        points = trained_points(rows)
        known = [at for at, point in enumerate(points) if _is_known(point)]
        covariance = np.diag(np.diag(_covariance(points)))
        covariance[np.ix_(known, known)] = _covariance([points[at] for at in known])
        return Curve(
            sizes=tuple(point.batch_size for point in points),
            logs=np.log2([point.steps for point in points]),
            covariance=covariance,
            open=frozenset(point.batch_size for point in points if not _is_known(point)),
        )

    def never(self, group: str, workload: str, recipe: str, goal: str) -> list[int]:
        """The batch sizes at which the goal is hardly ever reached: by no trial, or by less than
        half of the repeats, of which 95 % is certain."""
        return [
            row.batch_size
            for row in frontier_of(group)
            if (row.workload, row.recipe, row.goal) == (workload, recipe, goal)
            and row.finished
            and (
                not row.reached
                if row.repeats is None
                else stats.binom.cdf(row.repeats.reached, row.repeats.count, 0.5) < 0.05
            )
        ]

    def all_sizes(self, group: str, workload: str) -> list[int]:
        """The batch sizes that were searched."""
        return sorted({row.batch_size for row in frontier_of(group) if row.workload == workload})

    def powers(self, workload: str) -> Numbers:
        """The powers of the batch size that the best effective rates follow, of each recipe with
        momentum or without."""
        names, values, deviations, degrees = [], list[float](), list[float](), list[int]()
        for one in tuned(frontier_of(GROUPS[workload])):
            rate = "learning_rate" if one.recipe == "sgd" else EFFECTIVE
            if (
                (one.goal, one.name) == (MIDDLE[workload], rate)
                and one.recipe in ("sgd", "momentum")
                and one.exponent is not None
            ):
                low, high = one.exponent.ends
                degrees.append(len(one.points) - 2)
                names.append(f"{workload}, {one.recipe}")
                values.append(one.exponent.value)
                reach = stats.t.ppf((1 + CONFIDENCE) / 2, degrees[-1])
                deviations.append((high - low) / 2 / reach)
        return Numbers(
            names=names,
            values=np.array(values),
            covariance=np.diag(np.square(deviations)),
            doublings=False,
            degrees=np.array(degrees, dtype=float),
        )

    def forecast(self, workload: str, recipe: str) -> tuple[float, float] | None:
        """log2 of B_crit as the noise scale foretells it, with its standard deviation."""
        for one in forecasts_of(workload):
            if one.recipe == recipe and _has_ends(one.forecast):
                return _with_deviation(one.forecast)
        return None

    def critical(self, group: str) -> Sequence[tuple[float, float]]:
        """log2 of B_crit at the points of a training, with standard deviations, the first first."""
        verdicts = sorted(verdicts_of(group), key=lambda verdict: verdict.at_examples)
        return [
            _with_deviation(verdict.critical)
            for verdict in verdicts
            if verdict.is_known and verdict.critical is not None and _has_ends(verdict.critical)
        ]

    def lowest_errors(self, group: str, batch_size: int | None) -> Floats:
        """For each repeated point of this run, the mean of the lowest validation errors of its
        repeats; at the full batch, if None."""
        run, study = self._of_quality(group, batch_size)
        table = run.repeats.measurements(study.key, {"val/error"})
        lowest = table.group_by(["trial", "repeat"]).aggregate([("val/error", "min")])
        means = lowest.group_by("trial").aggregate([("val/error_min", "mean")])
        found: Floats = means["val/error_min_mean"].to_numpy()
        return found

    def lowest_of_trials(self, group: str, batch_size: int | None) -> float:
        """The lowest validation error of any trial of the search."""
        run, study = self._of_quality(group, batch_size)
        return float(np.min(run.measurements(study.key, {"val/error"})["val/error"].to_numpy()))

    def _of_quality(self, group: str, batch_size: int | None) -> tuple[RunFiles, Study]:
        run = RunFiles.open(opened(group).path)
        by_size = {study.batch_size: study for study in run.studies()}
        return run, by_size[max(by_size) if batch_size is None else batch_size]


_worlds = [World()]


def world() -> World:
    """The world that claims are about."""
    return _worlds[-1]


@contextmanager
def instead(other: World) -> Iterator[None]:
    """Claims are about another world during the `with` block."""
    _worlds.append(other)
    try:
        yield
    finally:
        _worlds.pop()


@contextmanager
def goals_that_hold() -> Iterator[None]:
    """Claims that name no goal are about goals that hold during the `with` block."""
    passed = dict(MIDDLE)
    MIDDLE.update(HELD)
    try:
        yield
    finally:
        MIDDLE.update(passed)


def _covariance(points: Sequence[CurvePoint]) -> Floats:
    errors = errors_of(points)
    few = errors.few_trials
    if few is None:  # the trials themselves may tell it, where only the best one was repeated
        few = errors_of([replace(point, again=None) for point in points]).few_trials
    if few is None:
        few = np.diag([FEW_TRIALS**2 * (point.row.trials_used > 1) for point in points])
    if any((point.row.searched or 0) > 3 for point in points):
        few = few / 0.6  # errors.py says why
    seeds = 0 if errors.seeds is None else errors.seeds
    whole: Floats = np.diag(errors.resolution + seeds) + few
    return whole


def _is_known(point: CurvePoint) -> bool:
    """Whether a median has an interval, so that it does not hang on those that never reached it."""
    again = point.again
    return point.row.finished and (again is None or math.isfinite(again.high or math.inf))


def _has_ends(estimate: Estimate) -> bool:
    return bool(estimate.low) and math.isfinite(estimate.value) and estimate.high is not None


def _with_deviation(estimate: Estimate) -> tuple[float, float]:
    """log2 of an estimate, with the standard deviation that its interval stands for."""
    low, high = estimate.ends
    middle = math.log2(estimate.value)
    if math.isinf(high):
        return middle, (middle - math.log2(low)) / stats.norm.ppf((1 + CONFIDENCE) / 2)
    return middle, math.log2(high / low) / 2 / stats.norm.ppf((1 + CONFIDENCE) / 2)


def known_sizes(
    workload: str, recipes: Sequence[str], goal: str, group: str | None = None
) -> list[int]:
    """The batch sizes at which all these recipes have reached the goal, in order."""
    group = group or GROUPS[workload]
    found = [world().curve(group, workload, recipe, goal).known for recipe in recipes]
    return sorted(set.intersection(*found)) if found else []


def steps(
    workload: str, recipe: str, size: int, goal: str | None = None, group: str | None = None
) -> Product:
    return {At(group or GROUPS[workload], workload, recipe, goal or MIDDLE[workload], size): 1.0}


def values_of(products: Mapping[str, Product]) -> Numbers:
    """The products as numbers in doublings. Errors of different curves are taken to be independent.
    Those of two goals of one recipe are not, which makes intervals of their ratios too wide. What
    has no upper end may only be divided, not divide."""
    curves: dict[tuple[str, str, str, str], list[tuple[int, int, float]]] = {}
    for number, product in enumerate(products.values()):
        for at, power in product.items():
            curves.setdefault(at[:4], []).append((number, at.batch_size, power))
    values, covariance = np.zeros(len(products)), np.zeros((len(products), len(products)))
    is_open = [False] * len(products)
    for names, powers in curves.items():
        curve = world().curve(*names)
        weights = np.zeros((len(products), len(curve.sizes)))
        for number, size, power in powers:
            weights[number, curve.sizes.index(size)] += power
            is_open[number] |= size in curve.open
        values += weights @ curve.logs
        covariance += weights @ curve.covariance @ weights.T
    return Numbers(names=[*products], values=values, covariance=covariance, open=is_open)


def numbers_of(asked: Asked) -> Numbers:
    if asked.numbers is not None:
        return asked.numbers
    return replace(values_of(asked.products), speaks=asked.speaks)


def opened(group: str) -> orchestrator.Run:
    """The run of that name."""
    return orchestrator.open_run(RUNS / f"{group}.zip")


@cache
def frontier_of(group: str) -> tuple[FrontierRow, ...]:
    return tuple(opened(group).frontier())


@cache
def scalings_of(group: str) -> tuple[Scaling, ...]:
    return tuple(scalings(frontier_of(group)))


def forecasts_of(workload: str) -> tuple[Comparison, ...]:
    return _forecasts(workload, MIDDLE[workload])


@cache
def _forecasts(workload: str, goal: str) -> tuple[Comparison, ...]:
    return tuple(opened(GROUPS[workload]).forecasts(goal))


@cache
def verdicts_of(group: str) -> tuple[Verdict, ...]:
    return tuple(opened(group).branches())


def points_by(group: str) -> dict[tuple[str, int], CurvePoint | None]:
    """Maps (recipe, batch size) to the point of each study, which is None if it has no answer."""
    rows = frontier_of(group)
    points = {(point.recipe, point.batch_size): point for point in points_of(rows)}
    return {key: points.get(key) for key in ((row.recipe, row.batch_size) for row in rows)}


def fewest_steps(batch_size: int, goal: float, dimensions: int) -> float:
    """The fewest steps of SGD in which the expected risk of the noisy quadratic model falls below
    the goal, over all learning rates. With rate a, a coordinate of curvature h has
    E x^2 = s + (1 - s) (1 - a h)^(2 t) after t steps, where s = a^2 h / B / (1 - (1 - a h)^2)."""
    h = 1 / np.arange(1, dimensions + 1)

    def steps(log_rate: float) -> float:
        a = math.exp(log_rate)
        shrinks = (1 - a * h) ** 2
        rest = a * a * h / batch_size / (1 - shrinks)

        def risk(t: float) -> float:
            return float(0.5 * (h * (rest + (1 - rest) * shrinks**t)).sum()) - goal

        most = 1e7
        return most if risk(most) > 0 else optimize.brentq(risk, 0, most)

    rates = np.linspace(math.log(1e-4), math.log(1.99), 200)
    best = rates[int(np.argmin([steps(rate) for rate in rates]))]
    width = rates[1] - rates[0]
    found = optimize.minimize_scalar(steps, bounds=(best - width, min(best + width, rates[-1])))
    return min(float(found.fun), steps(best))
