"""torch's optimizers without torch's compiler.

The first time that an optimizer is made or stepped, torch loads its compiler, only to tell it to
keep away. That takes 1.3 s of processor time. Nothing here compiles an optimizer.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch
from torch import optim
from torch.optim import Optimizer
from torch.utils.flop_counter import FlopCounterMode, _FlopCounterMode

PLAIN = (optim.SGD, optim.Adagrad, optim.Adam, optim.AdamW, optim.RMSprop)
"""Optimizers whose `step` is one function without a closure inside of torch's wrappers."""


def spare_compiler() -> None:
    """To be called before the first optimizer is made. If torch changes how it marks what its
    compiler must keep away from, this does nothing, and `tests/test_training.py` tells."""
    for name in ("add_param_group", "zero_grad", "state_dict", "load_state_dict"):
        _without_compiler(getattr(Optimizer, name))


def flop_counter() -> FlopCounterMode:
    """torch's, which would load the compiler as well, at the first operation that it sees."""
    _without_compiler(_FlopCounterMode.__torch_dispatch__)
    return FlopCounterMode(display=False)


def _without_compiler(function: Callable[..., object]) -> None:
    function = inspect.unwrap(function)
    setattr(function, "__dynamo_disable", function)


def step_of(optimizer: Optimizer) -> Callable[[], object]:
    """What takes a step of `optimizer`, hooks included, as torch's own wrappers of it do."""
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
