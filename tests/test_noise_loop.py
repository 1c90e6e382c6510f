"""The noise scale in any training loop, against closed forms, with accumulation and on several
ranks."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from conftest import refused
from torch import Tensor, nn
from torch.distributed import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from orchestrator.noise import NoiseScale
from orchestrator.noise.estimates import NoiseEstimate
from orchestrator.training import Ranks
from orchestrator.training.ranks import launch_ranks

D, BATCH, MICRO = 50, 32, 8
H = 1 / torch.arange(1, D + 1)
VARIANCE = float(H.sum())


class Quadratic(nn.Module):
    """A noisy quadratic, with gradients h x + sqrt(h) noise."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(0.5 * torch.ones(D))

    def forward(self, noise: Tensor) -> Tensor:
        losses: Tensor = (0.5 * H * self.x**2).sum() + noise @ (H.sqrt() * self.x)
        return losses.mean()


TRUTH = VARIANCE / float(((H * 0.5) ** 2).sum())


class Scaler:
    """The methods of a gradient scaler that are used."""

    def get_scale(self) -> float:
        return 1024.0


def accumulated(
    noise: NoiseScale,
    model: nn.Module,
    seed: int,
    steps: int = 100,
    *,
    divisor: float = 4,
    scale: float = 1.0,
) -> NoiseScale:
    """Accumulates gradients at weights that do not move."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        for part in torch.randn(BATCH, D, generator=generator).split(MICRO):
            (model(part) / divisor * scale).backward()
            noise.after_backward()
        noise.before_step()
        model.zero_grad()
    return noise


def test_accumulated_gradients_tell() -> None:
    found, model = [], Quadratic()
    for seed in range(30):
        noise = NoiseScale(model, batch_size=BATCH, micro_batch=MICRO, decay=0.999)
        found.append(accumulated(noise, model, seed).estimate)
    estimates = [estimate for estimate in found if estimate is not None]
    variances = np.array([estimate.variance for estimate in estimates])
    squares = np.array([estimate.gradient_square for estimate in estimates])
    for values, truth in ((variances, VARIANCE), (squares, VARIANCE / TRUTH)):
        assert abs(values.mean() - truth) < 3 * values.std(ddof=1) / math.sqrt(30)
    hits = [low <= TRUTH <= high for low, high in (estimate.interval() for estimate in estimates)]
    assert 0.9 - 3 * math.sqrt(0.09 / 30) <= np.mean(hits)


def test_factors_are_taken_out() -> None:
    model, sizes = Quadratic(), {"batch_size": BATCH, "micro_batch": MICRO}
    plain = accumulated(NoiseScale(model, **sizes), model, 0)
    noise = NoiseScale(model, **sizes, scaler=Scaler(), divided=False)
    other = accumulated(noise, model, 0, divisor=1, scale=1024.0)
    assert other.metrics() == pytest.approx(plain.metrics(), rel=1e-3)


def test_what_it_says_and_keeps() -> None:
    model = Quadratic()
    noise = NoiseScale(model.parameters(), batch_size=BATCH, micro_batch=MICRO)
    assert noise.report() == "noise scale: not known yet"
    assert noise.metrics() == {}
    accumulated(noise, model, 0)
    assert noise.report().startswith("noise scale ")
    assert "are nearly free" in noise.report()
    assert noise.report().endswith(", so far"), "of the memory, few steps are filled"
    short = NoiseScale(model, batch_size=BATCH, micro_batch=MICRO, decay=0.1)
    accumulated(short, model, 0)
    assert not short.report().endswith("so far")
    again = NoiseScale(model, batch_size=BATCH, micro_batch=MICRO)
    again.load_state_dict(noise.state_dict())
    assert again.estimate == noise.estimate
    assert accumulated(again, model, 1, 3).estimate == accumulated(noise, model, 1, 3).estimate


def test_a_step_that_overflowed_is_left_out() -> None:
    model = Quadratic()
    noise = accumulated(NoiseScale(model, batch_size=BATCH, micro_batch=MICRO), model, 0)
    before = noise.estimate
    noise.record(torch.tensor(math.inf), torch.tensor(math.nan))
    assert noise.estimate == before


@pytest.mark.parametrize("options", [{}, {"micro_batch": BATCH}, {"micro_batch": 2 * BATCH}])
def test_without_parts_there_is_nothing_to_compare(options: dict[str, int]) -> None:
    with refused(
        "too-few", f"batch_size={BATCH}", f"micro_batch={options.get('micro_batch', BATCH)}"
    ):
        NoiseScale(Quadratic(), batch_size=BATCH, **options)


def test_norms_over_ranks_are_refused() -> None:
    model = nn.SyncBatchNorm.convert_sync_batchnorm(
        nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    )
    with refused("synced-norm", "SyncBatchNorm", "GroupNorm"):
        NoiseScale(model, batch_size=8, micro_batch=4)


def test_misplaced_calls_are_told() -> None:
    noise = NoiseScale(Quadratic(), batch_size=BATCH, micro_batch=MICRO)
    with refused("call-order", "`after_backward`", "`before_step`"):
        noise.before_step()
    with refused("call-order", "`backward`", "`zero_grad`"):
        noise.after_backward()
    with refused("empty", "requires_grad=True"):
        NoiseScale([], batch_size=8, micro_batch=4)


def on_ranks(ranks: Ranks, accumulate: bool) -> tuple[NoiseEstimate | None, Tensor]:
    """Trains on two ranks, each with half of every batch. The weights take a step, so gradients
    must be right."""
    model = DistributedDataParallel(Quadratic())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    noise = NoiseScale(model, batch_size=BATCH)
    generator = torch.Generator().manual_seed(7)
    for _ in range(100):
        mine = torch.randn(BATCH, D, generator=generator).view(2, -1, D)[ranks.rank]
        if accumulate:
            half = len(mine) // 2
            model(mine[:half]).backward()  # as a step with fewer parts, at the end of an epoch
            noise.forget_step()
            optimizer.zero_grad()
            with model.no_sync():
                (model(mine[:half]) / 2).backward()
                noise.after_backward()
            (model(mine[half:]) / 2).backward()
        else:
            model(mine).backward()
        noise.before_step()
        optimizer.step()
        optimizer.zero_grad()
    return noise.estimate, model.module.x.detach()


@pytest.mark.dear
@pytest.mark.parametrize("accumulate", [False, True])
def test_ranks_tell_without_accumulation(accumulate: bool, of_pair: dict[Any, Any]) -> None:
    estimate, weights = of_pair[accumulate]
    model = Quadratic()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    noise = NoiseScale(model, batch_size=BATCH, micro_batch=BATCH // 2)
    generator = torch.Generator().manual_seed(7)
    for _ in range(100):
        for part in torch.randn(BATCH, D, generator=generator).split(BATCH // 2):
            (model(part) / 2).backward()
            noise.after_backward()
        noise.before_step()
        optimizer.step()
        optimizer.zero_grad()
    assert torch.allclose(weights, model.x.detach(), rtol=1e-6)
    low, high = estimate.interval()
    assert noise.estimate is not None
    assert low <= noise.estimate.noise_scale <= high


def with_norm() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 3))


def trained(
    model: nn.Module, rank: int = 0, ranks: int = 1, parameters: Any = None
) -> dict[str, float]:
    """Trains with accumulation, and returns what was measured. Each of `ranks` has a part of each
    micro-batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    noise = NoiseScale(parameters or model, batch_size=32, micro_batch=8)
    generator = torch.Generator().manual_seed(7)
    for _ in range(10):
        for part in torch.randn(32, 6, generator=generator).split(8):
            mine = part.view(ranks, -1, 6)[rank]
            (model(mine).square().mean() / 4).backward()
            noise.after_backward()
        noise.before_step()
        optimizer.step()
        optimizer.zero_grad()
    return noise.metrics()


