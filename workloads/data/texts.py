"""Texts that are in packages: Jane Austen's novels, vectors of lines of R, and Python files."""

from __future__ import annotations

import gzip
import hashlib
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from orchestrator.records import BadInput, corrupt, unreadable

ALPHABET = (
    "\n !\"&'()*,-.0123456789:;?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]_abcdefghijklmnopqrstuvwxyz\u00a3"
)
"""All characters of the novels, sorted."""

MAX_BYTES = 2**24
STRINGS, STRING = 16, 9
"""R's type numbers for a vector of strings and for a string."""


def read_austen(path: Path) -> NDArray[np.uint8]:
    """Returns the position in `ALPHABET` of each character of the text at `path`."""
    try:
        text = read_bytes(path).tobytes().decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise unreadable(path, error) from None
    if others := sorted(set(text) - set(ALPHABET)):
        raise corrupt(path, f"{others[0]!r} is no character of the novels")
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    alphabet = np.frombuffer(ALPHABET.encode("utf-32-le"), np.uint32)
    return np.searchsorted(alphabet, codes).astype(np.uint8)


def extract_austen(package: Path, target: Path) -> None:
    """Writes `austen.txt` from the unpacked Debian package."""
    path = next(package.rglob("janeaustenr/data/Rdata.rdb"), None)
    if path is None:
        raise BadInput("The package has no janeaustenr/data/Rdata.rdb.", code="no-such-file")
    try:
        novels = ["\n".join(_strings(stream)) for stream in _streams(path.read_bytes())]
    except (struct.error, zlib.error, ValueError) as error:
        raise corrupt(path, error) from None
    (target / "austen.txt").write_text("\n".join([*novels, ""]), encoding="utf-8")


def _streams(content: bytes) -> Iterator[bytes]:
    """Yields the streams of an .rdb file, each packed behind its unpacked length in four bytes."""
    while content:
        (length,) = struct.unpack_from(">I", content)
        if length > MAX_BYTES:
            raise ValueError(f"it announces {length:,} bytes")
        unpacking = zlib.decompressobj()
        stream = unpacking.decompress(content[4:], length + 1)
        if len(stream) != length or not unpacking.eof:
            raise ValueError(f"it announces {length:,} bytes, not {len(stream):,}")
        yield stream
        content = unpacking.unused_data


def _strings(stream: bytes) -> Iterator[str]:
    """Yields the strings of a vector in R's serialisation format, version 3, big-endian."""
    magic, version, _, _, name = struct.unpack_from(">2s4i", stream)
    position = 18 + name  # the header ends with the name of R's native encoding
    if magic != b"X\n" or version != 3 or name < 0:
        raise ValueError(f"{stream[:6]!r} is no beginning of an R object")
    kind, count = struct.unpack_from(">ii", stream, position)
    if kind != STRINGS:
        raise ValueError(f"an R object of type {kind} is no vector of strings")
    position += 8
    for _ in range(count):
        kind, length = struct.unpack_from(">Bi", stream, position + 3)
        start, position = position + 8, position + 8 + length
        if kind != STRING or not start <= position <= len(stream):
            raise ValueError(f"a string of {length} bytes is of type {kind}")
        yield stream[start:position].decode("utf-8")
    if position != len(stream):
        raise ValueError(f"{len(stream) - position} bytes are left over")


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
