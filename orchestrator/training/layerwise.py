"""Layer-wise learning rates: the step of each parameter tensor is scaled by a trust ratio r.

    gradient   r = |w| / (|g| + wd |w|), as in LARS
    update     r = |w| / |u + wd w|, where u is the update of the optimizer itself, as in LAMB

The ratio is multiplied by a trust factor, and limited by a bound if there is one. If a norm is
zero, the ratio is 1. See You, Gitman, Ginsburg (arXiv 1708.03888); You et al. (arXiv 1904.00962).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer


@dataclass(frozen=True, kw_only=True)
class LayerWise:
    """Layer-wise rates for any optimizer whose update is proportional to its learning rate."""

    ratio: Literal["gradient", "update"]
    trust: float = 1.0
    """Factor on the ratio."""
    bound: float = math.inf
    """Largest ratio, after the factor."""

    def around(self, optimizer: Optimizer) -> Optimizer:
        """Returns `optimizer` with its steps scaled. Its weight decay is moved into the ratio."""
        decays = [group["weight_decay"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["weight_decay"] = 0.0
        if self.ratio == "gradient":
            optimizer.register_step_pre_hook(
                lambda stepped, *_: self._scale_gradients(stepped, decays)
            )
            return optimizer
        before: list[list[Tensor]] = []
        optimizer.register_step_pre_hook(lambda stepped, *_: _remember(stepped, before))
        optimizer.register_step_post_hook(
            lambda stepped, *_: self._scale_update(stepped, decays, before)
        )
        return optimizer

    def _factor(self, weight: Tensor, step: Tensor) -> Tensor:
        """Returns the factor for a tensor of norm `weight` whose step has norm `step`. It stays on
        the device, so that nothing waits for it."""
        ratio = (self.trust * weight / step).clamp(max=self.bound)
        return torch.where((weight > 0) & (step > 0), ratio, torch.ones_like(ratio))

    @torch.no_grad()
    def _scale_gradients(self, optimizer: Optimizer, decays: list[float]) -> None:
        for group, decay in zip(optimizer.param_groups, decays, strict=True):
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                gradient, weight = parameter.grad, parameter.norm()
                factor = self._factor(weight, gradient.norm() + decay * weight)
                parameter.grad = (gradient + decay * parameter).mul_(factor)

    @torch.no_grad()
    def _scale_update(
        self, optimizer: Optimizer, decays: list[float], before: list[list[Tensor]]
    ) -> None:
        for group, decay, old in zip(optimizer.param_groups, decays, before, strict=True):
            rate = group["lr"]
            for parameter, start in zip(group["params"], old, strict=True):
                if parameter.grad is None:
                    continue
                step = start - parameter + rate * decay * start
                # The step is the learning rate times the update. At learning rate 0 it is zero.
                factor = self._factor(start.norm(), step.norm() / rate if rate else step.norm())
                parameter.copy_(start - factor * step)


def _remember(optimizer: Optimizer, before: list[list[Tensor]]) -> None:
    groups: list[dict[str, Any]] = optimizer.param_groups
    before[:] = [[p.detach().clone() for p in group["params"]] for group in groups]
