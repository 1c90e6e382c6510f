"""Reads images from files, or from tar shards in WebDataset's layout: `KEY.jpg` is an image and
`KEY.cls` holds its class. Each shard is scanned once to find the images. After that, an image is
a span of bytes in a file, which is read when it is needed."""

from __future__ import annotations

import io
import math
import os
import re
import tarfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import get_worker_info

from orchestrator.records import BadInput, corrupt, unreadable, wrong_value
from orchestrator.workloads.augmentation import uniforms

SUFFIXES = (".jpeg", ".jpg", ".png")
CENTRE = 224 / 256
"""Evaluation uses the middle square of an image, with this share of its shorter side."""
AREA, ASPECT, ATTEMPTS = (0.08, 1.0), (3 / 4, 4 / 3), 10
"""Training uses a random part of an image (Szegedy et al. 2014, arXiv:1409.4842): ranges of its
share of the image's area and of its width / height, and the number of attempts to draw a part that
lies within the image."""
UNIFORMS = 4 * ATTEMPTS + 1

FileSpan = tuple[str, int, int]
"""The place of an image: a file below the folder, the image's first byte in it, and its size in
bytes, or -1 if the image is the whole file."""


@dataclass(frozen=True)
class ImageFiles:
    """The places and classes of the images of a split. They are held in arrays, since worker
    processes share the memory of arrays but copy Python objects."""

    folder: Path
    files: NDArray[np.bytes_]
    """Each image's file, as a path below `folder`."""
    starts: NDArray[np.int64]
    """Each image's first byte in its file."""
    sizes: NDArray[np.int64]
    """Each image's size in bytes; -1 if it is the whole file."""
    classes: NDArray[np.int64]
    """Each image's class."""

    @classmethod
    def at(cls, folder: Path, spans: Sequence[FileSpan], classes: Sequence[int]) -> ImageFiles:
        if not spans:
            raise BadInput(f"{folder} holds no images.", code="empty")
        files, starts, sizes = zip(*spans, strict=True)
        return cls(
            folder,
            np.array([os.fsencode(file) for file in files]),
            np.array(starts),
            np.array(sizes),
            np.array(classes),
        )

    def __len__(self) -> int:
        return len(self.files)

    def pixels(self, index: Tensor, side: int, seeds: Tensor | None, threads: int) -> Tensor:
        """Returns images as bytes [N, 3, side, side]. Without `seeds`, these show the middle of
        each image. With `seeds`, they show a random part, which is mirrored half of the time."""
        random = [None] * len(index) if seeds is None else uniforms(seeds, UNIFORMS).tolist()
        pixels = torch.empty(len(index), side, side, 3, dtype=torch.uint8)

        def decode(row: int) -> None:
            pixels[row] = torch.from_numpy(self._decoded(int(index[row]), side, random[row]))

        # Worker processes decode in parallel, so each needs one thread only. The process that
        # evaluates decodes alone, so it needs several.
        with ThreadPoolExecutor(1 if get_worker_info() else max(1, threads)) as pool:
            list(pool.map(decode, range(len(index))))
        return pixels.permute(0, 3, 1, 2).contiguous()

    def _decoded(self, example: int, side: int, random: list[float] | None) -> NDArray[np.uint8]:
        from PIL import Image

        path = self.folder / os.fsdecode(self.files[example])
        start, size = int(self.starts[example]), int(self.sizes[example])
        try:
            with path.open("rb") as file:
                file.seek(start)
                image = Image.open(io.BytesIO(file.read(size))).convert("RGB")
        # Decoders raise exceptions of any type for a broken file.
        except Exception as error:
            where = path if size < 0 else f"{path}, at byte {start:,},"
            raise unreadable(f"The image {where}", error) from None
        box = _centre(*image.size) if random is None else _random_part(*image.size, random)
        part = np.array(image.resize((side, side), Image.Resampling.BILINEAR, box=box))
        return part[:, ::-1].copy() if random is not None and random[-1] < 0.5 else part


Box = tuple[float, float, float, float]


