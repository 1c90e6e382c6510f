"""Computes equal numbers to equal bits, wherever they lie in memory.

The bits of matrix products may depend on where matrices lie. Of element-wise functions, a CPU
computes eight or sixteen elements at once, and the rest at the end of a tensor one by one. For
sums, products, roots, exponentials and tanh, both ways give the same bits. For the functions below,
the last bits differ. Slots follow each other in memory, so only the end of the last slot would be
computed one by one, and trials in that slot would get other bits.

Two operations are replaced because others are faster: the softmax of few classes, and the products
of one example.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten

LONGEST_VECTOR = 64
"""An upper bound on the number of elements that a kernel computes at once."""

FUNCTIONS = {
    aten.atan2.default,
    aten.atanh.default,
    aten.celu.default,
    aten.cosh.default,
    aten.elu.default,
    aten.elu_backward.default,
    aten.exp2.default,
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
    aten.sinh.default,
    aten.softplus.default,
    aten.softplus_backward.default,
}
SUMS = {aten.sum.dim_IntList, aten.mean.dim}
VECTOR = 16
"""Numbers that a kernel for a softmax computes at once: eight or sixteen."""
FEW_CLASSES, EXAMPLES = 16, 8
"""With fewer classes than this, those of one example do not fill a vector. From so many examples in
a slot on, it saves time to compute a class of many examples at once."""
PRODUCTS = (0, 1, 2, 3)
"""Powers that torch computes by copying and multiplying."""
IN_PLACE = {
    aten.celu_.default: aten.celu.default,
    aten.elu_.default: aten.elu.default,
    aten.pow_.Scalar: aten.pow.Tensor_Scalar,
    aten.sigmoid_.default: aten.sigmoid.default,
    aten.silu_.default: aten.silu.default,
}


def ask_for_same_bits() -> None:
    """Asks Intel's MKL for matrix products whose bits don't depend on the position of a matrix in a
    batch of matrices. MKL reads this setting when it first computes in a process."""
    os.environ.setdefault("MKL_CBWR", "AUTO")


FEW_PRODUCTS = 16**3
"""With fewer products of two numbers than this, the bits of a batch of products in bfloat16 were
seen to depend on the number of matrices."""


def orthogonalised(matrices: Tensor) -> Tensor:
    """Orthogonalises each of the matrices (..., rows, columns) in bfloat16, as Muon does. The bits
    do not depend on the number of matrices."""
    # Its import takes one to two seconds.
    from pytorch_optimizer.optimizer.utils.matrix import zero_power_via_newton_schulz_5

    many = matrices.flatten(0, -3)
    least = FEW_PRODUCTS // min(many.shape[1:]) ** 3 + 1
    filled = functional.pad(many, (0, 0, 0, 0, 0, max(0, least - len(many))))
    found: Tensor = zero_power_via_newton_schulz_5(filled)
    return found[: len(many)].reshape(matrices.shape)


def products_have_same_bits(device: torch.device, *, orthogonal: bool = False) -> bool:
    """Tells whether this process computes products of equal matrices with equal bits, at every
    position in a batch of matrices, and in batches of two and of more matrices; with `orthogonal`,
    whether it also orthogonalises them so."""
    for rows, inner, columns in product((1, 2, 7, 33), (10, 23, 64), (10, 11, 70)):
        # These numbers have many digits. They need no generator, whose random numbers a trial might
        # use.
        left = torch.linspace(0.1, 1.3, rows * inner, device=device).view(1, rows, inner).sqrt()
        right = torch.linspace(-1, 1, inner * columns, device=device).view(1, inner, columns).exp()
        many, two = (
            torch.bmm(
                left.expand(count, -1, -1).contiguous(), right.expand(count, -1, -1).contiguous()
            )
            for count in (5, 2)
        )
        if orthogonal:
            many, two = orthogonalised(many), orthogonalised(two)
        if not all(torch.equal(each, many[0]) for each in [*many, *two]):
            return False
    return True


class InWholeVectors(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Makes a CPU compute these functions in whole vectors only, within the context."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # With True, torch would load its compiler to exclude this code, which takes seconds, though
        # nothing here is compiled.
        return False

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if operation in IN_PLACE:
            _, value = self.run(IN_PLACE[operation], args, kwargs or {})
            operation, args, kwargs = aten.copy_.default, (args[0], value), {}
        return self.run(operation, args, kwargs or {})[1]

    def run(self, operation: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Calls the operation itself or a function in its place, which gets the operation first.
        Returns what was called, and its result."""
        ours = _in_its_place(operation, args)
        result = ours(operation, *args, **kwargs) if ours else operation(*args, **kwargs)
        return ours or operation, result


