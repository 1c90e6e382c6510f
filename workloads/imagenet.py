"""ImageNet and Open Images: photographs in files or tar shards, decoded as they are needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from orchestrator.files.cores import cores
from orchestrator.workloads.base import Classification, Workload, check_range
from orchestrator.workloads.data.catalogue import data_set
from orchestrator.workloads.data.image_folders import (
    ImageFiles,
    class_folders,
    read_classes,
    read_multiple_classes,
)
from orchestrator.workloads.resnet import resnet_50
from orchestrator.workloads.splits import Loaded, Split, Subset
from orchestrator.workloads.trees import Batch

CLASSES = 1000
TRAIN, HELD_OUT = 1_281_167, 50_045
"""Numbers of ImageNet's training images, and of those for validation (Shallue et al.)."""

OPEN_CLASSES = 7186
"""Number of Open Images' "trainable" classes, as far as we recall."""

SMALLEST = 32
"""Smallest height and width of an image, in pixels: both networks reduce them by a factor of 32."""

VGG_CHANNELS = ((64,), (128,), (256, 256), (512, 512), (512, 512))
"""Channels of VGG's 3x3 convolutions before each pooling: configuration A of the paper."""
VGG_HIDDEN = 4096
"""Number of units of each of VGG's two hidden layers."""

BINS, LIMIT = 2048, 16.0
"""For average precision, logits are rounded to `BINS` bins between -LIMIT and LIMIT."""


@dataclass(frozen=True)
class Photographs(Workload):
    """Photographs that are decoded when they are needed. Batches are (bytes [N, 3, image_size,
    image_size], targets)."""

    image_size: int = 224
    """Height and width of the images that the network sees, in pixels."""
    workers: int = 8
    """Number of processes per rank that decode images: at most one per core, none on macOS."""

    evaluation_spacing: ClassVar[float] = 0.05
    most_classes: ClassVar[int]

    def __post_init__(self) -> None:
        check_range(
            self, classes=(2, self.most_classes), image_size=(SMALLEST, 4096), workers=(0, 1024)
        )

    def _split(self, images: ImageFiles, targets: Callable[[Tensor], Tensor]) -> Loaded:
        workers = min(self.workers, cores())

        def fetch(index: Tensor, seeds: Tensor | None = None) -> Batch:
            return images.pixels(index, self.image_size, seeds, workers), targets(index)

        return Loaded(fetch, len(images), fetch_drawn=fetch, workers=workers)


class Standardised(nn.Module):
    """A layer that turns bytes into numbers around 0, with the usual means and standard deviations
    of ImageNet's colours. It is part of the model because images are moved to the device as bytes,
    which take a quarter of the memory of floats."""

    mean: Tensor
    deviation: Tensor

    def __init__(self) -> None:
        super().__init__()
        colours = {"mean": (0.485, 0.456, 0.406), "deviation": (0.229, 0.224, 0.225)}
        for name, shares in colours.items():
            self.register_buffer(name, 255 * torch.tensor(shares).view(3, 1, 1), persistent=False)

    def forward(self, pixels: Tensor) -> Tensor:
        return (pixels - self.mean) / self.deviation


@dataclass(frozen=True)
class ImageNet(Photographs, Classification):
    """ImageNet. The validation split is a seeded choice of the training images; the test split is
    the official validation images."""

    classes: int = CLASSES
    """Number of classes: only images of classes below this number are used."""

    most_classes: ClassVar[int] = CLASSES
    # Evaluating 50,045 images takes as long as training on 16,700: a fifth of the time.
    evaluation_min_examples: ClassVar[int] = 66_700

    def data(self, data_dir: Path | None) -> Mapping[str, Split]:
        files = data_set("imagenet").need(data_dir)
        names = class_folders(files["train"])
        images, test = (read_classes(files[part], names, CLASSES) for part in ("train", "val"))
        # Small copies of the data, for trying things out, are split in the same proportion.
        held_out = max(1, round(len(images) * HELD_OUT / TRAIN))
        chosen = np.random.default_rng(0).permutation(len(images))
        return {
            "train": self._subset(images, np.sort(chosen[held_out:])),
            "val": self._subset(images, np.sort(chosen[:held_out])),
            "test": self._subset(test, np.arange(len(test))),
        }

    def _subset(self, images: ImageFiles, index: np.ndarray) -> Split:
        labels = torch.from_numpy(images.classes)
        selected = index[images.classes[index] < self.classes]
        return Subset(self._split(images, lambda i: labels[i]), torch.from_numpy(selected))


class ImageNetResNet50(ImageNet):
    """ResNet-50 with ghost batch norm on ImageNet."""

    goal: ClassVar[str] = "val/error < 0.25"
    # The published runs took a quarter less than this, at the smallest batch size (epochs) and at
    # the largest batch size (steps).
    budget: ClassVar[Mapping[str, float]] = {"epochs": 90, "at_least_steps": 8000}

    def model(self) -> nn.Module:
        return nn.Sequential(Standardised(), resnet_50(self.classes))