def _centre(width: int, height: int) -> Box:
    """Returns left, top, right and bottom of the square that evaluation uses. Cropping in the
    coordinates of the original image, before it is resized, saves a second resize."""
    side = CENTRE * min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def _random_part(width: int, height: int, random: list[float]) -> Box:
    for attempt in range(ATTEMPTS):
        area, aspect, across, down = random[4 * attempt : 4 * attempt + 4]
        area = width * height * (AREA[0] + area * (AREA[1] - AREA[0]))
        aspect = ASPECT[0] * (ASPECT[1] / ASPECT[0]) ** aspect
        wide, high = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < wide <= width and 0 < high <= height:
            left, top = int(across * (width - wide + 1)), int(down * (height - high + 1))
            return left, top, left + wide, top + high
    return _centre(width, height)


def class_folders(folder: Path) -> list[str]:
    """Returns the names of the folders in a folder, in the order in which classes are numbered."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())
    except OSError as error:
        raise unreadable(folder, error) from None


def read_classes(folder: Path, names: Sequence[str], classes: int) -> ImageFiles:
    """Reads a split from folders of these `names` or from shards."""
    if shards := sorted(folder.glob("*.tar")):
        return _from_shards(folder, shards, classes)
    if unknown := sorted({*class_folders(folder)} - {*names}):
        raise BadInput(
            f"{folder / unknown[0]} must be a class of the training split: remove or rename it.",
            code="unknown-name",
        )
    if len(names) > classes:
        raise BadInput(
            f"{folder} has more than {classes:,} classes: {len(names):,}.", code="too-many"
        )
    spans: list[FileSpan] = []
    labels: list[int] = []
    for number, name in enumerate(names):
        if not (folder / name).is_dir():
            continue
        with os.scandir(folder / name) as entries:
            files = sorted(e.name for e in entries if e.name.lower().endswith(SUFFIXES))
        spans += [(f"{name}/{file}", 0, -1) for file in files]
        labels += [number] * len(files)
    return ImageFiles.at(folder, spans, labels)


def _class(text: str, classes: int, where: str) -> int:
    word = text.strip()
    if not re.fullmatch(r"[0-9]{1,9}", word) or int(word) >= classes:
        raise wrong_value(where, f"one class from 0 to {classes - 1:,}", text)
    return int(word)


def _from_shards(folder: Path, shards: Sequence[Path], classes: int) -> ImageFiles:
    spans: list[FileSpan] = []
    labels: list[int] = []
    for shard in shards:
        images: dict[str, FileSpan] = {}
        texts: dict[str, str] = {}
        with shard.open("rb") as file:
            for name, start, size in _members(shard, file):
                key, suffix = os.path.splitext(name)
                if key in (texts if suffix == ".cls" else images):
                    raise corrupt(shard, f"it holds {name} twice")
                if suffix == ".cls":
                    texts[key] = os.pread(file.fileno(), size, start).decode("ascii", "replace")
                elif suffix.lower() in SUFFIXES:
                    images[key] = (shard.name, start, size)
        if unpaired := sorted({*images} ^ {*texts}):
            raise corrupt(shard, f"{unpaired[0]} must have an image and a .cls, but has one")
        spans += images.values()
        labels += [_class(texts[key], classes, f"{shard}, {key}.cls") for key in images]
    return ImageFiles.at(folder, spans, labels)


def _members(path: Path, file: BinaryIO) -> Iterator[tuple[str, int, int]]:
    """Yields name, first byte and size of each file in the tar that is open as `file`."""
    try:
        with tarfile.open(fileobj=file, mode="r:", encoding="utf-8") as tar:
            for member in tar:
                tar.members.clear()  # type: ignore[attr-defined]  # it would hold millions of them
                if member.size < 0:
                    raise ValueError(f"{member.name} has {member.size:,} bytes")
                if member.isreg():
                    yield member.name, member.offset_data, member.size
            # The library takes a shard that ends early, or is damaged, for a shorter shard.
            file.seek(tar.offset)
            if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                raise ValueError(f"no part of a tar file at byte {tar.offset:,}")
    # The library raises errors of many types for a damaged header.
    except Exception as error:
        raise corrupt(path, error) from None
