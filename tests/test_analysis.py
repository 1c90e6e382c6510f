"""Costs and metaparameters: planted powers, and a second way to count."""

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_report import ROW, UNREACHED, page

from orchestrator.analysis import Estimate, scalings, tuned
from orchestrator.analysis.cost import advice, costs, devices_of, doubts_about, fit_line
from orchestrator.analysis.errors import errors_of, luck_of
from orchestrator.analysis.points import points_of
from orchestrator.analysis.quality import gaps
from orchestrator.analysis.tuned import EFFECTIVE
from orchestrator.analysis.words import errors_in_words, frontier_cells, in_words
from orchestrator.records import Goal
from orchestrator.report.answer import steps_to_goal
from orchestrator.report.comparisons import groups_of, shared_size
from orchestrator.results import BestRow, FrontierRow, StepTime
from orchestrator.results.repeats import WinnerRepeats, repeats_from

SIZES = [2**k for k in range(11)]


def hyperbola(recipe: str, steps_min: int, critical: int) -> list[FrontierRow]:
    return [
        replace(ROW, recipe=recipe, batch_size=b, steps=round(steps_min * (1 + critical / b)))
        for b in SIZES
    ]


def test_advice_is_what_the_curve_has_it() -> None:
    found = advice(costs([*hyperbola("sgd", 1000, 32), UNREACHED]))
    assert found is not None
    assert not found.by_step_times
    # 1 + 32 / B is within a tenth of 1 + 32 / 1024 from 256 on, B + 32 of 33 up to 4.
    assert found.fastest.batch_size == 256
    assert found.cheapest.batch_size == 4
    assert found.balanced.batch_size == 32
    assert found.fastest.examples == 256 * 1125
    assert advice(costs([UNREACHED])) is None


def test_what_is_beaten_in_both_is_not_on_the_front() -> None:
    rows = [*hyperbola("sgd", 1000, 32), *hyperbola("momentum", 900, 64), UNREACHED]
    amounts = [(row.steps, row.steps * row.batch_size) for row in rows if row.steps]
    for cost, (steps, examples) in zip(costs(rows), amounts, strict=True):
        assert (cost.steps, cost.examples) == (steps, examples)
        beaten = any(
            s <= steps and e <= examples and (s, e) != (steps, examples) for s, e in amounts
        )
        assert cost.pareto != beaten
    assert {cost.pareto for cost in costs(rows)} == {True, False}


def step_times(overhead: float, per_example: float, ranks: int = 1) -> list[StepTime]:
    return [
        StepTime(
            workload="w", recipe="sgd", batch_size=b, ranks=min(ranks, b),
            seconds=overhead + per_example * math.ceil(b / min(ranks, b)),
        )
        for b in SIZES
    ]  # fmt: skip


@pytest.mark.parametrize("ranks", [1, 4])
def test_a_planted_device_is_found(ranks: int) -> None:
    device = devices_of(step_times(0.02, 0.001, ranks))["sgd"]
    assert (device.overhead, device.per_example) == (pytest.approx(0.02), pytest.approx(0.001))
    # Half its best rate, 1,000 examples a second, is what it does with 20 in 40 ms.
    assert device.busy_from == 20
    timed = [count for count in (1, 2, 4) if count <= ranks]
    assert device.devices(39) == timed
    assert device.devices(40) == sorted({1, 2, *timed})
    assert [device.devices(b)[-1] for b in (1, 1024)] == [1, 51]
    # On fewer than four, each would have to take more than the 256 that were tried.
    assert device.devices(1024)[0] == (1 if ranks == 1 else 4)


