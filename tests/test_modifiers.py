"""Clipping, dropout, averaging, precision, label smoothing: each is compared with its
definition."""

import math
from typing import Any

import models
import pytest
import torch
from conftest import make_trial, refused, run_trial
from test_stackable import reason
from torch import nn
from torch.nn import functional

from orchestrator.records import EvaluationGrid, Extras, derive_seed
from orchestrator.training import Ranks
from orchestrator.training.modifiers import Average, Modifiers
from orchestrator.training.settings import sort
from orchestrator.training.trainer import Trainer, fresh_model
from orchestrator.workloads import load_workload

EVERY_STEP = EvaluationGrid(spacing=0, min_gap=1)


def trainer(workload: type = models.MLP, **params: Any) -> Trainer:
    trial = make_trial(models.name(workload), params={"learning_rate": 0.1, **params})
    loaded = load_workload(models.name(workload))
    return Trainer(trial, loaded, loaded.data(None)["train"], Ranks())


def moved(trainer: Trainer) -> torch.Tensor:
    """Returns the change of the weights in one step."""
    before = torch.cat([p.detach().flatten().clone() for p in trainer.parameters])
    trainer.advance(trainer.step + 1)
    return torch.cat([p.detach().flatten() for p in trainer.parameters]) - before


def test_clipping_bounds_the_step_and_keeps_its_direction() -> None:
    free, clipped, loose = (moved(trainer(gradient_clip=c)) for c in (1e9, 1e-3, 1e3))
    assert float(clipped.norm()) == pytest.approx(0.1 * 1e-3, rel=1e-4)
    assert float(functional.cosine_similarity(free, clipped, dim=0)) == pytest.approx(1, abs=1e-5)
    assert torch.equal(free, loose)


def test_dropout_is_set_and_has_a_stream_of_its_own() -> None:
    dropped = trainer(dropout=0.5)
    assert dropped.model[3].p == 0.5
    torch.manual_seed(1)
    first = moved(trainer(dropout=0.5))
    torch.manual_seed(2)
    assert torch.equal(first, moved(trainer(dropout=0.5)))
    assert not torch.equal(first, moved(trainer()))
    state = torch.get_rng_state()
    moved(trainer(dropout=0.5))
    assert torch.equal(state, torch.get_rng_state())
    lstm = models._LSTM()
    Modifiers(dropout=0.2).prepare(lstm)
    assert lstm.lstm.dropout == 0.2
    with refused("no-effect", "'dropout'", "Linear"):
        Modifiers(dropout=0.2).prepare(nn.Linear(1, 1))


def test_average_is_that_of_the_weights_visited() -> None:
    weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    average, decay, visited = Average([weight], 0.8), 0.8, [3.0, -1.0, 4.0, 1.5]
    for value in visited:
        weight.data.fill_(value)
        average.update()
    shares = [decay ** (len(visited) - 1 - i) for i in range(len(visited))]
    expected = sum(s * v for s, v in zip(shares, visited, strict=True)) / sum(shares)
    with average.in_place():
        assert weight.item() == pytest.approx(expected, rel=1e-12)
    assert weight.item() == visited[-1]


def test_an_average_of_half_precision_keeps_small_shares() -> None:
    weight = nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    average = Average([weight], 0.999)
    for _ in range(2000):
        average.update()
    with average.in_place():
        assert weight.item() == 1


def test_averages_are_measured_beside_the_weights_and_change_nothing() -> None:
    plain, _ = run_trial(make_trial())
    averaged, _ = run_trial(make_trial(params={"learning_rate": 0.1, "ema_decay": 0.5}))
    for one, other in zip(plain, averaged, strict=True):
        assert one.metrics.items() <= other.metrics.items()
    assert averaged[0].metrics["val/ema_loss"] == averaged[0].metrics["val/loss"]
    assert averaged[1].metrics["val/ema_loss"] == averaged[1].metrics["val/loss"]
    assert averaged[-1].metrics["val/ema_loss"] != averaged[-1].metrics["val/loss"]


def test_a_stack_smooths_no_label_that_is_ignored() -> None:
    """It gets the smoothing as a tensor."""
    batch = torch.tensor([[1.0, 2.0], [3.0, 1.0]]), torch.tensor([0, -100])
    given = [0.2, torch.tensor(0.2)]
    number, tensor = (models.MLP().loss(nn.Identity(), batch, label_smoothing=e) for e in given)
    torch.testing.assert_close(tensor, number)


