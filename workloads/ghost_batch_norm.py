"""Ghost batch norm (Hoffer et al. 2017, arXiv:1705.08741): a batch is divided into ghosts, runs of
a fixed number of examples, and each ghost is normalised with its own statistics.

Normalisation then depends neither on the batch size nor on how a batch is spread over ranks and
micro-batches, as long as ranks and micro-batches begin and end between ghosts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import groupby
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from orchestrator.records import BadInput, wrong_value

FOLDED_ON = {"cuda"}
"""Types of devices on which ghosts of equal size are folded into the channels and normalised at
once. A hundred ghosts then need as many kernels as one, at the price of two copies. A CPU launches
no kernels, so it would only pay for the copies."""


def ghosts(size: int, ghost_size: int) -> int:
    """Returns the number of ghosts that `size` consecutive examples are divided into; 0 if there
    are no examples.

    Ghost i starts at position `i * ghost_size` and the last ghost ends at `size`. A remainder of at
    least half a ghost becomes another ghost; a smaller remainder joins the last full ghost.
    """
    return (2 * size + ghost_size) // (2 * ghost_size) or min(size, 1)


class GhostBatchNorm(_BatchNorm):
    """The base class of the norms below. Running statistics move towards the mean over the ghosts
    of a batch. They do so at each forward pass in training, which is then taken for a whole batch,
    or, after `defer`, at each `commit`."""

    ghost_size: int
    """Number of examples per ghost."""
    folds: ClassVar[bool] = True
    """Whether ghosts of equal size may be normalised at once."""
    momentum: float
    running_mean: Tensor
    running_var: Tensor
    total_ghosts: int | None = None
    """Number of ghosts of a global batch, on all ranks and in all micro-batches together; None if
    updates are not deferred."""
    pending_ghosts: int = 0
    """Number of ghosts seen since the last `commit`."""
    pending: Tensor | None = None
    """Sums over the pending ghosts of their means (row 0) and unbiased variances (row 1)."""

    def __init__(self, *args: Any, ghost_size: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._cut_by(ghost_size)

    def _cut_by(self, ghost_size: int) -> None:
        if ghost_size < 2:
            raise wrong_value("`ghost_size`", "at least 2", ghost_size)
        if self.momentum is None:
            raise wrong_value("`momentum` of a ghost norm", "a number, such as 0.1", None)
        if not self.track_running_stats:
            rule = "true, since evaluations must not depend on how examples are divided"
            raise wrong_value("`track_running_stats` of a ghost norm", rule, False)
        self.ghost_size = ghost_size

    def defer(self, total_ghosts: int | None) -> None:
        """Leaves updates of the running statistics to `commit`; with None, each forward pass
        updates them again. Throws away pending sums."""
        assert total_ghosts is None or total_ghosts > 0, total_ghosts
        self.total_ghosts = total_ghosts
        discard([self])

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        self._check_input_dim(input)  # type: ignore[no-untyped-call]
        count = ghosts(len(input), self.ghost_size)
        sizes = [self.ghost_size] * (count - 1)
        sizes.append(len(input) - sum(sizes))
        if self.folds and input.device.type in FOLDED_ON:
            runs = [(size, len(list(same))) for size, same in groupby(sizes)]
        else:
            runs = [(size, 1) for size in sizes]
        pieces = input.split_with_sizes([size * equal for size, equal in runs])
        # Each run gets separate tensors: `vmap` loses values written to a part of another tensor.
        means, variances = (
            [self.running_mean.new_zeros(equal * self.num_features) for _, equal in runs]
            for _ in range(2)
        )
        outputs = list(map(self._normalise, pieces, means, variances))
        if pieces[-1].numel() == self.num_features:
            # The unbiased variance of a single value is 0/0. It counts as 0 here.
            variances[-1] = torch.zeros_like(variances[-1])
        shape = (-1, self.num_features)
        sums = torch.stack(
            [torch.cat(parts).view(shape).sum(dim=0) for parts in (means, variances)]
        )
        self.pending = sums if self.pending is None else self.pending + sums
        self.pending_ghosts += count
        if self.total_ghosts is None and count:
            commit([self])
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _normalise(self, piece: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Returns the ghosts of equal size in `piece`, normalised. Writes their means and unbiased
        variances to `mean` and `variance` (ghosts x channels), which must hold zeros."""
        equal = len(mean) // self.num_features
        weight, bias = (
            p if p is None or equal == 1 else p.repeat(equal) for p in (self.weight, self.bias)
        )
        if equal > 1:
            # Folding along the axis of the channels in memory keeps the format channels_last.
            axis = piece.dim() - 1 if piece.dim() == 4 and not piece.is_contiguous() else 1
            piece = torch.unflatten(piece.movedim(1, axis), 0, (equal, -1)).movedim(0, axis)
            piece = piece.flatten(axis, axis + 1).movedim(axis, 1)
        # With momentum 1, the kernel writes the statistics of this batch. nn.functional.batch_norm
        # does the same but refuses a single value per channel.
        cudnn = torch.backends.cudnn.enabled
        output = torch.batch_norm(piece, weight, bias, mean, variance, True, 1.0, self.eps, cudnn)
        if equal > 1:
            output = torch.unflatten(output.movedim(1, axis), axis, (equal, -1)).movedim(axis, 0)
            output = output.flatten(0, 1).movedim(axis, 1)
        return output


class GhostBatchNorm1d(GhostBatchNorm, nn.BatchNorm1d):
    """nn.BatchNorm1d over ghosts of `ghost_size` examples, with the same other arguments and the
    same state."""


