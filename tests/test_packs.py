"""Trials of a study that one process trains as one model: which trials, how many, and what is
recorded."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import models
import pytest
import torch
from conftest import following, make_trial, run_trial
from stacking import packed, variants
from test_growth import command
from torch import nn

from orchestrator.planning.studies import plan
from orchestrator.planning.sweep import Resources
from orchestrator.planning.sweep_file import load_sweep
from orchestrator.planning.widths import widths_of
from orchestrator.records import EvaluationGrid, Study, Trial
from orchestrator.results import RunFiles
from orchestrator.search import Director
from orchestrator.training import Task
from orchestrator.training.stack import Stack
from orchestrator.training.stackable import FAST_BYTES
from orchestrator.workloads import load_workload

SweepFile = Callable[..., Path]


def studies_of(file: Path) -> tuple[Study, ...]:
    return plan(load_sweep(file)).studies


def test_a_pack_is_of_one_kind_and_no_larger_than_asked(sweep_file: SweepFile) -> None:
    recipe = {
        "name": "sgd", "space": {"learning_rate": {"low": 0.01, "high": 1, "scale": "log"}},
        "schedule": {"decay": {"options": ["constant", "cosine"]}},
    }  # fmt: skip
    (study,) = studies_of(sweep_file(recipes=[recipe], batch_sizes=[64], search={"trials": 10}))
    director = Director([study], 0)
    director.begin()
    handed: dict[int, Trial] = {}
    while pack := director.next_pack(lambda study, waiting: 3):
        assert len(pack) <= 3
        assert len({proposal.trial.params["decay"] for proposal in pack}) == 1
        handed |= {proposal.trial.index: proposal.trial for proposal in pack}
    assert handed.keys() == set(range(10))
    assert following(director) is None
    director.put_back(handed[4])
    again = following(director)
    assert again is not None
    assert again.trial.index == 4


@pytest.mark.parametrize(
    ("changes", "resources", "width", "said"),
    [
        ({}, Resources(), 20, ""),
        ({}, Resources(stack=8), 8, ""),
        ({}, Resources(stack=1), 1, ""),
        ({"search": {"trials": 5}}, Resources(), 5, ""),
        ({}, Resources(examples_per_device=32, max_devices=2), 1, "take 2 ranks each"),
        (
            {"workloads": ["digits/cnn"], "batch_sizes": [1024]},
            Resources(), 1, "keeps a device busy",
        ),
        (
            {"workloads": ["noisy_quadratic?d=2000000"], "goals": None},
            Resources(), 1, "several models of 7.63 MiB do not fit into a cache",
        ),
        (
            {"workloads": ["noisy_quadratic"], "goals": None, "batch_sizes": [256]},
            Resources(), 1, "several batches of 0.977 MiB do not fit into a cache",
        ),
    ],
)  # fmt: skip
def test_the_width_follows_from_the_study(
    changes: dict[str, Any], resources: Resources, width: int, said: str, sweep_file: SweepFile
) -> None:
    settings = {"search": {"trials": 20}, "batch_sizes": [64], **changes}
    studies = [
        replace(study, trials=max(study.trials, 2)) for study in studies_of(sweep_file(**settings))
    ]
    ((found, reason),) = widths_of(studies, resources, None, {}).values()
    assert found == width
    assert said in reason
    assert bool(reason) == bool(said)
    known = {studies[0].key: 3}
    assert widths_of(studies, resources, None, known)[studies[0].key][0] == 3


def test_what_was_decided_stands(sweep_file: SweepFile, tmp_path: Path) -> None:
    file, run = sweep_file(search={"trials": 4}), tmp_path / "run"
    command("sweep", str(file), "--no-ray", "--out", str(run))
    assert set(RunFiles.open(run).widths().values()) == {4}
    more = ("search.trials=6", "resources.stack=1", "batch_sizes=[64,128,256]")
    options = [part for setting in more for part in ("--set", setting)]
    command("sweep", str(file), "--no-ray", "--out", str(run), *options)
    widths = {key.batch_size: width for key, width in RunFiles.open(run).widths().items()}
    assert widths == {64: 4, 128: 1, 256: 4}
    trained = {
        key.batch_size: RunFiles.open(run).trials(key)["width"].to_pylist()
        for key in RunFiles.open(run).widths()
    }
    assert set(trained[128]) == {1}
    assert min(trained[64]) > 1
    assert {key.batch_size for key, _ in RunFiles.open(run).timed()} == {64, 256}


@pytest.mark.parametrize("tried", [True, False])
def test_where_memory_runs_out_fewer_train_together(
    tried: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it runs out as a stack is tried on a device that the plan could not try."""
    if not tried:
        monkeypatch.setattr("orchestrator.training.pack.TRIED", ())
        monkeypatch.setattr("orchestrator.training.pack._reasons", {})
        answers = iter([torch.OutOfMemoryError, True, True])
        monkeypatch.setattr(
            "orchestrator.training.stackable.products_have_same_bits", Mock(side_effect=answers)
        )
    trial = make_trial(budget_steps=10, grid=EvaluationGrid(spacing=0, min_gap=5))
    original = Stack._take_step

    def take_step(self: Stack, *batch: Any) -> None:
        if self.width > 2:
            raise torch.OutOfMemoryError("CUDA error: out of memory")
        original(self, *batch)

    monkeypatch.setattr(Stack, "_take_step", take_step)
    tasks = [Task(trial=one) for one in variants(trial, 5)]
    ended = packed(tasks, 5)
    assert [each.trial.index for each in ended] == [0, 1, 2, 3, 4]
    assert {each.outcome.width for each in ended} == {2}
    assert all(each.outcome.status == "exhausted" for each in ended)


