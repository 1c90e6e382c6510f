"""Goals that must hold, and repeats that stay to show whether a goal is lost again."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import make_trial, orchestrate, refused
from holding import first_held
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import ks_2samp

import orchestrator
from orchestrator.records import STAYS, EvaluationGrid, Goal, Measurement, Status
from orchestrator.records.standing import Standing
from orchestrator.results import FrontierRow, RunFiles, frontier_of
from orchestrator.results.counting import reached


def test_a_goal_says_how_long_it_has_to_hold() -> None:
    goal = Goal.parse("val/error<0.04 for 3 measurements")
    assert (goal.measurements, goal.examples, goal.holds) == (3, 0, True)
    assert str(goal) == "val/error < 0.04 for 3 measurements"
    assert Goal.parse("val/error < 0.04 for 1 measurement") == Goal.parse("val/error < 0.04")
    assert str(Goal.parse("val/error > 1e-3  for  1 example")) == "val/error > 0.001 for 1 examples"
    assert Goal.parse("val/error < 0.04").held == goal
    for text in ("for 0 examples", "for 3", "for three examples", "for 2.5 examples", "4 steps"):
        with refused("wrong-value", "val/error < 0.04", "for COUNT measurements"):
            Goal.parse(f"val/error < 0.04 {text}")


marks = st.sampled_from(["2 measurements", "3 measurements", "1 examples", "40 examples"])


@settings(max_examples=150)
@given(st.lists(st.lists(st.sampled_from([0, 0, 1, math.inf]), max_size=9), max_size=4), marks)
def test_tables_and_single_trials_tell_the_same(curves: list[list[float]], mark: str) -> None:
    goal = Goal.parse(f"val/error < 0.5 for {mark}")
    study = make_trial(goals=[str(goal)], batch_size=3, grid=EvaluationGrid(spacing=1, min_gap=2))
    study = replace(study.study, budget_steps=10**6)
    steps = [0]
    while len(steps) < 9:
        steps.append(study.following(steps[-1]))
    rows = [(n, s, v) for n, curve in enumerate(curves) for s, v in zip(steps, curve, strict=False)]
    trial, step, value = (np.array(column) for column in zip(*rows, strict=True)) if rows else (
        np.array([], int), np.array([], int), np.array([]),
    )  # fmt: skip
    found = reached(study, goal, (trial, step, value.astype(float)))
    for number, curve in enumerate(curves):
        measured = [
            Measurement(step=s, seconds=0, metrics={"val/error": v})
            for s, v in zip(steps, curve, strict=False)
        ]
        standing = Standing(study)
        for measurement in measured:
            standing.add(measurement)
        first = first_held(study, goal, measured)
        assert min(found.step[found.trial == number].tolist(), default=None) == first
        assert (goal in standing.unmet) == (first is None)
        if first is None:
            assert standing.unmet[goal] == found.begun.get(number, standing.upcoming)


@pytest.mark.parametrize(
    ("curve", "ends", "status"),
    [
        ([1, 0, 0, 0, 0], 30, "reached"),  # held at once
        ([1, 1, 1, 0, 1, 1, 1, 1, 1, 1], 80, "reached"),  # 2.5 times as long
        ([1, 1, 0, 1, 0, 0, 0, 0], 50, "reached"),  # 2.5 times as long, in a run of two
        ([1, 1, 1, 1, 0, 1, 0, 0, 0, 0], 80, "reached"),
        ([1, 1, 0, 1, math.nan], 40, "diverged"),
        ([1] * 9 + [0, 1], 100, "reached"),  # its budget
        ([0, 1], 0, "reached"),
    ],
)
def test_a_trial_that_stays_ends_once_its_goals_have_held(
    curve: list[float], ends: int, status: Status
) -> None:
    grid = EvaluationGrid(spacing=0, min_gap=10)
    standing = Standing(
        make_trial(goals=["val/error < 0.5"], budget_steps=100, grid=grid).study, stays=True
    )
    for step, value in enumerate(curve):
        metrics = {"val/error": value}
        passed_before = 0 in curve[:step]
        assert not (passed_before and standing.wants_noise(metrics, 10 * step))
        standing.add(Measurement(step=10 * step, seconds=0, metrics=metrics))
        if standing.status is not None:
            break
    assert (standing.measurements[-1].step, standing.status) == (ends, status)


SWEEP: dict[str, Any] = {
    "name": "holds", "workloads": ["digits/mlp"], "batch_sizes": [4, 64],
    "goals": ["val/error < 0.1", "val/error < 0.1 for 3 measurements"],
    "recipes": ["sgd"], "search": {"trials": 12}, "repeats": 4, "repeat_best": 2,
    "budget": {"examples": 12000},
}  # fmt: skip


def answers(rows: list[FrontierRow]) -> list[object]:
    return [(r.key, r.goal, r.steps, r.trial, r.params, r.metrics, r.repeats) for r in rows]


@pytest.mark.dear
def test_neither_racing_nor_stacks_change_what_holds(tmp_path: Path, sweep_file: Any) -> None:
    file = sweep_file(**SWEEP)
    found = {}
    for name, changes in {
        "stacked": [], "alone": ["resources.stack=1"], "whole": ["stop.dominated=false"],
    }.items():  # fmt: skip
        options = [part for change in changes for part in ("--set", change)]
        done = orchestrate("sweep", file, "--no-ray", "--out", tmp_path / name, *options)
        assert done.returncode == 0, done.stderr
        found[name] = frontier_of(RunFiles.open(tmp_path / name))
    assert answers(found["stacked"]) == answers(found["whole"])
    # Alone, sums are taken in another order: metrics may differ in their last digits.
    alone = [replace(row, metrics={}) for row in found["alone"]]
    assert answers(alone) == answers([replace(row, metrics={}) for row in found["stacked"]])
    first, held = (
        [row for row in found["stacked"] if Goal.parse(row.goal).holds is holds]
        for holds in (False, True)
    )
    assert all(a.steps <= b.steps for a, b in zip(first, held, strict=True))
    assert any(a.steps < b.steps for a, b in zip(first, held, strict=True))
    # The same trials answer whether the first goal holds, as if each had trained to its budget.
    for row in first:
        assert row.repeats.lost == sum(
            step not in row.repeats.held.steps for step in row.repeats.steps
        )


H = 1 / np.arange(1, 11)
PATHS, BUDGET = 10_000, 150


def simulated(batch_size: int, learning_rate: float, goal: float) -> NDArray[np.float64]:
    """The first passages of that many trainings of the noisy quadratic by the loss of their last
    batch, and the first steps of three measurements in a row, by a simulation of its own."""
    rng = np.random.default_rng(batch_size)
    x = np.ones((PATHS, len(H)))
    run = np.zeros(PATHS)
    first, held = np.full((2, PATHS), math.inf)
    for step in range(1, BUDGET + 1):
        noise = rng.standard_normal(x.shape) / math.sqrt(batch_size)
        passes = 0.5 * (x * x) @ H + (noise * x) @ np.sqrt(H) < goal
        x -= learning_rate * (H * x + np.sqrt(H) * noise)
        first = np.where(passes & np.isinf(first), step, first)
        run = np.where(passes, run + 1, 0)
        held = np.where((run >= 3) & np.isinf(held), step - 2, held)
    return np.array([first, held])


@pytest.mark.slow
def test_what_is_lost_again_is_what_a_simulation_loses(tmp_path: Path) -> None:
    goals = ["batch/loss < 0.2", "batch/loss < 0.2 for 3 measurements"]
    for batch_size, learning_rate in ((1, 0.05), (4, 0.1), (16, 0.3), (64, 0.3)):
        run = orchestrator.sweep(
            {
                "name": "truth", "workloads": ["noisy_quadratic?d=10"], "goals": goals,
                "recipes": [{"name": "sgd", "optimizer": "sgd",
                             "space": {"only": {"learning_rate": learning_rate}}}],
                "batch_sizes": [batch_size], "search": {"trials": 1}, "repeats": 199,
                "budget": {"steps": BUDGET}, "evaluate": {"spacing": 0, "min_examples": 1},
            },
            out=tmp_path / f"{batch_size}",
            ray=False,
        )  # fmt: skip
        first, held = (row.repeats for row in frontier_of(RunFiles.open(run.path)))
        true_first, true_held = simulated(batch_size, learning_rate, 0.2)
        for found, truth in ((first, true_first), (held, true_held)):
            steps = [*found.steps, *[math.inf] * (found.count - found.reached)]
            cut = [np.minimum(each, BUDGET + 1) for each in (steps, truth)]
            assert ks_2samp(*cut).pvalue > 0.001
        stays = np.minimum(np.ceil(STAYS * true_first), BUDGET)
        true_lost = np.isfinite(true_first) & ~(true_held == true_first)
        share = true_lost.mean()
        error = math.sqrt(share * (1 - share) / first.count)
        assert abs(first.lost / first.count - share) < 3.3 * error + 1e-9
        true_short = np.where(true_held + 2 <= stays, true_held, BUDGET + 1)
        short = [*first.held.steps, *[BUDGET + 1] * (first.held.count - first.held.reached)]
        assert ks_2samp(short, true_short).pvalue > 0.001
