"""Whatever happens to a run's folder, or to the process that trains, the run comes to what it would
have come to anyway. The rules are tested in test_dispatch.py, other processes in test_siege.py."""

import itertools
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from conftest import TINY, called, ended, first_trials, invoked, made, refused, train_all
from driving import assert_same, recorded, trials_of
from test_growth import command

from orchestrator.cli import answers
from orchestrator.planning.studies import plan
from orchestrator.planning.sweep import Sweep
from orchestrator.report import panel
from orchestrator.results import RunFiles, frontier_of
from orchestrator.sweeping import local

pytestmark = pytest.mark.dear


def swept(**changes: Any) -> Sweep:
    return Sweep.model_validate({**TINY, **changes})


def test_a_run_goes_on_wherever_it_is_moved_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, moved, whole = (tmp_path / name for name in ("run", "a/run of another name", "whole"))
    once = swept(stop={"dominated": False})  # none is set aside before it ends
    run, planned = made(place, once)
    with monkeypatch.context() as patch:
        patch.setattr(local, "NEWS_SECONDS", 0.0)  # or all would end in the same second
        train_all(run, planned, asked_to_end=lambda: recorded(place) >= 2)
    kept = trials_of(place)
    assert 2 <= len(kept) < 6
    moved.parent.mkdir()
    place.rename(moved)
    made(whole, once)
    for each in (moved, whole):
        command("resume", str(each), "--no-ray")
    assert all(trial in trials_of(moved) for trial in kept), "none was trained again"
    assert_same(moved, whole)
    assert not place.exists()


@pytest.mark.parametrize(
    ("resources", "code", "values"),
    [
        ({"examples_per_device": 64, "max_devices": 3}, "several-ranks", ["256", "max_devices: 1"]),
        ({"gpus_per_device": 0.5}, "not-together", ["0.5"]),
    ],
)
def test_what_this_process_can_not_train_is_refused(
    tmp_path: Path, resources: dict[str, Any], code: str, values: list[object]
) -> None:
    run, planned = made(tmp_path / "run", swept(resources=resources))
    with refused(code, *values):
        train_all(run, planned)


def test_a_trial_goes_on_from_its_checkpoint_in_a_run_that_has_grown(tmp_path: Path) -> None:
    """Its study has another place among the studies then. The checkpoint was saved when the sweep
    was asked to end."""
    changes = {
        "goals": ["val/error < 0.0001"], "stop": {"dominated": False}, "batch_sizes": [64],
        "search": {"trials": 1}, "checkpoint": {"every_seconds": 3600},
    }  # fmt: skip
    run, planned = made(tmp_path / "run", swept(**changes))
    asked = itertools.count()
    train_all(run, planned, asked_to_end=lambda: next(asked) > 4)
    grown = plan(swept(**changes | {"batch_sizes": [64, 32, 256]}))
    train_all(run, grown)
    (resumed_steps,) = run.trials(planned.studies[0].key)["resumed_steps"].to_pylist()
    assert resumed_steps > 0


@pytest.mark.parametrize("name", ["trials", "measurements", "repeats", "sweep.yaml"])
def test_a_file_of_the_users_is_not_replaced(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    told = (tmp_path, name, "--out") if name == "sweep.yaml" else (tmp_path / name,)
    with refused("exists", *told):
        RunFiles(tmp_path).check_writable()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trained") / "run"
    train_all(*made(path, swept()))
    return path


def fails(*_: Any, **__: Any) -> NoReturn:
    raise ZeroDivisionError("by nothing")


SAID = re.compile(r"this program made a mistake \(ZeroDivisionError: by nothing, test_faults")


def test_a_session_writes_the_frontier_first(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["orchestrator.report"], "write_page_of", fails)
    monkeypatch.setattr(answers, "answers_in_words", fails)
    (trained / "frontier.csv").unlink(missing_ok=True)
    said = " ".join(invoked("resume", trained, "--no-ray")[1].split())
    assert "Traceback" not in said
    assert len(SAID.findall(said)) == 2
    assert "9,984" in said, "the table of the frontier"
    assert len((trained / "frontier.csv").read_text().splitlines()) == 3


def test_a_part_of_the_page_fails_alone(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called("report", trained)
    whole = places(trained)
    monkeypatch.setattr(panel, "answer_of", fails)
    groups = [replace(g, parts=(fails,)) if g.anchor == "trials" else g for g in panel.FOLDS]
    monkeypatch.setattr(panel, "FOLDS", groups)
    called("report", trained)
    page = (trained / "report.html").read_text()
    assert len(SAID.findall(page)) == 2
    assert whole - places(trained) == {"trials"}


def places(run: Path) -> set[str]:
    """The parts of the page."""
    return {*re.findall(r'class="fold" id="([\w-]+)"', (run / "report.html").read_text())}


def test_every_command_reads_a_study_that_was_never_measured(tmp_path: Path) -> None:
    """All its trials failed at once."""
    run, planned = made(tmp_path / "run", swept())
    for trial in first_trials(planned.studies[0], planned.sweep.seed):
        run.write(ended(trial, "failed", error="no"))
    for study in planned.studies:
        run.put_together(study.key, finished=True)
    called("export", run.place, compact := tmp_path / "compact")
    for name, *options in (["frontier"], ["frontier", "--json"], ["status", "--json"], ["report"],
                           ["report", "--json"], ["best", "val/error"], ["advise"]):  # fmt: skip
        for place in (run.place, compact):
            called(name, place, *options)
    called("compare", run.place, compact)
    assert train_all(run, planned) == 6, "all are tried again"
    assert len(frontier_of(run)) == 2
