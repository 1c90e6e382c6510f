"""The base class of language models: their loss is the cross entropy of each next token."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from orchestrator.records import BadInput
from orchestrator.workloads.base import Workload, logits_of
from orchestrator.workloads.trees import Batch, divided

TOKENS_AT_ONCE = 4096
"""Number of tokens that are evaluated at once. Their logits take half a gigabyte."""


class NextToken(Workload):
    """A workload that predicts each next token. A batch is a tensor of windows, alone or in a tuple
    (windows,): every token of a window but the first is predicted from the tokens before it. Or a
    batch is (inputs, targets), both of one length. The model returns logits for each position:
    alone, first in a tuple, or as `.logits`. Losses are in nats per token."""

    def logits(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """Calls the model. Override this for a model that is called in another way: nanoGPT's
        returns the logits of all positions only as `model(inputs, targets)[0]`."""
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
            # argmax over NaNs returns index 0, which is sometimes the true token.
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
                "Override `NextToken.logits` if the model must be called in another way.",
                code="wrong-result",
            )
        return logits


def _pair(batch: Batch) -> tuple[Tensor, Tensor]:
    if isinstance(batch, Mapping):
        raise BadInput(
            f"A batch of a NextToken must be (windows,) or (inputs, targets), not a dict of "
            f"{[*batch]}. Make `data` return the windows alone, such as `row['input_ids']`.",
            code="wrong-data",
        )
    if isinstance(batch, Tensor):
        batch = (batch,)
    if len(batch) == 1:
        # Models that reshape their targets with `view` need contiguous tensors.
        return batch[0][:, :-1].contiguous(), batch[0][:, 1:].contiguous()
    inputs, targets = batch
    return inputs, targets


def _cross_entropies(logits: Tensor, targets: Tensor) -> Tensor:
    """Returns the cross entropy of each token, in nats."""
    losses = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return losses.view_as(targets)
