"""Optimizers as pure update rules on rows of weights: a single row, or a row per slot.

    (weights, gradient, state, metaparameters) -> (weights, state), in place

`weights`, `gradient` and each tensor of the state have the shape [n] or [slots, n] of a `Layout`;
metaparameters are tensors of shape [] or [slots, 1]. All arithmetic is element by element, except
for the norms of layer-wise rates and for Muon's products of matrices. So the bits of a slot depend
neither on its neighbours nor on the number of slots. The reference is `make_optimizer`, which a
trial that trains alone uses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from orchestrator.records import plain
from orchestrator.training.layout import Layout
from orchestrator.training.optimizers import OPTIMIZERS, is_built_in, rates_of
from orchestrator.training.same_bits import orthogonalised

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
    """Function from the metaparameters, the factors on the learning rates in some steps and the
    number of steps up to and with each, as arrays, to the numbers for `update` that change from
    step to step."""
    counts_steps: Literal["in state", "in groups"] | None = None
    """Where the optimizer keeps the number of steps, on which `moving` depends: for each parameter
    in its state, or in its groups of parameters."""
    names: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    """Number of a parameter that has other tensors than `state` -> its rows among them, with the
    optimizer's names of them."""

    def tensors(self, number: int) -> Mapping[str, str]:
        """Returns the rows that hold the state of a parameter, with the optimizer's names."""
        return self.names.get(number, {name: name for name in self.state})


# The numbers of each slot are computed by numpy. With powers of a tensor of torch, the last bits
# would depend on the position in the vector.


def _minus_rate(params: Mapping[str, float], factor: Any, step: Any) -> dict[str, Any]:
    return {"minus_rate": -params["learning_rate"] * factor}


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
    root = _root(total).add_(numbers["epsilon"])
    weights.addcdiv_(gradient.mul_(numbers["minus_rate"]), root)


def _rmsprop(weights: Tensor, gradient: Tensor, state: State, numbers: Numbers) -> None:
    square = state["square_avg"].mul_(numbers["smoothing"])
    square.addcmul_(gradient, gradient * numbers["share"])
    root = _root(square).add_(numbers["epsilon"])
    if "momentum_buffer" in state:
        buffer = state["momentum_buffer"].mul_(numbers["momentum"]).addcdiv_(gradient, root)
        weights.addcmul_(buffer, numbers["minus_rate"])
    else:
        weights.addcdiv_(gradient.mul_(numbers["minus_rate"]), root)


def _root(square: Tensor, out: Tensor | None = None) -> Tensor:
    # A weight whose input is always zero has a square of zero, whose root takes MKL five times as
    # long as this.
    return torch.rsqrt(square, out=out).reciprocal_()


def _adam(weights: Tensor, gradient: Tensor, state: State, numbers: Numbers) -> None:
    # All in place: new memory for rows of many slots takes longer than the arithmetic.
    mean = state["exp_avg"].lerp_(gradient, numbers["share1"])
    square = state["exp_avg_sq"].lerp_(gradient.mul_(gradient), numbers["share2"])
    root = _root(square, gradient).add_(numbers["epsilon"])
    weights.addcmul_(torch.div(mean, root, out=gradient), numbers["minus_rate"])


def _adam_constants(params: Mapping[str, float]) -> dict[str, float]:
    return {**params, "share1": 1 - params["beta1"], "share2": 1 - params["beta2"]}


def _adam_moving(params: Mapping[str, float], factor: Any, step: Any) -> dict[str, Any]:
    # Instead of the root, the small number and the rate are scaled.
    rate, scale = params["learning_rate"] * factor, np.sqrt(1 - params["beta2"] ** step)
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
    counts_steps="in state",
)

RULES: dict[str, Rule] = {
    "sgd": Rule(update=_sgd, moving=_minus_rate),
    "momentum": _MOMENTUM,
    "nesterov": replace(_MOMENTUM, update=_nesterov),
    "adagrad": Rule(update=_adagrad, state=("sum",), moving=_minus_rate, counts_steps="in state"),
    "rmsprop": Rule(
        update=_rmsprop,
        state=("square_avg", "momentum_buffer"),
        constants=lambda params: {**params, "share": 1 - params["smoothing"]},
        moving=_minus_rate,
        counts_steps="in state",
    ),
    "adam": _ADAM,
    "adamw": _ADAM,
    "lars": _MOMENTUM,
    "lamb": _ADAM,
}
"""Update rule of each optimizer, without weight decay and layer-wise rates."""


MUON = (
    *("learning_rate", "momentum", "weight_decay"),
    *("adamw_lr", "adamw_beta1", "adamw_beta2", "adamw_eps", "adamw_wd"),
)
"""Metaparameters of Muon that its rule takes. The others have the library's defaults."""


