"""Schedules against torch's own where it has them, and against formulas written a second way."""

import math
from typing import Any

import pytest
import torch
from conftest import refused
from torch.optim import lr_scheduler

from orchestrator.records.lr_schedules import check_schedule, make_schedule, tied_to_horizon

HORIZON = 40


def factors(**params: Any) -> list[float]:
    schedule = make_schedule(params, horizon=HORIZON, steps_per_epoch=10)
    return [schedule(step) for step in range(HORIZON + 5)]


def torch_factors(scheduler: Any, **options: Any) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = scheduler(optimizer, **options)
    found = []
    for _ in range(HORIZON + 1):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


@pytest.mark.parametrize(
    ("params", "scheduler", "options"),
    [
        (
            {"decay": "linear", "end_factor": 0.1, "decay_steps": 30},
            lr_scheduler.LinearLR,
            {"start_factor": 1.0, "end_factor": 0.1, "total_iters": 30},
        ),
        (
            {"decay": "polynomial", "power": 3, "decay_fraction": 0.5},
            lr_scheduler.PolynomialLR,
            {"total_iters": 20, "power": 3},
        ),
        (
            {"decay": "cosine", "end_factor": 0.1},
            lr_scheduler.CosineAnnealingLR,
            {"T_max": HORIZON, "eta_min": 0.1},
        ),
    ],
)
def test_decays_are_those_of_torch(params: Any, scheduler: Any, options: Any) -> None:
    assert factors(**params)[: HORIZON + 1] == pytest.approx(
        torch_factors(scheduler, **options), abs=1e-9
    )


def test_restarts_repeat_the_cosine() -> None:
    found = factors(decay="cosine_restarts", cycles=4)
    once = [(1 + math.cos(math.pi * t / 10)) / 2 for t in range(10)]
    assert found[:40] == pytest.approx(once * 4)
    assert found[40] == 0


def test_cycles_are_triangles_that_peak_half_way_and_steps_drop_at_equal_distances() -> None:
    found = factors(decay="cyclical", cycles=2, end_factor=0.5)
    assert [found[t] for t in (0, 5, 10, 15, 20, 30, 40)] == [0.5, 0.75, 1, 0.75, 0.5, 1, 0.5]
    found = factors(decay="step", drops=3, drop_factor=0.5)
    assert [found[t] for t in (0, 9, 10, 20, 30, 44)] == [1, 1, 0.5, 0.25, 0.125, 0.125]


def test_warmup_stable_decay() -> None:
    found = factors(warmup_steps=4, hold_fraction=0.75, decay="linear", end_factor=0.1)
    assert found[:4] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert found[4:31] == [1.0] * 27
    assert found[31:41] == pytest.approx([1 - 0.9 * t / 9 for t in range(10)])
    assert found[41:] == pytest.approx([0.1] * 4)
    # `t` steps into a cosine of the last fifth of 40 steps.
    cosine = factors(hold_fraction=0.8, decay="cosine")
    assert cosine[32:41] == pytest.approx([(1 + math.cos(math.pi * t / 8)) / 2 for t in range(9)])
    assert factors(hold_fraction=1, decay="linear") == [1.0] * HORIZON + [0.0] * 5


@pytest.mark.parametrize(("params", "power"), [({}, 0.5), ({"power": 0.51}, 0.51)])
def test_inverse_powers_have_no_horizon(params: dict[str, float], power: float) -> None:
    decay = "inverse_power" if params else "inverse_sqrt"
    found = factors(decay=decay, warmup_steps=9, **params)
    vaswani = [min(t / 10, (10 / t) ** power) for t in range(1, HORIZON + 6)]
    assert found == pytest.approx(vaswani)
    longer = make_schedule({"decay": decay, **params}, horizon=10**6, steps_per_epoch=None)
    assert [longer(t) for t in (0, 3, 99)] == pytest.approx([1, 4**-power, 100**-power])
    for tied, space in ((False, {"decay": decay}), (True, {"decay": "linear"})):
        found_tied = tied_to_horizon(space, horizon=40, steps_per_epoch=None)
        assert (found_tied is not None) == tied


@pytest.mark.parametrize(
    "warmup", [{"warmup_steps": 20}, {"warmup_epochs": 2}, {"warmup_fraction": 0.5}]
)
def test_warmups_rise_to_one_and_the_decay_takes_the_rest(warmup: dict[str, float]) -> None:
    found = factors(decay="linear", **warmup)
    assert found[:20] == pytest.approx([(t + 1) / 21 for t in range(20)])
    assert found[20:41] == pytest.approx([1 - t / 20 for t in range(21)])


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"decay": "cosin"}, ("unknown-name", "'cosin'", "'cosine'")),
        ({"decay": "cosine", "power": 2}, ("no-effect", "'power'", "'cosine'")),
        (
            {"decay": "linear", "hold_fraction": 0.5, "decay_fraction": 0.2},
            ("not-together", "decay_fraction and hold_fraction"),
        ),
        ({"decay_steps": 5}, ("no-effect", "'decay_steps'", "'constant'")),
        (
            {"warmup_steps": 5, "warmup_epochs": 1},
            ("not-together", "warmup_epochs and warmup_steps"),
        ),
        ({"warmup_steps": -1}, ("wrong-value", "'warmup_steps'", 0, -1)),
        ({"decay": "linear", "end_factor": "low"}, ("wrong-value", "'end_factor'", "'low'")),
    ],
)
def test_superfluous_and_impossible_settings_are_refused(params: Any, said: Any) -> None:
    def make() -> None:
        check_schedule(params, [params.get("decay", "constant")])
        factors(**params)

    with refused(*said):
        make()
