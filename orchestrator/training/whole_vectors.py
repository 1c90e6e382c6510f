"""Element-wise functions whose bits don't depend on where in a tensor an element is.

A CPU computes eight or sixteen elements at once and what is left over at the end one by one. For
sums, products, roots, exponentials and tanh both ways give the same bits, for the functions below
they differ in the last. Slots lie one behind the other, so what is left over would be the end of
the last slot only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten

LONGEST_VECTOR = 64
"""Elements that a kernel takes at once at most, with room to spare."""

FUNCTIONS = {
    aten.elu.default,
    aten.elu_backward.default,
    aten.gelu.default,
    aten.gelu_backward.default,
    aten.logaddexp.default,
    aten.mish.default,
    aten.mish_backward.default,
    aten.pow.Tensor_Scalar,
    aten.pow.Tensor_Tensor,
    aten.sigmoid.default,
    aten.silu.default,
    aten.silu_backward.default,
    aten.softplus.default,
    aten.softplus_backward.default,
}
IN_PLACE = {
    aten.elu_.default: aten.elu.default,
    aten.pow_.Scalar: aten.pow.Tensor_Scalar,
    aten.sigmoid_.default: aten.sigmoid.default,
    aten.silu_.default: aten.silu.default,
}


class InWholeVectors(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within, these functions leave nothing over on a CPU."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Keeping torch's compiler out would load it: seconds, for what compiles nothing.
        return False

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if operation in IN_PLACE:
            _, value = self.run(IN_PLACE[operation], args, kwargs or {})
            operation, args, kwargs = aten.copy_.default, (args[0], value), {}
        return self.run(operation, args, kwargs or {})[1]

    def run(self, operation: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """What was called, the operation itself or `in_whole_vectors`, and what came of it."""
        if operation in FUNCTIONS and args[0].device.type == "cpu":
            return in_whole_vectors, in_whole_vectors(operation, *args, **kwargs)
        return operation, operation(*args, **kwargs)


def in_whole_vectors(operation: Any, *args: Any, **kwargs: Any) -> Tensor:
    """An element-wise operation on tensors that are made longer for it, and its result cut."""
    tensors = [part for part in args if isinstance(part, Tensor)]
    shape = torch.broadcast_tensors(*tensors)[0].shape  # type: ignore[no-untyped-call]
    count = shape.numel()
    # Each thread gets a share of equal length.
    missing = -count % (LONGEST_VECTOR * torch.get_num_threads())
    flat = [
        functional.pad(part.expand(shape).reshape(-1), (0, missing), value=1.0)
        if isinstance(part, Tensor)
        else part
        for part in args
    ]
    result: Tensor = operation(*flat, **kwargs)
    return result[:count].view(shape)
