"""What CONTRIBUTING.md says, done word for word in a copy of the repository."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ROOT, files_of_repository, train_all

from orchestrator.planning.studies import plan
from orchestrator.planning.sweep_file import load_sweep
from orchestrator.results import Run

TEXT = (ROOT / "CONTRIBUTING.md").read_text()
SECTIONS = dict(re.findall(r"^## (Add .*?)\n(.*?)(?=^## |\Z)", TEXT, re.M | re.S))
"""Heading -> how to add something."""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The repository as it stands, without what git ignores."""
    for path in files_of_repository():
        to = tmp_path / "copy" / path
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, to, follow_symlinks=False)
    return tmp_path / "copy"


def apply(section: str, folder: Path) -> None:
    """Writes the files of a section, and makes its changes to others. A block belongs to the
    file that was named last."""
    for file, kind, block in re.findall(r"`([\w/]+\.\w+)`|```(\w+)\n(.*?)```", section, re.DOTALL):
        if file:
            path = folder / file
        elif kind == "diff":
            lines = block.splitlines(keepends=True)
            before = "".join(line[1:] for line in lines if line[0] in " -")
            after = "".join(line[1:] for line in lines if line[0] in " +")
            text = path.read_text()
            assert text.count(before) == 1, f"{path.name} must have once:\n{before}"
            path.write_text(text.replace(before, after))
        elif kind != "sh":
            assert not path.exists(), f"{path} is there already"
            path.write_text(block)


def run(line: str, folder: Path) -> None:
    program, *arguments = shlex.split(line)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    result = subprocess.run(
        [Path(sys.executable).parent / program, *arguments],
        cwd=folder,
        env={**environment, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, f"{line}\n{result.stdout}{result.stderr}"


@pytest.mark.slow
@pytest.mark.parametrize("heading", SECTIONS)
def test_what_is_added_works(heading: str, copy: Path, sweep_file: Callable[..., Path]) -> None:
    apply(SECTIONS[heading], copy)
    if "runs/quickstart" in SECTIONS[heading]:
        planned = plan(load_sweep(sweep_file()))
        quickstart = Run(copy / "runs" / "quickstart")
        quickstart.create(planned.sweep.resolved(), planned.studies, {})
        train_all(quickstart, planned)
    (commands,) = re.findall(r"```sh\n(.*?)```", SECTIONS[heading], re.DOTALL)
    for line in ("ruff check .", "ruff format --check .", *commands.splitlines()):
        run(line, copy)
    report = copy / "runs" / "quickstart" / "report.html"
    assert not report.exists() or "Examples to goal against batch size" in report.read_text()


def test_three_things_can_be_added() -> None:
    assert list(SECTIONS) == ["Add a workload", "Add an optimizer", "Add a figure"]


def test_every_target_of_the_makefile_has_a_line_of_help() -> None:
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M)
    helped = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert re.findall(r"^make (\S+)  ", helped.stdout, re.M) == phony.split()
