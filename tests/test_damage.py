"""Runs with damaged files: each command answers or refuses by name, and no damage costs more than
the trials it is in."""

import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import TINY, refused, train_all
from typer.testing import CliRunner

from orchestrator.cli import app
from orchestrator.planning.studies import Plan, plan
from orchestrator.planning.sweep import Sweep
from orchestrator.records import BadInput
from orchestrator.results import RunFiles, frontier_of, step_times, to_csv
from orchestrator.results.provenance import provenance

pytestmark = pytest.mark.dear

Damage = Callable[[Path], object]

COMMANDS = (
    ["status"],
    ["status", "--json"],
    ["frontier"],
    ["best", "val/error"],
    ["report"],
    ["export", "OUT"],
)


@pytest.fixture(scope="module")
def planned() -> Plan:
    return plan(Sweep.model_validate(TINY))


@pytest.fixture(scope="module")
def whole(planned: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete run, each trial in files of its own, in order."""
    folder = tmp_path_factory.mktemp("whole")
    trained, run = RunFiles(folder / "trained"), RunFiles(folder / "run")
    for each in (trained, run):
        each.create(planned.sweep.resolved(), planned.studies, provenance())
    train_all(trained, planned)
    for study in planned.studies:
        for finished in trained.finished(study):
            run.write(finished)
    return folder / "run"


@pytest.fixture
def path(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


def file_of(path: Path, kind: str) -> Path:
    """The file of trial 1."""
    return sorted(path.glob(f"{kind}/*/*/batch_size=64/trials-*"))[1]


def answers(path: Path, commands: Sequence[list[str]] = COMMANDS) -> dict[str, str]:
    """What each command prints, or refuses with; anything else is raised."""
    found = {}
    for command, *options in commands:
        out = Path(tempfile.mkdtemp(dir=path.parent)) / "out"
        given = [str(out) if option == "OUT" else option for option in options]
        result = CliRunner().invoke(app, [command, str(path), *given])
        if not isinstance(result.exception, SystemExit | BadInput | None):
            raise result.exception
        found[" ".join([command, *options])] = result.stdout + str(result.exception or "")
    return found


def damages(path: Path) -> dict[str, Damage]:
    content, table = path.read_bytes(), pq.ParquetFile(path).read()
    noise = random.Random(0).randbytes(len(content))
    other = sorted(path.parent.iterdir())[-1]
    texts = table.set_column(0, "trial", table["trial"].cast(pa.string()))
    cuts: dict[str, Damage] = {
        f"cut to {tenths} tenths": lambda file, tenths=tenths: file.write_bytes(  # type: ignore[misc]
            content[: len(content) * tenths // 10]
        )
        for tenths in (0, 1, 5, 9)
    }
    return {
        **cuts,
        "noise": lambda file: file.write_bytes(noise),
        "noise in Parquet's frame": lambda file: file.write_bytes(b"PAR1" + noise + b"PAR1"),
        "foreign columns": lambda file: pq.write_table(pa.table({"x": [1]}), file),
        "a column less": lambda file: pq.write_table(table.drop_columns(["seconds"]), file),
        "other types": lambda file: pq.write_table(texts, file),
        "another trial's": lambda file: shutil.copy(other, file),
        "a folder": lambda file: (file.unlink(), file.mkdir()),
        "a link to nowhere": lambda file: (file.unlink(), file.symlink_to("nowhere")),
        "a link to itself": lambda file: (file.unlink(), file.symlink_to(file.name)),
        "a pipe": lambda file: (file.unlink(), os.mkfifo(file)),
        "gone": lambda file: file.unlink(),
    }


@pytest.mark.parametrize("kind", ["trials", "measurements"])
def test_damage_to_a_trials_own_file_costs_that_trial_only(
    kind: str, path: Path, planned: Plan, caplog: pytest.LogCaptureFixture
) -> None:
    file, truth = file_of(path, kind), to_csv(frontier_of(RunFiles(path)))
    content, files = file.read_bytes(), {*path.rglob("*.parquet")}
    for name, damage in damages(file).items():
        damage(file)
        caplog.clear()
        run = RunFiles(path)
        rows = run.trials(planned.studies[0].key)
        assert rows["trial"].to_pylist() == [0, 2], name
        measured = run.measurements(planned.studies[0].key)
        assert {*measured["trial"].to_pylist()} == {0, 2}, name
        # What is no file isn't listed.
        if kind == "measurements" or file.is_file():
            assert str(file) in caplog.text, name
            assert str(file) in " ".join(frontier_of(run)[0].warnings), name
        if file.is_dir():
            file.rmdir()
        if name == "cut to 5 tenths":
            found = answers(path)
            assert json.loads(found["status --json"])["finished"] == 5
            assert "2 of 3 trials have finished" in " ".join(found["frontier"].split())
        # Whatever a damaged file holds, the trial is trained again in the same way.
        if name == "noise" or not file.is_file():
            assert train_all(RunFiles(path), planned) == 1, name
            assert to_csv(frontier_of(RunFiles(path))) == truth
        for more in {*path.rglob("*.parquet")} - files:
            more.unlink()
        file.unlink(missing_ok=True)
        file.write_bytes(content)


@pytest.mark.parametrize("kind", ["trials", "measurements"])
def test_damage_to_a_whole_study_is_refused_by_name(
    kind: str, path: Path, planned: Plan, tmp_path: Path
) -> None:
    run, key = RunFiles(path), planned.studies[0].key
    tables = run.trials(key), run.measurements(key)
    run.put_together(key, finished=True)
    (file,) = path.glob(f"{kind}/*/*/batch_size=64/study.parquet")
    for name in (
        "cut to 0 tenths", "cut to 5 tenths", "cut to 9 tenths", "noise in Parquet's frame",
        "foreign columns", "a column less", "other types",
    ):  # fmt: skip
        run.write_study(key, *tables)
        damages(file)[name](file)
        # All fail by the same refusal. Status needs no measurements.
        for command, said in answers(path, COMMANDS if "tenths" in name else COMMANDS[:3]).items():
            assert str(file) in said or (kind, "status" in command) == ("measurements", True), name
        with refused("damaged-run", file):
            train_all(RunFiles(path), planned)
        with refused("damaged-run", file):
            RunFiles(path).measurements(key, {"val/error"}), RunFiles(path).trials(key)
    # As the refusal says.
    for each in path.glob("*/*/*/batch_size=64/study.parquet"):
        each.unlink()
    assert train_all(RunFiles(path), planned) == 3


@pytest.mark.parametrize(
    "name", ["trials-1795734249123.parquet~", "trials-1795734249123 (conflicted copy).parquet",
             "trials-x.parquet", "trials-1.parquet", "notes.txt"]
)  # fmt: skip
def test_files_of_others_are_left_alone(
    name: str, path: Path, planned: Plan, caplog: pytest.LogCaptureFixture
) -> None:
    """Two files for one trial among them."""
    foreign = [shutil.copy(file_of(path, kind), file_of(path, kind).with_name(name))
               for kind in ("trials", "measurements")]  # fmt: skip
    run, key = RunFiles(path), planned.studies[0].key
    assert run.trials(key)["trial"].to_pylist() == [0, 1, 2]
    assert f"{foreign[0]} is not a file of this run" in caplog.text
    run.put_together(key, finished=True)
    assert all(file.exists() for file in foreign)
    assert RunFiles(path).trials(key)["trial"].to_pylist() == [0, 1, 2]
    assert train_all(run, planned) == 0


@pytest.mark.parametrize("kind", ["trials", "measurements"])
def test_putting_together_keeps_what_it_can_not_read(kind: str, path: Path, planned: Plan) -> None:
    run, key = RunFiles(path), planned.studies[0].key
    files = [file_of(path, each) for each in ("trials", "measurements")]
    file_of(path, kind).write_bytes(b"PAR1")
    before = [file.read_bytes() for file in files]
    run.put_together(key, finished=True)
    assert [file.read_bytes() for file in files] == before
    assert run.trials(key)["trial"].to_pylist() == [0, 2]
    assert train_all(RunFiles(path), planned) == 1
    run.put_together(key, finished=True)
    assert not any(file.exists() for file in files)


def test_a_copy_of_a_running_run_keeps_no_trial_behind(
    path: Path, planned: Plan, whole: Path
) -> None:
    """Copied again, it has what was put together since beside older files of single trials."""
    run, key = RunFiles(path), planned.studies[0].key
    truth = run.trials(key), run.measurements(key)
    run.put_together(key, finished=True)
    (finished, *_) = RunFiles(whole).finished(planned.studies[0])
    cut = replace(finished.outcome, status="dominated", steps=1)
    run.write(replace(finished, outcome=cut, measurements=finished.measurements[:1]))
    for _ in range(2):
        assert (run.trials(key), run.measurements(key)) == truth
        run.put_together(key, finished=True)


@pytest.mark.parametrize("content", [b"\xff", b"[" * 10_000, b"[1]", None])
def test_no_answer_needs_these(path: Path, content: bytes | None) -> None:
    truth = answers(path, [["frontier"]])["frontier"]
    for name in ("sessions.json", "provenance.json", "sweep.yaml"):
        (path / name).unlink(missing_ok=True)
        if content is not None:
            (path / name).write_bytes(content)
    found = answers(path)
    assert found["frontier"] == truth
    assert "can't" not in "".join(found.values())


def test_times_of_steps_that_cannot_be_read_are_told_once(
    path: Path, planned: Plan, caplog: pytest.LogCaptureFixture
) -> None:
    (path / "step_times.json").write_bytes(b"[" * 10_000)
    step_times(RunFiles(path), planned.studies)
    assert len(planned.studies) > 1
    assert caplog.text.count("step_times.json can't be read") == 1


NO_SWEEP = b'{"format": 1, "sweep": 1, "grown_from": null, "studies": []}'


@pytest.mark.parametrize(
    "content", [b"\xff", b"[" * 10_000, b"[1]", b'{"format": 1}', NO_SWEEP, None]
)
def test_without_its_purpose_a_run_is_refused_at_once(path: Path, content: bytes | None) -> None:
    (path / "studies.json").unlink()
    if content is not None:
        (path / "studies.json").write_bytes(content)
    said = answers(path)
    for arguments in (["resume", path], ["sweep", path / "sweep.yaml", "--out", path]):
        result = CliRunner().invoke(app, [*map(str, arguments)])
        said[str(arguments[0])] = str(result.exception)
    for command, text in said.items():
        assert str(path / "studies.json") in text, command
        assert "Put back a copy" in text


def test_trials_of_an_unknown_sweep_are_not_taken_for_ones_own(path: Path, tmp_path: Path) -> None:
    """As an import leaves them that was killed."""
    (path / "studies.json").unlink()
    sweep = (path / "sweep.yaml").rename(tmp_path / "mine.yaml")
    result = CliRunner().invoke(app, ["sweep", str(sweep), "--out", str(path), "--no-ray"])
    assert f"{path / 'studies.json'} is missing" in str(result.exception)


def test_the_answer_is_printed_where_it_cannot_be_written(path: Path) -> None:
    """Nothing is left to train; what an earlier process left behind goes all the same."""
    (path / "checkpoints/0").mkdir(parents=True)
    truth = to_csv(frontier_of(RunFiles(path)))
    for name in ("report.html", "frontier.csv"):
        (path / name).unlink(missing_ok=True)
        (path / name / "in the way").mkdir(parents=True)
        result = CliRunner().invoke(app, ["resume", str(path), "--json"])
        assert result.exit_code == 1, result.exception
        assert len(json.loads(result.stdout)) == 2
        assert f"can't be written to {path}" in result.stderr
        assert to_csv(frontier_of(RunFiles(path))) == truth
    assert not (path / "checkpoints").exists()
    assert not list(path.glob("trials/**/trials-*.parquet"))
