"""Batch sizes that grow along a training."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import models
import pytest
import torch
import yaml
from conftest import TINY, make_trial, refused, run_trial
from hypothesis import given
from hypothesis import strategies as st
from test_cooling import killed_at
from test_growth import command
from test_training import by_hand

from orchestrator.analysis.points import points_of
from orchestrator.planning.studies import plan
from orchestrator.planning.sweep_file import validated
from orchestrator.records import BatchSchedule, EvaluationGrid, Extras, Stage, Trial
from orchestrator.records.lr_schedules import make_schedule
from orchestrator.results import RunFiles, frontier_of


def growing(*stages: tuple[int, int, float]) -> BatchSchedule:
    """Makes a schedule from tuples (batch size, examples before the stage, factor)."""
    (first, _, _), *later = stages
    schedule = BatchSchedule.constant(first)
    for size, at, factor in later:
        schedule = schedule.then(batch_size=size, factor=factor, at=at)
    return schedule


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 50)), min_size=1, max_size=5))
def test_steps_and_examples_are_each_others_inverse(growth: list[tuple[int, int]]) -> None:
    schedule, size = BatchSchedule.constant(3), 3
    for more, steps in growth:
        size += more
        at = schedule.examples(schedule.stages[-1].from_step + steps)
        schedule = schedule.then(batch_size=size, factor=1.0, at=at)
    sizes = [schedule.stage(step).batch_size for step in range(300)]
    for step in range(300):
        examples = sum(sizes[:step])
        assert schedule.examples(step) == examples
        assert schedule.steps(examples) == step
        assert schedule.steps(examples + 1) == step + 1


EVERYTHING = {"learning_rate": 0.01, "decay": "cosine", "warmup_fraction": 0.1, "ema_decay": 0.9}


def trial_of(
    schedule: BatchSchedule, workload: type = models.GhostCNN, steps: int = 60, **params: Any
) -> Trial:
    return make_trial(
        models.name(workload),
        optimizer="adam",
        params={**EVERYTHING, **params},
        batch_size=schedule.largest,
        batch_schedule=schedule,
        budget_steps=steps,
        train_size=100,
        grid=EvaluationGrid(spacing=0, min_gap=25),
        extras=Extras(train_examples=20),
    )


def test_one_that_changes_nothing_changes_no_bit() -> None:
    same = growing((8, 0, 1.0), (8, 100, 1.0), (8, 300, 1.0))
    with_it, _ = run_trial(trial_of(same))
    plain = trial_of(same)
    without, _ = run_trial(replace(plain, study=replace(plain.study, batch_schedule=None)))
    assert [(m.step, m.metrics) for m in with_it] == [(m.step, m.metrics) for m in without]


def test_curve_equals_a_loop_written_by_hand() -> None:
    schedule = growing((8, 0, 1.0), (32, 120, 2.0))
    params = {"learning_rate": 0.05, "momentum": 0.9, "decay": "linear", "precision": "float64"}
    trial = make_trial(
        "digits/mlp", optimizer="momentum", params=params, batch_size=32, budget_steps=40,
        batch_schedule=schedule, train_size=1400,
    )  # fmt: skip
    measurements, _ = run_trial(trial)
    sizes = [8] * 15 + [32] * 25
    decay = make_schedule({"decay": "linear"}, horizon=sum(sizes) / 8, steps_per_epoch=None)
    trained = [sum(sizes[:step]) for step in range(40)]
    rates = [0.05 * (1 + (step >= 15)) * decay(trained[step] / 8) for step in range(40)]
    expected = by_hand(trial, torch.optim.SGD, sizes, rates, momentum=0.9)
    assert measurements[-1].metrics["val/loss"] == pytest.approx(expected, rel=1e-10)


def test_measurements_are_as_many_examples_apart_as_without() -> None:
    schedule = growing((8, 0, 1.0), (32, 400, 1.0))
    measurements, _ = run_trial(trial_of(schedule, steps=100))
    *steps, last = [measurement.step for measurement in measurements]
    assert steps == [schedule.steps(200 * number) for number in range(len(steps))]
    assert last == 100


GROWING = growing((8, 0, 1.0), (16, 31 * 8, 1.5), (40, 31 * 8 + 10 * 16, 2.0))


@pytest.mark.parametrize("at", [30, 31, 32, 41])
def test_interrupted_at_a_change_it_goes_on_to_the_bit(at: int, tmp_path: Path) -> None:
    trial = trial_of(GROWING, models.MLP, dropout=0.2, gradient_clip=1.0)
    whole, _ = run_trial(trial)
    resumed, outcome = killed_at(trial, tmp_path / "trial.pt", iter((at,)))
    assert outcome.resumed_steps == at
    assert [m.metrics for m in resumed] == [m.metrics for m in whole]


STAGES: list[dict[str, Any]] = [
    {"batch_size": 8},
    {"examples": 160, "batch_size": 16, "learning_rate": "sqrt"},
    {"steps": 40, "batch_size": 64, "learning_rate": "linear"},
    {"steps": 50, "batch_size": 64, "learning_rate": 3},
]


def sweep_with(stages: Any, **changes: Any) -> dict[str, Any]:
    recipe = {"name": "growing", "optimizer": "momentum", "batch_schedule": stages}
    return {**TINY, "batch_sizes": [64, 256, 16, 32], "recipes": ["sgd", recipe], **changes}


def test_a_recipe_has_one_study_under_its_largest_batch_size() -> None:
    studies = plan(validated(sweep_with(STAGES), "here")).studies
    (study,) = (study for study in studies if study.recipe == "growing")
    assert study.batch_size == 64
    assert study.batch_schedule == BatchSchedule(
        (
            Stage(batch_size=8),
            Stage(batch_size=16, from_step=20, from_examples=160, factor=2**0.5),
            Stage(batch_size=64, from_step=40, from_examples=480, factor=4 * 2**0.5),
            Stage(batch_size=64, from_step=50, from_examples=1120, factor=3.0),
        )
    )
    in_examples = sweep_with(STAGES, budget={"examples": 2000})
    (study,) = (s for s in plan(validated(in_examples, "x")).studies if s.recipe == "growing")
    assert study.budget_steps == 50 + -(-(2000 - 1120) // 64)


def test_a_damaged_schedule_is_refused() -> None:
    with refused("wrong-value", 0):
        BatchSchedule((Stage(batch_size=0),))


@pytest.mark.dear
def test_it_stands_beside_the_curves_and_joins_none(tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text(yaml.safe_dump(sweep_with(STAGES, repeats=2)))
    path = str(tmp_path / "run")
    command("sweep", str(file), "--no-ray", "--out", path)
    run = RunFiles.open(tmp_path / "run")
    rows = frontier_of(run)
    (grown,) = (row for row in rows if row.batch_schedule)
    schedule = next(study for study in run.studies() if study.recipe == "growing").batches
    assert grown.steps is not None
    assert grown.examples == schedule.examples(grown.steps)
    assert {point.recipe for point in points_of(rows)} == {"sgd"}
    told = command("frontier", path).stdout
    assert f"{grown.steps:,} steps, {grown.examples:,} examples" in " ".join(told.split())
    assert "8, 16 from step 20" in (tmp_path / "run/frontier.csv").read_text()
