"""Compact runs: the same answers as the runs that they were exported from, and no wrong ones."""

import json
import math
import platform
import re
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
import yaml
from conftest import TINY, made, refused, train_all
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_branching import BRANCHES, TRUNK
from test_frontier import write_run
from test_growth import command

import orchestrator
from orchestrator.planning.growth import refuse_incomparable
from orchestrator.planning.studies import plan
from orchestrator.planning.sweep_file import load_sweep, validated
from orchestrator.records import STATUSES, BadInput
from orchestrator.results import RunFiles, Within, best_of, frontier_of, to_csv
from orchestrator.results.export import export_compact

pytestmark = pytest.mark.dear

SWEEP: dict[str, Any] = {
    **TINY,
    "goals": ["val/error < 0.3", "val/error < 0.1"],
    "batch_sizes": [32, 64, 128, 256],
    "search": {"trials": 8},
    "stop": {"keep": 2},
    "repeats": {"count": 2, "of": 2},
    "evaluate": {"noise_scale": "repeats"},
}
WHOLE = {"at_goal": False, "dominated": False}
SWEEPS = {
    "early stopping": SWEEP,
    "whole budgets": {
        **SWEEP, "batch_sizes": [64, 256], "stop": WHOLE,
        "evaluate": {"train_examples": 50, "noise_scale": "repeats"},
    },
    "sampler": {
        **SWEEP, "batch_sizes": [64, 256],
        "search": {"trials": 6, "algorithm": "cmaes", "generation": 2},
    },
}  # fmt: skip


@pytest.fixture(scope="module", params=["early stopping", "whole budgets"])
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    return trained(request.param, tmp_path_factory.mktemp("runs"))


def trained(name: str, folder: Path) -> tuple[Path, Path]:
    """A run and its compact form."""
    run = orchestrator.sweep(SWEEPS[name], out=folder / "run", ray=False)
    command("export", run.path, str(folder / "compact"))
    return Path(run.path), folder / "compact"


