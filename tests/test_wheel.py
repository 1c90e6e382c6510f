"""What `pip install .` puts on a machine works without the checkout."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


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

    def run(*arguments: str) -> str:
        return subprocess.run(
            [sys.executable, "-m", "orchestrator.cli", *arguments],
            cwd=empty,
            env={**os.environ, "PYTHONPATH": str(installed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    where = subprocess.run(
        [sys.executable, "-c", "import orchestrator.workloads as w; print(w.__file__)"],
        cwd=empty, env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert where.startswith(str(installed))
    assert "digits/mlp" in run("workloads")
    assert "nesterov" in run("spaces")
    assert [*installed.glob("orchestrate_batch_size-*.dist-info/licenses/LICENSE")]
    assert not (installed / "workloads").exists(), "a user's own `workloads` must stay theirs"
    output = run(
        "sweep", "quickstart", "--set", "search.trials=1", "--set", "batch_sizes=[256]",
        "--set", "goals=['val/error < 0.8']",
    )  # fmt: skip
    assert "nesterov" in output
    assert (empty / "runs" / "quickstart" / "report.html").exists()
