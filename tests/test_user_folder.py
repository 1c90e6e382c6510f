import sys
from pathlib import Path

import pytest

from orchestrator.cluster.folder import UserFolder


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
    assert sorted(folder.code) == ["mine.py", "package/__init__.py", "package/deep/models.py"]

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
