"""Whatever happens to a run's folder, or to the process that trains, the run comes to what it would
have come to anyway. The rules are tested in test_dispatch.py, other processes in test_siege.py."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import TINY, refused, train_all
from driving import assert_same, recorded, trials_of
from typer.testing import CliRunner

from orchestrator.cli import app
from orchestrator.planning.studies import Plan, plan
from orchestrator.planning.sweep import Sweep
from orchestrator.results import RunFiles
from orchestrator.sweeping import local
from orchestrator.sweeping.progress import Progress

pytestmark = pytest.mark.dear

ENDING_ONCE: dict[str, Any] = {"stop": {"dominated": False}}
"""Changes to a sweep so that no trial is set aside before it ends."""


def made(path: Path, **changes: Any) -> tuple[RunFiles, Plan]:
    planned, run = plan(Sweep.model_validate({**TINY, **changes})), RunFiles(path)
    run.create(planned.sweep.resolved(), planned.studies, {})
    return run, planned


def resumed(path: Path) -> Path:
    """The run, continued and written up by the command."""
    result = CliRunner().invoke(app, ["resume", str(path), "--no-ray"])
    assert result.exit_code == 0, result.output
    return path


def undisturbed(path: Path, **changes: Any) -> Path:
    made(path, **changes)
    return resumed(path)


class Mending(Progress):
    """Calls `mend` when it is told that the run can't be written."""

    mend: Callable[[], None]

    def note(self, about: str, text: str) -> bool:
        if about == "storage":
            self.mend()
        return super().note(about, text)


@pytest.mark.parametrize("what", ["trials", "measurements"])
def test_storage_that_fails_for_a_while_loses_nothing(tmp_path: Path, what: str) -> None:
    run, planned = made(tmp_path / "run", **ENDING_ONCE)
    progress = Mending(planned.studies)
    (tmp_path / "run" / what).touch()
    progress.mend = (tmp_path / "run" / what).unlink
    assert train_all(run, planned, progress=progress) == 6
    (session,) = json.loads((tmp_path / "run/sessions.json").read_text())
    assert session["trials"] == 6, "none was trained twice"
    assert_same(resumed(tmp_path / "run"), undisturbed(tmp_path / "undisturbed", **ENDING_ONCE))


def interrupted(path: Path, after: int, **changes: Any) -> None:
    run, planned = made(path, **changes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "NEWS_SECONDS", 0.0)  # or all would end in the same second
        train_all(run, planned, asked_to_end=lambda: recorded(path) >= after)
    assert after <= recorded(path) < sum(study.trials for study in planned.studies)


def test_a_run_goes_on_wherever_it_is_moved_to(tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere" / "under another name"
    interrupted(tmp_path / "run", after=2, **ENDING_ONCE)
    moved.parent.mkdir()
    (tmp_path / "run").rename(moved)
    kept = trials_of(moved)
    resumed(moved)
    assert all(trial in trials_of(moved) for trial in kept), "none was trained again"
    assert_same(moved, undisturbed(tmp_path / "undisturbed", **ENDING_ONCE))
    assert not (tmp_path / "run").exists()


def test_an_adaptive_search_goes_on_after_an_interrupt_as_if_there_had_been_none(
    tmp_path: Path,
) -> None:
    """In the midst of the second generation of one study, at the latest."""
    searching = {"search": {"algorithm": "tpe", "trials": 8, "generation": 4}}
    interrupted(tmp_path / "run", after=6, **searching)
    assert_same(resumed(tmp_path / "run"), undisturbed(tmp_path / "undisturbed", **searching))


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