def _in_its_place(operation: Any, args: Any) -> Callable[..., Tensor] | None:
    """Returns the function by which a CPU computes an operation to the same bits, or faster."""
    if not args or not isinstance(first := args[0], Tensor) or first.device.type != "cpu":
        return None
    if operation in FUNCTIONS:
        exact = operation is aten.pow.Tensor_Scalar and args[1] in PRODUCTS
        return None if exact else in_whole_vectors
    if operation is aten.bmm.default:
        return outer_product if first.shape[2] == 1 else None
    if operation in SUMS and first.dim() > 1 and args[1]:
        around = all(0 < first.stride(0) < first.stride(dim) for dim in args[1])
        return slot_after_slot if around else None
    if operation in OVER_CLASSES and first.dim() == 3 and args[-2] in (-1, 2):
        _, examples, classes = first.shape
        # Not by the number of slots, on which bits must not depend.
        return OVER_CLASSES[operation] if examples >= EXAMPLES and classes < FEW_CLASSES else None
    return None


def in_whole_vectors(operation: Any, *args: Any, **kwargs: Any) -> Tensor:
    """Pads the tensors to whole vectors, calls the element-wise operation on them, and cuts the
    padding off its result."""
    tensors = [part for part in args if isinstance(part, Tensor)]
    shape = torch.broadcast_tensors(*tensors)[0].shape  # type: ignore[no-untyped-call]
    count = shape.numel()
    # The padded length gives each thread the same number of whole vectors.
    missing = -count % (LONGEST_VECTOR * torch.get_num_threads())
    flat = [
        functional.pad(part.expand(shape).reshape(-1), (0, missing), value=1.0)
        if isinstance(part, Tensor)
        else part
        for part in args
    ]
    result: Tensor = operation(*flat, **kwargs)
    return result[:count].view(shape)


def outer_product(operation: Any, left: Tensor, right: Tensor) -> Tensor:
    """Multiplies matrices of one column by matrices of one row. Nothing is summed."""
    return left * right


def slot_after_slot(operation: Any, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Sums up a copy in which slots do not alternate, as they do behind a frozen batch norm. Of the
    columns of all slots, a CPU sums up many at once, and the last ones in another order."""
    result: Tensor = operation(tensor.contiguous(), *args, **kwargs)
    return result


def log_softmax_of_few(
    operation: Any, logits: Tensor, dim: int, half: bool, *, turned: bool = False
) -> Tensor:
    """Computes each class of many examples at once, as `Classification.metrics` does. If `turned`,
    the classes are the first dimension in memory."""
    columns = operation(_classes_first(logits), 0, half)
    result = _classes_last(columns, logits.shape)
    return result if turned else result.contiguous()


def gradient_of_few(
    operation: Any, gradient: Tensor, output: Tensor, dim: int, dtype: torch.dtype
) -> Tensor:
    """The gradient of `log_softmax_of_few`."""
    result = operation(_classes_first(gradient), _classes_first(output), 0, dtype)
    return _classes_last(result, gradient.shape).contiguous()


def _classes_first(tensor: Tensor) -> Tensor:
    """Turns (slots, examples, classes). A rest of examples is filled up to a whole vector."""
    columns = tensor.permute(2, 0, 1)
    if missing := -tensor.shape[:2].numel() % VECTOR:
        return functional.pad(columns.flatten(1), (0, missing))
    return columns.contiguous()


def _classes_last(columns: Tensor, shape: torch.Size) -> Tensor:
    if columns.dim() == 2:
        columns = columns[:, : shape[:2].numel()].reshape(-1, *shape[:2])
    return columns.permute(1, 2, 0)


OVER_CLASSES: dict[Any, Callable[..., Tensor]] = {
    aten._log_softmax.default: log_softmax_of_few,
    aten._log_softmax_backward_data.default: gradient_of_few,
}
