"""Goals that must hold, and repeats that stay to show whether a goal is lost again."""

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ended, make_trial, refused
from holding import first_held
from hypothesis import given, settings
from hypothesis import strategies as st
from test_growth import command

from orchestrator.records import EvaluationGrid, Goal, Measurement, Status
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
    steps = [*itertools.islice(study.measured(), 9)]
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
        ([-math.inf], 0, "diverged"),  # what is infinite reaches no goal
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


@pytest.mark.parametrize("repeat_best", [1, 3])
def test_repeats_that_lose_the_goal_are_counted_and_so_is_when_it_held(
    tmp_path: Path, repeat_best: int
) -> None:
    """Of a search with one point, the first training counts as a repeat, and nothing is chosen."""
    own = make_trial(
        goals=["val/error < 0.5"], budget_steps=200, grid=EvaluationGrid(spacing=0, min_gap=10),
        repeats=3, repeats_stay=True, repeat_best=repeat_best,
    )  # fmt: skip
    run = RunFiles(tmp_path)
    run.create({"name": "x"}, [own.study], {})
    for repeat, curve in enumerate(
        [
            [1, 0, 0, 0],  # holds at once
            [1, 0, 1, 0, 0, 0],  # comes back after more than 2.5 times as long
            [1, 1, 1, 1, 0, 1, 0, 0, 0, 0, 0],
            [1] * 21,
        ]
    ):
        shown = {10 * number: float(value) for number, value in enumerate(curve)}
        status: Status = "reached" if 0 in curve else "exhausted"
        run.write(ended(replace(own, repeat=repeat), status, shown))
    (row,) = frontier_of(run)
    assert row.repeats is not None
    assert (row.repeats.steps, row.repeats.lost) == ((10, 10, 40), 2)
    assert row.repeats.held is not None
    assert (row.repeats.held.steps, row.repeats.held.count) == ((10, 60), 4)


SWEEP: dict[str, Any] = {
    "name": "holds", "workloads": ["digits/mlp"], "batch_sizes": [16, 64],
    "goals": ["val/error < 0.1", "val/error < 0.1 for 3 measurements"],
    "recipes": ["sgd"], "search": {"trials": 12}, "repeats": 4, "repeat_best": 2,
    "budget": {"examples": 12000},
}  # fmt: skip


def answers(rows: list[FrontierRow]) -> list[object]:
    return [(r.key, r.goal, r.steps, r.trial, r.params, r.metrics, r.repeats) for r in rows]


@pytest.mark.dear
def test_racing_does_not_change_what_holds(tmp_path: Path, sweep_file: Any) -> None:
    file = sweep_file(**SWEEP)
    found = {}
    for name, options in {"raced": [], "whole": ["--set", "stop.dominated=false"]}.items():
        command("sweep", str(file), "--no-ray", "--out", str(tmp_path / name), *options)
        found[name] = frontier_of(RunFiles.open(tmp_path / name))
    assert answers(found["raced"]) == answers(found["whole"])
    first, held = (
        [row for row in found["raced"] if Goal.parse(row.goal).holds is holds]
        for holds in (False, True)
    )
    assert all(a.steps <= b.steps for a, b in zip(first, held, strict=True))
    assert any(a.steps < b.steps for a, b in zip(first, held, strict=True))
    # The same trials answer whether the first goal holds, as if each had trained to its budget.
    for row in first:
        assert row.repeats.lost == sum(
            step not in row.repeats.held.steps for step in row.repeats.steps
        )
