"""Whatever happens to a run's folder, or to the process that trains, the run comes to what it would
have come to anyway. The rules are tested in test_dispatch.py, other processes in test_siege.py."""

import itertools
from pathlib import Path
from typing import Any

import pytest
from conftest import TINY, refused, train_all
from driving import assert_same, recorded, trials_of
from test_growth import command

from orchestrator.planning.studies import Plan, plan
from orchestrator.planning.sweep import Sweep
from orchestrator.results import RunFiles
from orchestrator.sweeping import local

pytestmark = pytest.mark.dear


def made(path: Path, **changes: Any) -> tuple[RunFiles, Plan]:
    planned, run = plan(Sweep.model_validate({**TINY, **changes})), RunFiles(path)
    run.create(planned.sweep.resolved(), planned.studies, {})
    return run, planned


def test_a_run_goes_on_wherever_it_is_moved_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, moved, whole = (tmp_path / name for name in ("run", "a/run of another name", "whole"))
    once: dict[str, Any] = {"stop": {"dominated": False}}  # none is set aside before it ends
    run, planned = made(place, **once)
    with monkeypatch.context() as patch:
        patch.setattr(local, "NEWS_SECONDS", 0.0)  # or all would end in the same second
        train_all(run, planned, asked_to_end=lambda: recorded(place) >= 2)
    kept = trials_of(place)
    assert 2 <= len(kept) < 6
    moved.parent.mkdir()
    place.rename(moved)
    made(whole, **once)
    for each in (moved, whole):
        command("resume", str(each), "--no-ray")
    assert all(trial in trials_of(moved) for trial in kept), "none was trained again"
    assert_same(moved, whole)
    assert not place.exists()


@pytest.mark.parametrize(
    ("resources", "code", "values"),
    [
        ({"examples_per_device": 64, "max_devices": 3}, "several-ranks", ["256", "max_devices: 1"]),
        ({"gpus_per_device": 0.5}, "conflicting-options", ["0.5"]),
    ],
)
def test_what_this_process_can_not_train_is_refused(
    tmp_path: Path, resources: dict[str, Any], code: str, values: list[object]
) -> None:
    run, planned = made(tmp_path / "run", resources=resources)
    with refused(code, *values):
        train_all(run, planned)


def test_a_trial_goes_on_from_its_checkpoint_in_a_run_that_has_grown(tmp_path: Path) -> None:
    """Its study has another place among the studies then. The checkpoint was saved when the sweep
    was asked to end."""
    changes = {
        "goals": ["val/error < 0.0001"], "stop": {"dominated": False}, "batch_sizes": [64],
        "search": {"trials": 1}, "checkpoint": {"every_seconds": 3600},
    }  # fmt: skip
    run, planned = made(tmp_path / "run", **changes)
    asked = itertools.count()
    train_all(run, planned, asked_to_end=lambda: next(asked) > 4)
    grown = plan(Sweep.model_validate({**TINY, **changes, "batch_sizes": [64, 32, 256]}))
    train_all(run, grown)
    (resumed_steps,) = run.trials(planned.studies[0].key)["resumed_steps"].to_pylist()
    assert resumed_steps > 0


@pytest.mark.parametrize("name", ["trials", "measurements", "repeats"])
def test_a_file_in_place_of_a_folder_is_refused_before_training(tmp_path: Path, name: str) -> None:
    run, _ = made(tmp_path / "run")
    (tmp_path / "run" / name).touch()
    with refused("exists", tmp_path / "run" / name):
        run.check_writable()


def test_a_sweep_file_of_the_users_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text("name: mine")
    with refused("exists", tmp_path, "sweep.yaml", "--out"):
        RunFiles(tmp_path).check_writable()
