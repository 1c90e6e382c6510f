"""Modifiers of a training, beside its optimizer and schedule: gradient clipping, dropout, weight
averaging and precision. All of them are metaparameters. And the random numbers of dropout."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.random import fork_rng

from orchestrator.records import BadInput
from orchestrator.workloads import Batch, mapped

Function = Callable[..., Any]

Precision = Literal["float32", "bfloat16", "float64"]


@dataclass(frozen=True, kw_only=True)
class Modifiers:
    """The modifiers of a training. `settings.py` says what each of them means."""

    gradient_clip: float | None = None
    dropout: float | None = None
    ema_decay: float | None = None
    precision: Precision = "float32"
    compile: bool = False

    def prepare(self, model: nn.Module) -> None:
        """Sets dropout and precision of a new model."""
        if self.precision == "float64":
            model.to(torch.float64)
        if self.dropout is not None:
            _set_dropout(model, self.dropout)

    def cast(self, batch: Batch) -> Batch:
        """Returns the batch in the precision of the weights."""
        if self.precision != "float64":
            return batch
        return mapped(lambda t: t.double() if t.is_floating_point() else t, batch)

    def clip(self, parameters: Sequence[nn.Parameter]) -> None:
        """Shortens the gradient to the norm that is allowed."""
        if self.gradient_clip is not None:
            nn.utils.clip_grad_norm_(parameters, self.gradient_clip)


def in_precision(precision: Precision, function: Function, device: torch.device) -> Function:
    """Returns the loss or the metrics in that precision. Refuses one that the device lacks."""
    if precision != "bfloat16":
        return function
    if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        name = torch.cuda.get_device_name(device)
        raise BadInput(
            f"'precision' must not be bfloat16 on {name}, which does not support it.",
            code="unusable",
        )
    autocast: Callable[[Function], Function] = torch.autocast(device.type, torch.bfloat16)
    return autocast(function)


class Average:
    """The exponential moving average of the weights after each step. The initial weights are not
    part of it: the sum is divided by the total of the weights' shares (bias correction)."""

    def __init__(self, parameters: Sequence[nn.Parameter], decay: float) -> None:
        self._parameters: list[Tensor] = list(parameters)
        self._decay = decay
        # In half precision, a small share of a weight would be rounded away.
        self._sums = [
            torch.zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32))
            for p in parameters
        ]
        self._steps = 0

    @torch.no_grad()
    def update(self) -> None:
        weights = [p.to(total) for p, total in zip(self._parameters, self._sums, strict=True)]
        torch._foreach_lerp_(self._sums, weights, 1 - self._decay)
        self._steps += 1

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Replaces the weights of the model with the average within the context."""
        if self._steps == 0:
            yield
            return
        with kept(self._parameters):
            share = 1 - self._decay**self._steps
            with torch.no_grad():
                torch._foreach_copy_(self._parameters, torch._foreach_div(self._sums, share))
            yield

    def state(self) -> dict[str, Any]:
        return {"sums": self._sums, "steps": self._steps}

    def load(self, state: Mapping[str, Any]) -> None:
        torch._foreach_copy_(self._sums, state["sums"])
        self._steps = state["steps"]


@contextmanager
def kept(parameters: Sequence[Tensor]) -> Iterator[None]:
    """Restores the weights at the end of the context, bit by bit."""
    before = [parameter.detach().clone() for parameter in parameters]
    try:
        yield
    finally:
        if before:  # a model may have no buffers
            with torch.no_grad():
                torch._foreach_copy_(list(parameters), before)


def length_of(tensors: Sequence[Tensor]) -> float:
    """Returns the Euclidean norm of all tensors together."""
    return float(torch.stack(torch._foreach_norm([*tensors])).double().norm())


class Stream:
    """The random numbers of one rank's dropout. They do not depend on what else the process draws
    from torch's generators."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self._gpus = [device] if device.type == "cuda" else []
        with fork_rng(self._gpus):
            torch.default_generator.manual_seed(seed)
            for gpu in self._gpus:
                torch.cuda.default_generators[gpu.index or 0].manual_seed(seed)
            self.states = self._current()
            """The state of each generator, of the CPU and of a GPU."""

    @contextmanager
    def in_use(self) -> Iterator[None]:
        with fork_rng(self._gpus):
            torch.set_rng_state(self.states[0])
            for gpu, state in zip(self._gpus, self.states[1:], strict=True):
                torch.cuda.set_rng_state(state, gpu)
            try:
                yield
            finally:
                self.states = self._current()

    def _current(self) -> list[Tensor]:
        return [torch.get_rng_state(), *map(torch.cuda.get_rng_state, self._gpus)]


MODIFIERS = tuple(Modifiers.__dataclass_fields__)


def _set_dropout(model: nn.Module, probability: float) -> None:
    found = False
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p, found = probability, True
        elif isinstance(module, nn.MultiheadAttention) or (
            isinstance(module, nn.RNNBase) and module.num_layers > 1
        ):
            module.dropout, found = probability, True
    if not found:
        raise BadInput(
            f"'dropout' has no effect: {type(model).__name__} has no dropout layer. Leave it out.",
            code="no-effect",
        )
