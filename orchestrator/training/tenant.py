"""What is known of a trial in a slot of a stack, but for its tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from orchestrator.records import Choice, Range, Trial, Value
from orchestrator.records.lr_schedules import Factor, schedule_of
from orchestrator.training.batches import BatchOrder
from orchestrator.training.optimizers import make_optimizer
from orchestrator.training.rules import Rule
from orchestrator.training.settings import Sorted


@dataclass
class Tenant:
    trial: Trial
    settings: Sorted
    params: Mapping[str, float]
    """Those of the optimizer that are numbers, with defaults for what was left out."""
    factor: Factor | None
    """Of the learning rate, by step; None where it stays as it is."""
    batches: BatchOrder
    groups: list[dict[str, Any]]
    """Those of torch's optimizer."""
    order: list[str]
    """The parameters in the order in which torch's optimizer numbers them."""
    step: int = 0
    seconds: float = 0.0
    """Its share of those spent in steps."""
    evaluation_seconds: float = 0.0
    since: int = 0
    """Steps since the batch loss was last read."""
    folded: float = 0.0
    """Losses since then that no longer are one of each place in the batch."""
    gradient_norm: float = math.nan
    averaged: int = 0
    """Steps in the average of the weights."""

    def rate(self, step: int) -> float:
        """The learning rate of the step that follows so many."""
        base = self.params["learning_rate"]
        return base if self.factor is None else base * self.factor(step)

    @property
    def averaged_share(self) -> float:
        """How much of the average of the weights is of weights that were visited: the rest is 0."""
        decay = self.settings.modifiers.ema_decay
        assert decay is not None
        return float(1 - decay**self.averaged)


def make_tenant(
    trial: Trial, settings: Sorted, model: nn.Module, rule: Rule, size: int | None
) -> Tenant:
    """`trial` before its first step, with `model` that of a trial that trains alone and `size` that
    of the training set."""
    study = trial.study
    optimizer = make_optimizer(study.optimizer, model, settings.optimizer)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    given = {name: number(v) for name, v in settings.optimizer.items() if is_number(v)}
    return Tenant(
        trial=trial,
        settings=settings,
        params={**rule.defaults, **given},
        factor=schedule_of(study, settings.schedule, size),
        batches=BatchOrder(size=size, stage=study.batches.stage(study.start_step), seed=trial.seed),
        groups=optimizer.state_dict()["param_groups"],
        order=[names[id(p)] for group in optimizer.param_groups for p in group["params"]],
    )


def kinds_of(params: Mapping[str, Value]) -> dict[str, Value | None]:
    """What all slots have in common: the names, and the values that aren't numbers."""
    return {name: None if is_number(value) else value for name, value in params.items()}


def numbers_among(settings: Mapping[str, Value], trial: Trial) -> list[str]:
    """Those of `settings` that differ from slot to slot: numbers to which the study's space does
    not give one value for all."""
    space = trial.study.space
    return [
        name
        for name, value in settings.items()
        if is_number(value) and (name not in space or isinstance(space[name], Range | Choice))
    ]


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def number(value: Value) -> float:
    assert is_number(value), value
    return float(value)
