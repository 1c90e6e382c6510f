"""What `pip install .` puts on a machine works without the checkout."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

END = "== given"

GIVE = f"""
import shlex, sys
import orchestrator.cli, orchestrator.workloads
print(orchestrator.workloads.__file__)
for line in sys.argv[1:]:
    print("{END}")
    assert not orchestrator.cli.app(shlex.split(line), standalone_mode=False), line
"""


def test_the_image_is_made_of_all_that_the_wheel_is() -> None:
    """A link of the package to a folder that isn't copied would lead nowhere, and pip not mind."""
    lines = (ROOT / "Containerfile").read_text().splitlines()
    copied = {word.strip("/") for line in lines if line[:5] == "COPY " for word in line.split()[1:]}
    linked = {path.name for path in (ROOT / "orchestrator").iterdir() if path.is_symlink()}
    assert {"orchestrator", "pyproject.toml", "README.md", "LICENSE", *linked} <= copied


@pytest.mark.slow
def test_the_wheel_works_in_an_empty_folder(tmp_path: Path) -> None:
    # From a copy, as a wheel of a user's is: building must not litter the checkout.
    subprocess.run(["git", "clone", "--quiet", ROOT, tmp_path / "clone"], check=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    installed, empty = tmp_path / "installed", tmp_path / "empty"
    subprocess.run(
        [*pip, "install", "--no-deps", "--target", installed, tmp_path / "clone"], check=True
    )
    empty.mkdir()

    sweep = (
        "sweep quickstart --no-ray --set search.trials=1 --set batch_sizes=[256] --set repeats=0 "
        "--set \"goals=['val/error < 0.8']\""
    )
    said = subprocess.run(
        [sys.executable, "-c", GIVE, "workloads", "spaces", sweep],
        cwd=empty, env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert said.startswith(str(installed))
    workloads, spaces, swept = said.split(END)[1:]
    assert "digits/mlp" in workloads
    assert "nesterov" in spaces
    assert "nesterov" in swept
    assert (empty / "runs" / "quickstart" / "report.html").exists()
    assert [*installed.glob("orchestrate_batch_size-*.dist-info/licenses/LICENSE")]
    assert not (installed / "workloads").exists(), "a user's own `workloads` must stay theirs"
    modules = subprocess.run(
        ["git", "ls-files", "orchestrator/*.py"],
        cwd=tmp_path / "clone", capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    assert modules
    assert [name for name in modules if not (installed / name).exists()] == []
