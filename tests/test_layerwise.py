"""Layer-wise rates against the formulas of the papers, written a second way in numpy."""

from typing import Any

import numpy as np
import pytest
import torch

from orchestrator.training.optimizers import make_optimizer

RATE, DECAY, STEPS = 0.3, 0.1, 6
RNG = np.random.default_rng(0)
START = RNG.normal(size=(4, 3))
GRADIENTS = RNG.normal(size=(STEPS, 4, 3))


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


def test_lars() -> None:
    ours = trained("lars", momentum=0.8, trust=0.02, weight_decay=DECAY)
    assert ours == pytest.approx(lars(0.8, 0.02))


def test_lamb() -> None:
    ours = trained("lamb", beta1=0.8, beta2=0.95, weight_decay=DECAY)
    assert ours == pytest.approx(lamb(0.8, 0.95, 1e-6))


def test_around_momentum_it_is_lars_and_around_adam_lamb() -> None:
    gradient = {"layerwise_ratio": "gradient", "layerwise_trust": 0.5, "layerwise_bound": 0.2}
    ours = trained("momentum", momentum=0.8, weight_decay=DECAY, **gradient)
    assert ours == pytest.approx(lars(0.8, 0.5, 0.2))
    update = {"layerwise_ratio": "update", "beta1": 0.8, "beta2": 0.95, "epsilon": 1e-6}
    assert trained("adam", weight_decay=DECAY, **update) == pytest.approx(lamb(0.8, 0.95, 1e-6))


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
