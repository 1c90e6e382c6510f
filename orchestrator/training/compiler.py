"""Compiles the models of trials that train alone with torch's compiler, and uses torch's optimizers
without loading it.

When the first optimizer is made or takes a step, torch loads its compiler, only to exclude the
optimizer from compilation. That takes 1.3 s of processor time. This project compiles no optimizer.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.optim import Optimizer
from torch.utils.flop_counter import FlopCounterMode, _FlopCounterMode

from orchestrator.records import BadInput
from orchestrator.training.memory import out_of_memory
from orchestrator.training.modifiers import length_of

COMPILER: dict[str, Any] = {"backend": "inductor", "options": {"fallback_random": True}}
"""Arguments of torch.compile. Random numbers, such as those of dropout, are drawn as they are
without the compiler."""

KINDS = 256
"""Largest number of models and sizes of batches that a process compiles. A process trains trials of
many studies; torch would stop at 8 and compile the others no more, without an error."""

TOLERANCE = {"float32": 1e-2, "bfloat16": 0.05, "float64": 1e-6}
"""Largest difference of the gradient, relative to its length, by precision. Rounding in another
order makes such differences; other random numbers or layers make it as long as the gradient."""


def compile_in_place(model: nn.Module) -> None:
    """Makes calls of the model run compiled code. Its modules, weights and state stay as they are.
    `nn.Module.compile` does nothing for a torch class such as `nn.Sequential`."""

    def forward(*inputs: Any, **named: Any) -> Any:
        return model._call_impl(*inputs, **named)  # type: ignore[no-untyped-call]

    torch._dynamo.config.recompile_limit = KINDS
    model._compiled_call_impl = torch.compile(forward, dynamic=False, **COMPILER)


@contextmanager
def refusals() -> Iterator[None]:
    """Tells that torch can't compile what it fails to compile within the context."""
    try:
        yield
    except Exception as error:
        if isinstance(error, RuntimeError) and out_of_memory(error):
            raise
        said = " ".join(str(error).strip().splitlines()[:2])
        words = f"'compile' must not be true where torch can't compile the model: {said}. Leave it "
        raise BadInput(f"{words}out.", code="unusable") from error


def check_alike(own: list[Tensor], compiled: list[Tensor], precision: str) -> None:
    """Refuses compiled code whose gradients differ from the model's own by more than rounding."""
    apart, whole = length_of(torch._foreach_sub(compiled, own)), length_of(own)
    # Where a trial has diverged, no code has a gradient.
    if math.isfinite(whole) and not apart <= TOLERANCE[precision] * whole:
        raise BadInput(
            f"'compile' must not be true for this model: compiled, its gradient of length "
            f"{whole:.3g} differs by {apart:.2g}. Leave it out.",
            code="unusable",
        )


def spare_compiler() -> None:
    """Keeps optimizers from loading the compiler. Call this before the first optimizer is made. If
    torch changes the mark by which functions are excluded from compilation, this does nothing, and
    `tests/test_small_sweeps.py` fails."""
    for name in ("add_param_group", "zero_grad", "state_dict", "load_state_dict"):
        _without_compiler(getattr(Optimizer, name))


def flop_counter() -> FlopCounterMode:
    """Returns torch's counter of operations, which would also load the compiler at its first
    operation."""
    _without_compiler(_FlopCounterMode.__torch_dispatch__)
    return FlopCounterMode(display=False)


def _without_compiler(function: Callable[..., object]) -> None:
    function = inspect.unwrap(function)
    setattr(function, "__dynamo_disable", function)


def step_of(optimizer: Optimizer) -> Callable[[], object]:
    """Returns a function that takes a step and calls hooks, as torch's wrappers of `step` do."""
    step = inspect.unwrap(type(optimizer).step)
    if not step.__module__.startswith(f"{optim.__name__}."):
        return optimizer.step
    before, after = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks

    def take() -> None:
        for hook in before.values():
            hook(optimizer, (), {})
        with torch.no_grad():
            step(optimizer)
        for hook in after.values():
            hook(optimizer, (), {})

    return take
