"""What a sweep would come to, by hand and by trying."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ROOT, called, invoked, make_trial, refused
from test_frontier import new_run

from orchestrator.planning import widths
from orchestrator.planning.doubts import dear_evaluations
from orchestrator.planning.outlook import (
    CALIBRATION_SECONDS,
    CALIBRATION_STEPS,
    STARTING_SECONDS,
    TRIAL_SECONDS,
    Speed,
    calibration_of,
    evaluations,
    outlook,
    speeds_of,
)
from orchestrator.planning.studies import plan
from orchestrator.planning.sweep import Resources
from orchestrator.planning.sweep_file import load_sweep
from orchestrator.records import EvaluationGrid, FinishedTrial, Measurement, Outcome, Study

SMALL = replace(
    make_trial().study, batch_size=64, trials=10, budget_steps=100, repeats=0, stop_dominated=True,
    grid=EvaluationGrid(spacing=0, min_gap=20),
)  # fmt: skip
LARGE = replace(SMALL, batch_size=256, trials=5, repeats=1)
SPEED = Speed(step_seconds=0.1, evaluation_seconds=1.0)


def ranks(batch_size: int) -> int:
    return 1 if batch_size < 100 else 4


@pytest.mark.parametrize("spacing", [0, 0.05, 0.5])
@pytest.mark.parametrize("steps", [0, 1, 7, 60, 100])
def test_evaluations_are_those_of_the_grid(spacing: float, steps: int) -> None:
    study = replace(SMALL, grid=EvaluationGrid(spacing=spacing, min_gap=3))
    grid = [0]
    while grid[-1] < 100:
        grid.append(min(study.grid.after(grid[-1]), 100))
    needed = 1 + sum(1 for before in grid[:-1] if before < steps)
    assert evaluations(study, steps) == needed


def test_an_outlook_by_hand() -> None:
    found = outlook(
        [SMALL, LARGE],
        ranks,
        speeds={SMALL.key: SPEED, LARGE.key: SPEED},
        slots=[8, 4],
        price_per_device_hour=3.6,
    )
    small, large = found.studies
    assert (small.steps, large.steps) == ((200, 1000), (120, 600))
    assert (small.ranks, large.ranks, large.trials) == (1, 4, 6)
    quick, slow = TRIAL_SECONDS
    # 20 steps and 2 evaluations; 100 and 6.
    low = 10 * (2 + 2 + quick) + 6 * 4 * (2 + 2 + quick)
    high = 10 * (10 + 6 + slow) + 6 * 4 * (10 + 6 + slow)
    assert found.device_hours[0] == pytest.approx(low / 3600)
    assert found.device_hours.high == pytest.approx(high / 3600)
    assert found.money.high == pytest.approx(high / 1000)
    assert found.seconds.keys() == {8, 4}
    assert found.seconds[4][0] == pytest.approx(low / 4 + STARTING_SECONDS[0])
    # A trial of the large batch size and then its repeat may be left at the end.
    assert found.seconds[8].high == pytest.approx(high / 8 + 2 * (16 + slow) + STARTING_SECONDS[1])
    at_goals, at_budgets = (
        outlook([replace(SMALL, stop_dominated=False, stop_at_goal=stop)], ranks).studies[0].steps
        for stop in (True, False)
    )
    assert (at_goals, at_budgets) == ((200, 1000), (1000, 1000))


@pytest.mark.parametrize(("slots", "at_once"), [(4, 1), (7, 2), (100, 33), (2, 1)])
def test_the_worst_case_is_as_long_as_trials_that_fill_no_machine(slots: int, at_once: int) -> None:
    study = replace(LARGE, trials=40, repeats=20, repeat_best=5)
    found = outlook([study], lambda _: 3, speeds={study.key: SPEED}, slots=[slots])
    each, trials = 16 + TRIAL_SECONDS[1], found.trials
    # Trials, repeats that choose, and repeats that judge: each in rounds of `at_once`.
    parts = (40, 5 * 10, 10)
    assert sum(parts) == trials
    planned = sum(math.ceil(part / at_once) for part in parts) * each
    assert planned <= found.seconds[slots].high <= planned + 3 * each + STARTING_SECONDS[1]


def test_what_was_not_measured_is_not_foretold() -> None:
    unknown = outlook([SMALL, LARGE], ranks)
    assert (unknown.device_hours, unknown.seconds, unknown.money) == (None, {}, None)
    half = outlook([SMALL, LARGE], ranks, speeds={SMALL.key: SPEED, LARGE.key: None}, slots=[1])
    assert half.device_hours is None
    assert [one.fits for one in half.studies] == [True, False]
    assert half.studies[0].rank_seconds is not None


def test_evaluations_that_take_much_of_the_time_are_called_so() -> None:
    taken = {"examples": 30_000, "evaluations": 300, "training": 10.0}
    assert dear_evaluations(**taken, evaluating=5.0) is None
    said = dear_evaluations(**taken, evaluating=10.0)
    # 100 examples apart it is half of the time; 570 apart it would be 1 / (1 + 5.7), about 15 %.
    assert said.startswith("Evaluations take 50% of the time.")
    assert "`evaluate: {min_examples: 570}`" in said
    # A twentieth of each training at most: the goal may be reached half way.
    short = {"examples": 3_000, "training": 10.0, "evaluating": 10.0}
    assert "{min_examples: 150}" in dear_evaluations(**short, evaluations=30)
    assert "min_examples" not in dear_evaluations(**short, evaluations=15)
    assert dear_evaluations(**{**taken, "training": 0.0}, evaluating=1.0)
    small, large = outlook([SMALL, LARGE], ranks, speeds={SMALL.key: SPEED}).studies
    assert small.dear.startswith("Evaluations take 38% of the time.")
    assert large.dear is None


ONLY_A_RATE = {"learning_rate": {"low": 0.1, "high": 1}}


def test_what_a_recipe_searches_besides_what_it_names_is_said(
    sweep_file: Callable[..., Path],
) -> None:
    recipes = [
        "momentum",
        {"name": "both", "optimizer": "momentum", "space": ONLY_A_RATE},
        {"name": "fixed", "optimizer": "momentum", "space": {**ONLY_A_RATE, "momentum": 0.9}},
        {"name": "one", "optimizer": "adam", "space": {"only": ONLY_A_RATE}},
        {"name": "none", "optimizer": "sgd", "space": {"learning_rate": 0.1}},
    ]
    file = sweep_file(recipes=recipes)
    planned = plan(load_sweep(file))
    spaces = {study.recipe: set(study.space) for study in planned.studies}
    assert spaces["one"] == {"learning_rate"}
    assert spaces["both"] == {"learning_rate", "momentum"}
    trials = {study.recipe: study.trials for study in planned.studies}
    assert (trials["one"], trials["none"]) == (3, 1), "there is nothing to search"
    _, said = invoked("plan", file)
    assert "`orchestrate spaces`: momentum: learning_rate, momentum; both: momentum." in said
    assert "`space: {only: {...}}`" in said


def timed(
    study: Study, index: int, times: list[float], every: int, **outcome: object
) -> FinishedTrial:
    """A trial measured at these times, with so many steps between."""
    found = tuple(
        Measurement(step=every * n, seconds=t, metrics={"val/error": 0.5})
        for n, t in enumerate(times)
    )
    settings = {"status": "exhausted", "steps": found[-1].step, "seconds": times[-1], **outcome}
    trial = replace(make_trial(), study=study, index=index)
    return FinishedTrial(trial=trial, outcome=Outcome(**settings), measurements=found)


def test_speeds_are_those_after_the_first_steps(tmp_path: Path) -> None:
    (study,) = calibration_of([SMALL])
    run = new_run(tmp_path, study)
    times = [0.0, 4.0, 5.0, 5.5, 6.0, 6.5, 7.2, 7.7, 8.0]
    known = {"evaluation_seconds": 2.5, "micro_batch": 32, "memory": 10**9}
    run.write(timed(study, 0, times, CALIBRATION_STEPS // 8, **known))
    assert speeds_of(run)[study.key] == Speed(
        step_seconds=0.1, evaluation_seconds=2.5 / 9, micro_batch=32, memory=10**9
    )


def test_speeds_of_several_trials_are_told(tmp_path: Path) -> None:
    run = new_run(tmp_path, SMALL)
    for index, seconds in enumerate((2.0, 3.0, 40.0)):
        times = [0.0, 5.0, *(5.0 + seconds * n for n in (1, 2, 3))]
        run.write(timed(SMALL, index, times, 20, evaluation_seconds=5.0))
    failed = Outcome(status="failed", steps=0, seconds=0.0, error="no")
    run.write(FinishedTrial(trial=replace(make_trial(), study=SMALL, index=3), outcome=failed))
    assert speeds_of(run)[SMALL.key] == Speed(step_seconds=0.15, evaluation_seconds=1.0)


WITHOUT_LOSS = """
from orchestrator.workloads.digits import DigitsMLP

