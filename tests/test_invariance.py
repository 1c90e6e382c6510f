"""Ranks and micro-batches change nothing but the rounding of a trial, which is tested in float64
over 60 steps."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import models
import pytest
from conftest import make_trial, run_trial
from test_batch_schedule import GROWING, trial_of
from test_cooling import cooled_trial
from test_noise_scale import noisy

from orchestrator.noise.estimates import NoiseEstimate
from orchestrator.records import EvaluationGrid, Extras, Measurement, Trial

pytestmark = pytest.mark.dear

WORKLOADS = [models.MLP, models.GhostCNN, models.LSTM, models.Transformer]
RECIPES: list[tuple[str, dict[str, Any]]] = [
    ("momentum", {"learning_rate": 0.05, "momentum": 0.9}),
    ("adam", {"learning_rate": 0.003, "gradient_clip": 1.0}),
    ("lars", {"learning_rate": 5.0, "decay": "cosine", "ema_decay": 0.9, "weight_decay": 1e-3}),
]


def long_trial(workload: type, recipe: int, batch_size: int) -> Trial:
    optimizer, params = RECIPES[recipe]
    return make_trial(
        models.name(workload),
        optimizer=optimizer,
        params={**params, "precision": "float64", "label_smoothing": 0.1},
        batch_size=batch_size,
        budget_steps=60,
        grid=EvaluationGrid(spacing=0.5, min_gap=10),
        extras=Extras(train_examples=20),
    )


@lru_cache
def alone(workload: type, recipe: int, batch_size: int) -> list[Measurement]:
    return run_trial(long_trial(workload, recipe, batch_size))[0]


def assert_same_curve(one: list[Measurement], other: list[Measurement]) -> None:
    for first, second in zip(one, other, strict=True):
        assert first.step == second.step
        assert second.metrics == pytest.approx(first.metrics, rel=1e-5), first.step
    assert one[-1].metrics != one[0].metrics


@pytest.mark.parametrize(
    ("workload", "recipe", "ranks", "batch_size", "micro_batch"),
    [
        *((workload, 0, *topology) for workload in WORKLOADS
          for topology in ((1, 36, 9), (2, 37, 5), (2, 1, None))),
        (models.MLP, 0, 2, 37, None),
        # Ghosts are of 8 examples.
        *((models.GhostCNN, 0, *topology)
          for topology in ((1, 32, 8), (2, 32, None), (2, 37, None))),
        *((workload, recipe, 2, 37, 5) for workload, recipe in
          ((models.MLP, 1), (models.GhostCNN, 1), (models.MLP, 2), (models.GhostCNN, 2))),
    ],
)  # fmt: skip
def test_topology_does_not_change_the_curve(
    workload: type, recipe: int, ranks: int, batch_size: int, micro_batch: int | None,
    train_on_pair: Callable[..., Any],
) -> None:  # fmt: skip
    run = run_trial if ranks == 1 else train_on_pair
    measurements, _ = run(long_trial(workload, recipe, batch_size), micro_batch=micro_batch)
    assert_same_curve(alone(workload, recipe, batch_size), measurements)


@pytest.mark.parametrize(
    "trial",
    [
        trial_of(GROWING, precision="float64"),
        cooled_trial(params={"learning_rate": 0.05, "momentum": 0.9, "precision": "float64"}),
        long_trial(models.Frozen, 0, 37),
    ],
    ids=["growing batches", "cooldowns", "a frozen batch norm"],
)
def test_nor_does_it_change_trials_of_other_kinds(
    trial: Trial, train_on_pair: Callable[..., Any]
) -> None:
    whole, outcome = run_trial(trial)
    for again, ended in (
        train_on_pair(trial),
        train_on_pair(trial, micro_batch=7),
        run_trial(trial, micro_batch=9),
    ):
        assert_same_curve(whole, again)
        assert (ended.status, ended.steps) == (outcome.status, outcome.steps)


@pytest.mark.parametrize("workload", [models.Augmented, models.FromFiles])
@pytest.mark.parametrize(("batch_size", "micro_batch"), [(37, 5), (1, None)])
def test_augmentation_belongs_to_the_example(
    workload: type, batch_size: int, micro_batch: int | None, train_on_pair: Callable[..., Any]
) -> None:
    """A rank without examples fetches nothing."""
    reference = alone(models.Augmented, 0, batch_size)
    measurements, _ = train_on_pair(long_trial(workload, 0, batch_size), micro_batch=micro_batch)
    assert_same_curve(reference, measurements)
    assert reference[-1].metrics != alone(models.MLP, 0, batch_size)[-1].metrics


@pytest.mark.parametrize("workload", [models.FromDicts, models.FromDataset, models.Nested])
def test_trees_of_tensors_give_the_curve_of_tuples(
    workload: type, train_on_pair: Callable[..., Any]
) -> None:
    """A rank without examples has an empty tree."""
    tuples = alone(models.MLP, 0, 37)
    assert [m.metrics for m in alone(workload, 0, 37)] == [m.metrics for m in tuples]
    for batch_size, micro_batch in ((37, 5), (1, None)):
        trial = long_trial(workload, 0, batch_size)
        measurements, _ = train_on_pair(trial, micro_batch=micro_batch)
        assert_same_curve(alone(models.MLP, 0, batch_size), measurements)


def test_ranks_and_accumulation_do_not_change_the_noise_scale(
    train_on_pair: Callable[..., Any],
) -> None:
    trial = noisy(make_trial(budget_steps=8, batch_size=64))
    alone, _ = run_trial(trial)
    for others, _ in (train_on_pair(trial), run_trial(trial, micro_batch=16)):
        for one, other in zip(alone, others, strict=True):
            assert one.metrics.keys() == other.metrics.keys()
            if "noise/variance" not in one.metrics:
                continue
            low, high = NoiseEstimate.from_columns(one.metrics).interval()
            assert low <= NoiseEstimate.from_columns(other.metrics).noise_scale <= high
        # Sums of other shares of a batch may differ in their last bits, on some processors.
        assert others[0].metrics == pytest.approx(alone[0].metrics, rel=1e-6)


@pytest.mark.parametrize("ranks", [1, 2])
def test_out_of_memory_halves_the_micro_batch_and_with_one_example_fails_the_trial_alone(
    ranks: int, train_on_pair: Callable[..., Any]
) -> None:
    run = run_trial if ranks == 1 else train_on_pair
    measurements, outcome = run(greedy_trial(models.Insatiable))
    assert outcome.status == "failed"
    assert "out of memory, even with the smallest" in outcome.error
    assert len(measurements) == 1
    measurements, outcome = run(greedy_trial(models.Greedy))
    assert (outcome.status, outcome.micro_batch) == ("exhausted", 9)
    assert_same_curve(run_trial(greedy_trial(models.MLP))[0], measurements)


def greedy_trial(workload: type) -> Trial:
    params = {"learning_rate": 0.1, "precision": "float64"}
    return make_trial(models.name(workload), params=params, batch_size=37)
