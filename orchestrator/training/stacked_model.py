"""Computes many models of one kind as one: tensors get a leading dimension of slots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from orchestrator.training.batch_losses import Mean
from orchestrator.training.layout import Layout
from orchestrator.training.rules import Numbers
from orchestrator.training.tape import Taped
from orchestrator.workloads import Batch, Workload, mapped
from orchestrator.workloads.base import cross_entropies
from orchestrator.workloads.ghost_batch_norm import check_ghosts, discard, ghost_norms
from orchestrator.workloads.trees import leaves

CONVOLUTIONS = {torch.ops.aten.convolution.default, torch.ops.aten._convolution.default}


class Computation:
    """What stacks of models of one kind compute, whatever weights are in them. Many stacks may
    share it, so that its operations are recorded once."""

    def __init__(self, model: nn.Module, workload: Workload) -> None:
        """`model` is the new model of a trial that trains alone."""
        self.module, self.norms = model, [norm for norm in ghost_norms(model) if norm.training]
        # Dropout layers of probability 0 stay in evaluation mode. In training mode they would draw
        # random numbers, which `vmap` does not support.
        for module in model.modules():
            if isinstance(module, nn.modules.dropout._DropoutNd) and module.p == 0:
                module.eval()
        self._training = [module for module in model.modules() if module.training]
        named: dict[str, Tensor] = dict(model.named_parameters())
        self.names = [name for name, parameter in named.items() if parameter.requires_grad]
        named |= model.named_buffers()
        self.fixed = {name: tensor for name, tensor in named.items() if name not in self.names}
        """Buffers, and parameters that are not trained."""
        self._loss, self._metrics = Method(model, workload.loss), Method(model, workload.metrics)
        self._step: Taped | None = None
        self._evaluations: dict[tuple[str, ...], tuple[Taped, list[str]]] = {}
        """Structure of batches -> the metrics of such a batch, and their names."""

    def gradients(
        self, inputs: list[Tensor], like: Batch, settings: Numbers, shared: Mapping[str, Any]
    ) -> list[Tensor]:
        """Returns the losses, the gradient of each parameter and the sums of each batch norm."""
        if self._step is None:
            like, names = mapped(lambda _: None, like), tuple(settings)
            self._step = Taped(lambda given: self._compute_gradients(given, like, names, shared))
        return self._step(inputs)

    def metrics(self, inputs: list[Tensor], like: Batch) -> dict[str, Tensor]:
        structure = tuple(path for path, _ in leaves(like))
        if structure not in self._evaluations:
            like, names = mapped(lambda _: None, like), list[str]()
            taped = Taped(lambda given: self._compute_metrics(given, like, names))
            self._evaluations[structure] = taped, names
        taped, names = self._evaluations[structure]
        return dict(zip(names, taped(inputs), strict=True))

    def _compute_gradients(
        self, inputs: list[Tensor], like: Batch, settings: Sequence[str], shared: Mapping[str, Any]
    ) -> list[Tensor]:
        given = iter(inputs)
        weights = [next(given).detach().requires_grad_() for _ in self.names]
        fixed = {name: next(given) for name in self.fixed}
        numbers = {name: next(given) for name in settings}
        batch = mapped(lambda _: next(given), like)
        self._prepare(training=True)

        def one(
            weights: list[Tensor], fixed: Numbers, numbers: Numbers, batch: Batch
        ) -> tuple[Tensor, list[Tensor]]:
            tensors = {**dict(zip(self.names, weights, strict=True)), **fixed}
            losses = call(self._loss, tensors, batch, {**shared, **numbers})
            return losses, [norm.pending for norm in self.norms if norm.pending is not None]

        try:
            with torch.enable_grad(), as_vmap_can():
                losses, statistics = vmap(one)(weights, fixed, numbers, batch)
                total = Mean.apply(losses)  # type: ignore[no-untyped-call]
            if self.norms:
                check_ghosts(self.norms)
        finally:
            discard(self.norms)
        gradients = torch.autograd.grad(total, weights)
        return [losses.detach(), *gradients, *(sums.detach() for sums in statistics)]

    def _compute_metrics(self, inputs: list[Tensor], like: Batch, names: list[str]) -> list[Tensor]:
        given = iter(inputs)
        weights = [next(given) for _ in self.names]
        fixed = {name: next(given) for name in self.fixed}
        batch = mapped(lambda _: next(given), like)
        self._prepare(training=False)

        def one(weights: list[Tensor], fixed: Numbers) -> dict[str, Tensor]:
            tensors = {**dict(zip(self.names, weights, strict=True)), **fixed}
            return dict(call(self._metrics, tensors, batch, {}))

        with torch.no_grad(), as_vmap_can():
            found: dict[str, Tensor] = vmap(one)(weights, fixed)
        names[:] = found
        return list(found.values())

    def _prepare(self, *, training: bool) -> None:
        for module in self._training:
            module.training = training

    @property
    def convolves(self) -> bool | None:
        """Whether metrics use convolutions; None if nothing was evaluated yet. On a CPU, the
        algorithm of a convolution depends on the number of models, and the last bits differ."""
        seen = {each for taped, _ in self._evaluations.values() for each in taped.operations}
        return bool(CONVOLUTIONS & seen) if seen else None

    @property
    def recording_seconds(self) -> float:
        """How long it took to record the operations of a step."""
        return 0.0 if self._step is None else self._step.seconds


class StackedModel:
    """The models of all slots. Each row of `weights` holds the trained weights of one slot. `fixed`
    is name -> tensor of all slots, for buffers and for parameters that are not trained."""

    def __init__(self, computation: Computation, slots: int) -> None:
        self.computation, self.names = computation, computation.names
        self.module = computation.module
        named = dict(self.module.named_parameters())
        first = named[self.names[0]]
        # They share rows of one type, in which updates would round differently.
        if any(named[name].dtype != first.dtype for name in self.names):
            raise ValueError("its parameters have several types of numbers")
        self.layout = Layout([named[name].shape for name in self.names], first.device)
        self.weights = first.new_zeros(slots, self.layout.width).detach()
        self.fixed = {
            name: tensor.detach().new_zeros(slots, *tensor.shape)
            for name, tensor in computation.fixed.items()
        }
        self._statistics: list[Tensor] = []
        norms = computation.norms
        self._ghosts = norms[0].total_ghosts or 1 if norms else 1
        self._find_parts()

    def _find_parts(self) -> None:
        """Looks up the parts of `weights` and `fixed` that steps read and change."""
        self._views = self.layout.views(self.weights)
        norms = self.computation.norms
        tracking = [(name, norm) for name, norm in self.module.named_modules() if norm in norms]
        buffers = {name.rpartition(".")[::2]: tensor for name, tensor in self.fixed.items()}
        parts = ("running_mean", "running_var")
        self._running = [buffers[name, part] for name, _ in tracking for part in parts]
        self._momenta = [norm.momentum for _, norm in tracking for _ in parts]
        counts = (buffers.get((name, "num_batches_tracked")) for name, _ in tracking)
        self._counts = [count for count in counts if count is not None]

    def narrow(self, rows: Tensor) -> None:
        """Keeps the slots of these numbers, in this order."""
        self.weights = self.weights.index_select(0, rows)
        self.fixed = {name: part.index_select(0, rows) for name, part in self.fixed.items()}
        self._find_parts()

    @torch.no_grad()
    def put(self, slot: int, model: nn.Module) -> None:
        """Copies the weights and buffers of `model` into a slot."""
        for ours, theirs in self._pairs(slot, model):
            ours.copy_(theirs)

    @torch.no_grad()
    def take(self, slot: int, model: nn.Module) -> None:
        """Copies the weights and buffers of a slot into `model`."""
        for ours, theirs in self._pairs(slot, model):
            theirs.copy_(ours)

    def _pairs(self, slot: int, model: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
        named = dict([*model.named_parameters(), *model.named_buffers()])
        ours = [*self.layout.views(self.weights[slot]), *(t[slot] for t in self.fixed.values())]
        return zip(ours, (named[name] for name in [*self.names, *self.fixed]), strict=True)

    def gradients(
        self, batch: Batch, settings: Numbers, shared: Mapping[str, Any], into: Sequence[Tensor]
    ) -> Tensor:
        """Returns the losses (slots, examples) of each slot's batch, and writes the gradients to
        `into`, which are views of rows. `settings` are metaparameters of the loss with a number per
        slot; `shared` are those that are equal in all slots. Batch norms leave their statistics to
        `commit`."""
        parts = [tensor for _, tensor in leaves(batch)]
        inputs = [*self._views, *self.fixed.values(), *settings.values(), *parts]
        losses, *others = self.computation.gradients(inputs, batch, settings, shared)
        count = len(self.names)
        with torch.no_grad():
            torch._foreach_copy_(list(into), others[:count])
        self._statistics = others[count:]
        return losses

    @torch.no_grad()
    def commit(self) -> None:
        """Moves the running statistics of batch norms, as `ghost_batch_norm.commit` does."""
        if not self._statistics:
            return
        torch._foreach_mul_(self._running, [1 - momentum for momentum in self._momenta])
        sums = [row for of_norm in self._statistics for row in of_norm.unbind(1)]
        shares = [momentum / self._ghosts for momentum in self._momenta]
        torch._foreach_add_(self._running, torch._foreach_mul(sums, shares))
        torch._foreach_add_(self._counts, 1)

    @torch.no_grad()
    def metrics(self, weights: Tensor, slots: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Returns each metric of the given slots for the examples of one batch: (slots, examples,
        ...). `weights` are the rows of these slots, and `slots` their numbers."""
        parts = [tensor for _, tensor in leaves(batch)]
        fixed = [tensor.index_select(0, slots) for tensor in self.fixed.values()]
        inputs = [*self.layout.views(weights), *fixed, *parts]
        return self.computation.metrics(inputs, batch)