@pytest.mark.parametrize("over", ["all", "others"])
def test_label_smoothing_is_cross_entropy_with_the_smoothed_targets(over: str) -> None:
    workload = load_workload(models.name(models.MLP))
    model, batch = workload.model(), workload.data(None)["train"].batch(torch.arange(9))
    smoothing, classes = 0.2, models.CLASSES
    true = functional.one_hot(batch[1], classes).double()
    if over == "all":
        targets = (1 - smoothing) * true + smoothing / classes
    else:
        targets = (1 - smoothing) * true + smoothing / (classes - 1) * (1 - true)
    expected = -(targets * functional.log_softmax(model(batch[0]).double(), dim=1)).sum(dim=1)
    losses = workload.loss(model, batch, label_smoothing=smoothing, smoothing_over=over)
    assert torch.allclose(losses.double(), expected, atol=1e-6)


def test_bfloat16_trains_nearly_alike_and_float64_really_is() -> None:
    curves = {
        precision: run_trial(make_trial(params={"learning_rate": 0.1, "precision": precision}))[0]
        for precision in ("float32", "bfloat16", "float64")
    }
    losses = {name: curve[-1].metrics["val/loss"] for name, curve in curves.items()}
    assert losses["bfloat16"] != losses["float32"]
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.02)
    assert losses["float64"] != losses["float32"]
    assert losses["float64"] == pytest.approx(losses["float32"], rel=1e-4)
    assert all(p.dtype == torch.float64 for p in trainer(precision="float64").parameters)


def test_evaluations_have_a_precision_of_their_own() -> None:
    """It changes what is measured, and nothing in the training."""
    coarse = Extras(precision="bfloat16")
    for params in ({"precision": "bfloat16"}, {}):
        trials = [
            make_trial(params={"learning_rate": 0.1, **params}, extras=extras)
            for extras in (Extras(), coarse)
        ]
        fine, rounded = (run_trial(trial)[0] for trial in trials)
        for one, other in zip(fine, rounded, strict=True):
            assert one.metrics.get("batch/loss") == other.metrics.get("batch/loss")
            loss = one.metrics["val/loss"]
            assert other.metrics["val/loss"] != loss
            assert other.metrics["val/loss"] == pytest.approx(loss, rel=0.01)
    assert "'evaluate.precision' is" in (reason(trials[1]) or "")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"gradient_clip": 0}, ("wrong-value", "'gradient_clip'", "above 0", 0)),
        ({"dropout": 1.0}, ("wrong-value", "'dropout'", "below 1", 1.0)),
        ({"weight_decay": -1}, ("wrong-value", "'weight_decay'", 0, -1)),
        ({"ema_decay": "much"}, ("wrong-value", "'ema_decay'", "'much'")),
        ({"precision": "float16"}, ("unknown-name", "'float16'", "'bfloat16'")),
        ({"layerwise_ratio": "gradent"}, ("unknown-name", "'gradent'", "'gradient'")),
        ({"layerwise_bound": -1}, ("wrong-value", "'layerwise_bound'", -1)),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], said: Any) -> None:
    with refused(*said):
        sort(settings, load_workload("digits/mlp"))


def test_extras_are_what_they_say() -> None:
    extras = Extras(train_examples=100)
    trial = make_trial(
        models.name(models.MLP), batch_size=100, budget_steps=3, grid=EVERY_STEP, extras=extras
    )
    measurements, _ = run_trial(trial)
    first, second, last = (measurements[i].metrics for i in (0, 1, 3))
    # The whole training set is the batch: its loss before step 1 is train/loss at step 0.
    assert second["batch/loss"] == pytest.approx(first["train/loss"], rel=1e-5)
    assert "test/error" not in first
    assert "test/error" in last
    workload = load_workload(trial.study.workload)
    model = fresh_model(workload, derive_seed(trial.seed, "init"), torch.device("cpu"))
    inputs, labels = workload.data(None)["val"].batch(torch.arange(30))
    with torch.no_grad():
        ranks = (-model(inputs)).argsort(dim=1)
    top2 = 1 - (ranks[:, :2] == labels[:, None]).any(dim=1).double().mean()
    assert first["val/top2_error"] == pytest.approx(float(top2))


def test_test_metrics_come_with_the_goal() -> None:
    trial = make_trial(
        models.name(models.MLP), goals=["val/error < 0.7", "val/error < 0.55"], budget_steps=2000
    )
    measurements, outcome = run_trial(trial)
    crossings = [
        next(m.step for m in measurements if m.metrics["val/error"] < bound)
        for bound in (0.7, 0.55)
    ]
    assert (outcome.status, outcome.steps) == ("reached", max(crossings))
    assert [m.step for m in measurements if "test/error" in m.metrics] == sorted(set(crossings))
    failed, _ = run_trial(make_trial(models.name(models.MLP), goals=["val/error < 0"]))
    assert not any("test/error" in m.metrics for m in failed)


def test_top_error_of_what_is_not_a_number_is_an_error() -> None:
    workload = load_workload(models.name(models.MLP))
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 4))
    nn.init.constant_(model[1].weight, math.nan)
    batch = workload.data(None)["val"].batch(torch.arange(30))
    assert workload.metrics(model, batch)["top2_error"].all()
