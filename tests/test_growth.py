"""Growing a run: what is missing is trained, what can't be compared is refused."""

import re
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from conftest import TINY, ended, first_trials, made, make_trial, refused, train_all
from pretending import Killed
from typer.testing import CliRunner

from orchestrator.cli import app
from orchestrator.files.places import Place
from orchestrator.planning.growth import as_grown, refuse_changed, refuse_incomparable
from orchestrator.planning.studies import plan, plan_again
from orchestrator.planning.sweep_file import load_sweep
from orchestrator.records import EvaluationGrid, Goal
from orchestrator.results import RunFiles, frontier_of, study_files, to_csv
from orchestrator.results.repeats import median_interval

pytestmark = pytest.mark.dear

SweepFile = Callable[..., Path]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The complete run of the tiny sweep."""
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "sweep.yaml").write_text(yaml.safe_dump(TINY))
    run, planned = made(folder / "run", load_sweep(folder / "sweep.yaml"))
    assert train_all(run, planned) == 6
    return folder / "run"


@pytest.mark.parametrize(
    ("change", "trained"),
    [
        ("search.trials=5", 4),
        ("batch_sizes=[64, 128, 256]", 3),
        ("recipes=[sgd, momentum]", 6),
        ("repeats=2", 4),
        ("goals=[val/error < 0.6]", 0),
    ],
)
def test_only_what_is_missing_is_trained(
    tiny: Path, sweep_file: SweepFile, tmp_path: Path, change: str, trained: int
) -> None:
    run = RunFiles(shutil.copytree(tiny, tmp_path / "run"))
    more = plan(load_sweep(sweep_file(), [change]))
    refuse_incomparable(run, more)
    assert train_all(run, more) == trained


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ("seed=1", ("seed: 0", 1)),
        ("evaluate.spacing=0.5", ("evaluate.spacing: 0.05", 0.5)),
        (
            "recipes=[{name: sgd, space: {learning_rate: {low: 1, high: 2}}}]",
            ("space.learning_rate.low: 0.001", 1),
        ),
        ("search.algorithm=sobol", ("search.algorithm: halton", "sobol")),
        ("goals=[val/error < 0.2]", ("goal val/error < 0.2",)),
        ("batch_sizes=[64]", ("batch size 256",)),
        ("search.trials=2", ("trials: 3", 2)),
        # Only of the larger batch size, which is named.
        ("budget={examples: 3840, at_least_steps: 30}", ("batch size 256: budget: 60 steps", 30)),
    ],
)
def test_what_cannot_be_compared_is_refused(
    tiny: Path, sweep_file: SweepFile, change: str, shown: tuple[object, ...]
) -> None:
    with refused("incomparable", *shown):
        refuse_incomparable(RunFiles(tiny), plan(load_sweep(sweep_file(), [change])))


def test_a_goal_on_a_test_split_is_refused_where_it_was_seldom_evaluated(
    sweep_file: SweepFile, tmp_path: Path
) -> None:
    run, planned = made(tmp_path / "run", load_sweep(sweep_file()))
    goals = (Goal.parse("test/error < 0.9"),)
    asked = [replace(study, goals=goals) for study in planned.studies]
    with refused("incomparable", "goal test/error < 0.9"):
        refuse_incomparable(run, replace(planned, studies=tuple(asked)))


def test_goals_are_refused_only_of_trials_that_stopped_at_others(
    sweep_file: SweepFile, tmp_path: Path
) -> None:
    """Each study is asked for its own goals, and trials that were set aside go on."""
    run, planned = made(tmp_path / "run", load_sweep(sweep_file(search={"trials": 1})))
    small, large = planned.studies
    run.write(ended(first_trials(small, 0)[0], "reached", {10: 0.9, 20: 0.2}))
    run.write(ended(first_trials(large, 0)[0], "paused", {10: 0.9}))
    stricter, looser = (
        replace(study, goals=(Goal.parse(f"val/error < {bound}"),))
        for study, bound in ((small, 0.3), (large, 0.6))
    )
    refuse_incomparable(run, replace(planned, studies=(stricter, looser)))
    with refused("incomparable", "batch size 256"):
        asked = replace(looser, goals=stricter.goals)
        run.write(ended(first_trials(large, 0)[0], "reached", {10: 0.9, 20: 0.4}))
        refuse_incomparable(run, replace(planned, studies=(small, asked)))


def test_a_repeat_that_stopped_at_the_goals_of_before_begins_anew() -> None:
    trial = make_trial(
        goals=["val/loss < 1", "val/error < 0.5"],
        repeats=2,
        grid=EvaluationGrid(spacing=0, min_gap=9),
    )
    trained = []
    for repeat, error in enumerate((0.4, 0.4, 0.6)):
        one = ended(replace(trial, repeat=repeat), "reached", {9: error})
        measured = replace(one.measurements[0], metrics={"val/loss": 0.7, "val/error": error})
        trained.append(replace(one, measurements=(measured,)))
    assert as_grown(trial.study, trained) == trained[:2]


@pytest.mark.parametrize(
    "same",
    [
        "stop.dominated=true",
        "evaluate={spacing: 0.05, min_examples: 64}",
        "budget={steps: 9, at_least_steps: 60}",
        "batch_sizes={from: 64, to: 256, factor: 4}",
        "recipes=[{name: sgd, search: {trials: 4}, budget: {steps: 60}}]",
        "recipes=[{name: sgd, space: {learning_rate: {low: 1e-3, high: 10, scale: log}}}]",
    ],
)
def test_another_sweep_with_the_same_studies_continues_the_run(
    tiny: Path, sweep_file: SweepFile, tmp_path: Path, same: str
) -> None:
    """A default that is written down, or another spelling."""
    run = RunFiles(shutil.copytree(tiny, tmp_path / "run"))
    more = plan(load_sweep(sweep_file(), ["search.trials=4", same]))
    refuse_incomparable(run, more)
    assert more.studies == plan(load_sweep(sweep_file(), ["search.trials=4"])).studies
    run.create(more.sweep.resolved(), more.studies, {})
    assert run.is_for(more.sweep.resolved(), more.studies)


@pytest.mark.parametrize(
    ("there", "here", "shown"),
    [
        ({}, "budget.steps=59", ("budget: 60 steps", 59)),
        ({"search": {"algorithm": "tpe", "trials": 3}}, "budget.steps=90", ("tpe",)),
        ({"schedule": {"decay": "cosine"}}, "budget.steps=90", ("60 steps", "decay cosine")),
        ({"schedule": {"warmup_fraction": 0.1}}, "budget.steps=90", ("warmup_fraction 0.1",)),
        (
            {"schedule": {"warmup_steps": {"low": 0, "high": 61}}},
            "budget.steps=90",
            ("warmup_steps 61",),
        ),
        ({"schedule": {"cooldown": {}}}, "budget.steps=90", ("budget and goals",)),
        ({"schedule": {"cooldown": {}}}, "goals=[val/error < 0.3]", ("budget and goals",)),
        ({"schedule": {"cooldown": {}}}, "search.trials=9", ()),
        ({}, "budget={steps: 90, inherit: 2}", ("budget.inherit: None", 2.0)),
        ({"schedule": {"warmup_steps": 60}}, "budget.steps=90", ()),
        ({"schedule": {"decay": "cosine", "decay_steps": 500}}, "budget.steps=90", ()),
        ({"schedule": {"warmup_epochs": 1}}, "budget={epochs: 9, at_least_steps: 60}", ()),
    ],
)
def test_only_budgets_that_trials_do_not_depend_on_may_be_raised(
    sweep_file: SweepFile, tmp_path: Path, there: Any, here: str, shown: tuple[object, ...]
) -> None:
    """Where something is shown, it follows the budget, and is refused."""
    file = sweep_file(**there if "search" in there else {"recipes": [{"name": "sgd", **there}]})
    run, _ = made(tmp_path / "run", load_sweep(file))
    with refused("incomparable", *shown) if shown else nullcontext():
        refuse_incomparable(run, plan(load_sweep(file, [here])))


def kill_after(patch: pytest.MonkeyPatch, where: Any, name: str, calls: int) -> None:
    kept, left = getattr(where, name), [calls]

    def call(*arguments: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        return kept(*arguments, **options)

    patch.setattr(where, name, call)


RAISED = {
    "workloads": ["noisy_quadratic?d=20"],
    "goals": ["val/loss < 0.3", "val/loss < 0.1"],
    "recipes": [
        {"name": "sgd", "space": {"learning_rate": {"low": 0.01, "high": 100, "scale": "log"}}},
        {"name": "one", "optimizer": "sgd", "space": {"learning_rate": 0.1}},
    ],
    "batch_sizes": [4, 64],
    "search": {"trials": 6},
    "budget": {"steps": 25},
    "repeats": 1,
    "evaluate": {"spacing": 0.1, "min_examples": 4},
}


def test_a_sweep_with_a_larger_budget_is_one_that_had_it_from_the_start(
    sweep_file: SweepFile, tmp_path: Path
) -> None:
    """Killed while what is to go on is set back. More kills are in test_raising.py."""
    file, place = str(sweep_file(**RAISED)), str(tmp_path / "run")
    large = ["--set", "budget.steps=200"]
    command("sweep", file, "--no-ray", "--out", place)
    before = frontier_of(RunFiles(place))
    assert all(row.finished for row in before)
    assert not all(row.reached for row in before)
    with pytest.MonkeyPatch.context() as patch:
        kill_after(patch, study_files, "write_table", 1)
        with pytest.raises(Killed):
            command("sweep", file, "--no-ray", "--out", place, *large)
    assert re.search("not (finished )?yet", command("frontier", place).stdout)
    assert not all(row.finished for row in frontier_of(RunFiles(place)))
    command("resume", place, "--no-ray")
    command("sweep", file, "--no-ray", "--out", str(tmp_path / "direct"), *large)
    raised, direct = RunFiles(place), RunFiles(tmp_path / "direct")
    assert to_csv(frontier_of(raised)) == to_csv(frontier_of(direct))
    assert all(row.finished for row in frontier_of(raised))
    mine, others = measured_in(raised), measured_in(direct)
    assert len(mine.keys() & others.keys()) > 100
    assert all(mine[key] == others[key] for key in mine.keys() & others.keys())


def command(*arguments: str) -> Any:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code in (0, 3), result.output
    return result


def measured_in(run: RunFiles) -> dict[Any, Any]:
    """Trial and step -> what was measured, to the bit."""
    return {
        (finished.trial.key, measurement.step): str(measurement.metrics)
        for study in run.studies()
        for finished in run.finished(study)
        for measurement in finished.measurements
    }


def test_resume_refuses_a_changed_sweep_file(sweep_file: SweepFile, tmp_path: Path) -> None:
    run, _ = made(tmp_path / "run", load_sweep(sweep_file()))
    refuse_changed(run)
    file = tmp_path / "run/sweep.yaml"
    document = yaml.safe_load(file.read_text())
    document |= {"seed": 1, "recipes": [{"name": "sgd", "optimizer": "adam"}]}
    file.write_text(yaml.safe_dump(document))
    again = f"orchestrate sweep {file} --out {tmp_path / 'run'}"
    with refused("changed-run", "seed: 0", "recipes.0.optimizer", again):
        command("resume", str(tmp_path / "run"))


MINE = """
from orchestrator.workloads.digits import DigitsMLP
class Mine(DigitsMLP):
    goal = "val/error < {goal}"
