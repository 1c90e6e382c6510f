"""Reads IDX files of bytes, the format of MNIST and its relatives, gzipped or plain.

An IDX file begins with two zero bytes, one byte for the type of the elements (8: bytes) and one for
the number of dimensions. Then come the size of each dimension as a big-endian int32, and the
elements, with the last dimension varying fastest.
"""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from orchestrator.records import corrupt, unreadable


def read_idx(path: Path, *, shape: tuple[int | None, ...]) -> NDArray[np.uint8]:
    """Returns the array in the file at `path`. Refuses it unless it has this `shape`, in which None
    stands for any length."""
    try:
        with path.open("rb") as file:
            gzipped = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if gzipped else path.open("rb") as file:
            magic, header, content = file.read(4), file.read(4 * len(shape)), file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(path, error) from None
    if magic != bytes([0, 0, 8, len(shape)]) or len(header) < 4 * len(shape):
        begins = (magic + header).hex(" ") or "nothing"
        raise corrupt(path, f"it begins with {begins}, not as bytes in {len(shape)} dimensions do")
    sizes = np.frombuffer(header, ">i4").tolist()
    if any(
        size < 1 if wanted is None else size != wanted
        for size, wanted in zip(sizes, shape, strict=True)
    ):
        expected = "x".join("N" if size is None else str(size) for size in shape)
        raise corrupt(path, f"it holds {'x'.join(map(str, sizes))} elements, not {expected}")
    if len(content) != math.prod(sizes):
        raise corrupt(
            path, f"its header announces {math.prod(sizes):,} bytes, it has {len(content):,}"
        )
    return np.frombuffer(content, np.uint8).reshape(sizes)
