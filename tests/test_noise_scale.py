"""The noise scale in a trial: against closed forms, and without any effect on the training."""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import models
import numpy as np
import pytest
import torch
from conftest import exhaust, make_trial, refused, run_trial
from test_stackable import Remembering
from torch import Tensor, nn

from orchestrator.noise.estimates import NoiseEstimate, Sample, noise_in_words, of_chunks
from orchestrator.noise.gradients import per_chunk, per_example
from orchestrator.records import Extras, Trial
from orchestrator.training import Ranks, train_in_stack
from orchestrator.training.noise_scale import NoiseMeter
from orchestrator.training.trainer import Trainer, fresh_model
from orchestrator.workloads import Classification, Tensors, Workload, prepare, with_ghosts

CPU = torch.device("cpu")
SEEDS, D, EXAMPLES = 200, 100, 512
H = 1 / torch.arange(1, D + 1, dtype=torch.float64)
TRUE_VARIANCE = float(H.sum())


def noisy(trial: Trial) -> Trial:
    return replace(trial, study=replace(trial.study, extras=Extras(noise_scale="always")))


def quadratic(weights: Tensor, noise: Tensor) -> Tensor:
    """Returns the loss of one example, or the mean over several."""
    pull = noise * H.sqrt() * weights
    return (0.5 * H * weights**2).sum() + pull.sum(dim=-1).mean()


