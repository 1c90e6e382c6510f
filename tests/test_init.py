"""What `orchestrate init` writes trains as written."""

import sys
from pathlib import Path

import pytest
import warm
from conftest import assert_refused, orchestrate

pytestmark = pytest.mark.dear


@pytest.mark.parametrize(
    "kind",
    [
        "classification",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("regression", "language")),
    ],
)
def test_a_start_trains_as_written(kind: str, tmp_path: Path) -> None:
    made = orchestrate("init", "my-first", "--kind", kind, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert "my_first.py:MyFirst" in made.stderr
    assert {file.name for file in tmp_path.iterdir()} == {
        "my_first.py", "my_first.yaml", "test_my_first.py", "sweep.schema.json",
    }  # fmt: skip
    pytest_command = str(Path(sys.executable).with_name("pytest"))
    tested = warm.run(
        [pytest_command, "-q", "-p", "no:cacheprovider", "test_my_first.py"], tmp_path
    )
    assert tested.returncode == 0, tested.stdout


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["regression", "language"])
def test_its_goal_is_in_reach_of_its_sweep(kind: str, tmp_path: Path) -> None:
    """At its smallest and largest batch size. The README sweeps the kind that is left out here."""
    orchestrate("init", "--kind", kind, cwd=tmp_path)
    fewer = [f"--set={key}" for key in ("batch_sizes=[16, 256]", "search.trials=3", "repeats=0")]
    swept = orchestrate("sweep", "mine.yaml", "--no-ray", *fewer, cwd=tmp_path)
    assert swept.returncode == 0, swept.stdout


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text("mine")
    assert_refused(orchestrate("init", cwd=tmp_path), "exists", "test_mine.py")
    assert [file.name for file in tmp_path.iterdir()] == ["test_mine.py"]
    assert_refused(orchestrate("init", "../mine", cwd=tmp_path), "wrong-value", "'../mine'")
