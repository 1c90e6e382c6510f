"""Writes a small copy of every data set, in its real format, below a folder: make_data.py DIR."""

import gzip
import struct
import sys
from pathlib import Path

import numpy as np
from PIL import Image

TRAIN, TEST = 240, 60


def idx(array: np.ndarray, kind: int = 8) -> bytes:
    header = struct.pack(f">BBBB{array.ndim}i", 0, 0, kind, array.ndim, *array.shape)
    return header + array.tobytes()


def images(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Makes noise with a bright square whose position tells the class."""
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


def make_cifar10(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
        records = [
            bytes([label]) + coloured(label, 32, 32, rng).transpose(2, 0, 1).tobytes()
            for label in (np.arange(60) % 10).tolist()
        ]
        (folder / name).write_bytes(b"".join(records))


def coloured(label: int, height: int, width: int, rng: np.random.Generator) -> np.ndarray:
    """Makes noise in a colour that tells the class of 10. Any part of an image shows it."""
    pixels = rng.integers(100, size=(height, width, 3))
    pixels += 150 * np.array([label & 1, label >> 1 & 1, label >> 2 & 1]) + label // 8 * 75
    return pixels.clip(0, 255).astype(np.uint8)


def photograph(label: int, rng: np.random.Generator) -> Image.Image:
    """Makes an image of random size."""
    height, width = rng.integers((40, 48), (51, 65))
    return Image.fromarray(coloured(label, height, width, rng))


def make_imagenet(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for part, count in (("train", 70), ("val", 16)):
        for number in range(count):
            place = folder / part / f"n{number % 10:08}"
            place.mkdir(parents=True, exist_ok=True)
            photograph(number % 10, rng).save(place / f"{part}_{number}.JPEG")


def make_sympy(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(f"def half_{number}(x):\n    return x / 2\n" for number in range(2500))
    (folder / "sympy.txt").write_text(lines)


def main(folder: Path) -> None:
    for name in ("mnist", "fashion_mnist"):
        make_idx(folder / name)
    make_cifar10(folder / "cifar10")
    make_imagenet(folder / "imagenet")
    make_sympy(folder / "sympy")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
