"""Measures the gradient noise scale in any training loop."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import SyncBatchNorm
from torch.nn.parallel import DistributedDataParallel

from orchestrator.noise.estimates import FREEDOM, NoiseEstimate, noise_in_words
from orchestrator.records import BadInput

AT_ONCE = 64
"""Number of steps whose measurements are read from the device together."""

REMEMBERED = 0.9
"""Share of the memory that must be filled before an estimate is more than one of the first steps:
until then each step moves it by more than it will later."""


class NoiseScale:
    """Measures the gradient noise scale from gradients that a training computes anyway.

        noise = NoiseScale(model, batch_size=256, micro_batch=32)
        for batch in batches:
            for part in batch.split(32):
                (loss(model, part) / 8).backward()
                noise.after_backward()
            noise.before_step()
            optimizer.step()
            optimizer.zero_grad()
        print(noise.report())

    It compares the gradient of the first micro-batch with the gradient of the whole batch. Under
    DistributedDataParallel it compares each rank's gradient with the mean over ranks. That needs no
    accumulation, and only `before_step` is called.

    Parameters may be sharded (`fully_shard`, tensor parallelism). Then all ranks call both methods,
    and batch sizes are those of all ranks together.

    Call both methods while the gradients are as `backward` left them: before they are clipped, and
    before a gradient scaler unscales them.
    """

    def __init__(
        self,
        model: nn.Module | Iterable[nn.Parameter],
        *,
        batch_size: int,
        micro_batch: int | None = None,
        divided: bool = True,
        scaler: Any = None,
        decay: float = 0.99,
    ) -> None:
        """`batch_size` is the number of examples of one optimizer step, on all ranks. `divided`
        says that each loss was divided by the number of micro-batches, so that gradients add up to
        the mean over the batch. `scaler` is the torch.amp.GradScaler, if one is used. With each new
        step, the weights of all earlier steps are multiplied by `decay`."""
        if isinstance(model, nn.Module):
            _check_norms(model.modules())
        parameters = model.parameters() if isinstance(model, nn.Module) else model
        self._parameters = [p for p in parameters if p.requires_grad]
        if not self._parameters:
            raise BadInput("A noise scale needs parameters with requires_grad=True.", code="empty")
        self._sharded = any(map(is_sharded, self._parameters))
        ranks = model if isinstance(model, DistributedDataParallel) else None
        self._hook: _RankGradients | None = None
        count, micro_batch = 1, micro_batch or batch_size
        if ranks is not None and dist.get_world_size(ranks.process_group) > 1:
            self._hook = _RankGradients(ranks)
            count = self._hook.count
        small = batch_size / count if self._hook else micro_batch
        if not 0 < small < batch_size or not 0 <= decay < 1:
            raise BadInput(
                f"The noise scale is measured by comparing gradients of micro-batches with that of "
                f"the whole batch, so micro_batch must be smaller than batch_size, but got "
                f"batch_size={batch_size}, micro_batch={micro_batch}, decay={decay} on one "
                f"process. Accumulate gradients: put the batch through the model in two "
                f"micro-batches or more, and give their size as micro_batch. Or train on several "
                f"ranks with DistributedDataParallel.",
                code="too-few",
            )
        self._small, self._large = float(small), float(batch_size)
        self._factor = 1.0 if divided else min(micro_batch * count / batch_size, 1.0)
        self._scaler, self._decay = scaler, decay
        self._first: Tensor | None = None
        self._waiting: list[tuple[Tensor, Tensor]] = []
        names = ("weight", "weight2", "g", "s", "gg", "ss", "gs")
        self._sums = dict.fromkeys(names, 0.0)

    def after_backward(self) -> None:
        """Call this after each backward pass. It measures the gradient after the first one."""
        if self._first is None and self._hook is None:
            self._first = self._square()

    def before_step(self) -> None:
        """Call this after the last backward pass of a step."""
        if self._hook is not None:
            small = self._hook.mean_square()
        elif self._first is not None:
            small = self._first
        else:
            raise BadInput(
                "Call `after_backward` after each backward pass, and `before_step` after those.",
                code="call-order",
            )
        self._first = None
        both = torch.stack([small, self._square()])
        if self._sharded:
            dist.all_reduce(both)
        self.record(both[0], both[1])

    def record(self, first: Tensor, last: Tensor) -> None:
        """Records a step for callers that can't use the two methods above. `first` is the squared
        length of the gradient after the first micro-batch, or the mean of the squared lengths of
        the ranks' gradients. `last` is the squared length of the gradient after the last
        micro-batch."""
        scale = 1.0 if self._scaler is None else float(self._scaler.get_scale())
        unit = (self._factor / scale) ** 2
        # `first` belongs to the micro-batch's share of the whole gradient. This factor turns the
        # share into the mean over the micro-batch.
        alone = 1.0 if self._hook else (self._large / self._small) ** 2
        self._waiting.append((first * unit * alone, last * unit))
        if len(self._waiting) >= AT_ONCE:
            self._read()

    def forget_step(self) -> None:
        """Drops a step that was begun, for example a step with fewer micro-batches."""
        self._first = None
        if self._hook is not None:
            self._hook.squares.clear()

    @property
    def estimate(self) -> NoiseEstimate | None:
        """The estimate over the steps so far, each with the weight `decay` to the power of its age
        in steps; None before the second step."""
        self._read()
        total = self._sums["weight"]
        if not total:
            return None
        count = total**2 / self._sums["weight2"]
        if count < 1.5:
            return None
        g, s, gg, ss, gs = (self._sums[name] / total for name in ("g", "s", "gg", "ss", "gs"))
        # These are errors of weighted means. The weights are worth `count` equal weights.
        return NoiseEstimate(
            gradient_square=g,
            variance=s,
            floor=max(gg - g * g, 0.0) / (count - 1),
            variance_error=math.sqrt(max(ss - s * s, 0.0) / (count - 1)),
            covariance=(gs - g * s) / (count - 1),
            freedom=count - 1,
        )

    def report(self) -> str:
        """Returns the noise scale and its interval in words."""
        estimate = self.estimate
        if estimate is None:
            return "noise scale: not known yet"
        # The weights of all steps there could be add up to 1 / (1 - decay).
        so_far = self._sums["weight"] * (1 - self._decay) < REMEMBERED
        return noise_in_words(estimate) + ", so far" * so_far

    def metrics(self) -> dict[str, float]:
        """Returns numbers for a logger: |G|^2 and trS with their errors, by which a sweep makes
        forecasts, and the noise scale and its 90 % interval in examples. The upper end is infinite
        if the gradient can't be told from noise."""
        estimate = self.estimate
        if estimate is None:
            return {}
        low, high = estimate.interval()
        return {
            **estimate.columns(),
            FREEDOM: estimate.freedom,
            "noise/scale": estimate.noise_scale,
            "noise/scale_low": low,
            "noise/scale_high": high,
        }

    def state_dict(self) -> dict[str, float]:
        self._read()
        return dict(self._sums)

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        self._waiting = []
        self._sums = {name: float(state[name]) for name in self._sums}

    def _square(self) -> Tensor:
        """Returns the squared length of the present gradient, as it was accumulated and scaled. Of
        sharded parameters, it is this rank's share."""
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        if not gradients:
            raise BadInput(
                "No parameter has a gradient. Measure after `backward` and before `zero_grad`. "
                "Where parameters are sharded, leave the synchronisation of gradients on.",
                code="call-order",
            )
        return _square_of([*map(_share_of, gradients)] if self._sharded else gradients)

    def _read(self) -> None:
        if not self._waiting:
            return
        pairs = torch.stack([torch.stack(pair) for pair in self._waiting]).double().tolist()
        self._waiting = []
        a, b = self._small, self._large
        for small, large in pairs:
            if not math.isfinite(small + large):
                continue  # the gradient scaler skips such a step, too
            square, variance = (b * large - a * small) / (b - a), (small - large) / (1 / a - 1 / b)
            added = {
                "weight": 1.0, "weight2": 1.0, "g": square, "s": variance,
                "gg": square**2, "ss": variance**2, "gs": square * variance,
            }  # fmt: skip
            for name, value in added.items():
                keep = self._decay**2 if name == "weight2" else self._decay
                self._sums[name] = keep * self._sums[name] + value


