"""The Python files of a package as one text."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from orchestrator.records import BadInput, unreadable


def read_bytes(path: Path) -> NDArray[np.uint8]:
    try:
        return np.fromfile(path, np.uint8)
    except OSError as error:
        raise unreadable(path, error) from None


def join_sources(package: Path, target: Path) -> None:
    """Writes `sympy.txt` from the unpacked wheel. Tests and benchmarks are left out, since they are
    mostly numbers. The order of files is random and always the same, so that every part of the text
    is of all subjects."""
    files = {path.relative_to(package).as_posix(): path for path in package.rglob("*.py")}
    names = [name for name in files if not {"tests", "benchmarks"} & {*name.split("/")}]
    if not names:
        raise BadInput("The package has no Python files.", code="no-such-file")
    names.sort(key=lambda name: hashlib.sha256(name.encode()).digest())
    (target / "sympy.txt").write_bytes(b"".join(files[name].read_bytes() for name in names))
