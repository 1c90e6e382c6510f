"""Reads IDX files, the format of MNIST and its relatives, gzipped or plain.

An IDX file begins with two zero bytes, one byte for the type of the elements and one for the number
of dimensions. Then come the size of each dimension as a big-endian int32, and the elements, with
the last dimension varying fastest.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from orchestrator.records import corrupt, unreadable

_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}

MAX_DIMENSIONS = 4
MAX_BYTES = 2**33


def read_idx(path: Path, *, shape: tuple[int | None, ...]) -> NDArray[np.generic]:
    """Returns the array in the file at `path`. Refuses it unless it has this `shape`, in which None
    stands for any length."""
    try:
        with _opened(path) as file:
            return _read(path, file, shape)
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(path, error) from None


def _opened(path: Path) -> BinaryIO:
    with path.open("rb") as file:
        gzipped = file.read(2) == b"\x1f\x8b"
    return gzip.open(path) if gzipped else path.open("rb")  # type: ignore[return-value]


def _read(path: Path, file: BinaryIO, shape: tuple[int | None, ...]) -> NDArray[np.generic]:
    magic = file.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in _TYPES:
        raise corrupt(path, f"it begins with {magic.hex(' ') or 'nothing'}")
    dimensions = magic[3]
    header = file.read(4 * dimensions) if dimensions <= MAX_DIMENSIONS else b""
    if not dimensions or len(header) < 4 * dimensions:
        raise corrupt(path, f"its header announces {dimensions} dimensions")
    sizes = struct.unpack(f">{dimensions}i", header)
    expected = "x".join("N" if size is None else str(size) for size in shape)
    if len(sizes) != len(shape) or any(
        size < 1 if wanted is None else size != wanted
        for size, wanted in zip(sizes, shape, strict=True)
    ):
        raise corrupt(path, f"it holds {'x'.join(map(str, sizes))} elements, not {expected}")
    kind = np.dtype(_TYPES[magic[2]])
    length = math.prod(sizes) * kind.itemsize
    if length > MAX_BYTES:
        raise corrupt(path, f"its header announces {length:,} bytes")
    # Reading one byte more than announced shows whether the file is longer.
    content = file.read(length + 1)
    if len(content) != length:
        found = "more" if len(content) > length else f"{len(content):,}"
        raise corrupt(path, f"its header announces {length:,} bytes, it has {found}")
    return np.frombuffer(content, kind).reshape(sizes)