"""


@pytest.mark.parametrize("change", ["goal = 'val/error < 0.1'", "evaluation_spacing = 0.5"])
def test_resume_goes_by_what_the_run_was_made_for(
    sweep_file: SweepFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Whatever a default has become since: one run never holds trials of two kinds."""
    for name, more in (("there", ""), ("here", f"    {change}\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.py").write_text(MINE.format(goal=0.5) + more)
    monkeypatch.chdir(tmp_path / "there")
    file = sweep_file(workloads=["mine.py:Mine"], goals=None)
    run, planned = made(tmp_path / "run", load_sweep(file))
    monkeypatch.chdir(tmp_path / "here")
    assert plan(planned.sweep).studies != planned.studies
    refuse_changed(run)
    assert plan_again(planned.sweep, run.studies()).studies == planned.studies


def test_resume_refuses_other_data(sweep_file: SweepFile, tmp_path: Path) -> None:
    run, planned = made(tmp_path / "run", load_sweep(sweep_file()))
    smaller = [replace(study, train_size=9) for study in run.studies()]
    with refused("other-data", 9):
        plan_again(planned.sweep, smaller)


def test_a_run_that_was_killed_while_it_grew_has_grown(
    sweep_file: SweepFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, planned = made(tmp_path / "run", load_sweep(sweep_file()))
    more = plan(load_sweep(sweep_file(), ["batch_sizes=[64, 128, 256]"]))
    # Before it writes studies.json, and before it writes sweep.yaml.
    for calls, now in ((1, planned), (2, more)):
        with monkeypatch.context() as patch:
            kill_after(patch, Place, "write_text", calls)
            with pytest.raises(Killed):
                run.create(more.sweep.resolved(), more.studies, {})
        assert run.is_for(now.sweep.resolved(), now.studies)
        assert not run.is_for(now.sweep.resolved(), now.studies[:1])
        refuse_changed(run)
        assert plan_again(now.sweep, run.studies()).studies == now.studies
    run.write_sweep_file()
    assert yaml.safe_load((tmp_path / "run/sweep.yaml").read_text()) == more.sweep.resolved()


@pytest.mark.parametrize(
    ("count", "places"), [(1, (0, 0)), (5, (0, 4)), (8, (1, 6)), (20, (5, 14))]
)
def test_the_interval_of_a_median_covers_it(count: int, places: tuple[int, int]) -> None:
    low, high, confidence = median_interval(count)
    assert (low, high) == places
    draws = np.sort(np.random.default_rng(0).random((20_000, count)), axis=1)
    covered = ((draws[:, low] <= 0.5) & (draws[:, high] >= 0.5)).mean()
    assert covered == pytest.approx(confidence, abs=0.01)


def test_a_run_in_use_is_refused(sweep_file: SweepFile, tmp_path: Path) -> None:
    run, _ = made(tmp_path / "run", load_sweep(sweep_file()))
    with run.locked(), refused("lock-held", run.place):
        command("resume", str(tmp_path / "run"))
