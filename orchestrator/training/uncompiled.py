"""Uses torch's optimizers without loading torch's compiler.

When the first optimizer is made or takes a step, torch loads its compiler, only to exclude the
optimizer from compilation. That takes 1.3 s of processor time. This project compiles no optimizer.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch
from torch import optim
from torch.optim import Optimizer
from torch.utils.flop_counter import FlopCounterMode, _FlopCounterMode

PLAIN = (optim.SGD, optim.Adagrad, optim.Adam, optim.AdamW, optim.RMSprop)
"""Optimizers whose `step`, inside of torch's wrappers, is a single function without a closure."""


def spare_compiler() -> None:
    """Keeps optimizers from loading the compiler. Call this before the first optimizer is made. If
    torch changes the mark by which functions are excluded from compilation, this does nothing, and
    `tests/test_training.py` fails."""
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
    """Returns a function that takes a step of `optimizer` and calls its hooks, as torch's wrappers
    of `step` do."""
    if type(optimizer) not in PLAIN:
        return optimizer.step
    step = inspect.unwrap(type(optimizer).step)
    before, after = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks

    def take() -> None:
        for hook in before.values():
            hook(optimizer, (), {})
        with torch.no_grad():
            step(optimizer)
        for hook in after.values():
            hook(optimizer, (), {})

    return take
