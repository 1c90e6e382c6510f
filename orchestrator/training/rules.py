"""The built-in optimizers as pure update rules on rows of weights: a single row, or a row per slot.

    (weights, gradient, state, metaparameters) -> (weights, state), in place

`weights`, `gradient` and each tensor of the state have the shape [n] or [slots, n] of a `Layout`;
metaparameters are tensors of shape [] or [slots, 1]. All arithmetic is element by element, except
for the norms of layer-wise rates. So the bits of a slot depend neither on its neighbours nor on the
number of slots. The reference is `make_optimizer`, which a trial that trains alone uses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from orchestrator.training.layout import Layout
from orchestrator.training.optimizers import OPTIMIZERS, plain, rates_of

State = Mapping[str, Tensor]
Numbers = Mapping[str, Tensor]
"""Numbers that a step needs beside the gradient: metaparameters, and numbers derived from them."""

Update = Callable[[Tensor, Tensor, State, Numbers], None]
"""Function that changes the weights and the state in place. It may overwrite the gradient."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """An optimizer as an update rule, with the numbers that the rule needs."""

    update: Update
    state: tuple[str, ...] = ()
    """Torch's names of the state's tensors, which have the weights' shape and start at zero."""
    constants: Callable[[Mapping[str, float]], dict[str, float]] = dict
    """Function from the metaparameters to the numbers for `update` that stay the same."""
    moving: Callable[[Mapping[str, float], Any, Any], dict[str, Any]]
    """Function from the metaparameters, the learning rates of some steps and the number of steps up
    to and with each, as arrays, to the numbers for `update` that change from step to step."""
    counts_steps: bool = False
    """Whether torch's state contains the number of steps, and `moving` depends on it."""


# The numbers of each slot are computed by numpy. With powers of a tensor of torch, the last bits
# would depend on the position in the vector.


def _minus_rate(params: Mapping[str, float], rate: Any, step: Any) -> dict[str, Any]:
    return {"minus_rate": -rate}


def _sgd(weights: Tensor, gradient: Tensor, state: State, numbers: Numbers) -> None:
    weights.addcmul_(gradient, numbers["minus_rate"])


def _momentum(weights: Tensor, gradient: Tensor, state: State, numbers: Numbers) -> None:
    buffer = state["momentum_buffer"]
    torch.addcmul(gradient, buffer, numbers["momentum"], out=buffer)
    weights.addcmul_(buffer, numbers["minus_rate"])


def _nesterov(weights: Tensor, gradient: Tensor, state: State, numbers: Numbers) -> None:
    buffer = state["momentum_buffer"]
    torch.addcmul(gradient, buffer, numbers["momentum"], out=buffer)
    weights.addcmul_(gradient.addcmul_(buffer, numbers["momentum"]), numbers["minus_rate"])


def _adagrad(weights: Tensor, gradient: Tensor, state: State, numbers: Numbers) -> None:
    total = state["sum"].addcmul_(gradient, gradient)
    root = total.sqrt().add_(numbers["epsilon"])
    weights.addcdiv_(gradient.mul_(numbers["minus_rate"]), root)


def _rmsprop(weights: Tensor, gradient: Tensor, state: State, numbers: Numbers) -> None:
    square = state["square_avg"].mul_(numbers["smoothing"])
    root = square.addcmul_(gradient, gradient * numbers["share"]).sqrt().add_(numbers["epsilon"])
    if "momentum_buffer" in state:
        buffer = state["momentum_buffer"].mul_(numbers["momentum"]).addcdiv_(gradient, root)
        weights.addcmul_(buffer, numbers["minus_rate"])
    else:
        weights.addcdiv_(gradient.mul_(numbers["minus_rate"]), root)


def _adam(weights: Tensor, gradient: Tensor, state: State, numbers: Numbers) -> None:
    # All in place: new memory for rows of many slots takes longer than the arithmetic.
    mean = state["exp_avg"].lerp_(gradient, numbers["share1"])
    square = state["exp_avg_sq"].lerp_(gradient.mul_(gradient), numbers["share2"])
    root = torch.sqrt(square, out=gradient).add_(numbers["epsilon"])
    weights.addcmul_(torch.div(mean, root, out=gradient), numbers["minus_rate"])


def _adam_constants(params: Mapping[str, float]) -> dict[str, float]:
    return {**params, "share1": 1 - params["beta1"], "share2": 1 - params["beta2"]}


def _adam_moving(params: Mapping[str, float], rate: Any, step: Any) -> dict[str, Any]:
    # Instead of the root, the small number and the rate are scaled.
    scale = np.sqrt(1 - params["beta2"] ** step)
    return {
        "epsilon": params["epsilon"] * scale,
        "minus_rate": -rate * scale / (1 - params["beta1"] ** step),
    }


_MOMENTUM = Rule(update=_momentum, state=("momentum_buffer",), moving=_minus_rate)
_ADAM = Rule(
    update=_adam,
    state=("exp_avg", "exp_avg_sq"),
    constants=_adam_constants,
    moving=_adam_moving,
    counts_steps=True,
)

