"""Runs of this and other versions: read to the byte, or refused with what to do."""

import json
import tarfile
from pathlib import Path

import pytest
from conftest import refused
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
    with refused("other-format", run.place, FORMAT, "provenance.json"):
        RunFiles.open(run.place).studies()


def test_settings_that_no_longer_exist_are_left_out_but_no_name_of_a_users_own() -> None:
    space = {"diverged": 1, "rules": 2, "when": 3}
    before = {
        "stop": {"keep": 1, "diverged": {"above": 3}},
        "recipes": [{"rules": {}, "space": {"only": space}}],
        "programs": {"a.b": {"command": None, "program": "x"}},
        "search": {"points": [{"extend": 1}], "extend": False},
        "space": {"limits": {"low": 1, "limits": [None, None], "when": None}, "extend": 1},
    }
    assert without_gone(before) == {
        "stop": {"keep": 1},
        "recipes": [{"space": {"only": space}}],
        "programs": {"a.b": {"program": "x"}},
        "search": {"points": [{"extend": 1}]},
        "space": {"limits": {"low": 1}, "extend": 1},
    }
