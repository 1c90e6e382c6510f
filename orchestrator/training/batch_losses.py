"""The losses of the examples that were trained on, each before its update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


class BatchLosses:
    """Their sum on this rank since it was last forgotten: a vector for each micro-batch of a step,
    since adding vectors costs less than summing each."""

    def __init__(self, device: torch.device, pieces: int) -> None:
        self._device = device
        self.forget(pieces)

    def forget(self, pieces: int) -> None:
        """Begins anew, with so many micro-batches in a step."""
        self._vectors = [torch.zeros((), device=self._device) for _ in range(pieces)]
        self._folded = torch.zeros((), dtype=torch.float64, device=self._device)

    def regroup(self, pieces: int) -> None:
        """From here on, a step has so many micro-batches, of other sizes perhaps."""
        folded = self.total()
        self.forget(pieces)
        self._folded = folded

    def add(self, losses: Sequence[Tensor]) -> None:
        """Those of one step."""
        self._vectors = [total + loss for total, loss in zip(self._vectors, losses, strict=True)]

    def total(self) -> Tensor:
        sums: Tensor = torch.stack([losses.double().sum() for losses in self._vectors])
        folded: Tensor = self._folded + sums.sum()
        return folded

    def state(self) -> dict[str, Any]:
        return {
            "losses": [losses.cpu() for losses in self._vectors],
            "folded": self._folded.cpu(),
        }

    def load(self, own: Mapping[str, Any]) -> None:
        """What this rank had, in the same micro-batches."""
        self._vectors = [losses.to(self._device) for losses in own["losses"]]
        self._folded = own["folded"].to(self._device)

    def load_sum(self, owns: Sequence[Mapping[str, Any]]) -> None:
        """What several ranks had."""
        sums = [losses.double().sum() for own in owns for losses in own["losses"]]
        folded = [own["folded"] for own in owns]
        self._folded = torch.stack([part.to(self._device) for part in sums + folded]).sum()
