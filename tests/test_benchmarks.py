"""Every benchmark starts and comes to its end, on a machine without data sets and without a GPU.

Benchmarks are run by hand, rarely, and the figures that they print are in docs/measurements/. The
code that they call changes in between. Without this test, nobody would notice that a benchmark no
longer works until its figures are wanted again. Smoke mode has tiny sizes and judges no bound, so
this test says nothing about the figures.
"""

import json
from pathlib import Path

import pytest
import warm

FOLDER = Path(__file__).parent.parent / "benchmarks"
SCRIPTS = sorted(path for path in FOLDER.glob("*.py") if path.name != "command_line.py")


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_benchmark_runs(script: Path, tmp_path: Path) -> None:
    result = warm.run([str(script), "--smoke"], tmp_path)
    assert result.returncode == 0, result.stderr
    *table, line = result.stdout.splitlines()
    found = json.loads(line)
    assert table
    assert found["benchmark"] == script.stem
    assert found["smoke"] is True
    assert "ok" not in found
