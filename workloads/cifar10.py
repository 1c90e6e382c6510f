"""CIFAR-10: images of 32x32 pixels in 10 classes, with ResNets.

Its authors' binary format has files of 10,000 records. A record is a label and 32x32 pixels of
three colour planes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from orchestrator.records import corrupt
from orchestrator.workloads.augmentation import random_flip, random_shift, uniforms
from orchestrator.workloads.base import HeldOut, Workload
from orchestrator.workloads.data.catalogue import data_set
from orchestrator.workloads.data.sources import read_bytes
from orchestrator.workloads.resnet import cifar_resnet, resnet_50
from orchestrator.workloads.splits import Split, Tensors
from orchestrator.workloads.trees import Batch

TRAIN, CLASSES = 50_000, 10
RECORD = 1 + 3 * 32 * 32
"""Number of bytes of a record."""


@dataclass(frozen=True)
class Cifar10(HeldOut):
    """CIFAR-10. Subclasses define the network."""

    split: int = 45_000
    augment: bool = True
    """Whether training images are flipped and moved by up to 4 pixels at random."""

    complete: ClassVar[int] = TRAIN
    goal: ClassVar[str] = "val/error < 0.1"  # chosen for this project, not published
    budget: ClassVar[Mapping[str, float]] = {"epochs": 100, "at_least_steps": 2000}
    evaluation_spacing: ClassVar[float] = 0.05
    # Evaluating 5,000 images takes as long as training on 1,700: a fifth of the time.
    evaluation_min_examples: ClassVar[int] = 6700

    def data(self, data_dir: Path | None) -> Mapping[str, Split]:
        files = data_set("cifar10").need(data_dir)
        examples = read_images([path for name, path in files.items() if "data" in name])
        parts = self.parts(examples, read_images([files["test_batch.bin"]]))
        deviation, mean = torch.std_mean(parts["train"][0], dim=(0, 2, 3), keepdim=True)
        return {
            name: Tensors(
                inputs[labels < self.classes].sub_(mean).div_(deviation),
                labels[labels < self.classes],
                augment=flipped_and_moved if name == "train" and self.augment else None,
            )
            for name, (inputs, labels) in parts.items()
        }


def read_images(paths: Sequence[Path]) -> tuple[Tensor, Tensor]:
    """Returns the images [N, 3, 32, 32] and the labels of the files at `paths`, in their order."""
    records = torch.from_numpy(np.concatenate([_records(path) for path in paths]))
    return records[:, 1:].reshape(-1, 3, 32, 32).float(), records[:, 0].long()


def _records(path: Path) -> NDArray[np.uint8]:
    content = read_bytes(path)
    if not len(content) or len(content) % RECORD:
        raise corrupt(
            path, f"{len(content):,} bytes are no whole number of records of {RECORD:,} bytes"
        )
    records = content.reshape(-1, RECORD)
    if records[:, 0].max() >= CLASSES:
        raise corrupt(path, f"a label is {records[:, 0].max()}, not from 0 to {CLASSES - 1}")
    return records


def flipped_and_moved(batch: Batch, seeds: Tensor) -> Batch:
    images, labels = batch
    random = uniforms(seeds, 3)
    return random_flip(random_shift(images, random[:, :2], pixels=4), random[:, 2]), labels


@dataclass(frozen=True)
class ResNet8(Cifar10):
    """ResNet-8 without batch norm on CIFAR-10 (Shallue et al., who use no augmentation as far as we
    recall)."""

    augment: bool = False

    goal: ClassVar[str] = "val/error < 0.3"
    budget: ClassVar[Mapping[str, float]] = Workload.budget

    def model(self) -> nn.Module:
        return cifar_resnet((1, 1, 1), self.classes, norm=False)


class ResNet32(Cifar10):
    """ResNet-32 with ghost batch norm on CIFAR-10."""

    def model(self) -> nn.Module:
        return cifar_resnet((5, 5, 5), self.classes)


class ResNet50(Cifar10):
    """ResNet-50 with ghost batch norm on CIFAR-10 (You et al.)."""

    def model(self) -> nn.Module:
        return resnet_50(self.classes, stem="cifar")


REGISTERED: dict[str, type[Workload]] = {
    "cifar10/resnet_8": ResNet8,
    "cifar10/resnet_32": ResNet32,
    "cifar10/resnet_50": ResNet50,
}