def is_muon(optimizer: str) -> bool:
    return plain(optimizer) == "muon"


def why_no_rule(optimizer: str, names: Iterable[str]) -> str | None:
    """Returns the reason why no rule does what an optimizer with metaparameters of these names
    does; None if one does."""
    if not is_muon(optimizer):
        return None if is_built_in(optimizer) else f"optimizer {optimizer!r} comes from a library"
    others = [name for name in names if name not in MUON]
    return f"a stack has Muon without {others[0]!r}" if others else None


def make_rule(
    optimizer: str, params: Mapping[str, Any], layout: Layout, hidden: Collection[int] = ()
) -> Rule:
    """Returns the complete rule of an optimizer with these metaparameters, for weights with this
    layout. Its arithmetic depends only on the names of the metaparameters and on values that are
    not numbers. Slots that have these in common can share the rule. `hidden` are the numbers of the
    parameters that Muon orthogonalises."""
    if is_muon(optimizer):
        return _muon(params, layout, hidden)
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

    def moving(params: Mapping[str, float], factor: Any, step: Any) -> dict[str, Any]:
        rate = params["learning_rate"] * factor
        return {**rule.moving(params, factor, step), "keep": 1 - rate * params["weight_decay"]}

    if decoupled:
        return replace(rule, update=at_once, moving=moving)
    return replace(rule, update=with_gradient)


def _muon(params: Mapping[str, Any], layout: Layout, hidden: Collection[int]) -> Rule:
    """Muon of `pytorch_optimizer`: orthogonalised momentum for hidden matrices, and AdamW for all
    others. Adam's first moment and the momentum of hidden matrices share a tensor of the state."""
    others = [number for number in range(len(layout.shapes)) if number not in hidden]
    ours, theirs = layout.runs(hidden), layout.runs(others)
    shrunk = layout.runs(number for number in others if len(layout.shapes[number]) > 1)
    alike: dict[tuple[int, int], list[int]] = {}
    for number in sorted(hidden):
        first, *rest = layout.shapes[number]
        alike.setdefault((first, math.prod(rest)), []).append(number)

    def orthogonalise(rows: Tensor) -> None:
        for shape, numbers in alike.items():
            matrices = [
                layout.view(rows, number).view(*rows.shape[:-1], *shape) for number in numbers
            ]
            found = orthogonalised(torch.stack(matrices, dim=-3)).to(rows.dtype)
            found *= max(1.0, shape[0] / shape[1]) ** 0.5
            torch._foreach_copy_(matrices, found.unbind(-3))

    def update(weights: Tensor, gradient: Tensor, state: State, numbers: Numbers) -> None:
        for run in ours:
            buffer = state["exp_avg"][..., run].lerp_(gradient[..., run], numbers["toward"])
            gradient[..., run].lerp_(buffer, numbers["momentum"])
        orthogonalise(gradient)
        for run in ours:
            if "weight_decay" in params:
                weights[..., run].mul_(numbers["keep"])
            weights[..., run].addcmul_(gradient[..., run], numbers["minus_muon_rate"])
        for run in shrunk if "adamw_wd" in params else ():
            weights[..., run].mul_(numbers["adamw_keep"])
        for run in theirs:
            of_run = {name: rows[..., run] for name, rows in state.items()}
            _adam(weights[..., run], gradient[..., run], of_run, numbers)

    def of_adam(params: Mapping[str, float]) -> dict[str, float]:
        names = {"learning_rate": "lr", "beta1": "beta1", "beta2": "beta2", "epsilon": "eps"}
        return {ours: params[f"adamw_{theirs}"] for ours, theirs in names.items()}

    def constants(params: Mapping[str, float]) -> dict[str, float]:
        momentum = params["momentum"]
        return {**_adam_constants(of_adam(params)), "momentum": momentum, "toward": 1 - momentum}

    def moving(params: Mapping[str, float], factor: Any, step: Any) -> dict[str, Any]:
        rate, adamw_rate = params["learning_rate"] * factor, params["adamw_lr"] * factor
        return {
            **_adam_moving(of_adam(params), factor, step),
            "minus_muon_rate": -rate,
            "keep": 1 - rate * params["weight_decay"],
            "adamw_keep": 1 - adamw_rate * params["adamw_wd"],
        }

    return Rule(
        update=update,
        state=_ADAM.state,
        constants=constants,
        moving=moving,
        counts_steps="in groups",
        names={number: {"exp_avg": "momentum_buffer"} for number in hidden},
    )


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

    def moving(params: Mapping[str, float], factor: Any, step: Any) -> dict[str, Any]:
        rate = params["learning_rate"] * factor
        return {
            **rule.moving(params, factor, step),
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
