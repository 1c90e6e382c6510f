from collections.abc import Mapping
from typing import Any

import models
import pytest
import torch
from conftest import make_trial, refused, run_trial
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from orchestrator.records import EvaluationGrid, Extras, Measurement, Stage, Trial
from orchestrator.records.standing import Standing
from orchestrator.training import check_metaparameters, rehearse
from orchestrator.training.batches import BatchOrder, in_slices, micro_batches
from orchestrator.training.optimizers import OPTIMIZERS, accepted_by
from orchestrator.training.stackable import why_not
from orchestrator.training.trainer import derive_seed, fresh_model
from orchestrator.workloads import Batch, load_workload, prepare

PARAMS = {"learning_rate": 0.1, "momentum": 0.9}
BY_TORCH = {
    "sgd": (torch.optim.SGD, {}),
    "momentum": (torch.optim.SGD, {"momentum": 0.9}),
    "nesterov": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    "adagrad": (torch.optim.Adagrad, {}),
    "rmsprop": (torch.optim.RMSprop, {}),
    "adam": (torch.optim.Adam, {}),
    "adamw": (torch.optim.AdamW, {"weight_decay": 0.0}),
}


LIBRARY = ["muon", "soap", "shampoo", "schedule_free_sgd", "nadam"]


@pytest.mark.filterwarnings("ignore:put_ does not have a deterministic")
@pytest.mark.parametrize("name", ["MLP", "GhostCNN"])
def test_a_gradient_without_a_deterministic_kernel_is_computed_again_without_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, whose attention takes the deterministic kernel only if no other is allowed."""
    trial = make_trial(workload=f"{models.__file__}:{name}", params=PARAMS, budget_steps=3)
    plain, _ = run_trial(trial)
    strict = []

    class Refused(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, losses: torch.Tensor) -> torch.Tensor:
            return losses.clone()

        @staticmethod
        def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            strict.append(not torch.is_deterministic_algorithms_warn_only_enabled())
            index = torch.arange(len(gradient))
            return gradient.put(index, gradient)

    def loss(self: object, *arguments: object) -> torch.Tensor:
        return Refused.apply(original(self, *arguments))

    kind = type(load_workload(trial.study.workload))
    original: Any = kind.loss
    monkeypatch.setattr(kind, "loss", loss)
    monkeypatch.setattr("orchestrator.training.trainer.STRICT", ("cpu",))
    measurements, outcome = run_trial(trial)
    assert strict == [True, False, False, False]
    assert [m.metrics for m in measurements] == [m.metrics for m in plain]
    assert outcome.micro_batch is None


def params_of(optimizer: str) -> dict[str, float]:
    return {name: PARAMS[name] for name in accepted_by(optimizer)[0] or ("learning_rate",)}


def by_hand(trial: Trial, kind: Any, sizes: list[int], rates: list[float], **options: Any) -> float:
    """The loss on the digits for validation after a plain loop over the batches of a trial."""
    workload = load_workload("digits/mlp")
    splits = workload.data(None)
    double = trial.params.get("precision") == "float64"
    dtype = torch.float64 if double else torch.float32
    model = fresh_model(workload, derive_seed(trial.seed, "init"), torch.device("cpu")).to(dtype)
    optimizer = kind(model.parameters(), lr=1.0, **options)
    order = BatchOrder(size=1400, stage=Stage(batch_size=1), seed=trial.seed)
    stream = torch.cat([index for (index,) in order.walk(range(sum(sizes)))])
    for index, rate in zip(stream.split(sizes), rates, strict=True):
        inputs, labels = splits["train"].batch(index)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs.to(dtype)), labels).backward()
        optimizer.step()
    inputs, labels = splits["val"].batch(torch.arange(397))
    with torch.no_grad():
        return float(functional.cross_entropy(model(inputs.to(dtype)), labels))


@pytest.mark.parametrize("optimizer", BY_TORCH)
def test_curve_equals_a_loop_written_by_hand(optimizer: str) -> None:
    trial = make_trial(optimizer=optimizer, params=params_of(optimizer), budget_steps=30)
    measurements, _ = run_trial(trial)
    kind, options = BY_TORCH[optimizer]
    expected = by_hand(trial, kind, [32] * 30, [0.1] * 30, **options)
    assert measurements[-1].metrics["val/loss"] == pytest.approx(expected, rel=1e-5)


def test_trials_do_not_depend_on_those_before_them() -> None:
    """The results are equal bit by bit, with every optimizer."""
    trials = [
        make_trial(
            optimizer=optimizer,
            params={**params_of(optimizer), "ema_decay": 0.9},
            budget_steps=12,
            grid=EvaluationGrid(spacing=0, min_gap=4),
        )
        for optimizer in [*OPTIMIZERS, *LIBRARY]
    ]
    forwards = [[m.metrics for m in run_trial(trial)[0]] for trial in trials]
    torch.manual_seed(99)
    backwards = [[m.metrics for m in run_trial(trial)[0]] for trial in trials[::-1]]
    assert backwards[::-1] == forwards


class Noisy(models.MLP):
    """A metric that draws random numbers, as the loss of a diffusion model does."""

    def metrics(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        return {"loss": torch.rand(len(batch[1]))}


def test_metrics_that_draw_random_numbers_draw_the_same_again() -> None:
    trial = make_trial(models.name(Noisy), budget_steps=5)
    (first, _), (again, _) = run_trial(trial), run_trial(trial)
    measured = {measurement.metrics["val/loss"] for measurement in (*first, *again)}
    assert len(measured) == 1


def test_it_goes_on_past_its_goals_if_told_to() -> None:
    goals = ["val/error < 0.3"]
    trial = make_trial(goals=goals, budget_steps=300, stop_at_goal=False)
    measurements, outcome = run_trial(trial)
    assert (outcome.status, outcome.steps) == ("reached", 300)
    _, missed = run_trial(make_trial(goals=goals, budget_steps=3, stop_at_goal=False))
    assert missed.status == "exhausted"
    assert sum(m.metrics["val/error"] < 0.3 for m in measurements) > 1


def test_a_loss_far_above_its_first_value_is_divergence_too() -> None:
    standing = Standing(make_trial(budget_steps=99).study)
    for step, loss in enumerate([2.0, *[2001.0] * 9, 1999.0, *[2001.0] * 10]):
        assert standing.status is None
        standing.add(Measurement(step=step, seconds=0, metrics={"val/loss": loss}))
    assert standing.status == "diverged"


@pytest.mark.parametrize("workload", [models.GhostCNN, models.FromFiles, models.LSTM])
def test_a_rehearsal_names_what_a_measurement_holds(workload: type) -> None:
    trial = make_trial(
        models.name(workload),
        params={"learning_rate": 0.1, "ema_decay": 0.5},
        budget_steps=1,
        extras=Extras(train_examples=10),
    )
    measurements, _ = run_trial(trial)
    assert set(rehearse(trial)) == set(measurements[-1].metrics)
    assert {"val/ema_error", "train/loss", "batch/loss"} < set(measurements[-1].metrics)


def test_a_first_loss_of_zero_is_no_measure_of_divergence() -> None:
    standing = Standing(make_trial(budget_steps=99).study)
    for step, losses in enumerate([(0.0, 1e-9), *[(1.0, 1.0)] * 10]):
        metrics = dict(zip(("val/loss", "batch/loss"), losses, strict=True))
        standing.add(Measurement(step=step, seconds=0, metrics=metrics))
        assert standing.status is None


def test_unknown_and_missing_metaparameters_are_refused() -> None:
    workload = load_workload("digits/mlp")
    for optimizer, names, code, *values in [
        ("momentum", [], "missing-value", "'momentum'", "for momentum"),
        ("sgd", ["learning_rat"], "unknown-name", "'learning_rat'", "'learning_rate'"),
        ("sgd", ["smoothing_over"], "no-effect", "'smoothing_over'", "'label_smoothing'"),
        ("sgd", ["layerwise_trust"], "no-effect", "'layerwise_trust'", "'layerwise_ratio'"),
        ("lars", ["layerwise_ratio"], "unknown-name", "'lars'", "'layerwise_ratio'"),
    ]:
        with refused(code, *values):
            check_metaparameters(optimizer, ["learning_rate", *names], workload)


class Last(models.GhostCNN):
    """A model whose images are laid out with their channels last."""

    def model(self) -> nn.Module:
        return super().model().to(memory_format=torch.channels_last)


def test_the_layout_of_a_model_changes_no_more_than_rounding() -> None:
    trials = [make_trial(name) for name in (models.name(models.GhostCNN), f"{__file__}:Last")]
    (plain, _), (last, _) = (run_trial(trial) for trial in trials)
    for one, other in zip(plain, last, strict=True):
        assert one.metrics == pytest.approx(other.metrics, rel=1e-4)
    workload, splits = prepare(trials[1].study.workload, None, torch.device("cpu"))
    assert why_not(trials[1], workload, splits, torch.device("cpu")) is None


def batch(order: BatchOrder, k: int, start: int = 0, stop: int | None = None) -> torch.Tensor:
    ((index,),) = order.walk(range(k, k + 1), start, stop)
    return index


@given(st.integers(1, 40), st.data())
def test_batches_walk_through_whole_epochs(size: int, data: st.DataObject) -> None:
    batch_size = data.draw(st.integers(1, size))
    order = BatchOrder(size=size, stage=Stage(batch_size=batch_size), seed=3)
    # As many batches as examples are a whole number of epochs: each example as often as any other.
    seen, seeds = map(torch.cat, zip(*order.walk(range(size), seeded=True), strict=True))
    for epoch in seen.split(size):
        assert sorted(epoch.tolist()) == list(range(size))
    assert len(seeds.unique()) == len(seeds), "an example looks different in each epoch"


@given(st.integers(1, 60), st.integers(0, 100), st.integers(1, 9), st.booleans())
def test_slices_add_up_to_the_batch(batch_size: int, k: int, ranks: int, endless: bool) -> None:
    order = BatchOrder(size=None if endless else 60, stage=Stage(batch_size=batch_size), seed=0)
    slices = in_slices(batch_size, ranks)
    together = torch.cat([batch(order, k, *piece) for piece in slices])
    assert together.tolist() == batch(order, k).tolist()


@given(st.integers(0, 50), st.integers(1, 60) | st.none())
def test_micro_batches_add_up_to_the_slice(size: int, micro_batch: int | None) -> None:
    pieces = micro_batches(size, micro_batch)
    assert [i for start, stop in pieces for i in range(start, stop)] == list(range(size))
    assert all(stop - start <= (micro_batch or size) for start, stop in pieces)
    assert pieces, "every rank takes part in every step"


def test_order_is_a_function_of_seed_and_batch_alone() -> None:
    visited = BatchOrder(size=10, stage=Stage(batch_size=4), seed=7)
    long_walk = [index for (index,) in visited.walk(range(200))]
    for k in (190, 5, 64):
        fresh = BatchOrder(size=10, stage=Stage(batch_size=4), seed=7)
        assert batch(fresh, k).tolist() == batch(visited, k).tolist() == long_walk[k].tolist()
    other = BatchOrder(size=10, stage=Stage(batch_size=4), seed=8)
    assert batch(other, 5).tolist() != long_walk[5].tolist()
