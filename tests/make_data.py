"""Writes a small copy of every data set, in its real format, below a folder: make_data.py DIR."""

import gzip
import struct
import sys
from pathlib import Path

import numpy as np

TRAIN, TEST = 240, 60


def idx(array: np.ndarray) -> bytes:
    header = struct.pack(f">BBBB{array.ndim}i", 0, 0, 8, array.ndim, *array.shape)
    return header + array.tobytes()


def images(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Noise with a bright square whose place tells the class."""
    labels = (np.arange(count) % 10).astype(np.uint8)
    pictures = rng.integers(80, size=(count, 28, 28), dtype=np.uint8)
    for picture, label in zip(pictures, labels, strict=True):
        row, column = divmod(int(label), 5)
        picture[3 + 12 * row : 11 + 12 * row, 1 + 5 * column : 6 + 5 * column] += 150
    return pictures, labels


def make_idx(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", TRAIN), ("t10k", TEST)):
        pictures, labels = images(count, np.random.default_rng(len(part)))
        name = folder / f"{part}-images-idx3-ubyte.gz"
        name.write_bytes(gzip.compress(idx(pictures), mtime=0))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(idx(labels))


def main(folder: Path) -> None:
    for name in ("mnist", "fashion_mnist"):
        make_idx(folder / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
