"""Forecasts from noise scales, by hand and by command, compared with the results of a sweep."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, refused
from test_frontier import write_run
from test_growth import command
from typer.testing import CliRunner

from orchestrator.analysis import Estimate, Scaling, scalings
from orchestrator.analysis.estimates import together
from orchestrator.analysis.forecasts import (
    Forecast,
    NoiseCourse,
    a_fifth_more,
    along,
    compared,
    comparisons_of,
    corrected,
    forecast_in_words,
    foretold,
    mean_of,
    noise_courses,
)
from orchestrator.analysis.words import in_words
from orchestrator.cli import app
from orchestrator.noise.estimates import NoiseEstimate
from orchestrator.results import RunFiles, frontier_of


def course(
    squares: list[float], variances: list[float], steps: list[int], batch_size: int = 16
) -> NoiseCourse:
    points = (
        NoiseEstimate(g, s, 0.0, (0.1 * g) ** 2, 0.05 * s, 0.0, 31)
        for g, s in zip(squares, variances, strict=True)
    )
    return NoiseCourse(batch_size=batch_size, steps=tuple(steps), points=tuple(points))


def test_steps_weigh_by_their_progress() -> None:
    """The formula is sum(w trS / D) / sum(w |G|^2 / D) with D = |G|^2 + trS / B."""
    squares, variances, steps = [2.0, 1.0, 0.1], [10.0, 20.0, 30.0], [0, 10, 50]
    weights = np.array([5.0, 25.0, 20.0])
    g, s = np.array(squares), np.array(variances)
    d = g + s / 16
    expected = (weights * s / d).sum() / (weights * g / d).sum()
    one = course(squares, variances, steps)
    assert foretold([one]).value == pytest.approx(expected)
    # The progress of a mean step is what it makes of the batch.
    assert mean_of(one).gradient_square == pytest.approx(1 / (1 + expected / 16))


def test_intervals_are_of_the_scatter_of_seeds() -> None:
    rng, hits = np.random.default_rng(0), []
    for _ in range(300):
        seeds = [
            course([1.0, 1.0], [40 * np.exp(0.3 * rng.normal())] * 2, [0, 10]) for _ in range(5)
        ]
        found = foretold(seeds)
        hits.append(found.low <= 40 <= found.high)
    assert 0.85 < np.mean(hits) < 0.95


@pytest.mark.parametrize("batch_size", [4, 2**20])
def test_the_interval_of_one_training_holds_what_exact_samples_foretell(batch_size: int) -> None:
    squares, variances, steps = [2.0, 0.5, 0.01], [20.0, 25.0, 30.0], (1, 40, 100)
    chance, held = np.random.default_rng(0), 0

    def seen(error: float) -> Estimate:
        points = (
            NoiseEstimate(
                square + error * square * chance.standard_normal(),
                variance + error * chance.standard_normal(),
                floor=(error * square) ** 2,
                variance_error=error,
            )
            for square, variance in zip(squares, variances, strict=True)
        )
        return foretold([NoiseCourse(batch_size=batch_size, steps=steps, points=tuple(points))])

    for _ in range(200):
        held += seen(0.1).holds(seen(0).value)
    assert 0.84 <= held / 200 <= 0.96


def test_a_gradient_that_is_not_seen_gives_no_number() -> None:
    blind = foretold([course([-0.001, -0.002], [40, 40], [0, 10])])
    assert math.isinf(blind.value)
    assert blind.high == math.inf


def test_a_step_without_a_gradient_is_left_out() -> None:
    """A network that fits every example to the last bit has such steps."""
    moving = mean_of(course([1, 0.5], [40, 20], [0, 10]))
    resting = mean_of(course([0, 1, 0.5], [0, 40, 20], [0, 10, 20]))
    assert resting.noise_scale == pytest.approx(40)
    assert moving.noise_scale == pytest.approx(40)
    assert math.isinf(foretold([course([0, 0], [0, 0], [0, 10])]).value)


def test_along_a_training() -> None:
    scales = along(course([1, 1, 0.5], [10, 20, 20], [0, 1, 7]))
    assert {step: scale.value for step, scale in scales.items()} == {0: 10, 1: 20, 7: 40}


def forecast(value: float, batch_size: int = 16) -> Forecast:
    scale = Estimate(value=value, low=value / 1.1, high=1.1 * value)
    return Forecast(workload="w", recipe="r", batch_size=batch_size, trainings=5, noise_scale=scale)


def scaling(critical: Estimate | None) -> Scaling:
    return Scaling(
        workload="w", recipe="r", goal="val/error < 0.1", critical_batch_size=critical,
        of_medians=True, verdict="",
    )  # fmt: skip


def test_beside_what_was_measured() -> None:
    measured = Estimate(value=30.0, low=20.0, high=45.0)
    (one,) = compared([forecast(80, 32), forecast(45, 16)], [scaling(measured)])
    assert [each.batch_size for each in one.forecasts] == [16, 32]
    assert one.forecast.value == pytest.approx(60)
    assert one.ratio is not None
    assert one.ratio.value == pytest.approx(2)
    assert one.ratio.low < 1 < one.ratio.high  # two batch sizes tell little
    assert a_fifth_more(measured).value == pytest.approx(6)
    assert a_fifth_more(Estimate(value=30.0)) == Estimate(value=pytest.approx(6))
    (alone,) = compared([forecast(60)], [scaling(measured)])
    assert alone.ratio is not None
    assert alone.ratio.high == pytest.approx(2 * math.exp(math.hypot(math.log(1.1), math.log(1.5))))
    (unknown,) = compared([forecast(60)], [scaling(None)])
    assert unknown.ratio is None
    assert not [*compared([], [scaling(measured)])]


def test_together_and_corrected() -> None:
    known = [Estimate(value=value) for value in (1.0, 2.0, 4.0)]
    assert together(known).value == pytest.approx(2)
    once = corrected(Estimate(value=100, low=90, high=110), known)
    assert once.value == pytest.approx(50)
    assert once.low < 50 / 4 < 50 * 4 < once.high  # one more would scatter as those did
    alone = corrected(Estimate(value=100, low=100, high=100), [Estimate(value=2, low=1, high=4)])
    assert (alone.low, alone.value, alone.high) == pytest.approx((25, 50, 100))


def test_of_forecasts_without_an_upper_end_the_lower_ends_count() -> None:
    blind = Estimate(value=math.inf, low=100.0, high=math.inf)
    some = together([Estimate(value=90.0), blind, Estimate(value=110.0)])
    assert some.value == some.high == math.inf
    assert 80 < some.low < 100
    assert in_words(together([blind, Estimate(value=math.inf, low=0.0)])) == "not known"
    for ratios in ([Estimate(value=2.0)] * 2, [Estimate(value=2, low=2, high=2)]):
        found = corrected(blind, ratios)
        assert (found.value, found.low, found.high) == pytest.approx((math.inf, 50, math.inf))


TRIAL = ("forecast", "digits/mlp", "--optimizer", "sgd", "--batch-size", "32", "--set")


def test_the_command() -> None:
    done = command(*TRIAL, "learning_rate=0.3", "--steps", "64", "--json")
    assert "step 64: noise scale" in done.stderr
    found = json.loads(done.stdout)
    assert (
        found["noise_scale"]["low"] < found["noise_scale"]["value"] < found["noise_scale"]["high"]
    )
    assert found["measurements"][-1]["step"] == 64
    assert found["corrected"] is None


def test_a_training_that_diverges_foretells_nothing() -> None:
    done = CliRunner().invoke(app, [*TRIAL, "learning_rate=1e9", "--steps", "64"])
    assert done.exit_code == 1
    assert "diverged" in done.stderr


def test_a_forecast_is_corrected_by_what_was_measured() -> None:
    measured = f"{ROOT}/atlas/runs/digits_mlp.zip"
    options = ("learning_rate=0.3", "--steps", "64", "--calibrate", measured)
    found = command(*TRIAL, *options).stdout
    assert "Corrected forecast: a fifth more examples at batch size" in found
    compared = json.loads(command(*TRIAL, *options, "--json").stdout)["compared"]
    assert compared
    assert all(one["ratio"]["low"] > 0 for one in compared)  # 0: B_crit is not bounded


def test_one_measured_curve_is_one_curve() -> None:
    one = course([1.0, 1.0], [40.0, 40.0], [0, 10])
    found = Forecast(
        workload="w", recipe="sgd", batch_size=8, trainings=1, noise_scale=foretold([one])
    )
    told = " ".join(forecast_in_words(found, one, [Estimate(value=2.0, low=1.0, high=4.0)]))
    assert "For 1 measured curve, the forecast was" in told


def test_a_run_without_forecasts_corrects_nothing(tmp_path: Path) -> None:
    write_run(tmp_path, [("reached", [0.5, 0.1])], "val/error < 0.2")
    remedy = "evaluate: {noise_scale: repeats}"
    with refused("not-measured", tmp_path, remedy):
        command(*TRIAL, "learning_rate=0.3", "--calibrate", str(tmp_path))


def test_the_noise_is_that_of_the_trial_that_answers() -> None:
    run = RunFiles.open(ROOT / "atlas/runs/digits_cnn.zip")
    row = next(row for row in frontier_of(run) if row.answering[0] not in (None, row.trial))
    found, of_answer, of_winner = (
        noise_courses(run, run.studies(), [replace(row, **change)])
        for change in ({}, {"repeats": None, "trial": row.answering[0]}, {"repeats": None})
    )
    assert found == of_answer != of_winner


def test_each_goal_is_foretold_by_its_own_winners() -> None:
    run = RunFiles.open(ROOT / "atlas/runs/digits_cnn.zip")
    rows = frontier_of(run)
    found = comparisons_of(run, rows, scalings(rows))
    for goal in dict.fromkeys(row.goal for row in rows):
        alone = [row for row in rows if row.goal == goal]
        expected = comparisons_of(run, alone, scalings(alone))
        assert [one for one in found if one.goal == goal] == expected
    assert len({one.forecast.value for one in found if one.recipe == "sgd"}) == 3