def content(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize(
    "question",
    [
        "frontier RUN --goal val/error<0.1 --json",
        "best RUN val/loss --maximise --json",
        "report RUN --json",
        "advise RUN --json",
        "status RUN",
    ],
)
def test_it_gives_the_same_answers(runs: tuple[Path, Path], question: str) -> None:
    packed = runs[1].with_suffix(".zip")
    if not packed.exists():
        command("export", str(runs[0]), str(packed))
    answers = {
        command(*question.replace("RUN", str(run)).split()).stdout.replace(str(run), "RUN")
        for run in (*runs, *([] if "advise" in question else [packed]))  # it can't grow
    }
    assert len(answers) == 1
    assert answers != {""}


def test_it_has_the_same_frontier_and_page(runs: tuple[Path, Path]) -> None:
    run, compact = runs
    assert (run / "frontier.csv").read_bytes() == (compact / "frontier.csv").read_bytes()
    pages = [Path(orchestrator.open_run(each).report()).read_text() for each in runs]
    node = re.escape(platform.node())
    shown = rf'(?<=003e){node}(?=:\d)|(?<="){node}(?=")'
    pages[0] = re.sub(shown, "machine-001", pages[0])
    told = "<dt>measurements</dt><dd>a compact run.*?</dd>"
    assert re.search(told, pages[1])
    assert pages[0] == re.sub(told, "", pages[1])
    compared = orchestrator.open_run(run).compare(compact).studies
    assert {pair.verdict for pair in compared} == {"same"}


def test_a_packed_run_is_read_only_and_has_its_page_beside_it(
    runs: tuple[Path, Path], tmp_path: Path
) -> None:
    paths = [tmp_path / name for name in ("a.zip", "b.zip")]
    for path in paths:
        export_compact(RunFiles.open(runs[1]), path)
    assert len({path.read_bytes() for path in paths}) == 1
    packed = orchestrator.open_run(paths[0])
    assert Path(packed.report()) == tmp_path / "a.html"
    assert Path(packed.report()).stat().st_size > 1000
    with refused("unwritable", "unzip", paths[0]):
        RunFiles.open(paths[0]).check_writable()
    (tmp_path / "c.zip").write_bytes(b"PK\x03\x04 and no more")
    with refused("unreadable", tmp_path / "c.zip"):
        RunFiles.open(tmp_path / "c.zip")


def test_members_are_read_without_seeking(
    runs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Python 3.12.3, as of Ubuntu 24.04, that gives wrong bytes of one of several open ones."""
    monkeypatch.setattr(zipfile.ZipExtFile, "seek", Mock(side_effect=AssertionError))
    packed = RunFiles.open(runs[1].with_suffix(".zip"))
    assert frontier_of(packed) == frontier_of(RunFiles.open(runs[1]))


def test_it_holds_all_that_goals_and_forecasts_read_of_repeats(runs: tuple[Path, Path]) -> None:
    (original, compact) = (RunFiles.open(run) for run in runs)
    for study in original.studies():
        assert "noise/variance" not in original.measurements(study.key).column_names
        whole, kept = (run.repeats.measurements(study.key) for run in (original, compact))
        assert {*whole.column_names} > {*kept.column_names}
        assert not {"val/loss", "batch/loss"} & {*kept.column_names}
        assert {"val/error", "noise/variance"} < {*kept.column_names}
        assert kept == whole.select(kept.column_names)


def test_it_names_no_machine_and_no_folder(runs: tuple[Path, Path], tmp_path: Path) -> None:
    original = RunFiles.open(runs[0])
    (study, *_) = original.studies()
    broken = 'Traceback:\n  File "/home/somebody/code.py"\nValueError: too large'
    rows = original.trials(study.key)
    place = rows.column_names.index("error")
    rows = rows.set_column(place, rows.field(place), pa.array([broken] * len(rows)))
    shutil.copytree(runs[0], tmp_path / "run")
    RunFiles.open(tmp_path / "run").write_study(study.key, rows, original.measurements(study.key))
    export_compact(RunFiles.open(tmp_path / "run"), tmp_path / "compact")
    exported = RunFiles.open(tmp_path / "compact").trials(study.key)
    assert {*exported["error"].to_pylist()} == {"ValueError: too large"}
    assert {where.partition(":")[0] for where in exported["where"].to_pylist()} == {"machine-001"}


def test_exported_again_it_is_the_same_to_the_byte(runs: tuple[Path, Path], tmp_path: Path) -> None:
    for number, run in enumerate(runs):
        export_compact(RunFiles.open(run), tmp_path / str(number))
    assert content(tmp_path / "0") == content(tmp_path / "1")
    with refused("exists", tmp_path / "0"):
        export_compact(RunFiles.open(runs[0]), tmp_path / "0")


@pytest.mark.parametrize(
    "changes",
    [["search.trials=10", "repeats=3", "stop.keep=4", "repeat_best=3"], ["budget.steps=80"]],
)
def test_it_goes_on_as_the_original_does(
    runs: tuple[Path, Path], tmp_path: Path, changes: list[str]
) -> None:
    assert_goes_on(runs, tmp_path, changes)


@pytest.mark.slow
def test_what_a_sampler_was_told_goes_on_as_well(tmp_path: Path) -> None:
    assert_goes_on(trained("sampler", tmp_path), tmp_path, ["search.trials=10", "repeats=3"])


def assert_goes_on(runs: tuple[Path, Path], tmp_path: Path, changes: list[str]) -> None:
    found = []
    for number, path in enumerate(runs):
        shutil.copytree(path, tmp_path / str(number))
        run = RunFiles.open(tmp_path / str(number))
        grown = plan(load_sweep(path / "sweep.yaml", changes))
        try:
            refuse_incomparable(run, grown)
        except BadInput as error:
            found.append(str(error).replace(str(run.place), "RUN"))
            continue
        run.create(grown.sweep.resolved(), grown.studies, {})
        trained = train_all(run, grown)
        found.append((trained, to_csv(frontier_of(run)), run.is_compact == (path == runs[1])))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("question", "lacking"),
    [
        ("frontier RUN --goal val/error<0.2", "steps to other goals"),
        ("report RUN --goal val/loss<0.2", "steps to other goals"),
        ("sweep RUN/sweep.yaml --out RUN --set goals=[val/error<0.4]", "steps to other goals"),
        ("best RUN val/loss --within epochs=2", "the lowest val/loss within a budget"),
        ("best RUN val/error --within epochs=2 --maximise", "the highest val/error"),
    ],
)
def test_it_gives_no_answer_that_it_lacks(
    runs: tuple[Path, Path], question: str, lacking: str
) -> None:
    with refused("compact-run", runs[1], lacking):
        command(*question.replace("RUN", str(runs[1])).split())


def test_a_raised_budget_trains_no_more_than_in_the_original(tmp_path: Path) -> None:
    """Trial 0 spent the budget before trial 1 beat it."""
    file = tmp_path / "sweep.yaml"
    points = [{"learning_rate": 1e-9}, {"learning_rate": 0.1}]
    few = {"algorithm": "points", "points": points}
    changes = {"goals": ["val/error < 0.5"], "batch_sizes": [64], "repeats": 0, "stop": {}}
    changes["resources"] = {"stack": 1}  # one after the other
    file.write_text(yaml.safe_dump({**SWEEP, **changes, "search": few, "budget": {"steps": 38}}))
    run, planned = made(tmp_path / "run", load_sweep(file))
    train_all(run, planned)
    (study,) = planned.studies
    assert run.trials(study.key)["status"].to_pylist() == ["exhausted", "reached"]
    export_compact(run, tmp_path / "compact")
    compact = RunFiles.open(tmp_path / "compact")
    assert len(compact.measurements(study.key)) < len(run.measurements(study.key))
    grown = plan(load_sweep(file, ["budget.steps=60"]))
    for each in (run, compact):
        assert train_all(each, grown) == 0
        assert each.trials(study.key)["status"].to_pylist() == ["dominated", "reached"]


values = st.one_of(
    st.integers(0, 99).map(lambda hundredths: hundredths / 100),
    st.sampled_from([math.nan, math.inf, -math.inf]),
)
statuses = st.sampled_from([*STATUSES, *["exhausted"] * 4])
curves = st.lists(
    st.tuples(statuses, st.lists(values, min_size=1, max_size=6)), min_size=2, max_size=5
)


@settings(max_examples=25)
@given(
    curves,
    st.sampled_from(["val/error < 0.2", "val/error > 0.8", "val/error < 0.2 for 2 measurements"]),
)
@example([("reached", [0.9, 0.8, 0.1]), ("exhausted", [0.9, 0.5, 0.3, 0.6])], "val/error < 0.2")
def test_every_answer_to_any_curves_is_the_same(
    tmp_path_factory: pytest.TempPathFactory, curves: Any, goal: str
) -> None:
    folder = tmp_path_factory.mktemp("run")
    run = write_run(folder / "run", curves, goal)
    export_compact(run, folder / "compact")
    answers = [[*_answers(each, goal)] for each in (run, RunFiles.open(folder / "compact"))]
    assert answers[0] == answers[1]


def _answers(run: RunFiles, goal: str) -> Iterator[str]:
    yield repr(frontier_of(run))
    budgets = [None, *(Within.parse(f"steps={steps}") for steps in range(0, 60, 10))]
    yield repr(best_of(run, "val/error", within=budgets))
    yield repr(best_of(run, "val/error", maximise="<" in goal))


def test_branches_keep_all_that_was_measured(tmp_path: Path) -> None:
    trunk = {**TRUNK, "budget": {"examples": 1600}}
    length = {"examples": 512, "at_most": 512}
    one_rate = {"rules": ["linear"], "multiples": [1]}
    small = {
        **BRANCHES, "trunk": trunk, "points": [20], "length": length, "learning_rate": one_rate,
    }  # fmt: skip
    run = orchestrator.branch(small, out=tmp_path / "run", confirm=True, ray=False)
    compact = run.compact(tmp_path / "compact")
    assert not RunFiles.open(compact.path).is_compact
    assert len(compact.measurements()) == len(run.measurements())
    pages, answers = (
        {text(each) for each in (run, compact)}
        for text in (
            lambda each: Path(each.report()).read_text(),
            lambda each: command("report", each.path, "--json").stdout,
        )
    )
    assert len(pages) == len(answers) == 1
    answer = json.loads(answers.pop())
    schedules = {
        name: schedule
        for name, schedule in answer["schedules"].items()
        if len(schedule["stages"]) > 1
    }
    assert {one["recipe"] for one in answer["confirmed"]} == {*schedules} != set()
    for one in answer["confirmed"]:
        saved = schedules[one["recipe"]]["steps_saved"]
        assert one["steps_saved"] == pytest.approx(saved, abs=0.01)
        assert one["seeds"] + one["failed"] == 4
        assert {"val/loss", "val/error"} == {*one["differences"]}
    # Each recipe of the file trains as it stands.
    recipes = yaml.safe_load(Path(run.path, "schedules.yaml").read_text())
    sweep = {
        "name": "again", "workloads": ["digits/mlp"], "batch_sizes": [8], "goals": [],
        "recipes": [schedule["recipe"] for schedule in recipes.values()],
    }  # fmt: skip
    assert plan(validated(sweep, "again")).studies
    assert "holds every trial" in command("resume", compact.path, "--no-ray").stderr


def test_from_python_and_of_a_run_that_goes_on(tmp_path: Path) -> None:
    """A run of which a trial is missing is exported as it is, and the missing trial is trained."""
    run = orchestrator.sweep(
        {**SWEEP, "batch_sizes": [64], "repeats": 0}, out=tmp_path / "run", ray=False
    )
    answer = run.frontier().to_arrow()
    (study,) = RunFiles.open(run.path).studies()
    files = RunFiles(run.path)._of(study.key)
    files.keep_only([(index, 0) for index in range(7)])
    compact = run.compact(tmp_path / "compact")
    assert "whole curves of the best trials only" in repr(compact.measurements())
    with refused("compact-run", compact.path):
        compact.frontier("val/error < 0.2")
    resumed = compact.resume(ray=False)
    assert resumed.frontier().to_arrow().drop("seconds") == answer.drop("seconds")
    assert RunFiles.open(resumed.path).is_compact
