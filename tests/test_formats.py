"""Runs of this and other versions: read to the byte, or refused with what to do."""

import json
import shutil
import tarfile
from pathlib import Path

import pytest
from conftest import orchestrate, refused
from test_growth import command

from orchestrator.planning.studies import plan_again
from orchestrator.planning.sweep_file import validated
from orchestrator.results import RunFiles, frontier_of, to_csv
from orchestrator.results.purpose import FORMAT, without_gone


@pytest.fixture
def run(tmp_path: Path) -> RunFiles:
    """One that was made when its format was new, and is never made anew."""
    with tarfile.open(Path(__file__).with_name(f"run_of_format_{FORMAT}.tar.xz")) as archive:
        safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # from Python 3.11.4
        archive.extractall(tmp_path, **safely)
    return RunFiles.open(tmp_path / f"format-{FORMAT}")


def test_a_run_of_this_format_is_read_and_can_go_on(run: RunFiles) -> None:
    assert to_csv(frontier_of(run)) == (run.place / "frontier.csv").read_text()
    again = plan_again(validated(run.sweep(), "sweep"), run.studies())
    assert [*again.studies] == run.studies()
    for study in run.studies():
        finished = [*run.finished(study)]
        assert len(finished) == study.trials + (3 if finished else 0)
        assert all(one.measurements and one.outcome.steps for one in finished)
    command("report", str(run.place))


@pytest.mark.parametrize("found", [None, 0, FORMAT + 1, "x"])
def test_a_run_of_another_format_is_refused_with_what_to_do(run: RunFiles, found: object) -> None:
    file = run.place / "studies.json"
    document = {**json.loads(file.read_text()), "format": found}
    if found is None:
        del document["format"]
    file.write_text(json.dumps(document))
    with refused("other-format", run.place, "0.1.0", FORMAT, "orchestrate export"):
        RunFiles.open(run.place).studies()


def test_settings_that_no_longer_exist_are_left_out_but_no_name_of_a_users_own() -> None:
    space = {"diverged": 1, "rules": 2}
    before = {
        "stop": {"keep": 1, "diverged": {"above": 3}},
        "recipes": [{"rules": {}, "space": space}],
        "programs": {"a.b": {"command": None, "program": "x"}},
        "search": {"points": [{"spacing": 1}]},
    }
    assert without_gone(before) == {
        "stop": {"keep": 1},
        "recipes": [{"space": space}],
        "programs": {"a.b": {"program": "x"}},
        "search": {"points": [{"spacing": 1}]},
    }


OLD = Path(__file__).with_name("run_of_283a9e0")


def test_a_run_that_an_earlier_version_left_half_way_goes_on(tmp_path: Path) -> None:
    """Commit 283a9e0, killed among its first trials. Killing `orchestrate sweep` of that version
    makes another one."""
    old = Path(shutil.copytree(OLD, tmp_path / "old"))

    def ended() -> dict[tuple[int, int], object]:
        opened = RunFiles(old)
        return {
            (study.batch_size, row["trial"]): (row["steps"], row["started"])
            for study in opened.studies()
            for row in opened.trials(study.key).to_pylist()
            if row["status"] != "paused"
        }

    before = ended()
    assert len(before) == 3
    resumed = orchestrate("resume", old, "--no-ray", "--json")
    assert resumed.returncode == 0, resumed.stderr
    assert all(row["reached"] for row in json.loads(resumed.stdout))
    after = ended()
    assert {name: after[name] for name in before} == before, "none was trained again"
    assert len(after) == 6
    again = orchestrate(
        "sweep", old / "sweep.yaml", "--out", old, "--set", "search.trials=4", "--no-ray"
    )
    assert again.returncode == 0, again.stderr