RULES: dict[str, Rule] = {
    "sgd": Rule(update=_sgd, moving=_minus_rate),
    "momentum": _MOMENTUM,
    "nesterov": replace(_MOMENTUM, update=_nesterov),
    "adagrad": Rule(update=_adagrad, state=("sum",), moving=_minus_rate, counts_steps=True),
    "rmsprop": Rule(
        update=_rmsprop,
        state=("square_avg", "momentum_buffer"),
        constants=lambda params: {**params, "share": 1 - params["smoothing"]},
        moving=_minus_rate,
        counts_steps=True,
    ),
    "adam": _ADAM,
    "adamw": _ADAM,
    "lars": _MOMENTUM,
    "lamb": _ADAM,
}
"""Update rule of each optimizer, without weight decay and layer-wise rates."""


def make_rule(optimizer: str, params: Mapping[str, Any], layout: Layout) -> Rule:
    """Returns the complete rule of an optimizer with these metaparameters, for weights with this
    layout. Its arithmetic depends only on the names of the metaparameters and on values that are
    not numbers. Slots that have these in common can share the rule."""
    name = plain(optimizer)
    rule = RULES[name]
    if name == "rmsprop" and "momentum" not in params:
        rule = replace(rule, state=("square_avg",))
    if rates := rates_of(OPTIMIZERS[name], params):
        return _layerwise(rule, rates["ratio"], layout)
    if "weight_decay" in params:
        return _decayed(rule, layout, decoupled=name == "adamw")
    return rule


def _decayed(rule: Rule, layout: Layout, *, decoupled: bool) -> Rule:
    """Adds weight decay to a rule: to the gradient or, if `decoupled`, to the weights themselves.
    Only tensors of two or more dimensions are shrunk."""
    first = layout.shrunk

    def with_gradient(weights: Tensor, gradient: Tensor, state: State, numbers: Numbers) -> None:
        gradient[..., :first].addcmul_(weights[..., :first], numbers["weight_decay"])
        rule.update(weights, gradient, state, numbers)

    def at_once(weights: Tensor, gradient: Tensor, state: State, numbers: Numbers) -> None:
        weights[..., :first].mul_(numbers["keep"])
        rule.update(weights, gradient, state, numbers)

    def moving(params: Mapping[str, float], rate: Any, step: Any) -> dict[str, Any]:
        return {**rule.moving(params, rate, step), "keep": 1 - rate * params["weight_decay"]}

    if decoupled:
        return replace(rule, update=at_once, moving=moving)
    return replace(rule, update=with_gradient)


def _layerwise(rule: Rule, ratio: str, layout: Layout) -> Rule:
    """Adds layer-wise rates to a rule, as `LayerWise` does for torch's optimizers. Weight decay is
    part of these rates."""
    first = layout.shrunk
    if not first:
        return rule

    def factor(weight: Tensor, step: Tensor, numbers: Numbers) -> Tensor:
        found = torch.minimum(numbers["trust"] * weight / step, numbers["bound"])
        found = torch.where((weight > 0) & (step > 0), found, torch.ones_like(found))
        return layout.spread(found)

    def on_gradient(weights: Tensor, gradient: Tensor, state: State, numbers: Numbers) -> None:
        matrices, weight = gradient[..., :first], layout.norms(weights)
        length = layout.norms(gradient) + numbers["decay"] * weight
        matrices.addcmul_(weights[..., :first], numbers["decay"])
        matrices.mul_(factor(weight, length, numbers))
        rule.update(weights, gradient, state, numbers)

    def on_update(weights: Tensor, gradient: Tensor, state: State, numbers: Numbers) -> None:
        matrices = weights[..., :first]
        before = matrices.clone()
        rule.update(weights, gradient, state, numbers)
        step = (before - matrices).addcmul_(before, numbers["rate_times_decay"])
        length = layout.norms(step) * numbers["over_rate"]
        torch.sub(before, step.mul_(factor(layout.norms(before), length, numbers)), out=matrices)

    def constants(params: Mapping[str, float]) -> dict[str, float]:
        return {
            **rule.constants(params),
            "trust": params.get("trust", params.get("layerwise_trust", 1.0)),
            "bound": params.get("layerwise_bound", math.inf),
            "decay": params.get("weight_decay", 0.0),
        }

    def moving(params: Mapping[str, float], rate: Any, step: Any) -> dict[str, Any]:
        return {
            **rule.moving(params, rate, step),
            "rate_times_decay": rate * params.get("weight_decay", 0.0),
            # The step is the learning rate times the update. At learning rate 0 it is zero.
            "over_rate": 1 / np.where(rate == 0, 1.0, rate),
        }

    if ratio == "gradient":
        return replace(rule, update=on_gradient, constants=constants)
    return replace(rule, update=on_update, constants=constants, moving=moving)


def clip(gradient: Tensor, longest: Tensor, layout: Layout) -> None:
    """Scales each row of the gradient down to at most the norm `longest` ([] or [slots, 1]), as
    torch's `clip_grad_norm_` does."""
    gradient.mul_((longest / (layout.norm(gradient) + 1e-6)).clamp_(max=1.0))


def numbers_of(parts: Sequence[Mapping[str, float]], like: Tensor) -> Numbers:
    """Returns the numbers of all slots as tensors [slots, 1] with type and device of `like`."""
    return {name: like.new_tensor([[part[name]] for part in parts]) for name in parts[0]}
