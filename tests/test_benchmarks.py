"""Every benchmark starts and comes to its end, on a machine without data sets and without a GPU.

Benchmarks are run by hand, rarely, and put their tables into docs/measurements/. The code that they
call changes in between. Without these tests, nobody would notice that a benchmark no longer works,
or that a page has no place for a table, until figures are wanted again. Smoke mode has tiny sizes
and judges no bound, so it says nothing about the figures.
"""

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import warm

FOLDER = Path(__file__).parent.parent / "benchmarks"
SHARED = {"archive.py", "command_line.py", "tables.py"}
SCRIPTS = sorted(path for path in FOLDER.glob("*.py") if path.name not in SHARED)


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(FOLDER)
    import tables

    return tables


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_benchmark_runs(script: Path, tmp_path: Path, tables: ModuleType) -> None:
    result = warm.run([str(script), "--smoke"], tmp_path)
    assert result.returncode == 0, result.stderr
    *printed, line = result.stdout.splitlines()
    found = json.loads(line)
    assert printed
    assert found["benchmark"] == script.stem
    assert found["smoke"] is True
    assert "ok" not in found
    # start.py has no figures without Ray.
    assert {(script.stem, name) for name in found["tables"]} <= tables.places()
    assert found["tables"] or script.stem == "start"


def test_every_table_is_of_a_benchmark(tables: ModuleType) -> None:
    assert {name for name, _ in tables.places()} == {script.stem for script in SCRIPTS}


def test_a_table_goes_into_its_place(
    tables: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, place = tmp_path / "index.md", "<!-- made by {} -->\n<!-- end -->\n"
    own, other = place.format("cost.py: all"), place.format("other.py")
    page.write_text(f"before\n{own}between\n{other}after")
    monkeypatch.setattr(tables, "PAGES", tmp_path)
    monkeypatch.setattr(sys, "argv", ["benchmarks/cost.py", "--seeds", "2", "--write"])
    for number in ("1", "2"):
        table = tables.Table(["what", "ms"], [["a step", tables.bounded(number, held=False)]])
        tables.write("cost", {"all": table})
    text = page.read_text()
    assert "| what | ms |\n| --- | --- |\n| a step | **2** |\n" in text
    assert "\n*`python benchmarks/cost.py --seeds 2`, 20" in text
    assert text.count("| a step |") == 1
    assert text.startswith("before\n<!-- made by cost.py: all -->\n")
    assert text.endswith(f"<!-- end -->\nbetween\n{other}after")
