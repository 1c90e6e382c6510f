"""What every language model shares: the cross entropy of each next token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from orchestrator.workloads.augmentation import Batch
from orchestrator.workloads.base import Workload

TOKENS_AT_ONCE = 4096
"""So many are evaluated at once: their logits take half a gigabyte."""


class NextToken(Workload):
    """A batch is (windows,), of which every token but the first is predicted from those before it,
    or (inputs, targets), both of one length. The model returns logits for each position, as they
    are, first in a tuple, or as `.logits`. Losses are in nats per token."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        inputs, targets = _pair(batch)
        return _cross_entropies(_logits(model(inputs)), targets).mean(dim=1)

    def metrics(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        inputs, targets = _pair(batch)
        losses, errors = [], []
        at_once = max(1, TOKENS_AT_ONCE // inputs.shape[1])
        for some, wanted in zip(*(torch.split(t, at_once) for t in (inputs, targets)), strict=True):
            logits = _logits(model(some))
            losses.append(_cross_entropies(logits, wanted))
            # The largest of what isn't a number is the first: that would be right now and then.
            errors.append((logits.argmax(dim=2) != wanted) | ~losses[-1].isfinite())
        return {
            "error": torch.cat(errors).float().mean(dim=1),
            "loss": torch.cat(losses).mean(dim=1),
        }


def _pair(batch: Batch) -> tuple[Tensor, Tensor]:
    if len(batch) == 1:
        return batch[0][:, :-1], batch[0][:, 1:]
    inputs, targets = batch
    return inputs, targets


def _logits(output: Any) -> Tensor:
    logits: Tensor = output[0] if isinstance(output, tuple) else getattr(output, "logits", output)
    return logits


def _cross_entropies(logits: Tensor, targets: Tensor) -> Tensor:
    """Of each token, in nats."""
    losses = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return losses.view_as(targets)
