"""The atlas: its page says what its files say, and its sweeps can be run."""

import os
import sys
from pathlib import Path

import pytest
from conftest import ROOT, files_of_repository

from orchestrator.planning.sweep_file import load_sweep
from orchestrator.workloads import load_workload

sys.path.insert(0, str(ROOT / "atlas"))

import findings

ATLAS = ROOT / "atlas"
RUNS = sorted(path.name for path in (ATLAS / "runs").iterdir())
SWEEPS = sorted(path.relative_to(ATLAS) for path in ATLAS.glob("**/*.yaml") if "runs" not in path.parts)

MOST_BYTES = 20e6


@pytest.mark.dear
def test_the_page_says_what_the_runs_say() -> None:
    """Every number of the page, and of its pictures, is computed anew."""
    wrong = [
        path.name for path, text in findings.files().items() if path.read_text("utf-8") != text
    ]
    assert not wrong, "run `make atlas`"


def test_the_atlas_is_small() -> None:
    files = [ROOT / path for path in files_of_repository() if Path(path).parts[0] == "atlas"]
    assert sum(os.path.getsize(path) for path in files) < MOST_BYTES


@pytest.mark.parametrize("name", SWEEPS, ids=str)
def test_its_sweeps_are_accepted(name: Path) -> None:
    sweep = load_sweep(ATLAS / name)
    assert all(load_workload(workload) for workload in sweep.workloads)
