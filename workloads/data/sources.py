"""The files of data sets as bytes, and the text that is made from a package of source code."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from orchestrator.records import unreadable


def read_bytes(path: Path) -> NDArray[np.uint8]:
    """Returns the bytes of a file, gzipped or plain. None of our formats begins as gzip's does."""
    try:
        content = path.read_bytes()
        if content.startswith(b"\x1f\x8b"):
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(path, error) from None
    return np.frombuffer(content, np.uint8)


def join_sources(package: Path, target: Path) -> None:
    """Writes `sympy.txt` from the unpacked wheel, without tests and benchmarks, which are mostly
    numbers. Files are in a random order, always the same: every part is of all subjects."""
    names = [path.relative_to(package).as_posix() for path in package.rglob("*.py")]
    chosen = [name for name in names if not {"tests", "benchmarks"} & {*name.split("/")}]
    chosen.sort(key=lambda name: hashlib.sha256(name.encode()).digest())
    text = b"".join((package / name).read_bytes() for name in chosen)
    (target / "sympy.txt").write_bytes(text)