class ImageNetVGG11(ImageNet):
    """VGG-11 without batch norm on ImageNet."""

    goal: ClassVar[str] = "val/error < 0.35"
    budget: ClassVar[Mapping[str, float]] = {"epochs": 55, "at_least_steps": 17_000}

    def model(self) -> nn.Module:
        return nn.Sequential(Standardised(), vgg_11(self.classes))


def vgg_11(classes: int) -> nn.Module:
    """Makes VGG-11 (Simonyan, Zisserman 2014, arXiv:1409.1556) without batch norm, as in Shallue et
    al., with dropout at rate 0.5 after each hidden layer. For images of other sizes than 224x224,
    adaptive average pooling gives the same number of features."""
    layers: list[nn.Module] = []
    before = 3
    for stage in VGG_CHANNELS:
        for width in stage:
            layers += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU()]
            before = width
        layers.append(nn.MaxPool2d(2))
    layers += [nn.AdaptiveAvgPool2d(7), nn.Flatten()]
    before *= 7 * 7
    for _ in range(2):
        layers += [nn.Linear(before, VGG_HIDDEN), nn.ReLU(), nn.Dropout()]
        before = VGG_HIDDEN
    model = nn.Sequential(*layers, nn.Linear(VGG_HIDDEN, classes))
    # Without norms, signals would fade from layer to layer with torch's initial weights, which are
    # smaller. The hidden layers are initialised as by the authors; the logits are then small enough
    # for the first step not to upset training.
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.01)
        if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    return model


@dataclass(frozen=True)
class OpenImagesResNet50(Photographs):
    """ResNet-50 with ghost batch norm on Open Images. An image may have several classes; a sigmoid
    per class says whether the class is present."""

    classes: int = OPEN_CLASSES
    """Number of classes: classes from this number on are left out of the targets."""

    goal: ClassVar[str] = "val/average_precision > 0.31"
    budget: ClassVar[Mapping[str, float]] = {"epochs": 15, "at_least_steps": 9000}
    # Evaluating 41,620 images takes as long as training on 13,900: a fifth of the time.
    evaluation_min_examples: ClassVar[int] = 55_500
    most_classes: ClassVar[int] = OPEN_CLASSES

    def data(self, data_dir: Path | None) -> Mapping[str, Split]:
        folders = data_set("open_images").need(data_dir)
        return {
            name: self._multiple(read_multiple_classes(folder, OPEN_CLASSES))
            for name, folder in folders.items()
        }

    def _multiple(self, images: ImageFiles) -> Loaded:
        def targets(index: Tensor) -> Tensor:
            present = torch.zeros(len(index), OPEN_CLASSES, dtype=torch.bool)
            for row, example in zip(present, index.tolist(), strict=True):
                row[images.classes_of(example)] = True
            return present[:, : self.classes]

        return self._split(images, targets)

    def model(self) -> nn.Module:
        return nn.Sequential(Standardised(), resnet_50(self.classes))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Returns the sigmoid cross entropy of each image, the mean over the classes."""
        pixels, present = batch
        return _cross_entropy(model(pixels), present)

    def metrics(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        pixels, present = batch
        logits = model(pixels)
        bin_ = ((logits.nan_to_num() + LIMIT) * (BINS / (2 * LIMIT))).long().clamp(0, BINS - 1)
        counts = logits.new_zeros(len(logits), BINS)
        return {
            "loss": _cross_entropy(logits, present),
            "all": counts.scatter_add(1, bin_, torch.ones_like(logits)),
            "present": counts.scatter_add(1, bin_, present.to(logits.dtype)),
        }

    def summary(self, means: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return {
            "loss": means["loss"],
            "average_precision": average_precision(means["present"], means["all"]),
        }


def _cross_entropy(logits: Tensor, present: Tensor) -> Tensor:
    losses = functional.binary_cross_entropy_with_logits(
        logits, present.to(logits.dtype), reduction="none"
    )
    return losses.mean(dim=1)


def average_precision(present: Tensor, all_of: Tensor) -> Tensor:
    """Returns the average precision over all pairs of image and class together: the mean, over the
    pairs whose class is present, of the precision at which the pair is found. `present` counts
    these pairs, and `all_of` counts all pairs, in bins of rising scores."""
    found, seen = present.flip(0).cumsum(0), all_of.flip(0).cumsum(0)
    precision = found / seen.clamp(min=1e-9)
    return (precision * present.flip(0)).sum() / present.sum()


REGISTERED: dict[str, type[Workload]] = {
    "imagenet/resnet_50": ImageNetResNet50,
    "imagenet/vgg_11": ImageNetVGG11,
    "open_images/resnet_50": OpenImagesResNet50,
}