def is_sharded(parameter: Tensor) -> bool:
    return hasattr(parameter, "placements")


def refuse_shards(model: nn.Module) -> None:
    """Refuses sharded parameters in a trainer that decides itself when gradients are reduced."""
    if any(map(is_sharded, model.parameters())):
        raise BadInput(
            "This callback can't measure the noise scale if parameters are sharded (FSDP). Use "
            "orchestrator.noise.NoiseScale in a loop of your own, or measure without sharding.",
            code="sharded",
        )


def _share_of(gradient: Any) -> Tensor:
    """Returns this rank's part of a gradient, such that the squares of all ranks' parts add up to
    the square of the whole gradient."""
    copies = dist.get_world_size()
    if is_sharded(gradient):
        if any(placement.is_partial() for placement in gradient.placements):
            gradient = gradient.full_tensor()
        else:
            sizes = gradient.device_mesh.shape
            for placement, count in zip(gradient.placements, sizes, strict=True):
                copies //= 1 if placement.is_replicate() else count
            gradient = gradient.to_local()
    part: Tensor = gradient / math.sqrt(copies)
    return part


def _square_of(gradients: Sequence[Tensor]) -> Tensor:
    """Returns the squared length of these gradients together."""
    kind = reduce(torch.promote_types, {gradient.dtype for gradient in gradients}, torch.float32)
    return torch.stack([*torch._foreach_norm([*gradients], 2, kind)]).square().sum()


