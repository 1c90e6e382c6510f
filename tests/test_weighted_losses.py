"""Losses whose examples do not weigh the same, against a loop by hand over whole batches."""

from collections.abc import Callable, Mapping
from typing import Any

import models
import pytest
import torch
from conftest import make_trial, refused, run_trial
from torch import Tensor, nn
from torch.nn import functional

from orchestrator.records import Extras, derive_seed
from orchestrator.training import rehearse
from orchestrator.training.batches import BatchOrder
from orchestrator.training.engine import Single
from orchestrator.training.pack import train_in_stack
from orchestrator.training.ranks import Ranks
from orchestrator.training.trainer import fresh_model
from orchestrator.workloads import Batch

STEPS, SIZE = 12, 37


def weights_of(batch: Batch) -> Tensor:
    """From 0 to 9, as the numbers of tokens of padded windows."""
    return batch[0].flatten(1)[:, 0].abs().mul(7).floor().clamp(max=9)  # type: ignore[index]


class Weighted(models.MLP):
    change: Callable[[Tensor], Tensor] = staticmethod(lambda weights: weights)

    def loss(self, model: nn.Module, batch: Batch) -> Any:  # type: ignore[override]
        return super().loss(model, batch), self.change(weights_of(batch))

    def metrics(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        norms = torch.stack([p.double().norm() for p in model.parameters()])
        return {**super().metrics(model, batch), "norm": norms.sum().expand(len(batch[0]))}


class Nothing(Weighted):
    change = staticmethod(lambda weights: weights * 0)


class Negative(Weighted):
    change = staticmethod(lambda weights: weights - 100)


class OneWeight(Weighted):
    change = staticmethod(torch.sum)


class HalfPrecision(models.MLP):
    """The losses are in bfloat16, and no other number is."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:  # type: ignore[override]
        return super().loss(model, batch).bfloat16()


def by_hand() -> tuple[list[float], float]:
    """Returns the loss of each step's batch, and the sum of the norms of all parameters at the
    end."""
    workload = Weighted()
    model = fresh_model(workload, derive_seed(1, "init"), torch.device("cpu")).double()
    train = workload.data(None)["train"]
    stage = trial().study.batches.stages[0]
    losses = []
    order = BatchOrder(size=train.size, stage=stage, seed=1)
    for index in order.tables(range(STEPS), seeded=False)[0]:
        images, labels = train.batch(index)
        weights = weights_of((images, labels)).double()
        each = functional.cross_entropy(model(images.double()), labels, reduction="none")
        loss = (weights * each).sum() / weights.sum()
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(0.1 * parameter.grad)
        losses.append(loss.item())
    return losses, sum(p.norm().item() for p in model.parameters())


def trial(name: str = "Weighted", **changes: Any) -> Any:
    params = {"learning_rate": 0.1, "precision": "float64"}
    settings = {"params": params, "batch_size": SIZE, "budget_steps": STEPS, **changes}
    return make_trial(f"{__file__}:{name}", **settings)


@pytest.mark.parametrize(("ranks", "micro_batch"), [(1, None), (1, 5), (2, None), (2, 5)])
def test_a_step_follows_the_weighted_mean_of_the_global_batch(
    ranks: int, micro_batch: int | None, train_on_pair: Callable[..., Any]
) -> None:
    run = run_trial if ranks == 1 else train_on_pair
    measurements, _ = run(trial(), micro_batch=micro_batch)
    losses, norm = by_hand()
    assert measurements[-1].metrics["val/norm"] == pytest.approx(norm, rel=1e-12)
    steps = [m.step for m in measurements]
    for before, after, m in zip(steps, steps[1:], measurements[1:], strict=False):
        mean = sum(losses[before:after]) / (after - before)
        assert m.metrics["batch/loss"] == pytest.approx(mean, rel=1e-12)


def test_a_batch_of_weight_zero_moves_nothing() -> None:
    measurements, outcome = run_trial(trial("Nothing"))
    assert outcome.status == "exhausted"
    assert measurements[-1].metrics["val/norm"] == measurements[0].metrics["val/norm"]


def test_losses_of_half_precision_have_the_gradient_of_the_mean() -> None:
    """1 / 37 in bfloat16 is 0.15 % more than 1 / 37."""
    gradients = []
    for name in (models.name(models.MLP), f"{__file__}:HalfPrecision"):
        study = make_trial(name, batch_size=SIZE, budget_steps=1)
        engine = Single(study, Ranks())
        engine.put(0, study)
        engine.advance(1)
        gradients.append(engine.at().model[4].bias.grad)
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=0)


def test_weights_that_cant_be_are_refused_before_training() -> None:
    for name, code, value in (
        ("OneWeight", "wrong-result", "(2,)"),
        ("Negative", "wrong-value", "at least 0"),
    ):
        with refused(code, value):
            rehearse(trial(name))
    with refused("wrong-value", "`noise_scale`"):
        rehearse(trial(extras=Extras(noise_scale="repeats")))
    with refused("not-stackable", "weights"):
        next(train_in_stack(trial(), 4))
