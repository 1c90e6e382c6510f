"""ImageNet: photographs in files or tar shards, decoded as they are needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from orchestrator.files.cores import cores
from orchestrator.workloads.base import Classification, check_range
from orchestrator.workloads.data.catalogue import data_set
from orchestrator.workloads.data.image_folders import ImageFiles, class_folders, read_classes
from orchestrator.workloads.resnet import resnet_50
from orchestrator.workloads.splits import Loaded, Split, Subset
from orchestrator.workloads.trees import Batch

CLASSES = 1000
TRAIN, HELD_OUT = 1_281_167, 50_045
"""Numbers of ImageNet's training images, and of those for validation (Shallue et al.)."""

SMALLEST = 32
"""Smallest height and width of an image, in pixels: the network reduces them by a factor of 32."""


@dataclass(frozen=True)
class ImageNet(Classification):
    """ResNet-50 with ghost batch norm on ImageNet. The validation split is a seeded choice of the
    training images; the test split is the official validation images. Batches are (bytes [N, 3,
    image_size, image_size], classes)."""

    image_size: int = 224
    """Height and width of the images that the network sees, in pixels."""
    workers: int = 8
    """Number of processes per rank that decode images: at most one per core, none on macOS."""
    classes: int = CLASSES
    """Number of classes: only images of classes below this number are used."""

    goal: ClassVar[str] = "val/error < 0.25"
    # The published runs took a quarter less than this, at the smallest batch size (epochs) and at
    # the largest batch size (steps).
    budget: ClassVar[Mapping[str, float]] = {"epochs": 90, "at_least_steps": 8000}
    evaluation_spacing: ClassVar[float] = 0.05
    # Evaluating 50,045 images takes as long as training on 16,700: a fifth of the time.
    evaluation_min_examples: ClassVar[int] = 66_700

    def __post_init__(self) -> None:
        check_range(self, classes=(2, CLASSES), image_size=(SMALLEST, 4096), workers=(0, 1024))

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
        workers = min(self.workers, cores())

        def fetch(index: Tensor, seeds: Tensor | None = None) -> Batch:
            return images.pixels(index, self.image_size, seeds, workers), labels[index]

        loaded = Loaded(fetch, len(images), fetch_drawn=fetch, workers=workers)
        return Subset(loaded, torch.from_numpy(selected))

    def model(self) -> nn.Module:
        return nn.Sequential(Standardised(), resnet_50(self.classes))


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
