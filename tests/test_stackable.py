"""Which models can be stacked, and the reasons that are given for all others."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import models
import pytest
import torch
from conftest import make_trial
from torch import Tensor, nn

from orchestrator.records import Range, Trial
from orchestrator.training.rules import MUON
from orchestrator.training.stackable import why_not
from orchestrator.workloads import Batch, Split, Tensors, prepare

CPU = torch.device("cpu")


def reason(trial: Trial, data_dir: Path | None = None) -> str | None:
    workload, splits = prepare(trial.study.workload, data_dir, CPU)
    return why_not(trial, workload, splits, CPU)


class WithDropout(models.Small):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(36, models.CLASSES))


class Counting(models.MLP):
    """A loss that changes each time it is computed."""

    calls = 0

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:  # type: ignore[override]
        self.calls += 1
        return super().loss(model, batch) * self.calls


class Choosing(models.MLP):
    """A loss that depends on a number through Python code."""

    def loss(self, model: nn.Module, batch: Batch, *, limit: float = 0.0) -> Tensor:  # type: ignore[override]
        losses = super().loss(model, batch)
        return losses.clamp(max=1.0) if limit > 0.5 else losses


class WithOneAnother(models.MLP):
    """A model that mixes the examples of a batch."""

    def data(self, data_dir: Path | None) -> Mapping[str, Split]:
        splits = dict(super().data(data_dir))
        train = splits["train"]

        def centred(batch: Batch, seeds: Tensor) -> Batch:
            return batch[0] - batch[0].mean(dim=0), batch[1]

        return {**splits, "train": Tensors(*train.tensors, augment=centred)}


class Masked(models.MLP):
    """A model with masks in its state, as causal attention has, and with an empty parameter."""

    def model(self) -> nn.Module:
        model = super().model()
        model.register_buffer("mask", torch.ones(3, 3).tril().bool())
        model.register_buffer("minus", torch.full((3, 3), -torch.inf).triu(1))
        return model.append(Adding(torch.ones(0, 4)))


class Adding(nn.Module):
    def __init__(self, added: Tensor) -> None:
        super().__init__()
        self.added = nn.Parameter(added)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.added.float().sum()


class Remembering(Masked):
    """A model with a running average that no checkpoint holds."""

    kept = False

    def model(self) -> nn.Module:
        model = super().model().append(nn.Identity())
        model[-1].register_buffer("seen", torch.zeros(models.CLASSES), persistent=self.kept)

        def look(module: nn.Module, given: tuple[Tensor], output: Tensor) -> None:
            module.seen = module.seen.lerp(output.detach().mean(0), 0.1)

        model[-1].register_forward_hook(look)
        return model


class OfTwoTypes(models.MLP):
    def model(self) -> nn.Module:
        return super().model().append(Adding(torch.ones(4, dtype=torch.bfloat16)))


def of(workload: type, **params: Any) -> Trial:
    return make_trial(models.name(workload), params={"learning_rate": 0.1, **params})


REFUSED: dict[str, tuple[Trial, str]] = {
    "optimizer": (make_trial(optimizer="soap"), "'soap' comes from a library"),
    "muon": (make_trial(optimizer="muon", params={"ns_steps": 3}), "Muon without 'ns_steps'"),
    "dropout": (of(models.MLP, dropout=0.3), "'dropout' draws random numbers"),
    "bfloat16": (of(models.MLP, precision="bfloat16"), "bfloat16"),
    "compiled": (of(models.MLP, compile=True), "'compile' is true"),
    "fetched": (of(models.FromFiles), "Loaded fetches batches for one trial"),
    "a model's dropout": (of(WithDropout), "randomness"),
    "lstm": (of(models.LSTM), "lstm"),
    "state": (of(Counting), "give other bits"),
    "python": (of(Choosing, limit=0.3), "data-dependent control flow"),
    "unused": (of(models.Idle), "unused"),
    "batches": (of(WithOneAnother), "batch/loss"),
    "a running average": (of(Remembering), "seen"),
    "types": (of(OfTwoTypes), "several types"),
}


@pytest.mark.parametrize(("trial", "words"), REFUSED.values(), ids=REFUSED)
def test_what_can_not(trial: Trial, words: str) -> None:
    assert words in (reason(trial) or "")


def test_a_mask_is_no_obstacle() -> None:
    assert reason(of(Masked)) is None


def test_muon_is_stacked_with_any_of_its_numbers() -> None:
    numbers = dict.fromkeys(MUON, 0.1)
    assert reason(make_trial(models.name(models.MLP), optimizer="Muon", params=numbers)) is None


def test_what_all_slots_have_in_common_is_no_tensor() -> None:
    """A number that the study fixes reaches the loss as a plain number."""
    trial = of(Choosing, limit=0.3)
    fixed = replace(trial, study=replace(trial.study, space={"limit": 0.3}))
    assert reason(fixed) is None
    searched = replace(trial.study, space={"dropout": Range(low=0, high=0.5)})
    assert "random" in (reason(replace(of(models.MLP, dropout=0.0), study=searched)) or "")
