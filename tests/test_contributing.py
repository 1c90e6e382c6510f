"""What CONTRIBUTING.md says, done word for word in a copy of the repository."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ROOT, files_of_repository, train_all
from test_growth import made

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


DO = """
import os, runpy, shlex, sys
# Once for all commands:
import torch, hypothesis.strategies, jsonschema, pytest, orchestrator.planning.studies
import orchestrator.report, orchestrator.sweeping.local, orchestrator.sweeping.session

for line in sys.argv[1:]:
    print(line, flush=True)
    if (child := os.fork()) == 0:
        sys.argv = shlex.split(line)
        runpy.run_module({"orchestrate": "orchestrator.cli"}.get(sys.argv[0], sys.argv[0]),
                         run_name="__main__", alter_sys=True)
        os._exit(0)
    if code := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        sys.exit(code)
"""


def run(*command: object, folder: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    result = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=folder,
        env={**environment, "PYTHONPATH": str(folder), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, f"{result.stdout}{result.stderr}"


@pytest.mark.slow
def test_what_is_added_works(copy: Path, sweep_file: Callable[..., Path]) -> None:
    before = {path: path.read_bytes() for path in copy.rglob("*.py")}
    for section in SECTIONS.values():
        apply(section, copy)
    written = [path for path in copy.rglob("*.py") if before.get(path) != path.read_bytes()]
    assert len(written) == 7
    for check in (["check"], ["format", "--check"]):
        run("-m", "ruff", *check, *written, folder=copy)
    train_all(*made(copy / "runs" / "quickstart", sweep_file()))
    lines = [
        line
        for section in SECTIONS.values()
        for block in re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
        for line in block.splitlines()
    ]
    assert len(lines) == 7
    run("-c", DO, *lines, folder=copy)
    report = copy / "runs" / "quickstart" / "report.html"
    assert "Examples to goal against batch size" in report.read_text()


def test_every_target_of_the_makefile_has_a_line_of_help() -> None:
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M)
    helped = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert re.findall(r"^make (\S+)  ", helped.stdout, re.M) == phony.split()
