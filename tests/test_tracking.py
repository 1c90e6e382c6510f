"""What other trackers are told is what the run holds. test_outside.py reads again what TensorBoard
and W&B were told."""

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from conftest import following, refused
from driving import PATIENCE, Driver, children
from test_rounds import Fate, all_waiting, begin, finish, make_study

from orchestrator.cli.runs import sweep
from orchestrator.files.places import Place
from orchestrator.records import FinishedTrial
from orchestrator.results import RunFiles
from orchestrator.search import Director
from orchestrator.sweeping import tracking
from orchestrator.sweeping.tracking import Trackers, check_trackers

Told = tuple[Mapping[str, Any], Mapping[tuple[int, str], float]]
"""Of a trial: its config, and (step, metric) -> value."""


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trackers give way to training, so on a busy machine they may take minutes to come up."""
    monkeypatch.setattr(tracking, "PATIENCE_SECONDS", PATIENCE)


def test_a_tracker_that_cannot_be_used_is_refused_before_anything_starts(
    sweep_file: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, package in {
        "mlflow": "mlflow",
        "wandb": "wandb",
        "tensorboard": "tensorboardX",
    }.items():
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            with refused("missing-package", package, f"orchestrate-batch-size[{name}]"):
                sweep(str(sweep_file()), out=str(tmp_path / "run"), track=[name])
    with refused("unknown-name", "'wandbb'", "'wandb'"):
        sweep(str(sweep_file()), out=str(tmp_path / "run"), track=["wandbb"])
    assert not (tmp_path / "run").exists()


def test_what_needs_a_folder_is_refused_for_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = Place("s3://lab/runs")
    for name, variable in {"mlflow": "MLFLOW_TRACKING_URI", "wandb": "WANDB_DIR"}.items():
        monkeypatch.delenv(variable, raising=False)
        with refused("needs-a-folder", name, variable, bucket):
            check_trackers([name], bucket)
        monkeypatch.setenv(variable, "somewhere")
        check_trackers([name], bucket)
    with refused("needs-a-folder", "tensorboard", bucket):
        check_trackers(["tensorboard"], bucket)


def told_of_all(path: Path, say: Callable[[str], None] = print) -> RunFiles:
    """A run of whose trials mlflow is told."""
    study, run = make_study(trials=2, repeats=1), RunFiles(path)
    run.create({"name": "tiny"}, [study], {})
    director = begin(study)
    with closing(Trackers(["mlflow"], run, director, "tiny", say)) as trackers:
        while (proposal := following(director)) is not None:
            finished = finish(proposal.trial, ("reached", 10 + proposal.trial.index))
            run.write(finished)
            director.record(finished)
            trackers.hear(finished, director.searches[study.key])
    return run


@pytest.mark.dear
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what mlflow does to its database
def test_trackers_are_told_every_measurement_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    expected = held_by(told_of_all(tmp_path / "run"))
    assert len(expected) == 3, "two and a repeat"
    assert told_to_mlflow(tmp_path / "run") == expected


@pytest.mark.dear
def test_a_trial_that_is_set_aside_is_told_of_when_it_is_known_how_it_ends(tmp_path: Path) -> None:
    # The name of a workload leads nowhere else.
    study = make_study(workload="../../w", stop_dominated=True, budget_steps=3200)
    run = RunFiles(tmp_path / "run")
    seen: list[set[str]] = []

    def session(fates: Mapping[int, Fate]) -> None:
        director = Director([study], 0)
        for finished in run.finished(study):
            director.load(finished)
        director.begin()
        with closing(Trackers(["tensorboard"], run, director, "tiny", print)) as trackers:
            trials = {proposal.trial.index: proposal.trial for proposal in all_waiting(director)}
            for index, fate in fates.items():
                finished = finish(trials[index], fate)
                run.write(finished)
                director.record(finished)
                trackers.hear(finished, director.searches[study.key])
        seen.append({f.parent.name for f in tmp_path.glob("run/tensorboard/w/r/batch-1/*/*tfev*")})

    session(dict.fromkeys(range(4), ("paused", 400)))
    session({1: ("reached", 401)})
    session({0: ("dominated", 401)})
    assert seen == [set(), {"trial-1"}, {f"trial-{index}" for index in range(4)}]
    assert len([*tmp_path.rglob("*tfevents*")]) == 4, "none twice"


@pytest.mark.dear
def test_a_tracker_may_raise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@127.0.0.1:1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    said = list[str]()
    run = told_of_all(tmp_path / "run", said.append)
    assert "mlflow did not receive all trials" in said[-1]
    assert caplog.text.count("mlflow missed a trial") == 1
    files = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    assert b"secret" not in b"".join([caplog.text.encode(), *map(str.encode, said), *files])
    assert len(held_by(run)) == 3


@pytest.mark.dear
def test_a_tracker_may_not_return(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tensorboardX").mkdir()
    (tmp_path / "tensorboardX" / "__init__.py").write_text("import time; time.sleep(1000)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(tracking, "PATIENCE_SECONDS", 0.1)
    director, said = Director([make_study()], 0), list[str]()
    director.begin()
    before = children()
    trackers = Trackers(["tensorboard"], RunFiles(tmp_path), director, "tiny", said.append)
    assert len(children() - before) == 1
    began = time.monotonic()
    for proposal in all_waiting(director):
        director.record(finished := finish(proposal.trial, ("exhausted", 100)))
        trackers.hear(finished, director.searches[finished.trial.study.key])
    assert time.monotonic() - began < 60
    trackers.close()
    waits, missed = said
    assert "the last 4 trials" in waits
    assert "log.txt" in missed
    assert not children() - before


DRIVER = """
from orchestrator.results import RunFiles
from orchestrator.search import Director
from orchestrator.sweeping.tracking import Trackers
Trackers(["mlflow", "tensorboard"], RunFiles("run"), Director([], 0), "tiny", print)
input("up")
"""


@pytest.mark.dear
def test_trackers_end_with_the_driver_but_hear_no_interrupt(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER], cwd=tmp_path, start_new_session=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.read(2) == b"up"
        driver = Driver(process=process, printed=tmp_path, said=tmp_path)
        assert len({os.getpgid(pid) for pid in driver.family()}) == 3
        driver.kill()


def held_by(run: RunFiles) -> dict[str, Told]:
    return {name_of(one): told(one) for study in run.studies() for one in run.finished(study)}


def name_of(finished: FinishedTrial) -> str:
    trial, study = finished.trial, finished.trial.study
    repeat = f"-repeat-{trial.repeat}" if trial.repeat else ""
    return f"{study.workload}/{study.recipe}/batch-{study.batch_size}/trial-{trial.index}{repeat}"


def told(finished: FinishedTrial) -> Told:
    trial, study = finished.trial, finished.trial.study
    config = {
        "workload": study.workload,
        "recipe": study.recipe,
        "optimizer": study.optimizer,
        "batch_size": study.batch_size,
        "trial": trial.index,
        "repeat": trial.repeat,
        "seed": trial.seed,
        "status": finished.outcome.status,
        **trial.params,
    }
    values = {
        (m.step, name): value for m in finished.measurements for name, value in m.metrics.items()
    }
    assert all(map(math.isfinite, values.values())), "or trackers would not have them all"
    return {key: str(value) for key, value in config.items()}, values


def told_to_mlflow(path: Path) -> dict[str, Told]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{path}/mlflow/mlflow.db")
    experiment = client.get_experiment_by_name("tiny")
    assert experiment is not None
    found = []
    for run in client.search_runs([experiment.experiment_id]):
        assert run.info.status == "FINISHED"
        values = {
            (metric.step, name): metric.value
            for name in run.data.metrics
            for metric in client.get_metric_history(run.info.run_id, name)
        }
        found.append((run.info.run_name, (run.data.params, values)))
    assert len(found) == len(dict(found))
    return dict(found)
