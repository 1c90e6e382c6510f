"""Sums up the losses of training examples, each computed before the update that uses it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def with_weights(result: Any) -> tuple[Tensor, Tensor | None]:
    """Returns the losses that a workload's `loss` has returned, and their weights; None if all
    examples weigh the same. Losses of half precision get weights of 1, since 1 / batch size would
    be rounded and scale the gradient by up to 0.2 %."""
    losses, weights = result if isinstance(result, tuple) else (result, None)
    if weights is None:
        if losses.dtype.itemsize >= 4:
            return losses, None
        weights = torch.ones_like(losses)
    return losses, weights.detach().to(torch.promote_types(losses.dtype, torch.float32))


class Mean(torch.autograd.Function):
    """Returns a number whose gradient with respect to the losses (slots, examples) is that of each
    slot's mean. Given as a gradient, it would make torch load a library for symbols, which takes
    over a second."""

    @staticmethod
    def forward(ctx: Any, losses: Tensor) -> Tensor:
        ctx.shares = torch.full(
            losses.shape, 1 / losses.shape[1], dtype=losses.dtype, device=losses.device
        )
        return losses.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return ctx.shares


class BatchLosses:
    """The sum of losses on this rank since the last `forget`. It is held as a vector for each
    micro-batch of a step, since adding vectors costs less than summing each of them."""

    def __init__(self, device: torch.device, pieces: int) -> None:
        self._device = device
        self.forget(pieces)

    def forget(self, pieces: int) -> None:
        """Sets the sum to zero. From now on, a step has `pieces` micro-batches."""
        self._vectors = [torch.zeros((), device=self._device) for _ in range(pieces)]
        self._folded = torch.zeros((), dtype=torch.float64, device=self._device)

    def regroup(self, pieces: int) -> None:
        """Keeps the sum. From now on, a step has `pieces` micro-batches, perhaps of other sizes."""
        folded = self.total()
        self.forget(pieces)
        self._folded = folded

    def add(self, losses: Sequence[Tensor]) -> None:
        """Adds the losses of one step, a vector for each micro-batch."""
        self._vectors = [total + loss for total, loss in zip(self._vectors, losses, strict=True)]

    def total(self) -> Tensor:
        return self._folded + torch.stack([part.double().sum() for part in self._vectors]).sum()

    def state(self) -> dict[str, Any]:
        return {"losses": [losses.cpu() for losses in self._vectors], "folded": self._folded.cpu()}

    def load(self, rank_state: Mapping[str, Any]) -> None:
        """Restores the state of this rank. Steps must have the same micro-batches as then."""
        self._vectors = [losses.to(self._device) for losses in rank_state["losses"]]
        self._folded = rank_state["folded"].to(self._device)

    def load_sum(self, rank_states: Sequence[Mapping[str, Any]]) -> None:
        """Restores the sum over the states of several ranks."""
        sums = [
            losses.double().sum() for rank_state in rank_states for losses in rank_state["losses"]
        ]
        folded = [rank_state["folded"] for rank_state in rank_states]
        self._folded = torch.stack([part.to(self._device) for part in sums + folded]).sum()
