"""The noise scale in any training loop, against closed forms, with accumulation and on several
ranks."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import psutil
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
from torch.utils.data import DataLoader, TensorDataset

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
    parts: int = 4,
    scale: float = 1 / 4,
    optimizer: torch.optim.Optimizer | None = None,
) -> NoiseScale:
    """Accumulates gradients, without an optimizer at weights that do not move."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        for part in torch.randn(BATCH, D, generator=generator).chunk(parts):
            (model(part) * scale).backward()
            noise.after_backward()
        noise.before_step()
        if optimizer is not None:
            optimizer.step()
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
    other = accumulated(noise, model, 0, scale=1024.0)
    assert other.metrics() == pytest.approx(plain.metrics(), rel=1e-3)


def test_what_it_says_and_keeps() -> None:
    model = Quadratic()
    noise = NoiseScale(model.parameters(), batch_size=BATCH, micro_batch=MICRO)
    assert noise.report() == "noise scale: not known yet"
    assert noise.metrics() == {}
    accumulated(noise, model, 0)
    assert noise.report().startswith("noise scale ")
    assert "are nearly free" in noise.report()
    assert "steps like the recent ones" in noise.report()
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
    accumulated(noise, model, 7, parts=2, scale=1 / 2, optimizer=optimizer)
    assert torch.allclose(weights, model.x.detach(), rtol=1e-6)
    low, high = estimate.interval()
    assert noise.estimate is not None
    assert low <= noise.estimate.noise_scale <= high


def with_norm() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 3))


def trained(model: nn.Module, rank: int = 0, ranks: int = 1) -> dict[str, float]:
    """Trains with accumulation, and returns what was measured. Each of `ranks` has a part of each
    micro-batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    noise = NoiseScale(model, batch_size=32, micro_batch=8)
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
    with launch_ranks(2, in_every_way) as (ranks, processes):
        sockets = [each for each in psutil.net_connections("tcp") if each.pid in processes]
        return {**in_every_way(ranks), "sockets": sockets}


@pytest.mark.dear
def test_ranks_of_one_machine_listen_on_loopback_only(of_pair: dict[Any, Any]) -> None:
    """Nobody else can reach them."""
    listening = {each.laddr.ip for each in of_pair["sockets"] if each.status == psutil.CONN_LISTEN}
    assert listening, "somewhere they meet"
    assert listening <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


@pytest.mark.dear
@pytest.mark.parametrize("how", SHARDED)
def test_shards_tell_what_whole_gradients_tell(how: str, of_pair: dict[Any, Any]) -> None:
    expected = trained(with_norm())
    assert of_pair[how] == pytest.approx(expected, rel=1e-3)


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


# What these libraries warn of is their own affair.

EXAMPLES, PART, COUNT, RATE, CLIP = 64, 4, 4, 0.05, 0.01


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(EXAMPLES, 6, generator=generator),
        torch.randint(3, (EXAMPLES,), generator=generator),
    )


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(6, 3)


@pytest.fixture(scope="module")
def by_hand() -> dict[str, float]:
    """Runs the plain loop: one pass in order, with gradients clipped to nearly nothing."""
    model, (inputs, labels) = network(), data()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    noise = NoiseScale(model, batch_size=PART * COUNT, micro_batch=PART)
    parts = [*zip(inputs.split(PART), labels.split(PART), strict=True)]
    for number, (some, classes) in enumerate(parts, start=1):
        (nn.functional.cross_entropy(model(some), classes) / COUNT).backward()
        noise.after_backward()
        if number % COUNT == 0:
            noise.before_step()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            optimizer.zero_grad()
    return noise.metrics()


def finite(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if abs(value) < float("inf")}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_hugging_face(by_hand: dict[str, float], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from orchestrator.noise.huggingface import NoiseScaleCallback

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = network()

        def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
            logits = self.linear(inputs)
            return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

    class InOrder(transformers.Trainer):  # type: ignore[misc, name-defined]
        def _get_train_sampler(self, *arguments: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    inputs, labels = data()
    rows = [{"inputs": x, "labels": y} for x, y in zip(inputs, labels, strict=True)]

    def arguments(count: int) -> Any:
        return transformers.TrainingArguments(
            output_dir=str(tmp_path), per_device_train_batch_size=PART,
            gradient_accumulation_steps=count, num_train_epochs=1, learning_rate=RATE,
            lr_scheduler_type="constant", optim="sgd", max_grad_norm=CLIP, logging_steps=1,
            report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True,
        )  # fmt: skip

    trainer = InOrder(model=Model(), args=arguments(COUNT), train_dataset=rows)
    callback = NoiseScaleCallback(trainer)
    trainer.add_callback(callback)
    trainer.train()
    logged = [line for line in trainer.state.log_history if "noise/variance" in line][-1]
    assert finite({n: v for n, v in logged.items() if n.startswith("noise/")}) == pytest.approx(
        finite(by_hand), rel=1e-4
    )
    assert callback.noise.report().startswith("noise scale")
    trainer.args._n_gpu = 2  # one process feeds both, as many examples each
    callback.on_train_begin(trainer.args, None, None)
    for _ in range(2):
        callback.noise.record(torch.ones(()), torch.ones(()))
    assert (estimate := callback.noise.estimate) is not None
    assert estimate.variance == pytest.approx(2 * PART * COUNT * (COUNT + 1))
    with refused("too-few", "gradient_accumulation_steps", 2, 1):
        NoiseScaleCallback(InOrder(model=Model(), args=arguments(1), train_dataset=rows))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_lightning(by_hand: dict[str, float], tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch")
    from lightning.pytorch.loggers import CSVLogger

    from orchestrator.noise.lightning import NoiseScaleCallback

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.linear = network()

        def training_step(self, batch: Any, _: int) -> Tensor:
            inputs, labels = batch
            return nn.functional.cross_entropy(self.linear(inputs), labels)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=RATE)

    callback = NoiseScaleCallback(micro_batch=PART)
    logger = CSVLogger(tmp_path)
    trainer = lightning.Trainer(
        max_epochs=1, accumulate_grad_batches=COUNT, gradient_clip_val=CLIP, callbacks=[callback],
        logger=logger, log_every_n_steps=1, accelerator="cpu", enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False,
    )  # fmt: skip
    trainer.fit(Module(), DataLoader(TensorDataset(*data()), batch_size=PART, num_workers=0))
    assert finite(callback.noise.metrics()) == pytest.approx(finite(by_hand), rel=1e-4)
    logged = {name: float(v) for name, v in trainer.logged_metrics.items() if "noise/" in name}
    assert finite(logged) == pytest.approx(finite(by_hand), rel=1e-4)