class GhostBatchNorm2d(GhostBatchNorm, nn.BatchNorm2d):
    """nn.BatchNorm2d over ghosts of `ghost_size` examples, with the same other arguments and the
    same state."""


class _AroundOwnForward(GhostBatchNorm):
    """The ghost version of a norm whose `forward` does more than normalise, such as apply an
    activation. Each ghost goes through that `forward`, which writes the ghost's statistics to the
    place of the running statistics."""

    folds = False

    def _normalise(self, piece: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        names = ("running_mean", "running_var", "num_batches_tracked", "momentum")
        saved = {name: getattr(self, name) for name in names}
        self.running_mean, self.running_var = mean, variance
        self.num_batches_tracked, self.momentum = None, 1.0
        try:
            output: Tensor = super(GhostBatchNorm, self).forward(piece)
            return output
        finally:
            for name, value in saved.items():
                setattr(self, name, value)


COUNTERPARTS: dict[type[nn.Module], type[GhostBatchNorm]] = {
    nn.BatchNorm1d: GhostBatchNorm1d,
    nn.BatchNorm2d: GhostBatchNorm2d,
}


@cache
def _counterpart(kind: Any) -> type[GhostBatchNorm]:
    if kind in COUNTERPARTS:
        return COUNTERPARTS[kind]
    base = GhostBatchNorm if kind.forward is _BatchNorm.forward else _AroundOwnForward
    return type(f"Ghost{kind.__name__}", (base, kind), {})


def with_ghosts(model: nn.Module, ghost_size: int) -> nn.Module:
    """Turns each batch norm of the model into a ghost norm with the same parameters and state, and
    returns the model.

    This happens in place: references to a norm, its parameters and its hooks stay valid.
    """
    for module in model.modules():
        if isinstance(module, _BatchNorm) and not isinstance(module, GhostBatchNorm):
            kind: Any = type(module)
            module.__class__ = _counterpart(kind)
            assert isinstance(module, GhostBatchNorm)
            module._cut_by(ghost_size)
    return model


def ghost_size_of(make_model: Callable[[], nn.Module]) -> int | None:
    """Returns the ghost size of the models that `make_model` makes; None without ghost norms."""
    with torch.random.fork_rng(devices=[]):
        norms = ghost_norms(make_model())
    return norms[0].ghost_size if norms else None


def ghost_norms(model: nn.Module) -> list[GhostBatchNorm]:
    """Returns the ghost norms of a model. They must have one ghost size and be the only batch norms
    in training mode."""
    norms = []
    for name, module in model.named_modules():
        if isinstance(module, GhostBatchNorm):
            norms.append(module)
        elif isinstance(module, _BatchNorm) and (module.training or not module.track_running_stats):
            raise BadInput(
                "A batch norm's statistics must not depend on how a batch is spread over ranks and "
                f"micro-batches, but those of {name!r}, a {type(module).__name__}, would. Return "
                "with_ghosts(model, ghost_size=64) from the workload's `model`, and sweep batch "
                "sizes from 64 on: a smaller batch makes another network.",
                code="needs-ghosts",
            )
    if len(sizes := {norm.ghost_size for norm in norms}) > 1:
        raise wrong_value("The ghost size of a model", "one number", sorted(sizes))
    return norms


def running_statistics(modules: Sequence[GhostBatchNorm]) -> list[Tensor]:
    """Returns the running means and variances in a fixed order."""
    return [b for module in modules for b in (module.running_mean, module.running_var)]


@torch.no_grad()
def commit(
    modules: Sequence[GhostBatchNorm], over_ranks: Callable[[Tensor], Tensor] | None = None
) -> None:
    """Moves the running statistics by the pending sums, once per optimizer step, and clears these
    sums. If several ranks share a batch, `over_ranks` adds up what they pass to it, and every rank
    commits, with ghosts or without."""
    modules = [module for module in modules if module.training]  # those of frozen norms stay
    if not modules:
        return
    total, seen = check_ghosts(modules)
    running = running_statistics(modules)
    momenta = [module.momentum for module in modules for _ in range(2)]
    torch._foreach_mul_(running, [1 - momentum for momentum in momenta])
    sums = [module.pending for module in modules if module.pending is not None and seen]
    pending = [row for rows in sums for row in rows] or list(map(torch.zeros_like, running))
    if over_ranks is not None:
        lengths = [len(row) for row in pending]
        pending = [*torch.split(over_ranks(torch.cat(pending)), lengths)]
    torch._foreach_add_(
        running, torch._foreach_mul(pending, [momentum / total for momentum in momenta])
    )
    counts = [module.num_batches_tracked for module in modules]
    torch._foreach_add_([count for count in counts if count is not None], 1)
    discard(modules)


def check_ghosts(modules: Sequence[GhostBatchNorm]) -> tuple[int, int]:
    """Returns the number of ghosts of a step and the number of pending ghosts. Refuses norms that
    did not all see the same ghosts."""
    seen = {module.pending_ghosts for module in modules}
    (total,) = {module.total_ghosts or module.pending_ghosts for module in modules}
    assert total, "`defer` comes before `commit`"
    if len(seen) > 1 or max(seen) > total:
        raise BadInput(
            f"A ghost norm must see each example once per step, but in a step of {total} ghosts "
            f"the norms saw {sorted(seen)}. Use GroupNorm where a norm is skipped or shared.",
            code="ghost-count",
        )
    return total, max(seen)


def discard(modules: Sequence[GhostBatchNorm]) -> None:
    """Throws away the pending sums, for a step that is repeated."""
    for module in modules:
        module.pending, module.pending_ghosts = None, 0
