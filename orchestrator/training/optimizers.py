"""Optimizers by name. Adding one takes an entry here and search_spaces/<name>.yaml."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import SGD, Optimizer

from orchestrator.records import BadInput, Value, unknown

Parameters = Iterable[nn.Parameter]


@dataclass(frozen=True)
class OptimizerEntry:
    build: Callable[..., Optimizer]
    """Called with the parameters and the metaparameters as keyword arguments."""
    required: tuple[str, ...]
    """Metaparameters that a search space, or whoever trains by hand, must give."""


# The fused kernels do the same arithmetic in one call, on CPU and CUDA alike.


def _sgd(parameters: Parameters, *, learning_rate: float) -> Optimizer:
    return SGD(parameters, lr=learning_rate, fused=True)


def _momentum(parameters: Parameters, *, learning_rate: float, momentum: float) -> Optimizer:
    return SGD(parameters, lr=learning_rate, momentum=momentum, fused=True)


def _nesterov(parameters: Parameters, *, learning_rate: float, momentum: float) -> Optimizer:
    # Without momentum the two are the same, and torch refuses Nesterov.
    return SGD(parameters, lr=learning_rate, momentum=momentum, nesterov=momentum > 0, fused=True)


OPTIMIZERS: dict[str, OptimizerEntry] = {
    "sgd": OptimizerEntry(_sgd, ("learning_rate",)),
    "momentum": OptimizerEntry(_momentum, ("learning_rate", "momentum")),
    "nesterov": OptimizerEntry(_nesterov, ("learning_rate", "momentum")),
}


def check_metaparameters(optimizer: str, names: Iterable[str]) -> None:
    """Refuses an unknown optimizer, and metaparameters that it lacks or doesn't take."""
    if optimizer not in OPTIMIZERS:
        raise unknown("optimizer", optimizer, OPTIMIZERS)
    given, required = set(names), OPTIMIZERS[optimizer].required
    for name in given - set(required):
        raise unknown(f"metaparameter of {optimizer!r}:", name, required)
    missing = [name for name in required if name not in given]
    if missing:
        raise BadInput(f"Optimizer {optimizer!r} needs a value or range for {', '.join(missing)}.")


def make_optimizer(
    name: str, model: nn.Module, params: Mapping[str, Value]
) -> torch.optim.Optimizer:
    check_metaparameters(name, params)
    return OPTIMIZERS[name].build(model.parameters(), **params)
