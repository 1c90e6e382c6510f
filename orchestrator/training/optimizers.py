"""Finds optimizers by name. Those of the published studies are defined here; all others come from
libraries."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

from orchestrator.records import BadInput, Value, check_kind, unknown, wrong_value
from orchestrator.training.layerwise import LayerWise
from orchestrator.training.library_optimizers import LibraryOptimizer, all_classes, find, own
from orchestrator.training.uncompiled import spare_compiler

Parameters = Sequence[dict[str, Any]]
"""Parameter groups as torch has them."""


# The keyword arguments of these functions are metaparameters. A search space, or the user of
# `orchestrate trial`, must give those without a default. The defaults are torch's. Fused kernels do
# the same arithmetic in a single call, both on CPUs and on CUDA.


def _sgd(parameters: Parameters, *, learning_rate: float) -> Optimizer:
    return SGD(parameters, lr=learning_rate, fused=True)


class _Momentum(SGD):
    """On a CPU, rounds as `rules.py` does, so that a trial alone has the bits of one in a stack."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            gradients: Any = [weight.grad for weight in weights]
            if decay := group["weight_decay"]:
                gradients = torch._foreach_add(gradients, weights, alpha=decay)
            states = [self.state[weight] for weight in weights]
            before = [
                state["momentum_buffer"] if state else torch.zeros_like(weight)
                for state, weight in zip(states, weights, strict=True)
            ]
            change = buffers = torch._foreach_add(gradients, before, alpha=group["momentum"])
            if group["nesterov"]:
                change = torch._foreach_add(gradients, buffers, alpha=group["momentum"])
            torch._foreach_add_(weights, change, alpha=-group["lr"])
            for state, buffer in zip(states, buffers, strict=True):
                state["momentum_buffer"] = buffer


def _momentum(parameters: Parameters, *, learning_rate: float, momentum: float) -> Optimizer:
    return _with_momentum(parameters, learning_rate, momentum, nesterov=False)


def _nesterov(parameters: Parameters, *, learning_rate: float, momentum: float) -> Optimizer:
    # At momentum 0, Nesterov momentum equals plain SGD, and torch refuses `nesterov=True`.
    return _with_momentum(parameters, learning_rate, momentum, nesterov=momentum > 0)


def _with_momentum(
    parameters: Parameters, rate: float, momentum: float, *, nesterov: bool
) -> Optimizer:
    on_cpu = all(weight.is_cpu for group in parameters for weight in group["params"])
    kind, fused = (_Momentum, False) if on_cpu else (SGD, True)
    return kind(parameters, lr=rate, momentum=momentum, nesterov=nesterov, fused=fused)


def _adagrad(parameters: Parameters, *, learning_rate: float, epsilon: float = 1e-10) -> Optimizer:
    return Adagrad(parameters, lr=learning_rate, eps=epsilon, fused=True)


def _rmsprop(
    parameters: Parameters,
    *,
    learning_rate: float,
    smoothing: float = 0.99,
    momentum: float = 0.0,
    epsilon: float = 1e-8,
) -> Optimizer:
    return RMSprop(parameters, lr=learning_rate, alpha=smoothing, momentum=momentum, eps=epsilon)


def _adam(
    kind: type[Adam],
    parameters: Parameters,
    *,
    learning_rate: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
) -> Optimizer:
    return kind(parameters, lr=learning_rate, betas=(beta1, beta2), eps=epsilon, fused=True)


def _lars(
    parameters: Parameters, *, learning_rate: float, momentum: float = 0.9, trust: float = 0.001
) -> Optimizer:
    inner = SGD(parameters, lr=learning_rate, momentum=momentum, fused=True)
    return LayerWise(ratio="gradient", trust=trust).around(inner)


def _lamb(
    parameters: Parameters,
    *,
    learning_rate: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-6,
) -> Optimizer:
    inner = _adam(
        Adam, parameters, learning_rate=learning_rate, beta1=beta1, beta2=beta2, epsilon=epsilon
    )
    return LayerWise(ratio="update").around(inner)


OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "sgd": _sgd,
    "momentum": _momentum,
    "nesterov": _nesterov,
    "adagrad": _adagrad,
    "rmsprop": _rmsprop,
    "adam": partial(_adam, Adam),
    "adamw": partial(_adam, AdamW),
    "lars": _lars,
    "lamb": _lamb,
}
"""Built-in optimizer -> function that makes it. Each takes `weight_decay`, too."""