class Method(nn.Module):
    """A method of a workload, `loss` or `metrics`, as a module that holds the model, so that
    `functional_call` puts other weights into the model that the method gets."""

    def __init__(self, model: nn.Module, method: Any) -> None:
        super().__init__()
        self.model, self._method = model, method

    def forward(self, batch: Batch, settings: Mapping[str, Any]) -> Any:
        return self._method(self.model, batch, **settings)


def call(method: Method, tensors: Numbers, batch: Batch, settings: Mapping[str, Any]) -> Any:
    prefixed = {f"model.{name}": tensor for name, tensor in tensors.items()}
    return functional_call(method, prefixed, (batch, settings))


@contextmanager
def as_vmap_can() -> Iterator[None]:
    """Makes torch compute attention with operations that `vmap` supports, embeddings whose padding
    stays as it is in all slots, and cross entropies with few operations, within the context."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH), _FewOperations():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


class _FewOperations(TorchFunctionMode):
    """Computes cross entropies of single examples in the plainest way. Torch's own, under `vmap`,
    takes more operations, and a second to load a library for symbols."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is functional.cross_entropy:  # torch gives all of its arguments
            logits, labels, *_ = args
            if kwargs == _PLAIN and not labels.is_floating_point():
                return cross_entropies(logits, labels)
        if function is functional.embedding and kwargs["padding_idx"] is not None:
            # `vmap` would train this row in all slots but the first.
            tokens, table = args
            rows = torch.arange(len(table), device=table.device)[:, None]
            is_padding = rows == kwargs["padding_idx"] % len(table)
            args = tokens, torch.where(is_padding, table.detach(), table)
        return function(*args, **kwargs)


_PLAIN = {
    name: parameter.default
    for name, parameter in signature(functional.cross_entropy).parameters.items()
    if name not in ("input", "target")
} | {"reduction": "none"}
"""Arguments of a cross entropy of each example, without weights and smoothing."""
