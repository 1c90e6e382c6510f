"""Records the operations of a function of tensors while it runs once, and then repeats them.

In a small network, autograd, `vmap` and Python take longer than the operations themselves. A tape
repeats the same operations, so its results have the same bits, except for matrix products that are
transposed afterwards.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves, tree_map

from orchestrator.training.same_bits import (
    InWholeVectors,
    gradient_of_few,
    log_softmax_of_few,
    outer_product,
)

Tensors = list[Tensor]
Function = Callable[[Tensors], Tensors]

aten = torch.ops.aten
NOTHING = {aten.detach.default, aten.expand.default, aten.view.default, aten._unsafe_view.default}
"""Operations that do nothing if output and input have the same shape."""


class Unrepeatable(Exception):
    """The operations of a function depend on more than the shapes of its tensors."""


class Taped:
    """A function that is recorded the first time that it gets a combination of shapes and strides,
    and repeated from the tape after that."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self._tapes: dict[Any, Function] = {}
        self.operations: set[Any] = set()
        """All operations that were recorded."""
        self.seconds = 0.0
        """How long the last recording took."""

    def __call__(self, inputs: Tensors) -> Tensors:
        key = tuple((tensor.shape, tensor.stride(), tensor.dtype) for tensor in inputs)
        if key not in self._tapes:
            # What the function does with its first shapes, it does with others: one proof suffices.
            proven, began = bool(self._tapes), time.perf_counter()
            operations: set[Any] = set()
            self._tapes[key] = record(self._function, inputs, operations, proven=proven)
            self.operations |= operations  # of a recording that failed, not all are known
            self.seconds = time.perf_counter() - began
        return self._tapes[key](inputs)


def record(
    function: Function, inputs: Tensors, operations: set[Any] | None = None, *, proven: bool = False
) -> Function:
    """Returns a tape of `function` for tensors of the shapes of `inputs`. The recorded operations
    are added to `operations`. Unless it is `proven`, the tape is tried on other numbers."""
    recorder = _Recorder(inputs, set() if operations is None else operations)
    versions = [tensor._version for tensor in inputs]
    with recorder:
        outputs = function(inputs)
    if versions != [tensor._version for tensor in inputs]:
        raise Unrepeatable("it changes its inputs")
    recorder.finish(outputs)
    if not proven:
        others = [_another(tensor) for tensor in inputs]
        with InWholeVectors():  # type: ignore[no-untyped-call]
            again = function(others)
        for repeated, expected in zip(recorder.tape()(others), again, strict=True):
            if not torch.equal(repeated.nan_to_num(), expected.nan_to_num()):
                raise Unrepeatable("its recorded operations give other bits for other numbers")
    recorder.shorten()
    return recorder.tape()


def _another(tensor: Tensor) -> Tensor:
    """Returns a tensor of the same shape and type with other, equally valid numbers."""
    turned = tensor.flip(0) if tensor.dim() else tensor
    other = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    return other.copy_(turned * 0.75 if turned.is_floating_point() else turned)


class _Recorder(InWholeVectors):  # type: ignore[no-untyped-call]
    """Records each operation as it is sent to the device, below autograd and `vmap`."""

    def __init__(self, inputs: Sequence[Tensor], operations: set[Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._operations = operations
        self._graph = fx.Graph()
        self._constants = torch.nn.Module()
        self._seen: list[Any] = []
        """All tensors of the recording. They are kept alive so that no two have the same id."""
        self._nodes: dict[int, fx.Node] = {}
        self._changes = False
        for number, tensor in enumerate(inputs):
            self._know(tensor, self._graph.placeholder(f"input_{number}"))

    def run(self, operation: Any, args: Any, kwargs: Any) -> Any:
        if torch.Tag.nondeterministic_seeded in operation.tags:
            raise Unrepeatable(f"{operation} draws random numbers")
        if operation is aten._local_scalar_dense.default:
            raise Unrepeatable("its Python code reads the value of a tensor")
        target, output = super().run(operation, args, kwargs)
        self._operations.add(operation)
        given = [part for part in tree_leaves((args, kwargs)) if isinstance(part, Tensor)]
        changes = operation._schema.is_mutable
        if not changes and not any(id(tensor) in self._nodes for tensor in given):
            # The operation depends on constants only, so its output is a constant.
            return target, output
        if changes and any(id(tensor) not in self._nodes for tensor in given):
            raise Unrepeatable(f"{operation} may change a constant")
        self._changes |= changes
        first = given[0]
        if operation in NOTHING and output.shape == first.shape and output.dtype == first.dtype:
            self._know(output, self._nodes[id(first)])
            return target, output
        if target is not operation:
            args = (operation, *args)
        node = self._graph.call_function(target, *tree_map(self._argument, (args, kwargs)))
        if isinstance(output, Tensor):
            self._know(output, node)
        else:
            for number, part in enumerate(output or ()):
                if isinstance(part, Tensor):
                    item = self._graph.call_function(operator.getitem, (node, number))
                    self._know(part, item)
        return target, output

    def finish(self, outputs: Sequence[Tensor]) -> None:
        self._graph.output([self._argument(output) for output in outputs])
        self._graph.eliminate_dead_code()
        self._seen.clear()

    def shorten(self) -> None:
        """Removes operations that are not needed."""
        if not self._changes:
            _leave_out_multiplying_by_one(self._graph)
        _turn_products(self._graph)
        _leave_classes_first(self._graph)
        self._graph.eliminate_dead_code()

    def tape(self) -> Function:
        run = fx.GraphModule(self._constants, self._graph).forward
        return lambda inputs: run(*inputs)

    def _know(self, tensor: Tensor, node: fx.Node) -> None:
        self._nodes[id(tensor)] = node
        self._seen.append(tensor)

    def _argument(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if id(value) not in self._nodes:
            name = f"constant_{len(self._seen)}"
            self._constants.register_buffer(name, value.detach(), persistent=False)
            self._know(value, self._graph.get_attr(name))
        return self._nodes[id(value)]


def _leave_out_multiplying_by_one(graph: fx.Graph) -> None:
    """Removes multiplications by 1, which `vmap` adds to each bias."""
    for node in graph.nodes:
        if node.target is aten.mul.Scalar and node.args[1] == 1:
            node.replace_all_uses_with(node.args[0])


def _turn_products(graph: fx.Graph) -> None:
    """Replaces (A B)^T by B^T A^T, whose result has the memory layout that is needed. To transpose
    gradients of linear layers element by element would take longer than the product."""
    for node in graph.nodes:
        if not _is_turned(node) or len(node.args[0].users) > 1:
            continue
        if (product := node.args[0]).target in (aten.bmm.default, outer_product):
            *operation, left, right = product.args
            with graph.inserting_before(node):
                parts = *operation, _turned(graph, right), _turned(graph, left)
                node.replace_all_uses_with(graph.call_function(product.target, parts))


def _leave_classes_first(graph: fx.Graph) -> None:
    """Doesn't turn the logarithms of a softmax back for those who read them in any order."""
    for node in graph.nodes:
        readers = {user.target for user in node.users}
        if node.target is log_softmax_of_few and readers <= {aten.gather.default, gradient_of_few}:
            node.kwargs = {"turned": True}


def _is_turned(node: fx.Node) -> bool:
    return node.target is aten.transpose.int and node.args[1:] == (1, 2)


def _turned(graph: fx.Graph, node: Any) -> Any:
    if _is_turned(node):
        return node.args[0]
    return graph.call_function(aten.transpose.int, (node, 1, 2))
