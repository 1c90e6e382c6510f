"""What every language model shares: the cross entropy of each next token."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from orchestrator.records import BadInput
from orchestrator.workloads.base import Workload, logits_of
from orchestrator.workloads.trees import Batch, divided

TOKENS_AT_ONCE = 4096
"""So many are evaluated at once: their logits take half a gigabyte."""


class NextToken(Workload):
    """A batch is (windows,) or the tensor of windows itself, of which every token but the first is
    predicted from those before it; or (inputs, targets), both of one length. The model returns
    logits for each position, as they are, first in a tuple, or as `.logits`. Losses are in nats
    per token."""

    def logits(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """Calls the model. Replace this for one that is called in another way: nanoGPT's returns
        the logits of all positions for `model(inputs, targets)[0]` only."""
        return logits_of(model(inputs))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        inputs, targets = _pair(batch)
        return _cross_entropies(self._checked_logits(model, inputs, targets), targets).mean(dim=1)

    def metrics(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        losses, errors = [], []
        pair = _pair(batch)
        for inputs, targets in divided(pair, max(1, TOKENS_AT_ONCE // pair[0].shape[1])):
            logits = self._checked_logits(model, inputs, targets)
            losses.append(_cross_entropies(logits, targets))
            # The largest of what isn't a number is the first: that would be right now and then.
            errors.append((logits.argmax(dim=2) != targets) | ~losses[-1].isfinite())
        return {
            "error": torch.cat(errors).float().mean(dim=1),
            "loss": torch.cat(losses).mean(dim=1),
        }

    def _checked_logits(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        logits = self.logits(model, inputs, targets)
        if logits.dim() != 3 or logits.shape[:2] != targets.shape:
            raise BadInput(
                f"The model of {type(self).__name__} must return logits for each position, of "
                f"shape {(*targets.shape, 'tokens')}, but returned {tuple(logits.shape)}. "
                "Replace `NextToken.logits` if it is to be called in another way."
            )
        return logits


def _pair(batch: Batch) -> tuple[Tensor, Tensor]:
    if isinstance(batch, Mapping):
        raise BadInput(
            f"A batch of a NextToken must be (windows,) or (inputs, targets), but is a dict of "
            f"{[*batch]}. Have `data` give the windows alone, such as `row['input_ids']`."
        )
    if isinstance(batch, Tensor):
        batch = (batch,)
    if len(batch) == 1:
        # Contiguous, as `view` wants them in models that reshape their targets.
        return batch[0][:, :-1].contiguous(), batch[0][:, 1:].contiguous()
    inputs, targets = batch
    return inputs, targets


def _cross_entropies(logits: Tensor, targets: Tensor) -> Tensor:
    """Of each token, in nats."""
    losses = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return losses.view_as(targets)
