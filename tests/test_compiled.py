"""Models that torch's compiler compiles, against the same models without it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import models
import pytest
import torch
from conftest import exhaust, make_trial, refused, run_trial
from torch import Tensor, nn

from orchestrator.records import BatchSchedule, EvaluationGrid, Measurement, Stage
from orchestrator.training import compiler, train_on_ranks, trainer
from orchestrator.training.settings import sort
from orchestrator.training.stackable import best_width
from orchestrator.training.trainer import Trainer
from orchestrator.workloads import load_workload

NEEDS_CPP = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
OF_TORCH = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.*")
DROPPING = str(Path(__file__).with_name("test_stackable.py")) + ":WithDropout"
SPARSE = EvaluationGrid(spacing=0, min_gap=4)


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler without its last part, which needs seconds and a compiler of C++."""
    monkeypatch.setattr(compiler, "COMPILER", {"backend": "aot_eager"})


def of(workload: str, **settings: Any) -> Any:
    changes = {name: settings.pop(name) for name in ("batch_schedule",) if name in settings}
    params = {"learning_rate": 0.1, **settings}
    return make_trial(workload, params=params, budget_steps=12, grid=SPARSE, **changes)


def assert_alike(found: list[Measurement], expected: list[Measurement], rel: float) -> None:
    assert len(found) == len(expected) > 2
    for one, other in zip(found, expected, strict=True):
        assert one.metrics == pytest.approx(other.metrics, rel=rel)


@pytest.mark.dear
@pytest.mark.parametrize(
    ("workload", "settings"),
    [
        (models.name(models.MLP), {}),
        (models.name(models.GhostCNN), {}),
        (models.name(models.Transformer), {"ema_decay": 0.9}),
        (models.name(models.FromFiles), {"precision": "bfloat16"}),
        (DROPPING, {}),
    ],
)
def test_the_curve_is_that_without_the_compiler(workload: str, settings: Any, traced: None) -> None:
    plain, _ = run_trial(of(workload, **settings))
    found, outcome = run_trial(of(workload, **settings, compile=True))
    assert_alike(found, plain, 1e-2 if "precision" in settings else 1e-5)
    assert outcome.width == 1


@pytest.mark.slow
@NEEDS_CPP
@OF_TORCH
def test_it_really_is_compiled() -> None:
    plain, _ = run_trial(of("digits/mlp"))
    torch._dynamo.utils.counters.clear()
    found, _ = run_trial(of("digits/mlp", compile=True))
    assert_alike(found, plain, 1e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_compiling_takes_no_time_of_the_training(
    traced: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0  # the clock stands still but for compiling

    @contextmanager
    def slow() -> Iterator[None]:
        nonlocal now
        now += 100
        yield

    monkeypatch.setattr(trainer, "refusals", slow)
    monkeypatch.setattr(trainer, "time", SimpleNamespace(perf_counter=lambda: now))
    _, outcome = run_trial(of("digits/mlp", compile=True))
    assert (now, outcome.seconds) == (100, 0)


@pytest.mark.slow
@NEEDS_CPP
@OF_TORCH
def test_ranks_train_alike() -> None:
    plain, _ = run_trial(of(models.name(models.MLP)))
    found, _ = exhaust(train_on_ranks(of(models.name(models.MLP), compile=True), 2))
    assert_alike(found, plain, 1e-4)


def test_where_the_batch_size_grows_its_sizes_are_proven_again(
    traced: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    original = Trainer._prove

    def prove(self: Trainer, step: int) -> None:
        sizes.append(self._stage.batch_size)
        original(self, step)

    monkeypatch.setattr(Trainer, "_prove", prove)
    stages = (Stage(batch_size=8), Stage(batch_size=16, from_step=5, from_examples=40))
    schedule = BatchSchedule(stages)
    plain, _ = run_trial(of(models.name(models.GhostCNN), batch_schedule=schedule))
    assert not sizes
    found, _ = run_trial(of(models.name(models.GhostCNN), batch_schedule=schedule, compile=True))
    assert sizes == [8, 16]
    assert_alike(found, plain, 1e-5)


def test_memory_that_runs_out_while_it_compiles(
    traced: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, _ = run_trial(of("digits/mlp"))
    original = Trainer._backward_piece

    def backward_piece(self: Trainer) -> Tensor:
        if (self.micro_batch or 32) > 8:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return original(self)

    monkeypatch.setattr(Trainer, "_backward_piece", backward_piece)
    found, outcome = run_trial(of("digits/mlp", compile=True))
    assert outcome.micro_batch == 8
    assert_alike(found, plain, 1e-5)


class Switching(models.MLP):
    """A model whose compiled code computes something else, or can't be made."""

    def model(self) -> nn.Module:
        return nn.Sequential(super().model(), _Switch())


class _Switch(nn.Module):
    def forward(self, logits: Tensor) -> Tensor:
        return 2 * logits if torch.compiler.is_compiling() else logits


def test_what_computes_something_else_is_refused(
    traced: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = of(f"{__file__}:Switching", compile=True)
    with refused("unusable", "'compile'", "its gradient"):
        run_trial(trial)

    def broken(*arguments: Any) -> None:
        raise ValueError("no compiler\nat all")

    monkeypatch.setattr(compiler, "COMPILER", {"backend": broken})
    with refused("unusable", "'compile'", "no compiler"):
        run_trial(of("digits/mlp", compile=True))
    with refused("wrong-value", "'compile'", "true or false", "yes"):
        sort({"compile": "yes"}, load_workload("digits/mlp"))


def test_a_diverged_trial_may_enter_another_stage(traced: None) -> None:
    stages = (Stage(batch_size=8), Stage(batch_size=16, from_step=3, from_examples=24))
    trial = of("digits/mlp", batch_schedule=BatchSchedule(stages), compile=True)
    _, outcome = run_trial(replace(trial, params={**trial.params, "learning_rate": 1e30}))
    assert outcome.status == "diverged"


def test_planning_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_in_place(model: nn.Module) -> None:
        raise AssertionError("it would take minutes")

    monkeypatch.setattr("orchestrator.training.trainer.compile_in_place", compile_in_place)
    assert best_width(of("digits/mlp", compile=True), "cpu", None)[0] > 1
