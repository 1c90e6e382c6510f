"""Update rules of many slots against torch's optimizers, one per slot."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from orchestrator.records.lr_schedules import make_schedule
from orchestrator.training.layout import Layout
from orchestrator.training.optimizers import (
    OPTIMIZERS,
    accepted_by,
    make_optimizer,
    numbers_by_default,
)
from orchestrator.training.rules import MUON, clip, make_rule, numbers_of
from orchestrator.training.same_bits import orthogonalised
from orchestrator.workloads import Group

SHAPES = [(3,), (5, 4), (20, 17), (17, 3, 7), (20, 17), (), (7,), (1, 1)]
HIDDEN = (2, 3, 4)
"""Matrices that Muon orthogonalises; with fewer numbers, those of one matrix round differently."""
STEPS = 50
STACKED = [*OPTIMIZERS, "muon"]

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "learning_rate": st.floats(1e-4, 0.1) | st.just(0.0),
    "momentum": st.floats(0, 0.99) | st.just(0.0),
    "weight_decay": st.floats(0, 0.5) | st.just(0.0),
    "smoothing": st.floats(0.5, 0.999),
    "beta1": st.floats(0, 0.99),
    "beta2": st.floats(0.5, 0.9999),
    "epsilon": st.floats(1e-8, 1e-2),
    "trust": st.floats(1e-3, 1),
    "layerwise_trust": st.floats(1e-3, 1),
    "layerwise_bound": st.floats(1e-2, 10),
    "gradient_clip": st.floats(0.1, 20),
    "adamw_lr": st.floats(1e-4, 0.1) | st.just(0.0),
    "adamw_beta1": st.floats(0, 0.99),
    "adamw_beta2": st.floats(0.5, 0.9999),
    "adamw_eps": st.floats(1e-8, 1e-2),
    "adamw_wd": st.floats(0, 0.5),
}

Params = dict[str, Any]


@st.composite
def studies(draw: st.DrawFn) -> tuple[str, list[Params]]:
    """Draws an optimizer and the metaparameters of a few slots, which have the same names."""
    optimizer = draw(st.sampled_from(sorted(STACKED)))
    required, optional = accepted_by(optimizer)
    optional = MUON if optimizer == "muon" else optional
    names = ["learning_rate", *required, *draw(st.sets(st.sampled_from(optional)))]
    names += draw(st.sampled_from([[], ["gradient_clip"]]))
    shared: Params = {}
    if any(name.startswith("layerwise") for name in names):
        shared["layerwise_ratio"] = draw(st.sampled_from(["gradient", "update"]))
    slots = draw(st.integers(1, 4))
    own = [{name: draw(VALUES[name]) for name in names if name in VALUES} for _ in range(slots)]
    return optimizer, [{**shared, **params} for params in own]


def gradients() -> list[list[Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]
        for _ in range(STEPS)
    ]


def first_weights(slot: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(slot)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]


SCHEDULE = {"decay": "cosine", "warmup_steps": 5, "end_factor": 0.1}
FACTOR = make_schedule(SCHEDULE, horizon=STEPS, steps_per_epoch=None)


def by_torch(optimizer: str, params: Params, slot: int) -> list[Tensor]:
    model = nn.ParameterList([nn.Parameter(weight) for weight in first_weights(slot)])
    own = {name: value for name, value in params.items() if name != "gradient_clip"}
    hidden = Group(parameters=[str(number) for number in HIDDEN], hidden=True)
    made = make_optimizer(optimizer, model, own, [hidden], model[0].sum)
    rates = [group["lr"] for group in made.param_groups]
    for step, of_step in enumerate(gradients()):
        for group, rate in zip(made.param_groups, rates, strict=True):
            group["lr"] = rate * FACTOR(step)
        for parameter, gradient in zip(model, of_step, strict=True):
            parameter.grad = gradient * (slot + 1)
        if "gradient_clip" in params:
            nn.utils.clip_grad_norm_(model, params["gradient_clip"])
        made.step()
    return [parameter.detach() for parameter in model]


def by_rules(optimizer: str, slots: list[Params], dtype: torch.dtype = torch.float64) -> Tensor:
    layout = Layout(SHAPES)
    weights = torch.stack([layout.row(first_weights(slot)) for slot in range(len(slots))]).to(dtype)
    rule = make_rule(optimizer, slots[0], layout, HIDDEN)
    slots = [{**numbers_by_default(optimizer), **params} for params in slots]
    for params in slots:
        params.pop("layerwise_ratio", None)
    state = {name: torch.zeros_like(weights) for name in rule.state}
    constants = numbers_of([rule.constants(params) for params in slots], weights)
    for step, of_step in enumerate(gradients()):
        gradient = torch.stack([layout.row(of_step) * (slot + 1) for slot in range(len(slots))])
        gradient = gradient.to(dtype)
        if "gradient_clip" in slots[0]:
            longest = [{"longest": params["gradient_clip"]} for params in slots]
            clip(gradient, numbers_of(longest, weights)["longest"], layout)
        moving = [rule.moving(params, FACTOR(step), step + 1) for params in slots]
        rule.update(weights, gradient, state, {**constants, **numbers_of(moving, weights)})
    return weights


@pytest.mark.dear
@given(studies())
@settings(max_examples=40)
def test_each_slot_is_trained_as_torch_trains_it_alone(study: tuple[str, list[Params]]) -> None:
    optimizer, slots = study
    rows = by_rules(optimizer, slots)
    parts = Layout(SHAPES).views(rows)
    for slot, params in enumerate(slots):
        for part, expected in zip(parts, by_torch(optimizer, params, slot), strict=True):
            torch.testing.assert_close(part[slot], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("optimizer", STACKED)
def test_bits_of_a_slot_depend_on_nothing_else(optimizer: str) -> None:
    required, _ = accepted_by(optimizer)
    slots: list[Params] = [
        {**dict.fromkeys(required, 0.9), "learning_rate": 0.01 * (slot + 1)} for slot in range(5)
    ]
    five = by_rules(optimizer, slots, torch.float32)
    assert torch.equal(by_rules(optimizer, slots[:2], torch.float32), five[:2])
    slots[1]["learning_rate"] = 1e38
    diverged = by_rules(optimizer, slots, torch.float32)
    assert not diverged[1].isfinite().all()
    others = [0, 2, 3, 4]
    assert torch.equal(diverged[others], five[others])


@pytest.mark.parametrize("shape", [(1, 9), (3, 3), (5, 4), (7, 9), (12, 12), (64, 33)])
def test_a_matrix_is_orthogonalised_alike_among_few_and_many(shape: tuple[int, int]) -> None:
    matrices = torch.randn(64, *shape, generator=torch.Generator().manual_seed(0))
    many = orthogonalised(matrices)
    for count in (1, 2, 7, 33):
        assert torch.equal(orthogonalised(matrices[:count]), many[:count])
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    torch.testing.assert_close(many.float(), left @ right, rtol=0, atol=0.35)


def test_numbers_of_a_step_do_not_depend_on_the_steps_made_with_it() -> None:
    rule = make_rule("adam", {}, Layout(SHAPES))
    params, steps = (
        {"learning_rate": 0.1, "beta1": 0.87, "beta2": 0.9973, "epsilon": 1e-8},
        np.arange(1, 4097),
    )
    factors = np.full(len(steps), 0.9)
    whole = rule.moving(params, factors, steps)
    for first, last in ((0, 1), (5, 6), (7, 24), (1001, 4096), (4095, 4096)):
        part = rule.moving(params, factors[first:last], steps[first:last])
        for name, values in part.items():
            assert values.tolist() == whole[name][first:last].tolist(), (name, first)


RATE, DECAY = 0.3, 0.1
RNG = np.random.default_rng(0)
START = RNG.normal(size=(4, 3))
GRADIENTS = RNG.normal(size=(6, 4, 3))


def trained(name: str, start: Any = START, gradients: Any = GRADIENTS, **params: Any) -> Any:
    """Returns the weights after a few steps with the given gradients, in float64."""
    model = torch.nn.ParameterList([torch.nn.Parameter(torch.tensor(start))])
    optimizer = make_optimizer(name, model, {"learning_rate": RATE, **params})
    for gradient in gradients:
        model[0].grad = torch.tensor(gradient)
        optimizer.step()
    return model[0].detach().numpy()


def lars(momentum: float, trust: float, bound: float = np.inf) -> Any:
    w, v = START.copy(), np.zeros_like(START)
    for g in GRADIENTS:
        norm = np.linalg.norm(w)
        ratio = min(trust * norm / (np.linalg.norm(g) + DECAY * norm), bound)
        v = momentum * v + ratio * (g + DECAY * w)
        w = w - RATE * v
    return w


def lamb(beta1: float, beta2: float, epsilon: float) -> Any:
    w, m, v = START.copy(), np.zeros_like(START), np.zeros_like(START)
    for t, g in enumerate(GRADIENTS, start=1):
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        u = m / (1 - beta1**t) / (np.sqrt(v / (1 - beta2**t)) + epsilon) + DECAY * w
        w = w - RATE * np.linalg.norm(w) / np.linalg.norm(u) * u
    return w


@pytest.mark.parametrize(
    ("name", "expected", "params"),
    [
        ("lars", lars(0.8, 0.02), {"momentum": 0.8, "trust": 0.02}),
        ("lamb", lamb(0.8, 0.95, 1e-6), {"beta1": 0.8, "beta2": 0.95}),
        ("momentum", lars(0.8, 0.5, 0.2), {"momentum": 0.8, "layerwise_ratio": "gradient",
                                           "layerwise_trust": 0.5, "layerwise_bound": 0.2}),
        ("adam", lamb(0.8, 0.95, 1e-6), {"beta1": 0.8, "beta2": 0.95, "epsilon": 1e-6,
                                         "layerwise_ratio": "update"}),
    ],
)  # fmt: skip
def test_around_momentum_it_is_lars_and_around_adam_lamb(
    name: str, expected: Any, params: Params
) -> None:
    assert trained(name, weight_decay=DECAY, **params) == pytest.approx(expected)


def test_vectors_are_left_out_of_ratio_factor_and_decay() -> None:
    """As in the code of both papers' authors, a bias gets the plain step from its first one on."""
    bias = np.array([0.0, 0.0, 1.0])
    of_lars, v = bias.copy(), 0.0
    of_lamb, m, s = bias.copy(), 0.0, 0.0
    for t, g in enumerate(GRADIENTS[:, 0], start=1):
        v = 0.8 * v + g
        of_lars = of_lars - RATE * v
        m, s = 0.8 * m + 0.2 * g, 0.95 * s + 0.05 * g * g
        of_lamb = of_lamb - RATE * m / (1 - 0.8**t) / (np.sqrt(s / (1 - 0.95**t)) + 1e-6)
    shape = {"start": bias, "gradients": GRADIENTS[:, 0], "weight_decay": DECAY}
    assert trained("lars", momentum=0.8, trust=0.02, **shape) == pytest.approx(of_lars)
    assert trained("lamb", beta1=0.8, beta2=0.95, **shape) == pytest.approx(of_lamb)


@pytest.mark.parametrize("name", ["sgd", "adagrad", "rmsprop", "adam"])
@pytest.mark.parametrize("ratio", ["gradient", "update"])
def test_a_zero_norm_gives_ratio_one(name: str, ratio: str) -> None:
    zero = np.zeros((4, 3))
    first = trained(name, start=zero, layerwise_ratio=ratio, layerwise_bound=1e-12)
    # After the first step, taken as it is, the bound keeps the weights where they are.
    expected = torch.nn.Parameter(torch.tensor(zero))
    plain = make_optimizer(name, torch.nn.ParameterList([expected]), {"learning_rate": RATE})
    expected.grad = torch.tensor(GRADIENTS[0])
    plain.step()
    if name == "sgd" or ratio == "update":
        assert first == pytest.approx(expected.detach().numpy(), abs=1e-9)
    assert np.isfinite(first).all()
