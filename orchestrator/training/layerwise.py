"""Layer-wise learning rates: the step of each matrix is scaled by a trust ratio r.

    gradient   r = |w| / (|g| + wd |w|), as in LARS
    update     r = |w| / |u + wd w|, where u is the update of the optimizer itself, as in LAMB

The ratio is multiplied by a trust factor, and limited by a bound if there is one. If a norm is
zero, the ratio is 1. Vectors (biases, scales of norms) get the optimizer's own step, without factor
and weight decay, as in the authors' code. See You, Gitman, Ginsburg (arXiv 1708.03888); You et al.
(arXiv 1904.00962).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
            lambda stepped, *_: self._scale_updates(stepped, decays, before)
        )
        return optimizer

    def _factors(self, weights: Sequence[Tensor], steps: Sequence[Tensor]) -> Any:
        """Returns the factor of each tensor, whose norm and norm of the step are given. They stay
        on the device, so that nothing waits for them."""
        weight, step = torch.stack(list(weights)), torch.stack(list(steps))
        ratio = (self.trust * weight / step).clamp(max=self.bound)
        return torch.where((weight > 0) & (step > 0), ratio, torch.ones_like(ratio)).unbind()

    @torch.no_grad()
    def _scale_gradients(self, optimizer: Optimizer, decays: list[float]) -> None:
        for matrices, decay in zip(_matrices(optimizer), decays, strict=True):
            gradients: Any = [matrix.grad for matrix in matrices]
            if gradients:
                norms = torch._foreach_norm(matrices)
                steps = torch._foreach_add(torch._foreach_norm(gradients), norms, alpha=decay)
                torch._foreach_add_(gradients, matrices, alpha=decay)
                torch._foreach_mul_(gradients, self._factors(norms, steps))

    @torch.no_grad()
    def _scale_updates(
        self, optimizer: Optimizer, decays: list[float], before: list[list[Tensor]]
    ) -> None:
        rates = [group["lr"] for group in optimizer.param_groups]
        for matrices, rate, decay, old in zip(
            _matrices(optimizer), rates, decays, before, strict=True
        ):
            if matrices:
                steps = torch._foreach_sub(old, matrices)
                torch._foreach_add_(steps, old, alpha=rate * decay)
                # The step is the learning rate times the update. At learning rate 0 it is zero.
                updates = torch._foreach_div(torch._foreach_norm(steps), rate or 1.0)
                torch._foreach_mul_(steps, self._factors(torch._foreach_norm(old), updates))
                torch._foreach_copy_(matrices, torch._foreach_sub(old, steps))


def _matrices(optimizer: Optimizer) -> list[list[Tensor]]:
    """Returns the tensors of each group that have a gradient and two or more dimensions."""
    groups: list[dict[str, Any]] = optimizer.param_groups
    return [[p for p in group["params"] if p.grad is not None and p.ndim > 1] for group in groups]


def _remember(optimizer: Optimizer, before: list[list[Tensor]]) -> None:
    before[:] = [[p.detach().clone() for p in matrices] for matrices in _matrices(optimizer)]