def test_exchanging_gradients_takes_what_was_timed() -> None:
    alone, exchange = step_times(0.02, 0.001), 0.03
    twice = [
        replace(time, ranks=2, seconds=time.seconds - 0.001 * (time.batch_size // 2) + exchange)
        for time in alone[1:]
    ]
    device = devices_of([*alone, *twice])["sgd"]
    for time in (*alone, *twice):
        seconds = device.step_seconds(time.batch_size, time.ranks)
        assert seconds == pytest.approx(time.seconds)
    assert device.step_seconds(1024, 4) == pytest.approx(0.02 + 0.256), "as if it took none"


@pytest.mark.parametrize("seed", range(20))
def test_no_line_is_closer_to_the_step_times(seed: int) -> None:
    chance = np.random.default_rng(seed)
    examples = chance.integers(1, 1000, size=5)
    seconds = chance.uniform(0.001, 1, size=5) * (examples if seed % 2 else 1)
    overhead, slope = fit_line(list(zip(examples.tolist(), seconds.tolist(), strict=True)))
    least = abs((overhead + slope * examples) / seconds - 1).sum()
    others = np.outer([seconds.max(), (seconds / examples).max()], np.ones(5000))
    others *= chance.uniform(size=(2, 5000)) ** 3
    off = abs((others[0] + others[1] * examples[:, None]) / seconds[:, None] - 1)
    assert off.sum(axis=0).min() >= least - 1e-9


def test_step_times_that_cannot_be_right_are_not_used() -> None:
    times = step_times(0.02, 0.001)
    slow = replace(times[2], seconds=5 * times[2].seconds)
    device = devices_of([*times[:2], slow, *times[3:]])["sgd"]
    assert (device.overhead, device.per_example) == (pytest.approx(0.02), pytest.approx(0.001))
    (said,) = doubts_about([*times[:2], slow, *times[3:]])
    assert said.startswith("The step time of sgd at batch size 4 is not used: steps on more")
    # Optimizers differ by what a step takes, not by what an example does.
    heavy = [replace(time, recipe="muon", seconds=time.seconds + 0.05) for time in times]
    assert {*devices_of([*times, *heavy])} == {"sgd", "muon"}
    assert doubts_about([*times, *heavy]) == []
    loaded = [replace(time, recipe="adamw", seconds=3 * time.seconds) for time in times]
    assert devices_of([*times, *loaded]) == {}
    (said,) = doubts_about([*times, *loaded])
    assert "an example takes adamw 3.0 times as long as sgd" in said


def test_devices_are_not_said_to_be_busy_beyond_what_was_measured() -> None:
    only_overhead = devices_of(step_times(0.02, 0))["sgd"]
    assert only_overhead.devices(1024) == [1]
    no_overhead = devices_of(step_times(0, 0.001)[6:])["sgd"]
    assert no_overhead.busy_from == 64
    assert no_overhead.devices(32) == [], "no step is priced that is shorter than any measured"
    assert devices_of(step_times(0.02, 0.001)[:1]) == {}
    assert "sgd" in devices_of(step_times(0.02, 0.001)[:2])


@pytest.mark.parametrize("ranks", [1, 4])
def test_advice_by_step_times_against_trying_all(ranks: int) -> None:
    """Only numbers of devices that were timed are recommended."""
    devices = devices_of(step_times(0.02, 0.001, ranks))
    rows = [*hyperbola("sgd", 1000, 32), UNREACHED]
    found = advice(costs(rows, devices, price_per_device_hour=7.2))
    assert found is not None
    assert found.by_step_times
    free = []
    for row in rows[:-1]:
        # No device takes more examples than one was seen to take.
        fewest, most = math.ceil(row.batch_size / (1024 // ranks)), max(1, row.batch_size // 20)
        for count in {1, 2, 4, 8, 16, 32, most}:
            if fewest <= count <= max(most, min(ranks, row.batch_size)):
                time = row.steps * (0.02 + 0.001 * math.ceil(row.batch_size / count))
                free.append((time, count * time, row.batch_size, count))
    every = [each for each in free if each[3] in [count for count in (1, 2, 4) if count <= ranks]]
    little = min(work for _, work, *_ in every)

    def quickest(among: list[tuple[float, float, int, int]]) -> tuple[float, float, int, int]:
        quick = min(time for time, *_ in among)
        return min((each for each in among if each[0] <= 1.1 * quick), key=lambda each: each[1])

    expected = {
        "fastest": quickest(every),
        "cheapest": min((e for e in every if e[1] <= 1.1 * little), key=lambda e: e[0]),
        "balanced": min(every, key=lambda e: e[0] * e[1]),
    }
    for name, (time, work, size, count) in expected.items():
        cost = getattr(found, name)
        (one,) = cost.priced
        assert (cost.batch_size, one.devices) == (size, count), name
        assert one.seconds == pytest.approx(time)
        assert one.money == pytest.approx(work * 7.2 / 3600)
        assert one.timed


def test_few_batch_sizes_or_steps_or_half_a_run_recommend_nothing() -> None:
    rows = hyperbola("sgd", 1000, 32)[:4]
    assert advice(costs(rows)) is not None
    assert advice(costs(rows[:3])) is None
    assert advice(costs([*rows[:3], replace(rows[3], steps=9)])) is None
    assert advice(costs([*rows[:3], replace(rows[3], finished=False)])) is None
    same_sizes = [replace(row, recipe="other") for row in rows[:3]]
    assert advice(costs([*rows[:3], *same_sizes])) is None


def test_a_censored_answer_is_not_told_by_its_examples() -> None:
    known, censored = (
        frontier_cells(replace(ROW, examples=1024, censored=censored)) for censored in (False, True)
    )
    assert (known["±"], known["Examples"]) == ("8", "1,024")
    assert (censored["±"], censored["Examples"]) == ("", "")


def at(batch_size: int, **params: float) -> FrontierRow:
    return replace(ROW, batch_size=batch_size, params=params)


def test_a_planted_power_is_found() -> None:
    rows = [at(b, learning_rate=0.01 * b**0.5, momentum=1 - 0.1 / b**0.25, fixed=3) for b in SIZES]
    found = {curve.name: curve for curve in tuned([*reversed(rows), UNREACHED])}
    assert list(found) == [EFFECTIVE, "learning_rate", "1 - momentum"]
    assert found["learning_rate"].exponent.value == pytest.approx(0.5)
    assert found["1 - momentum"].exponent.value == pytest.approx(-0.25)
    assert found[EFFECTIVE].exponent.value == pytest.approx(0.75)
    assert found["learning_rate"].points[-1] == (1024, pytest.approx(0.32))
    assert found["learning_rate"].rule(1.0)[-1] == (1024, pytest.approx(10.24))
    assert [curve.is_rate for curve in found.values()] == [True, True, False]
    averaging = tuned([replace(row, optimizer="muon") for row in rows])
    assert [curve.name for curve in averaging] == ["learning_rate", "1 - momentum"]


def test_the_interval_of_a_power_covers_it() -> None:
    chance, covered = np.random.default_rng(0), 0
    for _ in range(300):
        values = 0.01 * np.sqrt(SIZES) * np.exp(chance.normal(0, 0.5, len(SIZES)))
        (curve,) = tuned([at(b, learning_rate=v) for b, v in zip(SIZES, values, strict=True)])
        covered += curve.exponent.holds(0.5)
    assert 0.86 < covered / 300 < 0.94


def test_no_power_is_told_of_winners_at_zero() -> None:
    (decay,) = tuned([at(b, weight_decay=0 if b == 4 else 1e-4 * b) for b in SIZES])
    assert (decay.exponent, len(decay.points)) == (None, len(SIZES) - 1)


def test_too_little_to_tell_a_power_is_said() -> None:
    assert tuned([at(8, learning_rate=0.1)]) == []
    (three,) = tuned(
        [at(8, learning_rate=0.1), at(16, learning_rate=0.2), at(32, learning_rate=0.4)]
    )
    assert (three.exponent, len(three.points)) == (None, 3)
    short = [replace(at(b, learning_rate=b / 100), steps=9) for b in (8, 16, 32, 64)]
    (none,) = tuned(short)
    assert none.exponent is None
    same = [replace(row, params={"learning_rate": 0.1}, steps=10) for row in short]
    (one,) = tuned([*same, at(128, learning_rate=0.2), replace(short[0], batch_size=256)])
    (alike,) = tuned([*same, replace(short[0], batch_size=256)])  # the last one is too short
    assert one.exponent is not None
    assert alike.exponent is None
    (one,) = tuned([replace(row, steps=10) for row in short])
    assert one.exponent.value == pytest.approx(1)
    assert tuned([at(8, kind="a"), at(16, kind="b"), at(32, rate=-1)]) == []


@pytest.mark.parametrize(
    ("estimate", "words"),
    [
        (Estimate(value=1024.0), "1,024"),
        (Estimate(value=13.2, low=9.4, high=17.0), "13 (9 to 17)"),
        (Estimate(value=4282.3, low=3753.9, high=4886.5), "4,280 (3,750 to 4,890)"),
        (Estimate(value=65536.0, low=65536.0, high=65536.0), "65,536"),
        (Estimate(value=2e6, low=512.0, high=math.inf), "2,000,000 (512 or more)"),
        (Estimate(value=0.25, low=0.0, high=2.0), "0.25 (0 to 2)"),
        (Estimate(value=math.inf, low=70.0, high=math.inf), "at least 70"),
        (Estimate(value=math.inf, low=math.inf, high=math.inf), "not known"),
    ],
)
def test_estimates_as_people_read_them(estimate: Estimate, words: str) -> None:
    assert in_words(estimate) == words


def test_workloads_that_differ_in_one_thing_are_found() -> None:
    names = ["mnist/a", "mnist/b", "fashion/a", "mnist/a?train_examples=7", "own"]
    found = {(by, of): labels for by, of, labels in groups_of(names)}
    assert found == {
        ("model", "mnist"): {"mnist/a": "a", "mnist/b": "b"},
        ("data set", "a"): {"mnist/a": "mnist", "fashion/a": "fashion"},
        ("version", "mnist, a"): {
            "mnist/a": "all of it",
            "mnist/a?train_examples=7": "train_examples=7",
        },
    }


def test_curves_are_brought_to_one_scale() -> None:
    one, other = hyperbola("sgd", 100, 16), hyperbola("sgd", 300, 16)[3:]
    assert shared_size([one, other, [UNREACHED]]) == 8
    assert shared_size([[UNREACHED]]) is None


GOAL = Goal.parse("test/error < 0.1")
BASE = BestRow(
    workload="w", recipe="rule", optimizer="sgd", batch_size=256, metric="test/error", value=0.02,
    within="examples=1800000", trained_enough=True, censored=False, step=9, trial=1, seed=1,
    params=None, metrics={"test/error": 0.02, "test/loss": 0.1}, trials_used=2,
)  # fmt: skip


def test_the_gap_is_what_was_lost_off_the_training_set() -> None:
    with_own = replace(BASE, metrics={"test/error": 0.05, "train/error": 0.01})
    (gap,) = gaps([with_own, BASE, replace(with_own, censored=True)], GOAL)
    assert gap.value == pytest.approx(0.04)
    higher = replace(BASE, metrics={"val/accuracy": 0.9, "train/accuracy": 0.97})
    (gap,) = gaps([higher], Goal.parse("val/accuracy > 0.5"))
    assert gap.value == pytest.approx(0.07)


SWEPT = 2 ** np.arange(8)
TRIALS, KEPT = 64, 5


def swept(
    chance: np.random.Generator, *, trials: int = 64, noise: float = 0.1
) -> list[FrontierRow]:
    """A sweep whose points need curve(B) (1 + u) steps, u uniform, the same at all batch sizes;
    the five best are trained five times again, and the best of these five times more."""
    u = chance.random(TRIALS)
    rows = []
    for size in SWEPT.tolist():
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


def test_a_median_that_may_miss_the_goal_has_no_upper_end(tmp_path: Path) -> None:
    missed = [
        replace(row, repeats=replace(again, reached=3, steps=again.steps[:3], high=None))
        for row in swept(np.random.default_rng(0))
        if (again := row.repeats)
    ]
    assert re.search(r"steps \([\d,]+ or more\), ", page(tmp_path, missed))
    assert np.isfinite(steps_to_goal(missed).as_plotly().layout.yaxis.range).all()


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


def test_no_interval_is_given_where_luck_is_unknown(tmp_path: Path) -> None:
    """Single repeats of several points differ by their seeds as well as by their points."""
    rows = swept(np.random.default_rng(0))
    once = [
        replace(row, repeats=replace(row.repeats, count=1, steps=row.repeats.steps[:1]))
        for row in rows
        if row.repeats
    ]
    for unknown in (once, [replace(row, repeats=None, leaders=()) for row in rows]):
        points = points_of(unknown)
        errors = errors_of(points)
        assert errors.seeds is errors.few_trials is None
        assert {interval.high for interval in errors.intervals(points)} == {None}
        assert " steps (error unknown), " in page(tmp_path, unknown)


def test_repeats_that_missed_the_goal_count_as_far_above_as_the_fewest_lie_below() -> None:
    all_reached = repeats_from([(steps, 0) for steps in (50, 80, 100, 125, 200)])
    two_missed = repeats_from([(steps, 0) for steps in (50, 80, 100, math.inf, math.inf)])
    luck, mirrored = luck_of([all_reached]), luck_of([two_missed])
    assert luck is not None
    assert mirrored is not None
    assert np.allclose(np.sort(mirrored), np.sort(luck))


def test_what_two_thirds_of_the_trials_would_find_is_said() -> None:
    (scaling,) = scalings(swept(np.random.default_rng(0)))
    assert 0 <= scaling.by_part < 0.2
    assert "Two thirds of the trials would need" in errors_in_words(scaling)
    assert scaling.to_json()["contributions"]["seeds"] > 0
    assert "errors" not in scaling.to_json()