@pytest.mark.parametrize("params", [{"precision": "bfloat16"}, {"dropout": 0.1}])
def test_a_kind_that_no_stack_trains_is_trained_alone(params: dict[str, Any]) -> None:
    """A study may have others, of which the plan tries one."""
    trial = make_trial(
        models.name(models.MLP), params={"learning_rate": 0.1, **params}, budget_steps=10
    )
    tasks = [Task(trial=one) for one in variants(trial, 2)]
    ended = packed(tasks, 6)
    assert [each.outcome.width for each in ended] == [1, 1]
    alone, _ = run_trial(trial)
    assert [m.metrics for m in ended[0].measurements] == [m.metrics for m in alone]


@pytest.mark.parametrize("fault", ["none", "slots", "rounding"])
def test_a_device_that_the_plan_could_not_try_is_tried_before_it_stacks(
    fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """There, a stack has all its slots even if fewer trials wait, and bits that depend on the slot
    or differ by more than rounding keep trials out of it."""
    trial = make_trial(budget_steps=10, grid=EvaluationGrid(spacing=0, min_gap=5))
    original = Stack._take_step

    def take_step(self: Stack, *batch: Any) -> None:
        original(self, *batch)
        if fault == "slots":
            self.model.weights[-1] *= 1 + 2e-7
        if fault == "rounding":
            self.model.weights *= 1.01

    monkeypatch.setattr(Stack, "_take_step", take_step)
    monkeypatch.setattr("orchestrator.training.pack.TRIED", ())
    monkeypatch.setattr("orchestrator.training.pack._reasons", {})
    tasks = [Task(trial=one) for one in variants(trial, 3)]
    ended = packed(tasks, 6)
    assert [each.outcome.width for each in ended] == [6 if fault == "none" else 1] * 3
    said = {"none": "", "slots": "depend on its slot", "rounding": "a stack makes"}
    assert said[fault] in caplog.text
    assert bool(caplog.text) == (fault != "none")


class Counted(models.Frozen):
    """Counts the models that are made."""

    made = 0

    def model(self) -> nn.Module:
        type(self).made += 1
        return super().model()


def test_a_plan_makes_a_model_once_for_all_points_and_once_for_its_cost(
    sweep_file: SweepFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of a billion weights takes long to make."""
    recipe = {"name": "sgd", "space": {"learning_rate": {"low": 0.01, "high": 0.1}}}
    monkeypatch.setitem(FAST_BYTES, "cuda", 1)
    file = sweep_file(
        workloads=[f"{__file__}:Counted"], recipes=[recipe], goals=None, batch_sizes=[16, 32, 64],
        search={"trials": 5},
    )  # fmt: skip
    studies = studies_of(file)
    counted = load_workload(f"{__file__}:Counted")
    made = type(counted).made  # type: ignore[attr-defined]
    assert made == 1
    found = widths_of(studies, Resources(gpus_per_device=1), None, {}).values()
    assert {width for width, _ in found} == {1}
    assert type(counted).made == 2  # type: ignore[attr-defined]