def _check_norms(modules: Iterable[nn.Module]) -> None:
    if any(isinstance(module, SyncBatchNorm) for module in modules):
        raise BadInput(
            "The noise scale can't be measured with SyncBatchNorm: batch norms that are "
            "synchronised over ranks make each rank's gradient depend on the examples of all "
            "ranks, so the gradients of ranks differ by more than chance. Leave out "
            "SyncBatchNorm.convert_sync_batchnorm, or use norms over single examples (GroupNorm).",
            code="synced-norm",
        )


class _RankGradients:
    """Measures each rank's gradient before DistributedDataParallel averages it over ranks."""

    def __init__(self, model: DistributedDataParallel) -> None:
        self._group = model.process_group
        self.count = dist.get_world_size(self._group)
        self.squares: list[Tensor] = []
        try:
            # A lambda has no annotations. torch checks those of a hook, and refuses annotations
            # that are text, as they are in this file.
            model.register_comm_hook(None, lambda _, bucket: self._average(bucket))
        except RuntimeError as error:
            raise BadInput(
                f"The noise scale needs the communication hook of DistributedDataParallel, but "
                f"another hook is registered: {error}. Leave that hook out while you measure."
            ) from None

    def _average(self, bucket: Any) -> torch.futures.Future[Tensor]:
        gradients = bucket.buffer()
        self.squares.append(_square_of(bucket.gradients()))
        gradients.div_(self.count)
        reduced = dist.all_reduce(gradients, group=self._group, async_op=True).get_future()
        averaged: torch.futures.Future[Tensor] = reduced.then(lambda future: future.value()[0])
        return averaged

    def mean_square(self) -> Tensor:
        if not self.squares:
            raise BadInput(
                "No gradients were averaged over ranks in this step. Run the last backward pass of "
                "a step outside of `no_sync`.",
                code="call-order",
            )
        square = torch.stack(self.squares).sum(dim=0)
        self.squares.clear()
        dist.all_reduce(square, group=self._group)
        return square / self.count
