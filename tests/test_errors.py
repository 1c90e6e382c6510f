"""What the trials and repeats of a run say of the errors of its points."""

import itertools
from dataclasses import replace
from statistics import median_low

import numpy as np
import pytest
from test_report import ROW

from orchestrator.analysis import errors_in_words, points_of, scalings
from orchestrator.analysis.errors import best_of_fewer, errors_of, luck_of
from orchestrator.results import FrontierRow
from orchestrator.results.frontier import Leader
from orchestrator.results.repeats import WinnerRepeats

SIZES = 2 ** np.arange(8)
TRIALS, KEPT = 64, 5


@pytest.mark.parametrize("known", [1, 3, 7])
def test_best_of_n_is_the_median_over_all_choices(known: int) -> None:
    steps = [3, 5, 5, 8, 13, 21, 34]
    leaders = [Leader(trial=k, steps=one, resolution=1) for k, one in enumerate(steps[:known])]
    row = replace(ROW, leaders=tuple(leaders), trials_used=len(steps))
    found = dict(best_of_fewer(row).medians)
    for count in range(1, len(steps) + 1):
        every = [min(some) for some in itertools.combinations(steps, count)]
        if count in found:
            assert found[count] == median_low(sorted(every))
        else:
            assert sum(best > steps[known - 1] for best in every) > len(every) / 2
    assert found[7] == 3


def test_nothing_is_said_of_fewer_trials_where_no_design_chose_them() -> None:
    (found,) = scalings([replace(ROW, searched=None)])
    assert found.best_of == ()


def swept(
    chance: np.random.Generator, *, trials: int = 64, noise: float = 0.1
) -> list[FrontierRow]:
    """A sweep whose points need curve(B) (1 + u) steps, u uniform, the same at all batch sizes;
    the five best are trained five times again, and the best of these five times more."""
    u = chance.random(TRIALS)
    rows = []
    for size in SIZES.tolist():
        typical = 5000 * (1 + 16 / size) * (1 + u)
        best = np.argsort(typical * np.exp(noise * chance.standard_normal(TRIALS)))[:KEPT]
        again = typical[best, None] * np.exp(noise * chance.standard_normal((KEPT, 10)))
        chosen = int(np.median(again[:, :5], axis=1).argmin())
        steps = np.sort(np.rint(again[chosen, 5:])).astype(int)
        repeats = WinnerRepeats(
            trial=int(best[chosen]), count=5, reached=5, median=float(steps[2]), low=int(steps[0]),
            high=int(steps[4]), confidence=0.94, resolution=1, steps=tuple(steps.tolist()),
            medians=tuple(
                (int(k), float(np.median(of)), len(of))
                for n, k in enumerate(best)
                for of in [again[n, : 10 if n == chosen else 5]]
            ),
        )  # fmt: skip
        first = round(float(typical[best[0]]))
        row = replace(ROW, batch_size=size, steps=first, repeats=repeats, trial=0)
        rows.append(replace(row, trials_used=TRIALS, searched=1))
    return rows


def test_seeds_and_few_trials_are_told_apart() -> None:
    """As standard deviations of points over sweeps that differ in their trials and seeds."""
    chance = np.random.default_rng(0)
    found, points = [], []
    for _ in range(60):
        of_sweep = points_of(swept(chance))
        found.append(errors_of(of_sweep))
        points.append(np.log2([point.steps for point in of_sweep]))
    seeds = np.mean([one.seeds for one in found])
    assert seeds == pytest.approx((0.1 / np.log(2)) ** 2 * 0.286, rel=0.25)  # of five normal draws
    told = np.mean([np.diag(one.covariance) for one in found])
    true = np.var(points, axis=0).mean()
    assert told == pytest.approx(true, rel=0.5)
    # All batch sizes try the same points, so what they find has something in common.
    few = np.mean([one.few_trials for one in found if one.few_trials is not None], axis=0)
    together = few / np.sqrt(np.outer(np.diag(few), np.diag(few)))
    assert together[0, 1] > 0.2


def test_intervals_of_points_hold_what_other_sweeps_find() -> None:
    chance = np.random.default_rng(1)
    every = [points_of(swept(chance, noise=0.2)) for _ in range(80)]
    true = np.median([[point.steps for point in points] for points in every], axis=0)
    held = [
        (interval.low or 0) <= at <= (interval.high or 0)
        for points in every
        for interval, at in zip(errors_of(points).intervals(points), true, strict=True)
    ]
    assert 0.83 <= np.mean(held) <= 0.98


@pytest.mark.parametrize("steps", [1024, 160])  # whose logarithm is a whole number, or rounded
def test_an_interval_holds_the_distance_between_measurements(steps: int) -> None:
    """Also where all repeats passed the goal at the same measurement."""
    (row,) = swept(np.random.default_rng(0))[:1]
    same = replace(row.repeats, steps=(steps,) * 5, median=float(steps), resolution=steps // 4)
    points = points_of([replace(row, repeats=same)])
    (interval,) = errors_of(points).intervals(points)
    assert interval.low <= 0.75 * steps
    assert interval.value == steps
    assert interval.high < 1.05 * steps


def test_without_repeats_of_several_points_it_is_not_known_what_few_trials_do() -> None:
    rows = [
        replace(row, repeats=row.repeats and replace(row.repeats, medians=row.repeats.medians[:1]))
        for row in swept(np.random.default_rng(0))
    ]
    errors = errors_of(points_of(rows))
    assert errors.few_trials is None
    assert errors.seeds is not None
    (scaling,) = scalings(rows)
    assert "few trials is not known" in errors_in_words(scaling).replace("small number of", "few")
    by_sampler = [replace(row, searched=None) for row in swept(np.random.default_rng(0))]
    assert errors_of(points_of(by_sampler)).few_trials is None
    minima = [replace(row, repeats=None) for row in rows]
    assert errors_of(points_of(minima)).seeds is None
    assert luck_of([]) is None


def test_what_two_thirds_of_the_trials_would_find_is_said() -> None:
    (scaling,) = scalings(swept(np.random.default_rng(0)))
    assert 0 <= scaling.by_part < 0.2
    assert "Two thirds of the trials would need" in errors_in_words(scaling)
    assert scaling.to_json()["contributions"]["seeds"] > 0
    assert "errors" not in scaling.to_json()
