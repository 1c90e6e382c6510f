"""Goals reached by cooling down: the answer is that of the recursion, however it was trained."""

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest
from conftest import TINY, made, make_trial, run_trial, train_all
from hypothesis import given
from hypothesis import strategies as st
from quadratic import Moments
from stacking import train_stacked, variants
from torch import nn

from orchestrator.analysis.best_batch import best_batch_sizes
from orchestrator.files.places import Place
from orchestrator.planning.cooldowns import most_steps
from orchestrator.planning.sweep import Sweep
from orchestrator.records import EvaluationGrid, Extras, Goal, Measurement, Trial
from orchestrator.records.cooling import CooledStanding, Cooling, is_cooled
from orchestrator.records.stages import Cooldown
from orchestrator.results.counting import Within
from orchestrator.training import Checkpoint, loop
from orchestrator.workloads.digits import DigitsMLP

FIFTH = Cooldown(fraction=0.2)


def cooled_trial(**changes: Any) -> Trial:
    settings: dict[str, Any] = {
        "optimizer": "momentum",
        "batch_size": 16,
        "params": {"learning_rate": 0.05, "momentum": 0.9},
        "goals": ["val/error < 0.25", "val/error < 0.15"],
        "budget_steps": 500,
        "grid": EvaluationGrid(spacing=0.05, min_gap=2),
        "cooldown": FIFTH,
        **changes,
    }
    return make_trial(**settings)


def ends(measurements: list[Measurement]) -> list[int]:
    return [measurement.step for measurement in measurements if is_cooled(measurement)]


@pytest.mark.dear
@pytest.mark.parametrize(
    ("batch_size", "learning_rate", "cooldown"),
    [
        (1, 0.01, FIFTH),
        (16, 0.1, Cooldown(fraction=0.5, shape="cosine")),
        (64, 0.2, Cooldown(steps=40, end_factor=0.1)),
        (256, 0.3, Cooldown(fraction=0.2, shape="polynomial", power=2.0)),
    ],
)
def test_the_answer_is_that_of_the_recursion(
    batch_size: int, learning_rate: float, cooldown: Cooldown
) -> None:
    goal, momentum = 0.1, 0.5
    trial = cooled_trial(
        workload="noisy_quadratic?d=50&replicas=300",
        batch_size=batch_size,
        params={"learning_rate": learning_rate, "momentum": momentum},
        goals=[f"val/loss < {goal}"],
        budget_steps=2000,
        grid=EvaluationGrid(spacing=0.02, min_gap=1),
        cooldown=cooldown,
    )
    measurements, outcome = run_trial(trial)
    shapes: dict[str, Callable[[float], float]] = {
        "linear": lambda done: 1 - done,
        "cosine": lambda done: 0.5 + 0.5 * math.cos(math.pi * done),
        "polynomial": lambda done: (1 - done) ** 2,
    }

    def below(start: int) -> bool:
        at_end = trunk[start].copy()
        for step in range(length := cooldown.length(start)):
            left = shapes[cooldown.shape](step / length)
            factor = cooldown.end_factor + (1 - cooldown.end_factor) * left
            at_end.step(learning_rate * factor, momentum, batch_size)
        return at_end.risk < goal

    trunk = [Moments(np.ones(50))]
    while len(trunk) <= 2000:
        trunk.append(trunk[-1].copy())
        trunk[-1].step(learning_rate, momentum, batch_size)
    truth = next(cooldown.end(start) for start in range(1, cooldown.start(2000)) if below(start))
    assert outcome.status == "reached"
    answer = min(m.step for m in measurements if m.metrics.get("val/loss", math.inf) < goal)
    before = max(step for step in ends(measurements) if step < answer)
    assert answer - before <= max(2, 0.04 * answer), "the bracket is narrow"
    # Nor does a search of the horizon of the same schedule find a better one.
    assert answer == pytest.approx(truth, rel=0.05, abs=1)


