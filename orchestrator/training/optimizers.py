"""Finds optimizers by name: those of the published studies, which are defined here, and those of
libraries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

from orchestrator.records import BadInput, Value, plain, unknown
from orchestrator.training.compiler import spare_compiler
from orchestrator.training.groups import Losses, sorted_parameters
from orchestrator.training.layerwise import LayerWise
from orchestrator.training.library_optimizers import LIBRARY, LibraryOptimizer, find, own
from orchestrator.workloads import Group

LAYERWISE = ("layerwise_ratio", "layerwise_trust", "layerwise_bound")
"""Metaparameters that add layer-wise rates to an optimizer without them."""


class _Momentum(SGD):
    """On a CPU, rounds as `rules.py` does, so that a trial alone has the bits of one in a stack."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            gradients: Any = [weight.grad for weight in weights]
            if not gradients:  # all of them are frozen
                continue
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


def _momentum(groups: list[dict[str, Any]], *, nesterov: bool, **values: Any) -> Optimizer:
    on_cpu = all(weight.is_cpu for group in groups for weight in group["params"])
    kind, fused = (_Momentum, False) if on_cpu else (SGD, True)
    # At momentum 0, Nesterov momentum equals plain SGD, and torch refuses `nesterov=True`.
    return kind(groups, nesterov=nesterov and values["momentum"] > 0, fused=fused, **values)


@dataclass(frozen=True, kw_only=True)
class BuiltIn:
    """An optimizer of the published studies and its metaparameters, beside `weight_decay`."""

    make: Callable[..., Optimizer]
    """Makes torch's optimizer. Fused kernels do the same arithmetic in a single call."""
    required: tuple[str, ...] = ("learning_rate",)
    """Metaparameters that a search space, or the user of `orchestrate trial`, must give."""
    defaults: Mapping[str, float] = field(default_factory=dict)
    """Metaparameters that may be left out, with their defaults, which are torch's."""
    rates: Mapping[str, Any] = field(default_factory=dict)
    """Layer-wise rates by which the optimizer is defined."""
    takes_more: tuple[str, ...] = LAYERWISE
    """Metaparameters that add something to the optimizer."""


_fused_sgd, _fused_adam = partial(SGD, fused=True), partial(Adam, fused=True)
_OF_MOMENTUM = ("learning_rate", "momentum")
_OF_ADAM = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}

OPTIMIZERS: dict[str, BuiltIn] = {
    "sgd": BuiltIn(make=_fused_sgd),
    "momentum": BuiltIn(make=partial(_momentum, nesterov=False), required=_OF_MOMENTUM),
    "nesterov": BuiltIn(make=partial(_momentum, nesterov=True), required=_OF_MOMENTUM),
    "adagrad": BuiltIn(make=partial(Adagrad, fused=True), defaults={"epsilon": 1e-10}),
    "rmsprop": BuiltIn(
        make=RMSprop, defaults={"smoothing": 0.99, "momentum": 0.0, "epsilon": 1e-8}
    ),
    "adam": BuiltIn(make=_fused_adam, defaults=_OF_ADAM),
    "adamw": BuiltIn(make=partial(AdamW, fused=True), defaults=_OF_ADAM, takes_more=()),
    "lars": BuiltIn(
        make=_fused_sgd,
        defaults={"momentum": 0.9, "trust": 0.001},
        rates={"layerwise_ratio": "gradient"},
        takes_more=(),
    ),
    "lamb": BuiltIn(
        make=_fused_adam,
        defaults={**_OF_ADAM, "epsilon": 1e-6},
        rates={"layerwise_ratio": "update"},
        takes_more=(),
    ),
}

_TORCH_NAMES = {"learning_rate": "lr", "epsilon": "eps", "smoothing": "alpha"}


def is_built_in(name: str) -> bool:
    return plain(name) in OPTIMIZERS


def accepted_by(name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the metaparameters that the optimizer requires, and those that are optional."""
    if (kind := OPTIMIZERS.get(plain(name))) is not None:
        return kind.required, ("weight_decay", *kind.defaults, *kind.takes_more)
    found = _from_library(name)
    return found.required, tuple(found.settings)


def numbers_by_default(name: str) -> dict[str, float]:
    """Returns the metaparameters that are numbers and may be left out, with their defaults."""
    if is_built_in(name):
        return dict(OPTIMIZERS[plain(name)].defaults)
    found = _from_library(name).settings
    return {name: float(value) for name, value in found.items() if isinstance(value, int | float)}


def rates_of(kind: BuiltIn, params: Mapping[str, Value]) -> dict[str, Any]:
    """Returns the arguments of `LayerWise`; nothing without layer-wise rates."""
    values = {**kind.rates, **kind.defaults, **params}
    names = [name for name in (*LAYERWISE, "trust") if name in values]
    return {name.removeprefix("layerwise_"): values[name] for name in names}


def make_optimizer(
    name: str,
    model: nn.Module,
    params: Mapping[str, Value],
    groups: Sequence[Group] = (),
    losses: Losses | None = None,
) -> Optimizer:
    """Makes the optimizer of all parameters of `model`. `groups` are those of the workload. By the
    `losses` of a few examples, an optimizer like Muon finds the head."""
    spare_compiler()
    if (kind := OPTIMIZERS.get(plain(name))) is None:
        return _from_library(name).build(model, params, groups, losses)
    arguments: dict[str, Any] = {
        _TORCH_NAMES.get(name, name): value
        for name, value in {**kind.defaults, **params}.items()
        if name not in (*LAYERWISE, "trust")
    }
    if "beta1" in arguments:
        arguments["betas"] = arguments.pop("beta1"), arguments.pop("beta2")
    rate, decay = arguments.get("lr"), arguments.pop("weight_decay", 0.0)
    sorted_groups = sorted_parameters(model, groups, (rate, rate), (decay, decay))
    sorted_groups.sort(key=lambda group: group["weight_decay"] == 0)
    try:
        optimizer = kind.make(sorted_groups, **arguments)
    except (TypeError, ValueError) as error:
        raise BadInput(f"{name}: {error}", code=getattr(error, "code", "wrong-value")) from None
    rates = rates_of(kind, params)
    return LayerWise(**rates).around(optimizer) if rates else optimizer


def _from_library(name: str) -> LibraryOptimizer:
    found = own(name) if ":" in name else find(name)
    if found is None:
        error = unknown("optimizer", name, [*OPTIMIZERS, *LIBRARY])
        raise BadInput(f"{error} Any other class: FILE.py:CLASS.", code=error.code)
    return found
