"""MNIST and Fashion-MNIST: 28x28 pixels, 10 classes, with the models of published studies."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from orchestrator.records import corrupt
from orchestrator.workloads.base import HeldOut, Workload
from orchestrator.workloads.data.catalogue import data_set
from orchestrator.workloads.data.sources import read_bytes
from orchestrator.workloads.splits import Split, Tensors

TRAIN, CLASSES = 60_000, 10
TITLES = {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST"}

GOALS = {
    ("mnist", "simple_cnn"): "val/error < 0.01",
    ("mnist", "lenet"): "val/error < 0.01",
    ("mnist", "fc"): "val/error < 0.03",
    ("fashion_mnist", "simple_cnn"): "val/error < 0.1",
    ("fashion_mnist", "lenet"): "val/error < 0.1",
    ("fashion_mnist", "fc"): "val/error < 0.12",
}
"""Goals by data set and family of networks. Those for Simple CNN, and for FC on MNIST, are Shallue
et al.'s; the others were chosen for this project."""

SIMPLE_CNNS = {
    "simple_cnn": ((32, 64), 1024),
    "simple_cnn_tiny": ((8, 16), 64),
    "simple_cnn_narrow": ((16, 32), 512),
    "simple_cnn_wide": ((64, 128), 2048),
}
"""Channels of the two convolutions and units of the hidden layer. The tiny network was added for
this project, for CPUs; the others are published."""

PIXELS = 28 * 28

WIDTHS = (64, 128, 256, 512, 1024, 2048)


@dataclass(frozen=True)
class Images(HeldOut):
    """MNIST or a data set in its format. Subclasses define data set and network: see `named`."""

    split: int = 55_000

    complete: ClassVar[int] = TRAIN
    dataset: ClassVar[str]
    network: ClassVar[str]
    evaluation_spacing: ClassVar[float] = 0.05
    # Evaluating 5,000 images takes as long as training on 2,200 on a CPU, and less on a GPU.
    evaluation_min_examples: ClassVar[int] = 12_000

    def data(self, data_dir: Path | None) -> Mapping[str, Split]:
        files = data_set(self.dataset).need(data_dir)
        parts = self.parts(read_images(files, "train"), read_images(files, "t10k"))
        return {name: self._tensors(*part) for name, part in parts.items()}

    def _tensors(self, images: np.ndarray, labels: np.ndarray) -> Tensors:
        selected = labels < self.classes
        inputs = torch.from_numpy(images[selected].astype(np.float32) / 255)
        return Tensors(inputs[:, None], torch.from_numpy(labels[selected].astype(np.int64)))

    def model(self) -> nn.Module:
        if self.network in SIMPLE_CNNS:
            return simple_cnn(*SIMPLE_CNNS[self.network], self.classes)
        if self.network == "lenet":
            return lenet(self.classes)
        return fully_connected([int(w) for w in self.network.split("_")[1:]], self.classes)


def fully_connected(widths: Sequence[int], classes: int, inputs: int = PIXELS) -> nn.Sequential:
    """Makes a network with hidden layers of `widths` units and ReLU (Shallue et al.'s FC-w-w-w)."""
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise([inputs, *widths]):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear([inputs, *widths][-1], classes))


def simple_cnn(channels: tuple[int, int], hidden: int, classes: int) -> nn.Module:
    """Makes a network of two 5x5 convolutions, each followed by max-pooling that halves the image,
    and a hidden layer (Shallue et al.)."""
    convolutions = _convolutions(*channels, padding=2)
    return nn.Sequential(*convolutions, *fully_connected([hidden], classes, channels[1] * 7 * 7))


def lenet(classes: int) -> nn.Module:
    """Makes LeNet-5 (LeCun et al. 1998) with ReLU and max-pooling, as it is used today."""
    convolutions = _convolutions(6, 16, padding=0)
    return nn.Sequential(*convolutions, *fully_connected([120, 84], classes, 16 * 5 * 5))


def _convolutions(first: int, second: int, padding: int) -> list[nn.Module]:
    return [
        nn.Conv2d(1, first, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, 5, padding=padding),
        nn.ReLU(),
        nn.MaxPool2d(2),
    ]


def read_images(files: Mapping[str, Path], part: str) -> tuple[np.ndarray, np.ndarray]:
    images = read_idx(files[f"{part}-images-idx3-ubyte"], shape=(None, 28, 28))
    labels = read_idx(files[f"{part}-labels-idx1-ubyte"], shape=(len(images),))
    if labels.max() >= CLASSES:
        raise corrupt(
            files[f"{part}-labels-idx1-ubyte"], f"a label is {labels.max()}, not 0 to {CLASSES - 1}"
        )
    return images, labels


def read_idx(path: Path, *, shape: tuple[int | None, ...]) -> NDArray[np.uint8]:
    """Returns the array in the file at `path`, an IDX file of bytes, gzipped or plain. Refuses it
    unless it has this `shape`, in which None stands for any length.

    An IDX file begins with two zero bytes, one byte for the type of the elements (8: bytes) and one
    for the number of dimensions. Then come the size of each dimension as a big-endian int32, and
    the elements, with the last dimension varying fastest.
    """
    header, content = np.split(read_bytes(path), [4 + 4 * len(shape)])
    if header[:4].tolist() != [0, 0, 8, len(shape)] or len(header) < 4 + 4 * len(shape):
        begins = header.tobytes().hex(" ") or "nothing"
        raise corrupt(path, f"it begins with {begins}, not as bytes in {len(shape)} dimensions do")
    sizes = header[4:].view(">i4").tolist()
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
    return content.reshape(sizes)


def named(name: str) -> type[Workload] | None:
    """Returns the workload called `DATASET/NETWORK`, or None if there is none. FC networks may have
    any widths: `mnist/fc_64_32`."""
    dataset, _, network = name.partition("/")
    family = re.sub(r"_\d+", "", network) if network.startswith("fc_") else network
    family = "simple_cnn" if family in SIMPLE_CNNS else family
    if (dataset, family) not in GOALS or not re.fullmatch(r"fc(_[1-9]\d{0,4})+|[a-z_]+", network):
        return None
    settings = {
        "dataset": dataset,
        "network": network,
        "goal": GOALS[dataset, family],
        "__doc__": f"{_described(network)}, on {TITLES[dataset]}.",
    }
    return type("Images", (Images,), settings)


def _described(network: str) -> str:
    if network in SIMPLE_CNNS:
        (first, second), hidden = SIMPLE_CNNS[network]
        return f"5x5 convolutions of {first} and {second} channels and {hidden} hidden units"
    if network == "lenet":
        return "LeNet-5 with ReLU and max-pooling"
    return f"Fully connected hidden layers of {', '.join(network.split('_')[1:])} units"


NETWORKS = [*SIMPLE_CNNS, "lenet", *(f"fc_{w}_{w}_{w}" for w in WIDTHS)]

REGISTERED: dict[str, type[Workload]] = {
    name: found
    for name in (f"{data}/{net}" for data in TITLES for net in NETWORKS)
    if (found := named(name)) is not None
}
