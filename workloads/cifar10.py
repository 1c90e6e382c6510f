"""CIFAR-10: images of 32x32 pixels in 10 classes, with ResNets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from orchestrator.workloads.augmentation import random_flip, random_shift, uniforms
from orchestrator.workloads.base import Classification, Workload, check_range
from orchestrator.workloads.data import data_set, read_cifar10
from orchestrator.workloads.data.cifar import CLASSES
from orchestrator.workloads.models import cifar_resnet, resnet_50
from orchestrator.workloads.splits import Split, Tensors
from orchestrator.workloads.trees import Batch

TRAIN = 50_000


@dataclass(frozen=True)
class Cifar10(Classification):
    """Subclasses say which network."""

    split: int = 45_000
    """How many of the 50,000 are trained on; the rest validates. With 50,000 there is no
    validation, and goals are on test/error."""
    classes: int = CLASSES
    """Only the first so many classes."""
    augment: bool = True
    """Whether what is trained on is flipped and moved by up to 4 pixels at random."""

    goal: ClassVar[str] = "val/error < 0.1"  # ours
    budget: ClassVar[Mapping[str, float]] = {"epochs": 100, "at_least_steps": 2000}
    evaluation_spacing: ClassVar[float] = 0.05
    # Looking at 5,000 images costs what training 1,700 does, a fifth of both.
    evaluation_min_examples: ClassVar[int] = 6700

    def __post_init__(self) -> None:
        check_range(self, split=(1, TRAIN), classes=(2, CLASSES))
        if self.split == TRAIN:
            object.__setattr__(self, "goal", self.goal.replace("val/", "test/"))

    def data(self, data_dir: Path | None) -> Mapping[str, Split]:
        files = data_set("cifar10").need(data_dir)
        inputs, labels = _read([path for name, path in files.items() if "data" in name])
        # Small copies for trying things out are cut in the same proportion.
        cut = len(inputs) * self.split // TRAIN
        deviation, mean = torch.std_mean(inputs[:cut], dim=(0, 2, 3), keepdim=True)
        parts = {
            "train": (inputs[:cut], labels[:cut]),
            "val": (inputs[cut:], labels[cut:]),
            "test": _read([files["test_batch.bin"]]),
        }
        if cut == len(inputs):
            del parts["val"]
        return {
            name: Tensors(
                inputs[labels < self.classes].sub_(mean).div_(deviation),
                labels[labels < self.classes],
                augment=flipped_and_moved if name == "train" and self.augment else None,
            )
            for name, (inputs, labels) in parts.items()
        }


def _read(paths: list[Path]) -> tuple[Tensor, Tensor]:
    images, labels = map(torch.from_numpy, read_cifar10(paths))
    return images.float(), labels.long()


def flipped_and_moved(batch: Batch, seeds: Tensor) -> Batch:
    images, labels = batch
    random = uniforms(seeds, 3)
    return random_flip(random_shift(images, random[:, :2], pixels=4), random[:, 2]), labels


@dataclass(frozen=True)
class ResNet8(Cifar10):
    """ResNet-8 without batch norm on CIFAR-10 (Shallue et al., who augment nothing, as far as we
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
