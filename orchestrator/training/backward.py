"""Backpropagates losses that have given shares in the gradient."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.autograd.graph import _engine_run_backward


def backward(losses: Tensor, shares: Tensor) -> None:
    """Does what `losses.backward(shares)` does. That first compares two shapes, with code for
    symbolic shapes: to import it takes a fifth of the time of a small sweep, and to call it a tenth
    of the time of a small step. The engine itself compares them, too."""
    _engine_run_backward((losses,), (shares,), False, False, (), True, accumulate_grad=True)


def gradients(losses: Tensor, weights: Sequence[Tensor], shares: Tensor) -> tuple[Tensor, ...]:
    """Does what `torch.autograd.grad(losses, weights, shares)` does, for the same reason."""
    return _engine_run_backward(
        (losses,), (shares,), False, False, (*weights,), False, accumulate_grad=False
    )
