"""MNIST and Fashion-MNIST: images of 28x28 pixels in 10 classes, with the models of the published
studies."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from orchestrator.records import corrupt
from orchestrator.workloads.base import Classification, Workload, check_range
from orchestrator.workloads.data.catalogue import data_set
from orchestrator.workloads.data.idx import read_idx
from orchestrator.workloads.models.small import fully_connected, lenet, simple_cnn
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

WIDTHS = (64, 128, 256, 512, 1024, 2048)


@dataclass(frozen=True)
class Images(Classification):
    """MNIST or a data set in its format. Subclasses define data set and network: see `named`."""

    split: int = 55_000
    """Number of the 60,000 training images that are trained on; the rest is the validation split.
    With 60,000 there is no validation split, and the goal is on test/error."""
    classes: int = CLASSES
    """Number of classes: only images of classes below this number are used."""

    dataset: ClassVar[str]
    network: ClassVar[str]
    evaluation_spacing: ClassVar[float] = 0.05
    # Evaluating 5,000 images takes as long as training on 2,200 on a CPU, and less on a GPU.
    evaluation_min_examples: ClassVar[int] = 12_000

    def __post_init__(self) -> None:
        check_range(self, split=(1, TRAIN), classes=(2, CLASSES))
        if self.split == TRAIN:
            object.__setattr__(self, "goal", self.goal.replace("val/", "test/"))

    def data(self, data_dir: Path | None) -> Mapping[str, Split]:
        files = data_set(self.dataset).need(data_dir)
        inputs, labels = read_images(files, "train")
        # Small copies of the data, for trying things out, are split in the same proportion.
        train = len(inputs) * self.split // TRAIN
        parts = {
            "train": (inputs[:train], labels[:train]),
            "val": (inputs[train:], labels[train:]),
            "test": read_images(files, "t10k"),
        }
        if train == len(inputs):
            del parts["val"]
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


def read_images(files: Mapping[str, Path], part: str) -> tuple[np.ndarray, np.ndarray]:
    images = read_idx(files[f"{part}-images-idx3-ubyte"], shape=(None, 28, 28))
    labels = read_idx(files[f"{part}-labels-idx1-ubyte"], shape=(len(images),))
    if labels.max() >= CLASSES:
        raise corrupt(
            files[f"{part}-labels-idx1-ubyte"], f"a label is {labels.max()}, not 0 to {CLASSES - 1}"
        )
    return images, labels


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
