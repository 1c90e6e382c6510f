"""Trainings of the noisy quadratic model agree with its closed recursion."""

import pytest
import torch
from conftest import make_trial, run_trial
from quadratic import steps_to_goal

from orchestrator.records import EvaluationGrid
from orchestrator.workloads import example_seeds
from orchestrator.workloads.noisy_quadratic import GaussianStream

GRID = EvaluationGrid(spacing=0.005, min_gap=1)


@pytest.mark.dear
@pytest.mark.parametrize(
    ("optimizer", "batch_size", "learning_rate", "momentum", "precondition"),
    [("sgd", 1, 0.05, 0.0, 0.0), ("sgd", 64, 0.1, 0.0, 0.5), ("momentum", 256, 0.5, 0.95, 0.0)],
)
def test_steps_to_goal_are_those_of_the_recursion(
    optimizer: str, batch_size: int, learning_rate: float, momentum: float, precondition: float
) -> None:  # fmt: skip
    params = {"learning_rate": learning_rate}
    if optimizer == "momentum":
        params["momentum"] = momentum
    trial = make_trial(
        f"noisy_quadratic?d=50&replicas=300&precondition={precondition}",
        optimizer=optimizer,
        batch_size=batch_size,
        params=params,
        goals=["val/loss < 0.1"],
        budget_steps=5000,
        grid=GRID,
    )
    _, outcome = run_trial(trial)
    expected = steps_to_goal(
        d=50, goal=0.1, learning_rate=learning_rate, momentum=momentum, grid=GRID,
        batch_size=batch_size, budget=5000, precondition=precondition,
    )  # fmt: skip
    assert outcome.status == "reached"
    assert outcome.steps == pytest.approx(expected, rel=0.03, abs=1)


def test_noise_has_the_stated_moments_and_is_a_function_of_seed_and_index() -> None:
    stream = GaussianStream(50)
    seeds = example_seeds(1, torch.arange(4000))
    (noise,) = stream.batch(torch.arange(4000), seeds)
    assert float(noise.mean()) == pytest.approx(0, abs=0.01)
    assert float(noise.var()) == pytest.approx(1, abs=0.02)
    assert abs(float(torch.corrcoef(noise[:2])[0, 1])) < 0.5
    (again,) = stream.batch(torch.tensor([17, 3]), seeds[[17, 3]])
    assert torch.equal(again, noise[[17, 3]])
    (other,) = stream.batch(torch.tensor([17]), example_seeds(2, torch.tensor([17])))
    assert not torch.equal(other[0], noise[17])