class Mine(DigitsMLP):
    def loss(self, model, batch):
        raise KeyError("labels")
"""


@pytest.mark.dear
def test_what_code_raised_is_said_before_a_machine_is_paid_for(
    tmp_path: Path, sweep_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.py").write_text(WITHOUT_LOSS)
    file = sweep_file(workloads=["bad.py:Mine"], recipes=["sgd", "momentum"])
    code, said = invoked("plan", file)
    assert code == 0, said
    doubt, *_ = said.splitlines()
    assert (
        "bad.py:Mine, tried with two examples on this machine, raised KeyError: 'labels'" in doubt
    )
    assert f"({tmp_path}/bad.py:6)" in doubt


def test_what_may_take_long_is_not_started_unless_someone_agrees(
    tmp_path: Path, sweep_file: Callable[..., Path]
) -> None:
    large = sweep_file(budget={"steps": 5_000_000})
    with refused("not-confirmed", "30,000,000 steps", "--yes"):
        called("sweep", large, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_machine_with_a_gpu_is_planned_as_one(
    sweep_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No machine of this kind runs these tests, so one is pretended."""
    asked: list[tuple[float | None, str]] = []

    def widths_of(studies: object, resources: Resources, *_: object) -> dict[str, int]:
        asked.append((resources.gpus_per_device, resources.kind))
        return {}

    monkeypatch.setattr(widths, "widths_of", widths_of)
    for gpus in (1, 0):
        monkeypatch.setattr("orchestrator.training.gpus_here", lambda gpus=gpus: gpus)
        called("plan", sweep_file())
    assert asked == [(1, "cuda"), (0, "cpu")]