def sampled(weights: Tensor, seed: int, kind: str) -> NoiseEstimate:
    noise = torch.randn(
        EXAMPLES, D, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    if kind == "examples":
        sample = per_example(lambda w, one: quadratic(w["x"], one[0]), {"x": weights}, [noise])
    else:

        def gradients() -> Iterator[list[Tensor]]:
            for chunk in noise.split(EXAMPLES // 32):
                x = weights.clone().requires_grad_()
                yield [*torch.autograd.grad(quadratic(x, chunk), x)]

        sample = per_chunk(gradients(), EXAMPLES // 32)
    return of_chunks(sample)


@cache
def cell(level: float, kind: str) -> list[tuple[float, NoiseEstimate]]:
    """Returns |G|^2 and the estimate at each seed's weights, which have the given size."""
    found = []
    for seed in range(SEEDS):
        generator = torch.Generator().manual_seed(10_000 + seed)
        weights = level * (1 + 0.3 * torch.randn(D, dtype=torch.float64, generator=generator))
        found.append((float(((H * weights) ** 2).sum()), sampled(weights, seed, kind)))
    return found


CELLS = [(level, kind) for level in (1.0, 0.1) for kind in ("examples", "chunks")]


@pytest.mark.parametrize(("level", "kind"), CELLS)
def test_estimates_are_unbiased(level: float, kind: str) -> None:
    off = np.array(
        [(e.gradient_square - g, e.variance - TRUE_VARIANCE) for g, e in cell(level, kind)]
    )
    errors = off.std(axis=0, ddof=1) / math.sqrt(SEEDS)
    assert (np.abs(off.mean(axis=0)) < 3 * errors).all()
    said = [(e.gradient_square_error, e.variance_error) for _, e in cell(level, kind)]
    assert np.sqrt((np.array(said) ** 2).mean(axis=0)) == pytest.approx(off.std(axis=0), rel=0.2)


def test_intervals_cover_the_truth() -> None:
    covered = []
    for each in CELLS:
        hits = [
            low <= TRUE_VARIANCE / g <= high
            for g, estimate in cell(*each)
            for low, high in [estimate.interval()]
        ]
        assert np.mean(hits) >= 0.9 - 3 * math.sqrt(0.09 / SEEDS), each
        covered += hits
    assert 0.87 <= np.mean(covered) <= 0.95


@pytest.mark.parametrize("kind", ["examples", "chunks"])
def test_a_gradient_that_cannot_be_seen_gives_a_lower_bound(kind: str) -> None:
    """The noise scale is a hundred times the sample."""
    length = math.sqrt(TRUE_VARIANCE / (100 * EXAMPLES) / float((H**2).sum()))
    weights = torch.full((D,), length, dtype=torch.float64)
    found = [sampled(weights, seed, kind) for seed in range(SEEDS)]
    unbounded = [estimate for estimate in found if math.isinf(estimate.interval()[1])]
    assert len(unbounded) > 0.85 * SEEDS
    assert all("at least" in noise_in_words(estimate) for estimate in unbounded)
    # One end of an interval of 90 %.
    above = np.mean([estimate.interval()[0] <= 100 * EXAMPLES for estimate in found])
    assert above >= 0.95 - 3 * math.sqrt(0.05 * 0.95 / SEEDS)


def test_gradients_of_zero_tell_nothing() -> None:
    """A network that fits every example to the last bit has such gradients."""
    zeros = np.zeros((6, 6))
    for squares in (None, zeros[0]):
        found = of_chunks(Sample(size=4, products=zeros, squares=squares))
        assert found.noise_scale == math.inf
        assert found.interval() == (0, math.inf)


def test_chunks_and_examples_by_hand() -> None:
    """The formulas are those of McCandlish et al., appendix A."""
    gradients = (
        torch.randn(12, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 1
    )
    mean = gradients.mean(dim=0)
    small = gradients.view(4, 3, 5).mean(dim=1)
    rows = (small @ small.T).numpy()
    squares = (gradients**2).sum(dim=1).view(4, 3).mean(dim=1).numpy()
    by_examples = of_chunks(Sample(size=3, products=rows, squares=squares))
    lengths, length = float((gradients**2).sum(dim=1).mean()), float((mean**2).sum())
    assert by_examples.variance == pytest.approx((lengths - length) / (1 - 1 / 12))
    assert by_examples.gradient_square == pytest.approx((12 * length - lengths) / 11)
    by_chunks = of_chunks(Sample(size=3, products=rows))
    lengths = float((small**2).sum(dim=1).mean())
    assert by_chunks.gradient_square == pytest.approx((12 * length - 3 * lengths) / 9)
    assert by_chunks.variance == pytest.approx((lengths - length) / (1 / 3 - 1 / 12))
    everything = of_chunks(Sample(size=3, products=rows, squares=squares), population=12)
    assert everything.gradient_square == pytest.approx(length)
    assert everything.interval() == pytest.approx((everything.noise_scale,) * 2)


def measured(trial: Trial, steps: int = 0) -> tuple[Trainer, dict[str, float]]:
    """Returns a trainer after the given number of steps, and the noise scale there."""
    workload, splits = prepare(trial.study.workload, None, CPU)
    trainer = Trainer(trial, workload, splits["train"], Ranks())
    if steps:
        trainer.advance(steps)
    meter = NoiseMeter(workload=workload, train=splits["train"], device=CPU)
    return trainer, meter.measure(trial, trainer.state())


def holds(columns: dict[str, float], truth: float) -> bool:
    low, high = NoiseEstimate.from_columns(columns).interval()
    return low <= truth <= high


def test_a_training_set_is_drawn_from_without_replacement() -> None:
    """The truth is the noise scale of all 1,400 examples, of which 512 are in the sample."""
    trial = make_trial(params={"learning_rate": 0.3})
    trainer, _ = measured(trial, steps=50)
    workload, splits = prepare("digits/mlp", None, CPU)
    images, labels = splits["train"].batch(torch.arange(1400))
    weights = {name: p.detach() for name, p in trainer.model.named_parameters()}

    def loss(weights: Any, one: Any) -> Tensor:
        logits = torch.func.functional_call(trainer.model, dict(weights), one[0][None])
        return nn.functional.cross_entropy(logits, one[1][None])

    sample = per_example(loss, weights, [images, labels])
    truth = of_chunks(sample, population=1400)
    meter = NoiseMeter(workload=workload, train=splits["train"], device=CPU)
    state = trainer.state()
    hits = []
    for step in range(60):
        columns = meter.measure(trial, {**state, "step": step})
        hits.append(holds(columns, truth.noise_scale))
    assert 0.9 - 3 * math.sqrt(0.09 / 60) <= np.mean(hits)


class Dropping(models.Small):
    """The gradient of an example is its pixels, half of them dropped and the others doubled."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(36, 1, bias=False))

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return model(batch[0]).flatten()


class Keeping(Remembering):
    kept = True


def test_a_measurement_leaves_no_buffer_behind() -> None:
    measured, _ = run_trial(noisy(make_trial(models.name(Keeping), budget_steps=2)))
    assert ["noise/variance" in each.metrics for each in measured] == [True] * 3


def test_what_varies_in_an_example_is_noise_as_well() -> None:
    trial = make_trial(workload=models.name(Dropping), params={"learning_rate": 0.1})
    workload, splits = prepare(trial.study.workload, None, CPU)
    pixels = splits["train"].batch(torch.arange(100))[0].flatten(1)
    square = float((pixels.mean(dim=0) ** 2).sum())
    variance = 2 * float((pixels**2).sum(dim=1).mean()) - square
    meter = NoiseMeter(workload=workload, train=splits["train"], device=CPU)
    state = {"model": workload.model().state_dict()}
    found = [meter.measure(trial, {**state, "step": step}) for step in range(60)]
    columns = ("noise/gradient_square", "noise/variance")
    measured = np.array([[one[name] for name in columns] for one in found])
    errors = measured.std(axis=0, ddof=1) / math.sqrt(len(found))
    assert (np.abs(measured.mean(axis=0) - (square, variance)) < 3 * errors).all()
    assert np.mean([holds(one, variance / square) for one in found]) > 0.78


@pytest.mark.parametrize("changes", [{"gradient_clip": 0.01}, {"precision": "bfloat16"}])
def test_the_measure_is_of_the_loss_alone(changes: dict[str, Any]) -> None:
    _, plain = measured(make_trial(params={"learning_rate": 0.1}))
    _, other = measured(make_trial(params={"learning_rate": 0.1, **changes}))
    assert holds(plain, NoiseEstimate.from_columns(other).noise_scale)


@pytest.mark.parametrize(
    ("workload", "params", "slots"),
    [
        ("digits/mlp", {"learning_rate": 0.1}, 3),
        ("digits/cnn", {"learning_rate": 0.001, "beta1": 0.9}, 3),
        ("digits/cnn", {"learning_rate": 0.001, "beta1": 0.9}, 1),
        ("sympy/gpt?length=8&train_examples=64", {"learning_rate": 0.1}, 1),
        (models.name(models.MLP), {"learning_rate": 0.1, "dropout": 0.2}, 1),
    ],
)
def test_a_training_is_the_same_to_the_bit(
    workload: str, params: dict[str, Any], slots: int, small_data: Any
) -> None:
    optimizer = "adam" if "beta1" in params else "sgd"
    plain = make_trial(workload, optimizer=optimizer, params=params, budget_steps=8, batch_size=16)
    found = []
    for trial in (plain, noisy(plain)):
        if slots == 1:
            measurements, _ = run_trial(trial, data_dir=small_data)
        else:
            measurements, _ = exhaust(train_in_stack(trial, slots, data_dir=small_data))
        found.append(measurements)
    without, along = found
    assert [
        {name: value for name, value in m.metrics.items() if not name.startswith("noise/")}
        for m in along
    ] == [m.metrics for m in without]
    steps = [m.step for m in along if "noise/variance" in m.metrics]
    assert steps[0] == 0
    assert steps[-1] == 8
    assert all(later >= 2 * step for step, later in pairwise(steps[:-1]))


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_a_parameter_without_a_gradient_changes_nothing(optimizer: str) -> None:
    found = []
    for workload in (models.MLP, models.Idle):
        trial = make_trial(
            models.name(workload), optimizer=optimizer, params={"learning_rate": 0.01}
        )
        _, columns = measured(trial, steps=3)
        found.append(columns)
    assert found[0] == pytest.approx(found[1], rel=1e-5)


class Normed(Classification):
    """A model with ghost norms of 32 examples, or of all."""

    goal = "val/error < 0.1"
    ghosts = 32

    def data(self, data_dir: Any) -> Any:
        torch.manual_seed(0)
        inputs, labels = torch.randn(128, 6), torch.randint(3, (128,))
        return {"train": Tensors(inputs, labels), "val": Tensors(inputs, labels)}

    def model(self) -> nn.Module:
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
        return with_ghosts(model, self.ghosts)


def at_start(workload: Workload, model: nn.Module | None = None) -> dict[str, float]:
    """The noise scale of a model that has not been trained."""
    model = model or fresh_model(workload, 1, CPU)
    meter = NoiseMeter(workload=workload, train=workload.data(None)["train"], device=CPU)
    return meter.measure(make_trial(batch_size=64), {"model": model.state_dict(), "step": 0})


def test_norms_are_measured_ghost_by_ghost() -> None:
    model = fresh_model(Normed(), 1, CPU)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert at_start(Normed(), model)["noise/variance"] > 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_one_ghost_tells_nothing() -> None:
    workload = Normed()
    workload.ghosts = 100
    with refused("too-few", "two", 100, 128):
        at_start(workload)


class Mapped(Normed):
    def model(self) -> nn.Module:
        return nn.Linear(6, 3)


class Unmapped(Normed):
    """A model whose forward pass reads the values of tensors, which `vmap` does not support."""

    def model(self) -> nn.Module:
        return _Looks(6, 3)


class _Looks(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) * (1.0 if float(inputs.detach().sum()) < 1e9 else 2.0)


def test_where_vmap_has_no_way_chunks_tell() -> None:
    found = [NoiseEstimate.from_columns(at_start(kind())) for kind in (Unmapped, Mapped)]
    # All examples are known, so the gradient is too; its variance is known from chunks of four.
    assert found[0].gradient_square == pytest.approx(found[1].gradient_square, rel=1e-4)
    assert found[0].variance == pytest.approx(found[1].variance, rel=0.5)
