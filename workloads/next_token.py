"""The base class of language models: their loss is the cross entropy of each next token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from orchestrator.records import BadInput
from orchestrator.workloads.base import IGNORED, Workload, logits_of
from orchestrator.workloads.trees import Batch, divided

TOKENS_AT_ONCE = 4096
"""Number of tokens that are evaluated at once. Their logits take half a gigabyte."""


class NextToken(Workload):
    """A workload that predicts each next token. A batch is a tensor of windows, alone or in a tuple
    (windows,): every token of a window but the first is predicted from the tokens before it. Or a
    batch is (inputs, targets), both of one length. Or it is a dict as Hugging Face's: `input_ids`,
    and, if you like, `labels` of the same places and `attention_mask`. The model gets all but
    `labels` as keyword arguments.

    Targets of -100 are ignored, and so is what `attention_mask` leaves out if there are no labels.
    The model returns logits for each position: alone, first in a tuple, or as `logits`. Losses are
    in nats per token: means over the targets of an example, 0 for an example without any. With
    labels or a mask in a dict, examples weigh as many as they have targets in training."""

    def logits(self, model: nn.Module, inputs: Batch, targets: Tensor) -> Tensor:
        """Calls the model. Override this for a model that is called in another way: nanoGPT's
        returns the logits of all positions only as `model(inputs, targets)[0]`."""
        return logits_of(model(**inputs) if isinstance(inputs, Mapping) else model(inputs))

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        inputs, targets = _pair(batch)
        logits = self._checked_logits(model, inputs, targets)
        losses = _means(_cross_entropies(logits, targets), targets)
        if isinstance(batch, Mapping) and {"labels", "attention_mask"} & batch.keys():
            return losses, (targets != IGNORED).sum(dim=1)
        return losses

    def metrics(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        losses, errors = [], []
        given, wanted = _pair(batch)
        at_once = max(1, TOKENS_AT_ONCE // max(1, wanted.shape[1]))
        for inputs, targets in divided((given, wanted), at_once):
            logits = self._checked_logits(model, inputs, targets)
            losses.append(_cross_entropies(logits, targets))
            # argmax over NaNs returns index 0, which is sometimes the true token.
            wrong = (logits.argmax(dim=2) != targets) | ~losses[-1].isfinite()
            errors.append(wrong & (targets != IGNORED))
        return {
            "error": _means(torch.cat(errors).float(), wanted),
            "loss": _means(torch.cat(losses), wanted),
        }

    def _checked_logits(self, model: nn.Module, inputs: Batch, targets: Tensor) -> Tensor:
        logits = self.logits(model, inputs, targets)
        if logits.dim() != 3 or logits.shape[:2] != targets.shape:
            raise BadInput(
                f"The model of {type(self).__name__} must return logits for each position, of "
                f"shape {(*targets.shape, 'tokens')}, but returned {tuple(logits.shape)}. "
                "Override `NextToken.logits` if the model must be called in another way.",
                code="wrong-result",
            )
        return logits


def _pair(batch: Batch) -> tuple[Batch, Tensor]:
    """Returns the inputs of the model and the targets. They are contiguous, since some models
    reshape their targets with `view`. Of uint8, which bytes may be, 156 would equal -100."""
    if isinstance(batch, Tensor):
        batch = (batch,)
    if not isinstance(batch, Mapping):
        windows, *others = batch
        (targets,) = others or (windows[:, 1:].contiguous(),)
        return windows if others else windows[:, :-1].contiguous(), targets.long()
    if "input_ids" not in batch:
        raise BadInput(
            f"A batch of a NextToken that is a dict must hold 'input_ids', but has the keys "
            f"{[*batch]}. Rename the column in `data`, or return the windows alone.",
            code="wrong-data",
        )
    inputs = {name: part[:, :-1].contiguous() for name, part in batch.items() if name != "labels"}
    targets = batch.get("labels", batch["input_ids"])[:, 1:].contiguous().long()
    if "attention_mask" in batch and "labels" not in batch:
        # The token before a target must be one, too: there may be padding in front.
        mask = batch["attention_mask"]
        targets = targets.where((mask[:, 1:] * mask[:, :-1]).bool(), IGNORED)
    return inputs, targets


def _cross_entropies(logits: Tensor, targets: Tensor) -> Tensor:
    """Returns the cross entropy of each token, in nats; 0 where the target is ignored."""
    losses = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return losses.view_as(targets)


def _means(values: Tensor, targets: Tensor) -> Tensor:
    """Returns the mean over the targets of each example. Other `values` must be 0."""
    return values.sum(dim=1) / (targets != IGNORED).sum(dim=1).clamp(min=1)
