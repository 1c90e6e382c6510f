"""Modifiers of a training, beside its optimizer and schedule: gradient clipping, dropout, Gaussian
noise, weight averaging and precision. All of them are metaparameters. And their random numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from orchestrator.records import BadInput, derive_seed
from orchestrator.workloads import Batch, mapped

Function = Callable[..., Any]

Precision = Literal["float32", "bfloat16", "float64"]


@dataclass(frozen=True, kw_only=True)
class Modifiers:
    """The modifiers of a training. `settings.py` says what each of them means."""

    gradient_clip: float | None = None
    dropout: float | None = None
    noise_activations: float = 0.0
    noise_weights: float = 0.0
    noise_gradients: float = 0.0
    ema_decay: float | None = None
    precision: Precision = "float32"
    compile: bool = False

    def prepare(self, model: nn.Module) -> None:
        """Sets dropout, noise on activations and precision of a new model."""
        if self.precision == "float64":
            model.to(torch.float64)
        if self.dropout is not None:
            _set_dropout(model, self.dropout)
        if self.noise_activations:
            _add_noise_to_activations(model, self.noise_activations)

    def cast(self, batch: Batch) -> Batch:
        """Returns the batch in the precision of the weights."""
        if self.precision != "float64":
            return batch
        return mapped(lambda t: t.double() if t.is_floating_point() else t, batch)

    @contextmanager
    def noisy_weights(
        self, parameters: Sequence[nn.Parameter], seed: int, step: int
    ) -> Iterator[None]:
        """Adds noise to the weights within the context. It is the same on every rank."""
        with kept(parameters):
            noise = _noise(parameters, derive_seed(seed, "weights", step))
            with torch.no_grad():
                torch._foreach_add_(list(parameters), noise, alpha=self.noise_weights)
            yield

    def modify_gradients(self, parameters: Sequence[nn.Parameter], seed: int, step: int) -> None:
        """Adds noise to the gradients, then clips them: none may be longer than allowed."""
        if self.noise_gradients:
            gradients = [p.grad for p in parameters if p.grad is not None]
            noise = _noise(gradients, derive_seed(seed, "gradients", step))
            torch._foreach_add_(gradients, noise, alpha=self.noise_gradients)
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
        self._sums = [torch.zeros_like(parameter) for parameter in parameters]
        self._steps = 0

    @torch.no_grad()
    def update(self) -> None:
        torch._foreach_lerp_(self._sums, self._parameters, 1 - self._decay)
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
    """The random numbers of one rank's dropout and noise. They do not depend on what else the
    process draws from torch's generators."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self._device = device
        before = self._current()
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.default_generators[device.index or 0].manual_seed(seed)
        self.states = self._current()
        """The state of each generator, of the CPU and of a GPU."""
        self._set(before)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        before = self._current()
        self._set(self.states)
        try:
            yield
        finally:
            self.states = self._current()
            self._set(before)

    def _current(self) -> list[Tensor]:
        states = [torch.get_rng_state()]
        if self._device.type == "cuda":
            states.append(torch.cuda.get_rng_state(self._device))
        return states

    def _set(self, states: list[Tensor]) -> None:
        torch.set_rng_state(states[0])
        if self._device.type == "cuda":
            torch.cuda.set_rng_state(states[1], self._device)


MODIFIERS = tuple(Modifiers.__dataclass_fields__)
NOISES = tuple(name for name in MODIFIERS if name.startswith("noise_"))


def _noise(like: Sequence[Tensor], seed: int) -> list[Tensor]:
    """Returns standard normal tensors of the shapes of `like`, a function of `seed` alone."""
    generator = torch.Generator(like[0].device).manual_seed(seed)
    return [torch.randn(t.shape, dtype=t.dtype, device=t.device, generator=generator) for t in like]


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


def _add_noise_to_activations(model: nn.Module, deviation: float) -> None:
    def add_noise(module: nn.Module, inputs: Any, output: Any) -> Any:
        if not module.training:
            return output
        first = output[0] if isinstance(output, tuple) else output
        noisy = first + deviation * torch.randn_like(first)
        return (noisy, *output[1:]) if isinstance(output, tuple) else noisy

    for module in model.modules():
        if any(weight.ndim > 1 for weight in module.parameters(recurse=False)):
            module.register_forward_hook(add_noise)