def test_the_answer_is_a_training_that_one_can_repeat() -> None:
    """Its curve ends in the bits of a training whose schedule decays up to its budget."""
    trial = cooled_trial(goals=["val/error < 0.12"])
    measurements, _ = run_trial(trial)
    end = next(m for m in measurements if is_cooled(m) and m.step == 5 * (m.step // 5) > 20)
    params = {**trial.params, "decay": "linear", "hold_fraction": 0.8}
    study = replace(trial.study, cooldown=None, budget_steps=end.step, goals=())
    alone, _ = run_trial(replace(trial, study=study, params=params))
    assert alone[-1].step == end.step
    evaluated = {name: value for name, value in end.metrics.items() if name.startswith("val/")}
    assert evaluated.items() <= alone[-1].metrics.items()
    of_trunk = [m for m in measurements if not is_cooled(m)]
    study = replace(study, budget_steps=of_trunk[-1].step)
    constant, _ = run_trial(replace(trial, study=study))
    assert [m.metrics["trunk/val/loss"] for m in of_trunk[:-1]] == [
        m.metrics["val/loss"] for m in constant[:-1]
    ]


def test_cooldowns_begin_on_a_ladder_and_then_within_a_bracket() -> None:
    """Values are made up: cooldowns from 61 on pass one goal, from 300 on the other."""
    trial = cooled_trial(goals=["val/error < 1", "val/error < 3"], budget_steps=1000)
    standing, found = CooledStanding(trial), []
    while standing.status is None:
        step = standing.upcoming
        if standing.turns(step):
            standing.cools = True
            found.append(step)
            continue
        value = 5.0 - 3 * (step >= FIFTH.end(61)) - 2 * (step >= FIFTH.end(300))
        metrics = {"val/error" if standing.cools else "trunk/val/error": value}
        standing.add(Measurement(step=step, seconds=0.0, metrics=metrics))
    assert found[:7] == [2, 4, 8, 16, 32, 64, 45], found
    assert found[7:11] == [54, 59, 61, 128], found
    assert found[11:13] == [256, 512], found
    assert [standing.cooling.met(goal) for goal in trial.study.goals] == [
        FIFTH.end(min(s for s in found if s >= 300)), FIFTH.end(61),
    ]  # fmt: skip
    assert standing.status == "reached"
    assert len(found) <= 18


@pytest.mark.parametrize("count", [1, 2, 6])
def test_a_trial_trains_no_more_than_is_said_before(count: int) -> None:
    """Each goal lies elsewhere in the last bracket."""
    goals = [f"val/error < {-bound}" for bound in np.linspace(520, 790, count)]
    grid = EvaluationGrid(spacing=0.02, min_gap=1)
    trial = cooled_trial(goals=goals, budget_steps=1000, grid=grid)
    cooling, steps = Cooling(trial.study, trial.params), FIFTH.start(1000)
    while (start := cooling.start) is not None:
        steps += FIFTH.length(start)
        end = Measurement(step=FIFTH.end(start), seconds=0.0, metrics={"val/error": -start})
        cooling.add(end)
    assert steps <= most_steps(trial.study)


def test_a_stack_gives_the_same_bits() -> None:
    trials = variants(cooled_trial(budget_steps=120), 5)
    alone = [run_trial(trial)[0] for trial in trials]
    for width, order in ((2, range(5)), (3, (4, 2, 0, 3, 1))):
        stacked = train_stacked(trials, width, order=[*order])
        for one, other in zip(alone, stacked, strict=True):
            assert [(m.step, m.metrics) for m in one] == [(m.step, m.metrics) for m in other]
    assert all(ends(one) for one in alone)


def killed_at(
    trial: Trial, path: Path, deaths: Iterator[int], last: Callable[..., Any] = run_trial
) -> tuple[list[Measurement], Any]:
    """Trains with a checkpoint after about every step. The process dies after so many saves, time
    and again, and `last` trains to the end."""
    checkpoint = Checkpoint(place=Place.at(path), every_seconds=1e-9)
    original, left = Checkpoint.save, [0]

    def save_and_die(self: Checkpoint, *given: Any) -> None:
        original(self, *given)
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoint, "save", save_and_die)
        patch.setattr(loop, "MOST_SAVING", math.inf)
        for death in deaths:
            left[0] = death
            with suppress(KeyboardInterrupt):
                return run_trial(trial, checkpoint=checkpoint)
    return last(trial, checkpoint=checkpoint)


class Dropping(DigitsMLP):
    """A model with random numbers of its own, whose place must be found again."""

    def model(self) -> nn.Module:
        return nn.Sequential(super().model()[:2], nn.Dropout(), nn.Linear(self.width, 10))  # type: ignore[index]


@pytest.mark.dear
def test_kills_change_nothing(tmp_path: Path) -> None:
    """Which state each optimizer has is told by test_checkpoint.py."""
    params = {"learning_rate": 0.02, "warmup_steps": 5, "ema_decay": 0.9, "dropout": 0.1}
    trial = cooled_trial(
        workload=models.name(Dropping),
        optimizer="adam",
        params=params,
        goals=["val/error < 0.3", "val/error < 0.2"],
        extras=Extras(train_examples=20),
    )
    whole, outcome = run_trial(trial)
    assert len(ends(whole)) > 4
    draw = np.random.default_rng(3)
    deaths = iter(lambda: int(draw.integers(1, 60)), 0)
    again, resumed = killed_at(trial, tmp_path / "trial.pt", deaths)
    assert [(m.step, m.metrics) for m in again] == [(m.step, m.metrics) for m in whole]
    assert (resumed.status, resumed.steps) == (outcome.status, outcome.steps)
    assert resumed.steps > max(m.step for m in whole)
    assert not list(tmp_path.iterdir())


def test_without_a_goal_the_whole_ladder_is_trained() -> None:
    trial = cooled_trial(goals=[], budget_steps=100)
    measurements, outcome = run_trial(trial)
    assert ends(measurements) == [FIFTH.end(start) for start in (2, 4, 8, 16, 32, 64, 80)]
    assert outcome.status == "exhausted"
    assert outcome.steps == 80 + 1 + 1 + 2 + 4 + 8 + 16 + 20


def test_a_trunk_that_diverges_reached_nothing() -> None:
    trial = cooled_trial(params={"learning_rate": 1e9, "momentum": 0.9})
    _, outcome = run_trial(trial)
    assert outcome.status == "diverged"


@pytest.mark.parametrize("cooldown", [FIFTH, Cooldown(fraction=0.71), Cooldown(steps=3)])
def test_starts_follow_from_ends(cooldown: Cooldown) -> None:
    for end in range(2, 500):
        start = cooldown.start(end)
        assert start <= 0 or cooldown.end(start) <= end
        assert cooldown.end(start + 1) > end
        assert cooldown.start(cooldown.end(end)) == end


def test_goal_is_easier_first() -> None:
    """The order in which goals are named decides nothing."""
    one = cooled_trial(goals=["val/error < 0.25", "val/error < 0.15"])
    study = replace(one.study, goals=tuple(map(Goal.parse, ("val/error<0.15", "val/error<0.25"))))
    assert [m.metrics for m in run_trial(one)[0]] == [
        m.metrics for m in run_trial(replace(one, study=study))[0]
    ]


def test_repeats_try_later_starts_until_three_in_a_row_pass() -> None:
    trial = cooled_trial(goals=["val/error < 0.05"], repeats=2, repeats_stay=True)
    once, outcome = run_trial(replace(trial, study=replace(trial.study, repeats_stay=False)))
    again, stayed = run_trial(replace(trial, repeat=1))
    assert ends(again)[: len(ends(once))] == ends(once)
    (goal,), grid = trial.study.goals, trial.study.grid
    answer = min(m.step for m in once if goal.passed(m.metrics.get(goal.metric)))
    passed = {m.step: goal.passed(m.metrics[goal.metric]) for m in again if is_cooled(m)}
    start, run, along = FIFTH.start(answer), 0, []
    while run < 3 and FIFTH.end(start) <= 2.5 * answer:
        along.append(FIFTH.end(start))
        run = run + 1 if passed[along[-1]] else 0
        start = grid.after(start)
    assert set(ends(again)) == {*ends(once), *along}
    assert len(along) >= 3
    assert stayed.steps > outcome.steps
    assert stayed.status == "reached"


def test_ends_of_cooldowns_are_fair_ends_and_no_other_amount_is(tmp_path: Path) -> None:
    recipe = {"name": "cooled", "optimizer": "momentum", "schedule": {"cooldown": {}}}
    changes = {"goals": ["val/error < 0.0001"], "recipes": [recipe], "search": {"trials": 2}}
    sweep = {**TINY, **changes, "batch_sizes": [32], "budget": {"examples": 20_000}}
    run, planned = made(tmp_path, Sweep.model_validate(sweep))
    train_all(run, planned)
    study = run.studies()[0]
    end = FIFTH.end(64) * study.batch_size
    for amount, fair in ((end, True), (int(1.5 * end), False)):
        asked = Within.parse(f"examples={amount}")
        (law,) = best_batch_sizes(run, "val/loss", within=[asked])
        assert (len(law.left_out) == 0) == fair, law


@given(st.lists(st.sampled_from([0.1, 0.2, 0.3]), min_size=100, max_size=100))
def test_what_is_known_of_a_goal_does_not_change(values: list[float]) -> None:
    """Also if a cooldown by which the bracket of the easier goal is halved passes the other one."""
    trial = cooled_trial(budget_steps=200)
    standing, known = Cooling(trial.study, trial.params), dict[Goal, tuple[int, int | None]]()
    while (start := standing.start) is not None:
        end = standing.end(start)
        metrics = {"val/error": values[start % 100]}
        standing.add(Measurement(step=end, seconds=0.0, metrics=metrics))
        for goal in trial.study.goals:
            earliest, met = known.get(goal, (0, None))
            assert standing.earliest(goal) >= earliest
            assert met is None or standing.met(goal) == met
            known[goal] = standing.earliest(goal), standing.met(goal)
