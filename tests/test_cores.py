"""Cores are counted on machines, in containers and on macOS; the platforms are pretended here."""

import os
import re
from pathlib import Path

import pytest

from orchestrator.files import cores as module
from orchestrator.files.cores import cores
from orchestrator.files.places import Place
from orchestrator.results import lock

COUNTS = r"sched_getaffinity|cpu_count\("


@pytest.fixture(autouse=True)
def many(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine of 64 cores, without groups."""
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda process: set(range(64)))
    monkeypatch.setattr(module, "CGROUPS", tmp_path)
    monkeypatch.setattr(module, "OWN_CGROUPS", tmp_path / "own")


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("", {}, 64),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 64),
        ("0::/\n", {"cpu.max": "200000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 1),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "400000 100000\n"}, 4),
        ("0::/seen/from/outside\n", {"cpu.max": "200000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "damaged\n"}, 64),
    ],
)
def test_quotas_count(tmp_path: Path, own: str, files: dict[str, str], expected: int) -> None:
    (tmp_path / "own").write_text(own)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cores() == expected


def test_a_process_may_be_bound_to_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda process: {3})
    assert cores() == 1


def test_on_macos(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delattr(module.os, "sched_getaffinity")
    monkeypatch.setattr(module.os, "cpu_count", lambda: 8)
    assert cores() == 8
    # There is no /proc to look into.
    monkeypatch.setattr(lock, "PROCESSES", tmp_path / "nothing")
    with lock.held(Place.at(tmp_path)):
        assert lock.holder(Place.at(tmp_path)) == os.getpid()


def test_nothing_else_counts_cores() -> None:
    root = Path(__file__).parent.parent
    files = [*root.glob("orchestrator/**/*.py"), *root.glob("workloads/**/*.py")]
    counting = {file.name for file in files if re.search(COUNTS, file.read_text())}
    assert counting == {"cores.py"}
