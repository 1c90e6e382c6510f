"""A run that an earlier version left half way (commit 283a9e0, killed among its first trials)
opens, is reported and goes on. Killing `orchestrate sweep` of that version makes another one."""

import json
import shutil
from pathlib import Path

import pytest
from conftest import orchestrate

from orchestrator.results import RunFiles

OLD = Path(__file__).with_name("run_of_283a9e0")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(OLD, tmp_path / "old"))


def test_it_goes_on_with_what_it_holds(run: Path) -> None:
    def ended() -> dict[tuple[int, int], object]:
        opened = RunFiles(run)
        return {
            (study.batch_size, row["trial"]): (row["steps"], row["started"])
            for study in opened.studies()
            for row in opened.trials(study.key).to_pylist()
            if row["status"] != "paused"
        }

    before = ended()
    assert len(before) == 3
    resumed = orchestrate("resume", run, "--no-ray", "--json")
    assert resumed.returncode == 0, resumed.stderr
    assert all(row["reached"] for row in json.loads(resumed.stdout))
    after = ended()
    assert {name: after[name] for name in before} == before, "none was trained again"
    assert len(after) == 6
    again = orchestrate(
        "sweep", run / "sweep.yaml", "--out", run, "--set", "search.trials=4", "--no-ray"
    )
    assert again.returncode == 0, again.stderr
