"""Layer-wise learning rates: each parameter tensor's step is scaled by a trust ratio.

    gradient   r = |w| / (|g| + wd |w|): the form of LARS
    update     r = |w| / |u + wd w|, where u is the update of the optimizer itself: that of LAMB

times a trust factor, and at most a bound, if one is given. A zero norm gives ratio 1.
You, Gitman, Ginsburg (arXiv 1708.03888); You et al. (arXiv 1904.00962).
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
    """Goes around any optimizer whose update is proportional to its learning rate."""

    ratio: Literal["gradient", "update"]
    trust: float = 1.0
    bound: float = math.inf

    def around(self, optimizer: Optimizer) -> Optimizer:
        """`optimizer` with its steps scaled. Weight decay moves from it into the ratio."""
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
        """The factor for a tensor of norm `weight` whose step has norm `step`; stays on the
        device, so that nothing waits for it."""
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
                # The step is lr times the update: at lr 0 there is none.
                factor = self._factor(start.norm(), step.norm() / rate if rate else step.norm())
                parameter.copy_(start - factor * step)


def _remember(optimizer: Optimizer, before: list[list[Tensor]]) -> None:
    groups: list[dict[str, Any]] = optimizer.param_groups
    before[:] = [[p.detach().clone() for p in group["params"]] for group in groups]