def sharded(ranks: Ranks, how: str) -> dict[str, float]:
    model, mesh = with_norm(), init_device_mesh("cpu", (2,))
    if how == "fsdp":
        fully_shard(model, mesh=mesh)  # 3 rows on 2 ranks: uneven shards
        return trained(model, ranks.rank, 2)
    plan: dict[str, Any] = {"1": ColwiseParallel(), "3": RowwiseParallel()}
    if how == "sequence":
        plan["0"] = SequenceParallel(sequence_dim=0)  # its gradients are partial sums
        plan["1"] = ColwiseParallel(input_layouts=Shard(0))
        return trained(parallelize_module(model, mesh, plan), ranks.rank, 2)
    return trained(parallelize_module(model, mesh, plan))


SHARDED = ("fsdp", "tensor", "sequence")


def in_every_way(ranks: Ranks) -> dict[Any, Any]:
    """What each of two ranks measures."""
    of_ranks = {accumulate: on_ranks(ranks, accumulate) for accumulate in (False, True)}
    return {**of_ranks, **{how: sharded(ranks, how) for how in SHARDED}}


@pytest.fixture(scope="module")
def of_pair() -> dict[Any, Any]:
    with launch_ranks(2, in_every_way) as (ranks, _):
        return in_every_way(ranks)


@pytest.mark.dear
@pytest.mark.parametrize("how", SHARDED)
def test_shards_tell_what_whole_gradients_tell(how: str, of_pair: dict[Any, Any]) -> None:
    expected = trained(with_norm())
    assert expected["noise/norm_variance"] < 0.9 * expected["noise/variance"]
    assert of_pair[how] == pytest.approx(expected, rel=1e-3)


def test_norm_layers_alone() -> None:
    """Their columns are those of a measurement of their parameters; without them there are none."""
    model, other = with_norm(), with_norm()
    found, alone = trained(model), trained(other, parameters=other[0])
    names = {"noise/norm_gradient_square": "noise/gradient_square"}
    names["noise/norm_variance"] = "noise/variance"
    for name, plain in names.items():
        assert found[name] == pytest.approx(alone[plain], rel=1e-6)
    assert not {*names} & {*trained(nn.Linear(6, 3))}
    # The state of an earlier version has nothing of norm layers.
    again = NoiseScale(model, batch_size=32, micro_batch=8)
    again.load_state_dict(
        {"weight": 0.0, "weight2": 0.0, "g": 0, "s": 0, "gg": 0, "ss": 0, "gs": 0}
    )
    assert again.metrics() == {}


def test_the_running_estimate_follows_the_training() -> None:
    """Steps that are long past have no weight."""
    model = Quadratic()
    noise = accumulated(NoiseScale(model, batch_size=BATCH, micro_batch=MICRO, decay=0.9), model, 0)
    with torch.no_grad():
        model.x *= 10
    accumulated(noise, model, 1)
    assert noise.estimate is not None
    low, high = noise.estimate.interval()
    assert low <= TRUTH / 100 <= high