def test_quick_steps_are_timed_in_more_of_them() -> None:
    slow, quick = replace(SPEED, step_seconds=0.1), replace(SPEED, step_seconds=0.001)
    (longer,) = calibration_of([SMALL, LARGE], {SMALL.key: quick, LARGE.key: slow})
    assert longer.key == SMALL.key
    assert longer.budget_steps == CALIBRATION_SECONDS / 0.001
    (stacked,) = calibration_of([SMALL], {SMALL.key: quick}, {SMALL.key: 5})
    assert stacked.trials * stacked.budget_steps == longer.budget_steps
    assert calibration_of([SMALL], {SMALL.key: None}) == []
    (short,) = calibration_of([LARGE])
    assert (short.key, short.trials, short.repeats) == (LARGE.key, 1, 0)
    assert short.budget_steps == CALIBRATION_STEPS
    assert longer.grid == SMALL.grid
    late = replace(SMALL, grid=EvaluationGrid(spacing=0, min_gap=5000))
    (longer,) = calibration_of([late], {late.key: quick})
    # Else there would be nothing to time it by.
    assert longer.grid.after(0) < longer.budget_steps


@pytest.mark.parametrize(
    ("budget", "sizes", "doubted"),
    [
        ({"steps": 2000}, [8, 64, 256, 1024], True),
        ({"steps": 2000}, [64, 128, 256, 512], False),
        ({"epochs": 11, "at_least_steps": 2000}, [1, 4, 8, 64, 1024], False),
        ({"examples": 16_000, "at_least_steps": 2000}, [8, 16, 64, 1024], True),
        ({"epochs": 2, "at_least_steps": 500}, [4, 32, 256, 1024], False),
    ],
)
def test_a_budget_that_starves_small_batches_is_doubted(
    budget: dict[str, int], sizes: list[int], doubted: bool, sweep_file: Callable[..., Path]
) -> None:
    file = sweep_file(budget=budget, batch_sizes=sizes, recipes=["sgd", "momentum"])
    doubts = plan(load_sweep(file)).doubts
    assert len(doubts) == doubted
    if doubted:
        assert "batch size 8 see 16,000 examples (2,000 steps)" in doubts[0]
        assert "batch size 1,024 see 2,048,000" in doubts[0]


@pytest.mark.parametrize(
    ("sizes", "doubted"), [([64], False), ([64, 256], True), ([8, 16, 32, 64], False)]
)
def test_too_few_batch_sizes_for_a_curve_are_doubted(
    sizes: list[int], doubted: bool, sweep_file: Callable[..., Path]
) -> None:
    doubts = plan(load_sweep(sweep_file(batch_sizes=sizes))).doubts
    said = f"digits/mlp: {len(sizes)} batch sizes are too few to tell where the curve bends."
    assert [doubt.startswith(said) for doubt in doubts] == [True] * doubted


def test_noise_scales_of_repeats_that_are_not_asked_for_are_doubted(
    sweep_file: Callable[..., Path],
) -> None:
    asked = {"evaluate": {"noise_scale": "repeats"}, "batch_sizes": [64]}
    (doubt,) = plan(load_sweep(sweep_file(**asked, repeats=0))).doubts
    assert "measures nothing in 1 of the studies, since they have no repeats" in doubt
    assert not plan(load_sweep(sweep_file(**asked, repeats=2))).doubts


def test_batches_that_are_smaller_than_a_ghost_are_doubted(sweep_file: Callable[..., Path]) -> None:
    model = f"{ROOT / 'tests/models.py'}:GhostCNN"
    file = sweep_file(workloads=[model], goals=None, batch_sizes=[2, 4, 8, 16])
    (doubt,) = plan(load_sweep(file)).doubts
    assert "batch size 2, 4 is below the ghost size of 8, so its batch norms" in doubt
