"""A trial that is killed and resumed from its checkpoint gives the same bits as a trial that was
never killed."""

import io
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import models
import pytest
import torch
from conftest import make_trial, refused, run_trial
from stacking import train_stacked, variants
from test_cooling import killed_at
from test_training import LIBRARY

from orchestrator.files.places import Place
from orchestrator.records import EvaluationGrid, Extras, FinishedTrial, Measurement, Outcome, Trial
from orchestrator.training import Checkpoint, Ranks, States, Task, accepted_by, loop
from orchestrator.training.loop import train_all
from orchestrator.training.optimizers import OPTIMIZERS
from orchestrator.training.stack import Stack

EVERYTHING = {"dropout": 0.3, "ema_decay": 0.9, "decay": "cosine"}


def long_trial(optimizer: str = "adam", workload: type = models.MLP, **params: Any) -> Trial:
    required = accepted_by(optimizer)[0] or ("learning_rate",)
    given = {"learning_rate": 0.01, "momentum": 0.9}
    return make_trial(
        models.name(workload),
        optimizer=optimizer,
        params={**{name: given[name] for name in required}, **params},
        batch_size=17,
        budget_steps=60,
        grid=EvaluationGrid(spacing=0, min_gap=25),
        extras=Extras(train_examples=20),
    )


def interrupted(
    trial: Trial, path: Path, run: Callable[..., Any] = run_trial
) -> tuple[list[Measurement], Outcome]:
    """Trains, is killed between two evaluations, and goes on."""
    resumed, outcome = killed_at(trial, path, iter((31,)), last=run)
    assert outcome.resumed_steps == 31
    return resumed, outcome


@pytest.mark.dear
@pytest.mark.parametrize(
    "trial",
    [
        *(long_trial(optimizer, **EVERYTHING) for optimizer in (*OPTIMIZERS, *LIBRARY)),
        *(long_trial(workload=w) for w in (models.GhostCNN, models.FromFiles, models.FromDicts)),
        long_trial(f"{models.__file__}:Counting"),
    ],
    ids=lambda trial: f"{trial.study.optimizer.rpartition('/')[2]} {trial.study.workload[-9:]}",
)
def test_going_on_gives_the_same_bits(trial: Trial, tmp_path: Path) -> None:
    whole, whole_outcome = run_trial(trial)
    resumed, outcome = interrupted(trial, tmp_path / "trial.pt")
    assert [m.metrics for m in resumed] == [m.metrics for m in whole]
    assert (outcome.status, outcome.steps) == (whole_outcome.status, whole_outcome.steps)
    assert not list(tmp_path.iterdir()), "a trial that is over leaves no checkpoint"


@pytest.mark.dear
def test_going_on_with_other_ranks(tmp_path: Path, train_on_pair: Callable[..., Any]) -> None:
    trial = long_trial(precision="float64", workload=models.GhostCNN)
    whole, _ = run_trial(trial)
    resumed, _ = interrupted(trial, tmp_path / "trial.pt", run=train_on_pair)
    for one, other in zip(whole, resumed, strict=True):
        assert other.metrics == pytest.approx(one.metrics, rel=1e-5)


