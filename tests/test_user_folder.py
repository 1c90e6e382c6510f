import sys
import tempfile
from pathlib import Path

import pytest
from conftest import TINY

from orchestrator.files.own_code import UserFolder, import_own
from orchestrator.planning.sweep import Sweep


def test_code_travels_to_machines_that_have_it_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for name in ("mine.py", "package/__init__.py", "package/deep/models.py", "other.py"):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(f"NAME = {name!r}")
    monkeypatch.chdir(here)
    names = [
        "mine.py:A?x=1",
        "package.deep.models:B",
        "digits/mlp",
        f"{tmp_path}/else.py:C",
        "os:D",
    ]
    folder = UserFolder.here(names)
    assert sorted(folder.code) == [
        "mine.py", "other.py", "package/__init__.py", "package/deep/models.py",
    ]  # fmt: skip

    folder.enter()
    assert Path.cwd() == here
    (here / "mine.py").write_text("changed")
    folder.enter()
    assert Path.cwd() != here, "another machine's folder of the same name holds other code"
    assert Path("mine.py").read_text() == "NAME = 'mine.py'"
    here.rename(there)
    folder.enter()
    monkeypatch.syspath_prepend(Path.cwd())
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    from package.deep import models  # type: ignore[import-not-found]

    assert models.NAME == "package/deep/models.py"


def test_a_file_finds_what_lies_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each its own, here and where a copy of the code is; what lies in the current folder, too."""
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shared_by_all.py").write_text("NAME = 'shared'")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "my_model.py").write_text(f"NAME = {name!r}")
        (tmp_path / name / "w.py").write_text(
            "import my_model, shared_by_all\nclass W:\n    names = my_model, shared_by_all\n"
        )
    places = ["one/w.py:W", "two/w.py:W"]
    found = [import_own("workload", place) for place in places]
    assert [[m.NAME for m in each.names] for each in found] == [  # type: ignore[attr-defined]
        ["one", "shared"], ["two", "shared"],
    ]  # fmt: skip
    folder = UserFolder.here(places)
    assert {"one/my_model.py", "two/my_model.py", "shared_by_all.py"} <= {*folder.code}


def test_all_that_a_sweep_names_may_be_ones_own() -> None:
    learning = {"name": "r", "optimizer": "sgd", "search": {"algorithm": "tpe"}}
    sweep = Sweep.model_validate(
        {
            **TINY,
            "workloads": ["w.py:W"],
            "recipes": ["o.py:O", learning],
            "search": {"algorithm": "sobol"},
        }
    )
    assert sweep.code_names == {"w.py:W", "o.py:O", "sgd", "tpe", "sobol"}


def test_processes_of_a_machine_share_one_copy_of_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = UserFolder(path=tmp_path / "elsewhere", code={"mine.py": b"NAME = 1"})
    places = []
    for _ in range(2):
        folder.enter()
        places.append(Path.cwd())
    assert places[0] == places[1]
    assert len([*tmp_path.iterdir()]) == 1, "nothing is left behind"
    (places[0] / "mine.py").write_text("changed by somebody")
    folder.enter()
    assert Path("mine.py").read_text() == "NAME = 1"
