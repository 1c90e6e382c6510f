"""Batch norm over ghosts: runs of a fixed number of examples, each with statistics of its own.

So cut (Hoffer et al. 2017, arXiv:1705.08741), normalisation depends neither on the batch size nor
on how a batch is spread over ranks and micro-batches, as long as these are cut between ghosts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import groupby
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from orchestrator.records import BadInput

FOLDED_ON = {"cuda"}
"""Devices where equal ghosts are folded into the channels and normalised at once: as many kernels
for a hundred ghosts as for one, for two copies. A CPU launches no kernels but pays for copies."""


def ghosts(size: int, ghost_size: int) -> int:
    """How many ghosts a run of `size` examples is cut into; 0 if it is empty.

    Ghost i starts at position `i * ghost_size` and the last one ends at `size`: a remainder of at
    least half a ghost is one of its own, a smaller one joins the last full ghost.
    """
    return (2 * size + ghost_size) // (2 * ghost_size) or min(size, 1)


class GhostBatchNorm(_BatchNorm):
    """What the norms below share. Running statistics move towards the mean over a batch's ghosts:
    at each forward in training, taken for a whole batch, or at `commit` after `defer`."""

    ghost_size: int
    """Examples per ghost."""
    folds: ClassVar[bool] = True
    """Whether equal ghosts may be normalised at once."""
    momentum: float
    total_ghosts: int | None = None
    """Ghosts of a global batch, on all ranks and in all micro-batches; None if not deferred."""
    pending_ghosts: int = 0
    pending: Tensor | None = None
    """Sums over `pending_ghosts` ghosts of their means (row 0) and unbiased variances (row 1)."""

    def __init__(self, *args: Any, ghost_size: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._cut_by(ghost_size)

    def _cut_by(self, ghost_size: int) -> None:
        if ghost_size < 2:
            raise BadInput(f"`ghost_size >= 2` must hold, but got ghost_size={ghost_size}.")
        if self.momentum is None:
            raise BadInput("`momentum` of a ghost norm must be a number, e.g. 0.1, but got None.")
        self.ghost_size = ghost_size

    def defer(self, total_ghosts: int | None) -> None:
        """Leaves the running statistics to `commit`, or (None) to each forward again. What is
        pending is thrown away."""
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
        like = next(t for t in (self.running_mean, self.weight, input) if t is not None)
        pieces = input.split_with_sizes([size * equal for size, equal in runs])
        # Tensors of their own: what is written to a part of another, `vmap` loses.
        means, variances = (
            [like.new_zeros(equal * self.num_features) for _, equal in runs] for _ in range(2)
        )
        outputs = list(map(self._normalise, pieces, means, variances))
        if self.track_running_stats:
            if pieces[-1].numel() == self.num_features:
                # One value has an unbiased variance of 0/0, which counts as 0.
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
        """The piece, each of its equal ghosts normalised; their means and unbiased variances go to
        `mean` and `variance` (ghosts x channels), which hold zeros."""
        equal = len(mean) // self.num_features
        weight, bias = (
            p if p is None or equal == 1 else p.repeat(equal) for p in (self.weight, self.bias)
        )
        if equal > 1:
            # Folding along the axis where memory has the channels keeps channels_last as it is.
            axis = piece.dim() - 1 if piece.dim() == 4 and not piece.is_contiguous() else 1
            piece = torch.unflatten(piece.movedim(1, axis), 0, (equal, -1)).movedim(0, axis)
            piece = piece.flatten(axis, axis + 1).movedim(axis, 1)
        # At momentum 1 the kernel leaves the statistics themselves. The function of this name in
        # nn.functional does the same but refuses a single value per channel.
        cudnn = torch.backends.cudnn.enabled
        output = torch.batch_norm(piece, weight, bias, mean, variance, True, 1.0, self.eps, cudnn)
        if equal > 1:
            output = torch.unflatten(output.movedim(1, axis), axis, (equal, -1)).movedim(axis, 0)
            output = output.flatten(0, 1).movedim(axis, 1)
        return output


class GhostBatchNorm1d(GhostBatchNorm, nn.BatchNorm1d):
    """nn.BatchNorm1d over ghosts of `ghost_size` examples: same arguments, same state."""


class GhostBatchNorm2d(GhostBatchNorm, nn.BatchNorm2d):
    """nn.BatchNorm2d over ghosts of `ghost_size` examples: same arguments, same state."""


class _AroundOwnForward(GhostBatchNorm):
    """For a norm that does more than to normalise, such as an activation: each ghost goes through
    its own `forward`, which leaves the ghost's statistics where the running ones are."""

    folds = False

    def _normalise(self, piece: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        names = ("running_mean", "running_var", "num_batches_tracked", "momentum")
        kept = {name: getattr(self, name) for name in names}
        if self.track_running_stats:
            self.running_mean, self.running_var = mean, variance
            self.num_batches_tracked, self.momentum = None, 1.0
        try:
            output: Tensor = super(GhostBatchNorm, self).forward(piece)
            return output
        finally:
            for name, value in kept.items():
                setattr(self, name, value)


COUNTERPARTS: dict[type[nn.Module], type[GhostBatchNorm]] = {
    nn.BatchNorm1d: GhostBatchNorm1d,
    nn.BatchNorm2d: GhostBatchNorm2d,
}


@cache
def _counterpart(kind: Any) -> type[GhostBatchNorm]:
    if kind in COUNTERPARTS:
        return COUNTERPARTS[kind]
    has_own = kind.forward is not _BatchNorm.forward
    base = _AroundOwnForward if has_own else GhostBatchNorm
    return type(f"Ghost{kind.__name__}", (base, kind), {})


def with_ghosts(model: nn.Module, ghost_size: int) -> nn.Module:
    """The model, each of its batch norms turned into its counterpart, parameters and all.

    This is done in place: whoever holds a norm, its parameters or its hooks goes on holding them.
    """
    for module in model.modules():
        if isinstance(module, _BatchNorm) and not isinstance(module, GhostBatchNorm):
            kind: Any = type(module)
            module.__class__ = _counterpart(kind)
            assert isinstance(module, GhostBatchNorm)
            module._cut_by(ghost_size)
    return model


def ghost_size_of(make_model: Callable[[], nn.Module]) -> int | None:
    """The ghost size of the models that are made so, if their norms have one."""
    with torch.random.fork_rng(devices=[]):
        norms = ghost_norms(make_model())
    return norms[0].ghost_size if norms else None


def ghost_norms(model: nn.Module) -> list[GhostBatchNorm]:
    """The ghost norms of a model, which must have one ghost size and be the only batch norms that
    train."""
    norms = []
    for name, module in model.named_modules():
        if isinstance(module, GhostBatchNorm):
            norms.append(module)
        elif isinstance(module, _BatchNorm) and module.training:
            raise BadInput(
                "A batch norm's statistics must not depend on how a batch is spread over ranks and "
                f"micro-batches, but those of {name!r}, a {type(module).__name__}, would. Return "
                "with_ghosts(model, ghost_size=64) from the workload's `model`, and sweep batch "
                "sizes from 64 on: a smaller batch makes its norms another network's."
            )
    if len(sizes := {norm.ghost_size for norm in norms}) > 1:
        raise BadInput(f"A model must have one ghost size, but got {sorted(sizes)}.")
    return norms


def running_statistics(modules: Sequence[GhostBatchNorm]) -> list[Tensor]:
    """The running means and variances in a fixed order.

    `commit` is linear in them and in the ghosts: if one rank keeps them, the others set theirs to
    zero, and each commits its own ghosts, then their sum over ranks is that of the whole batches.
    """
    buffers = (b for module in modules for b in (module.running_mean, module.running_var))
    return [buffer for buffer in buffers if buffer is not None]


@torch.no_grad()
def commit(modules: Sequence[GhostBatchNorm]) -> None:
    """Moves the running statistics by what is pending, once per optimizer step, and clears it. A
    rank without ghosts commits too, since its share still decays."""
    modules = [module for module in modules if module.track_running_stats]
    if not modules:
        return
    total, seen = check_ghosts(modules)
    running = running_statistics(modules)
    momenta = [module.momentum for module in modules for _ in range(2)]
    torch._foreach_mul_(running, [1 - momentum for momentum in momenta])
    if seen:
        sums = [module.pending for module in modules if module.pending is not None]
        pending = [row for rows in sums for row in rows]
        torch._foreach_mul_(pending, [momentum / total for momentum in momenta])
        torch._foreach_add_(running, pending)
    counts = [module.num_batches_tracked for module in modules]
    torch._foreach_add_([count for count in counts if count is not None], 1)
    discard(modules)


def check_ghosts(modules: Sequence[GhostBatchNorm]) -> tuple[int, int]:
    """The ghosts of a step, and how many of them are pending; refuses norms that saw others."""
    seen = {module.pending_ghosts for module in modules}
    (total,) = {module.total_ghosts or module.pending_ghosts for module in modules}
    assert total, "`defer` comes before `commit`"
    if len(seen) > 1 or max(seen) > total:
        raise BadInput(
            "A ghost norm must see each example once per step, along dimension 0, but in a step of "
            f"{total} ghosts the norms saw {sorted(seen)}. Where one is skipped, shared or run "
            "again (activation checkpointing), use another kind of norm, such as GroupNorm."
        )
    return total, max(seen)


def discard(modules: Sequence[GhostBatchNorm]) -> None:
    """Throws away what is pending, for a step that is done again."""
    for module in modules:
        module.pending, module.pending_ghosts = None, 0