@pytest.mark.dear
@pytest.mark.parametrize("trial", [long_trial(workload=models.GhostCNN), long_trial(dropout=0.3)])
def test_checkpoints_leave_no_trace_in_the_curve(
    trial: Trial, tmp_path: Path, train_on_pair: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This also holds if ranks share the statistics of batch norms between evaluations, and where
    each rank has a stream of its own for dropout."""
    whole, _ = train_on_pair(trial)
    monkeypatch.setattr(Place, "remove", lambda place: None)
    checkpoint = Checkpoint(place=Place.at(tmp_path / "trial.pt"), every_seconds=1e-9)
    chopped, _ = train_on_pair(trial, checkpoint=checkpoint)
    assert [m.metrics for m in chopped] == [m.metrics for m in whole]
    state = torch.load(tmp_path / "trial.pt", weights_only=True)
    assert len(state["training"]["ranks"]) == 2


def test_an_interrupted_stack_goes_on_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "MOST_SAVING", math.inf)
    grid = EvaluationGrid(spacing=0.2, min_gap=3)
    trials = variants(make_trial(budget_steps=30, batch_size=8, grid=grid), 3)
    places = [Place.at(tmp_path / f"{trial.index}.pt") for trial in trials]
    tasks = [
        Task(trial=trial, checkpoint=Checkpoint(place=place, every_seconds=1e-9))
        for trial, place in zip(trials, places, strict=True)
    ]
    events = train_all(Stack(trials[0], Ranks(), 3), tasks)
    while not (isinstance(event := next(events)[1], Measurement) and event.step > 10):
        pass
    events.close()
    assert len(list(tmp_path.iterdir())) == 3
    whole = train_stacked(trials, 3)
    # In a stack of another width, in other slots.
    again = [event for _, event in train_all(Stack(trials[0], Ranks(), 2), tasks[::-1])]
    ended = [event for event in again if isinstance(event, FinishedTrial)]
    assert len(ended) == 3
    for one in ended:
        assert [replace(m, seconds=0.0) for m in one.measurements] == whole[one.trial.index]
        assert one.outcome.resumed_steps > 5
    assert not list(tmp_path.iterdir())


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "x.pt"):
        lost = Checkpoint(place=Place.at(path), every_seconds=1e-9)
        assert run_trial(long_trial(), checkpoint=lost)[1].status == "exhausted"


def test_a_trial_begins_anew_where_a_checkpoint_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether it is of another trial, damaged, or would run code."""
    path = tmp_path / "trial.pt"
    checkpoint = Checkpoint(place=Place.at(path), every_seconds=1e-9)
    curve, _ = run_trial(long_trial())
    with monkeypatch.context() as kept:
        kept.setattr(Place, "remove", lambda place: None)
        run_trial(long_trial(beta1=0.8), checkpoint=checkpoint)
    other = path.read_bytes()

    class Evil:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "harmed",)

    torch.save({"trial": Evil()}, harmful := io.BytesIO())
    damaged = b"not a checkpoint", other[: len(other) // 2], b"", harmful.getvalue()
    for content, reason in [(other, "of another trial"), *((each, "damaged") for each in damaged)]:
        caplog.clear()
        path.write_bytes(content)
        anew, _ = run_trial(long_trial(), checkpoint=checkpoint)
        assert [m.metrics for m in anew] == [m.metrics for m in curve]
        assert reason in caplog.text
        assert not path.exists()
    assert not (tmp_path / "harmed").exists()


def test_a_checkpoint_that_cannot_be_removed_costs_no_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(place: Place) -> None:
        raise PermissionError(13, "Permission denied", str(place))

    monkeypatch.setattr(Place, "remove", refuse)
    place = Place.at(tmp_path / "trial.pt")
    _, outcome = run_trial(
        make_trial(budget_steps=3), checkpoint=Checkpoint(place=place, every_seconds=60)
    )
    assert outcome.status == "exhausted"
    assert f"{place} can't be removed" in caplog.text


def test_saving_takes_a_fiftieth_of_the_time_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, cost = list[Any](), 0.0002  # the clock stands still but for saving
    monkeypatch.setattr(Checkpoint, "save", lambda *given: saved.append(given))
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: cost * len(saved)))
    checkpoint = Checkpoint(place=Place.at(tmp_path / "trial.pt"), every_seconds=1e-9)
    trial = make_trial(
        models.name(models.MLP), budget_steps=1500, grid=EvaluationGrid(spacing=0, min_gap=10**6)
    )
    _, outcome = run_trial(trial, checkpoint=checkpoint)
    assert len(saved) > 2
    assert len(saved) <= 1 + outcome.seconds * loop.MOST_SAVING / cost


class Two(Ranks):
    """Two ranks, as the first one sees them."""

    def gather(self, value: Any) -> list[Any]:
        return [value, "can't be used, since memory is short"]


def test_all_ranks_begin_anew_if_one_can_not_go_on(tmp_path: Path) -> None:
    trial, place = long_trial(), Place.at(tmp_path / "trial.pt")
    own, put = Checkpoint(place=place, every_seconds=1), list[Any]()
    own.save(trial, lambda: {"step": 3}, [Measurement(step=0, seconds=0.0, metrics={})], Ranks())
    assert len(own.load(trial, put.append, Ranks())) == 1
    assert own.load(trial, put.append, Two()) == []


def test_a_damaged_state_of_a_trunk_is_refused_by_name(tmp_path: Path) -> None:
    states = States(folder=Place.at(tmp_path), begin_at=20)
    for damaged in (b"not a state", b""):
        states.file(20).write(damaged)
        with refused("damaged-run", states.file(20), "remove it"):
            states.first(Ranks())