LAYERWISE = ("layerwise_ratio", "layerwise_trust", "layerwise_bound")
"""Metaparameters that add layer-wise rates to an optimizer without them."""

_TAKES_LAYERWISE = ("sgd", "momentum", "nesterov", "adagrad", "rmsprop", "adam")


def _plain(name: str) -> str:
    """Returns the name as in `OPTIMIZERS`: case and underscores don't matter."""
    return name.replace("_", "").lower()


def is_built_in(name: str) -> bool:
    return _plain(name) in OPTIMIZERS


_RULES: dict[str, tuple[str, Callable[[float], bool]]] = {
    "learning_rate": ("at least 0", lambda value: value >= 0),
    "weight_decay": ("at least 0", lambda value: value >= 0),
    "epsilon": ("at least 0", lambda value: value >= 0),
    "trust": ("above 0", lambda value: value > 0),
    **{
        name: ("from 0 to below 1", lambda value: 0 <= value < 1)
        for name in ("momentum", "smoothing", "beta1", "beta2")
    },
}


def _check_values(params: Mapping[str, Value]) -> None:
    for name, value in params.items():
        if name in _RULES:
            check_kind(name, value, 0.0)
            rule, holds = _RULES[name]
            if not holds(float(value)):
                raise wrong_value(repr(name), rule, value)


def accepted_by(name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the metaparameters that the optimizer requires, and those that are optional."""
    if not is_built_in(name):
        found = _from_library(name)
        return found.required, tuple(found.settings)
    _, *parameters = inspect.signature(OPTIMIZERS[_plain(name)]).parameters.values()
    required = tuple(p.name for p in parameters if p.default is p.empty)
    optional = tuple(p.name for p in parameters if p.default is not p.empty)
    layerwise = LAYERWISE if _plain(name) in _TAKES_LAYERWISE else ()
    return required, ("weight_decay", *optional, *layerwise)


def make_optimizer(name: str, model: nn.Module, params: Mapping[str, Value]) -> Optimizer:
    _check_values(params)
    spare_compiler()
    if not is_built_in(name):
        return _from_library(name).build(model, params)
    arguments: dict[str, Any] = {n: value for n, value in params.items() if n not in LAYERWISE}
    layerwise = {name.partition("_")[2]: params[name] for name in LAYERWISE if name in params}
    weight_decay = arguments.pop("weight_decay", 0.0)
    parameters = list(model.parameters())
    # Biases and the scales of norms are vectors; shrinking them regularises nothing. Each group
    # costs a call per step, so there is a second group only with weight decay.
    shrunk = [p for p in parameters if p.ndim > 1] if weight_decay else []
    others = [p for p in parameters if p.ndim <= 1] if weight_decay else parameters
    groups = [
        {"params": members, "weight_decay": decay}
        for members, decay in ((shrunk, weight_decay), (others, 0.0))
        if members
    ]
    try:
        optimizer = OPTIMIZERS[_plain(name)](groups, **arguments)
    except (TypeError, ValueError) as error:
        raise BadInput(f"{name}: {error}", code=getattr(error, "code", "wrong-value")) from None
    return _layerwise(**layerwise).around(optimizer) if layerwise else optimizer


def _from_library(name: str) -> LibraryOptimizer:
    if ":" in name:
        return own(name)
    found = find(name)
    if found is None:
        # The libraries have more than a hundred optimizers, so only similar names are listed.
        error = unknown("optimizer", name, [*OPTIMIZERS, *get_close_matches(name, all_classes())])
        raise BadInput(f"{error} And all of torch.optim and pytorch_optimizer.", code=error.code)
    return found


def _layerwise(**settings: Any) -> LayerWise:
    if settings["ratio"] not in ("gradient", "update"):
        raise unknown("layerwise_ratio", str(settings["ratio"]), ("gradient", "update"))
    for name in ("trust", "bound"):
        value = settings.get(name, 1.0)
        if isinstance(value, (str, bool)) or not value > 0:
            raise wrong_value(f"'layerwise_{name}'", "a number above 0", value)
    return LayerWise(**settings)
