"""Scenes made of Fashion-MNIST: garments on textured canvases, to be told apart pixel by pixel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from orchestrator.records import BadInput
from orchestrator.workloads.base import Workload, check_range
from orchestrator.workloads.data import data_set
from orchestrator.workloads.mnist import CLASSES, TRAIN, read_images
from orchestrator.workloads.models import UNet
from orchestrator.workloads.splits import Split, Tensors
from orchestrator.workloads.trees import Batch

Pixels = NDArray[np.uint8]

SIDE = 14
"""Pixels of a garment each way: half of what Fashion-MNIST has, so that several fit on a canvas
that one CPU core learns from in a minute."""
VISIBLE = 40
"""Pixels of a garment that are brighter, of 255, cover what is below and are of its class."""
PATCH = 4
"""Pixels each way of a canvas that have a brightness in common."""
GARMENTS = 3
"""Per scene; later ones may cover earlier ones."""
WIDTHS = (16, 32)
"""Deeper and narrower ones take longer to tell garments apart than to tell them from the canvas."""
TRAINED_ON = 55_000
"""Of Fashion-MNIST's 60,000 to train on; the rest is for validation, as in `mnist`."""


@dataclass(frozen=True)
class Scenes(Workload):
    """A U-Net of two levels; class 0 is the background. All of this is ours."""

    canvas: int = 32
    """Pixels of a scene each way."""
    classes: int = 4
    """Only the first so many kinds of garment; the background comes on top."""
    scenes: int = 4000
    """To train on. A twentieth validates and as many test, with garments of their own."""

    goal: ClassVar[str] = "val/mean_iou > 0.6"
    budget: ClassVar[Mapping[str, float]] = {"epochs": 20, "at_least_steps": 1000}
    evaluation_spacing: ClassVar[float] = 0.05
    # Looking at 200 scenes costs what training on 150 does: a sixth of this and that.
    evaluation_min_examples: ClassVar[int] = 750

    def __post_init__(self) -> None:
        low = PATCH * -(-SIDE // PATCH)
        if self.canvas < low or self.canvas % PATCH:
            raise BadInput(
                f"`canvas` must be a multiple of {PATCH} from {low}, but got {self.canvas}."
            )
        check_range(self, classes=(1, CLASSES), scenes=(20, 10**6))

    def data(self, data_dir: Path | None) -> Mapping[str, Split]:
        files = data_set("fashion_mnist").need(data_dir)
        images, labels = read_images(files, "train")
        cut = len(images) * TRAINED_ON // TRAIN
        parts = {
            "train": (self.scenes, images[:cut], labels[:cut]),
            "val": (self.scenes // 20, images[cut:], labels[cut:]),
            "test": (self.scenes // 20, *read_images(files, "t10k")),
        }
        return {
            name: Tensors(*self._scenes(np.random.default_rng(seed), *part))
            for seed, (name, part) in enumerate(parts.items())
        }

    def _scenes(
        self, rng: np.random.Generator, count: int, images: Pixels, labels: Pixels
    ) -> tuple[Tensor, Tensor]:
        kept = labels < self.classes
        garments, kinds = _halved(images[kept]), labels[kept] + 1
        pictures = _canvases(rng, count, self.canvas)
        masks = np.zeros_like(pictures)
        for _ in range(GARMENTS):
            chosen = rng.integers(len(garments), size=count)
            corners = rng.integers(self.canvas - SIDE + 1, size=(2, count))
            paste(pictures, masks, garments[chosen], kinds[chosen], corners)
        inputs = torch.from_numpy(pictures.astype(np.float32) / 255)
        return inputs[:, None], torch.from_numpy(masks)

    def model(self) -> nn.Module:
        return UNet(WIDTHS, self.classes + 1)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        images, masks = batch
        return _cross_entropies(model(images), masks)

    def metrics(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        images, masks = batch
        logits = model(images)
        # Where there is no number, no class is predicted, not even a wrong one.
        predicted = torch.where(logits.isfinite().all(dim=1), logits.argmax(dim=1), -1)
        classes = torch.arange(self.classes + 1, device=masks.device).view(-1, 1, 1)
        found, true = predicted[:, None] == classes, masks[:, None] == classes
        return {
            "pixel_error": (predicted != masks).float().mean(dim=(1, 2)),
            "loss": _cross_entropies(logits, masks),
            "intersection": (found & true).sum(dim=(2, 3)),
            "union": (found | true).sum(dim=(2, 3)),
        }

    def summary(self, means: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Means over a split's images don't matter to a ratio: this is the IoU of all its pixels.
        A class that is neither there nor predicted is 0 / 0, and no part of the mean."""
        overlap = means["intersection"] / means["union"]
        return {
            "pixel_error": means["pixel_error"],
            "loss": means["loss"],
            "mean_iou": overlap.nanmean(),
        }


def paste(
    pictures: Pixels, masks: Pixels, garments: Pixels, kinds: Pixels, corners: NDArray[np.int64]
) -> None:
    """Puts one garment into each picture, its top left at `corners` [2, N], and its class into the
    mask."""
    scene = np.arange(len(pictures))[:, None, None]
    rows = corners[0, :, None, None] + np.arange(SIDE)[:, None]
    columns = corners[1, :, None, None] + np.arange(SIDE)
    covers = garments > VISIBLE
    pictures[scene, rows, columns] = np.where(covers, garments, pictures[scene, rows, columns])
    masks[scene, rows, columns] = np.where(
        covers, kinds[:, None, None], masks[scene, rows, columns]
    )


def _halved(images: Pixels) -> Pixels:
    """Means over 2x2 pixels."""
    halved: Pixels = images.reshape(-1, SIDE, 2, SIDE, 2).mean(axis=(2, 4)).astype(np.uint8)
    return halved


def _canvases(rng: np.random.Generator, count: int, side: int) -> Pixels:
    """Patches of random brightness with noise on them."""
    patches = rng.integers(96, size=(count, side // PATCH, side // PATCH), dtype=np.uint8)
    noise = rng.integers(32, size=(count, side, side), dtype=np.uint8)
    return patches.repeat(PATCH, axis=1).repeat(PATCH, axis=2) + noise


def _cross_entropies(logits: Tensor, masks: Tensor) -> Tensor:
    """Each example's mean over pixels."""
    return functional.cross_entropy(logits, masks.long(), reduction="none").mean(dim=(1, 2))
