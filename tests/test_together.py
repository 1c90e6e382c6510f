"""Many trials in one loop: slots that are refilled, interruptions, and a race among slots."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from conftest import make_trial
from stacking import variants

from orchestrator.files.places import Place
from orchestrator.records import EvaluationGrid, FinishedTrial, Measurement, Outcome, Trial
from orchestrator.training import Checkpoint, Ranks, loop
from orchestrator.training.entry import Task
from orchestrator.training.loop import train_all
from orchestrator.training.stack import Stack

GRID = EvaluationGrid(spacing=0.2, min_gap=3)


def study_of(count: int, **changes: Any) -> list[Trial]:
    return variants(make_trial(budget_steps=30, batch_size=8, grid=GRID, **changes), count)


def followed(
    tasks: Iterable[Task], first: Trial, width: int
) -> tuple[dict[int, list[Any]], dict[int, Outcome], list[int]]:
    """Returns the measurements of each trial without times, how each trial ended, and the order of
    the ends."""
    curves: dict[int, list[Any]] = {}
    outcomes: dict[int, Outcome] = {}
    for trial, event in train_all(Stack(first, Ranks(), width), tasks):
        if isinstance(event, Measurement):
            curves.setdefault(trial.index, []).append((event.step, event.metrics))
        else:
            outcomes[trial.index] = event.outcome
    return curves, outcomes, list(outcomes)


def test_slots_are_refilled_and_every_trial_is_told_of_as_it_ends() -> None:
    trials = study_of(5)
    begun: list[int] = []

    def tasks() -> Iterable[Task]:
        for trial in trials:
            begun.append(trial.index)
            yield Task(trial=trial)

    engine, events = Stack(trials[0], Ranks(), 2), []
    for trial, event in train_all(engine, tasks()):
        events.append(trial.index)
        if isinstance(event, FinishedTrial):
            assert event.outcome.status == "exhausted"
            assert event.outcome.steps == 30
            assert event.outcome.seconds > 0
            assert event.outcome.width == 2
            assert len(begun) < 5 or trial.index > 1, "taken only when there is a slot for it"
    assert begun == [0, 1, 2, 3, 4]
    assert events.index(2) > events.index(0)


def test_an_interrupted_stack_goes_on_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "MOST_SAVING", math.inf)
    trials = study_of(3)

    def tasks() -> list[Task]:
        return [
            Task(
                trial=trial,
                checkpoint=Checkpoint(
                    place=Place.at(tmp_path / f"{trial.index}.pt"), every_seconds=1e-9
                ),
            )
            for trial in trials
        ]

    whole, outcomes, _ = followed([Task(trial=trial) for trial in trials], trials[0], 3)
    events = train_all(Stack(trials[0], Ranks(), 3), tasks())
    while not (isinstance(event := next(events)[1], Measurement) and event.step > 10):
        pass
    events.close()
    assert len(list(tmp_path.iterdir())) == 3
    # In a stack of another width, in other slots.
    resumed, again, _ = followed(tasks()[::-1], trials[0], 2)
    assert resumed == whole
    assert {i: o.steps for i, o in again.items()} == {i: o.steps for i, o in outcomes.items()}
    assert all(outcome.resumed_steps > 5 for outcome in again.values())
    assert not list(tmp_path.iterdir())
