"""Training that starts from pretrained weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import models
import pytest
import torch
from conftest import make_trial, refused, run_trial
from torch import nn

from orchestrator import with_ghosts
from orchestrator.workloads import load_workload


class Pretrained(models.MLP):
    """A workload that starts from weights in the data folder."""

    def model(self) -> nn.Module:
        model = super().model()
        model.load_state_dict(torch.load(self.data_dir / "weights.pt", weights_only=True))
        return model


class InEvaluationMode(Pretrained):
    """A model in evaluation mode, as from_pretrained returns it. Half of its activations are
    dropped in training."""

    def model(self) -> nn.Module:
        model = super().model()
        model[3].p = 0.5
        return model.eval()


class InTrainingMode(InEvaluationMode):
    def model(self) -> nn.Module:
        return super().model().train()


class FrozenBody(Pretrained):
    """Of its vectors, which are not shrunk and so a group of their own, none is trained."""

    def model(self) -> nn.Module:
        model = super().model()
        for frozen in (model[1], model[4].bias):
            frozen.requires_grad_(False)
        return model

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, torch.Tensor]:
        sums = {f"sum_{n}": model[n].weight.sum().expand(len(batch[1])) for n in (1, 4)}
        return {**super().metrics(model, batch), **sums}


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """Writes the weights after 100 steps to a folder of data."""
    model = models.MLP().model()
    images, labels = models.MLP().data(None)["train"].tensors
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    return tmp_path


def curve(workload: type, data_dir: Path, run: Any = run_trial, **changes: Any) -> list[Any]:
    trial = make_trial(models.name(workload), budget_steps=20, **changes)
    return [m.metrics for m in run(trial, data_dir=data_dir)[0]]


def test_training_starts_from_the_weights_in_the_data_folder(weights: Path) -> None:
    model = models.MLP().model().eval().requires_grad_(False)
    model.load_state_dict(torch.load(weights / "weights.pt", weights_only=True))
    images, labels = models.MLP().data(None)["val"].tensors
    loss = float(nn.functional.cross_entropy(model(images), labels))
    measured = curve(Pretrained, weights)
    assert measured[0]["val/loss"] == pytest.approx(loss, rel=1e-5)
    assert measured[0]["val/loss"] == curve(Pretrained, weights, seed=2)[0]["val/loss"]
    assert measured[-1]["val/loss"] != measured[0]["val/loss"]


def test_a_model_in_evaluation_mode_is_trained_like_any_other(weights: Path) -> None:
    expected = curve(InTrainingMode, weights)
    assert curve(InEvaluationMode, weights) == expected
    assert curve(Pretrained, weights) != expected


@pytest.mark.dear
@pytest.mark.parametrize("optimizer", ["momentum", "adam", "lars"])
def test_a_frozen_part_stays_as_it_is_on_any_number_of_ranks(
    optimizer: str, weights: Path, train_on_pair: Callable[..., Any]
) -> None:
    params = {"learning_rate": 0.01, "ema_decay": 0.9, "gradient_clip": 1.0, "weight_decay": 0.1}
    params |= {"momentum": 0.9} if optimizer != "adam" else {}
    trial = make_trial(models.name(FrozenBody), optimizer=optimizer, params=params, budget_steps=20)
    alone = run_trial(trial, data_dir=weights)[0]
    assert len({measurement.metrics["val/sum_1"] for measurement in alone}) == 1
    assert len({measurement.metrics["val/sum_4"] for measurement in alone}) > len(alone) / 2
    together = train_on_pair(trial, data_dir=weights)[0]
    for one, other in zip(alone, together, strict=True):
        assert other.metrics == pytest.approx(one.metrics, rel=1e-4)


def test_ghosts_keep_pretrained_weights_and_statistics() -> None:
    norm = nn.BatchNorm1d(3)
    for tensor in norm.state_dict().values():
        tensor.copy_(torch.arange(1, 4) if tensor.dim() else torch.tensor(7))
    before = {name: tensor.clone() for name, tensor in norm.state_dict().items()}
    after = with_ghosts(norm, 8).state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_an_option_cannot_hide_the_data_folder(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\nfrom orchestrator import Classification\n"
        "@dataclass\nclass Mine(Classification):\n    goal = 'val/e < 1'\n    data_dir: str = ''\n"
        "    def data(self, data_dir): ...\n    def model(self): ...\n"
    )
    with refused("given-twice", f"{tmp_path}/mine.py:Mine", "'data_dir'"):
        load_workload(f"{tmp_path}/mine.py:Mine")
