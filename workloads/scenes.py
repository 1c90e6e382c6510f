"""Scenes made of Fashion-MNIST: garments on textured canvases. The task is to find the class of
each pixel (semantic segmentation)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from orchestrator.records import wrong_value
from orchestrator.workloads.base import Workload, check_range
from orchestrator.workloads.data.catalogue import data_set
from orchestrator.workloads.ghost_batch_norm import GhostBatchNorm2d
from orchestrator.workloads.mnist import CLASSES, TRAIN, read_images
from orchestrator.workloads.splits import Split, Tensors
from orchestrator.workloads.trees import Batch

Pixels = NDArray[np.uint8]

SIDE = 14
"""Height and width of a garment in pixels: half of Fashion-MNIST's, so that several garments fit on
a canvas that is small enough for one CPU core to learn from in a minute."""
VISIBLE = 40
"""Brightness, from 0 to 255, above which a pixel of a garment covers what is below it. The pixel
then has the garment's class."""
PATCH = 4
"""Height and width in pixels of the patches of equal brightness that a canvas is made of."""
GARMENTS = 3
"""Number of garments per scene. Later garments may cover earlier ones."""
WIDTHS = (16, 32)
"""Channels per level of the U-Net. Deeper and narrower networks need longer to tell the classes of
garments apart than to tell garments from the canvas."""
GHOST_SIZE = 32
TRAINED_ON = 55_000
"""Number of Fashion-MNIST's 60,000 training images that training scenes are made of; validation
scenes are made of the rest, as in `mnist`."""


@dataclass(frozen=True)
class Scenes(Workload):
    """A U-Net of two levels on scenes of garments; class 0 is the background. Data and task were
    made for this project."""

    canvas: int = 32
    """Height and width of a scene in pixels."""
    classes: int = 4
    """Number of classes of garments, the first ones of Fashion-MNIST. The background is one more
    class."""
    scenes: int = 4000
    """Number of training scenes. The validation and test splits have a twentieth as many scenes
    each, made of other garments."""

    goal: ClassVar[str] = "val/mean_iou > 0.6"
    budget: ClassVar[Mapping[str, float]] = {"epochs": 20, "at_least_steps": 1000}
    evaluation_spacing: ClassVar[float] = 0.05
    # Evaluating 200 scenes takes as long as training on 150: a sixth of the time.
    evaluation_min_examples: ClassVar[int] = 750

    def __post_init__(self) -> None:
        low = PATCH * -(-SIDE // PATCH)
        if self.canvas < low or self.canvas % PATCH:
            raise wrong_value(
                "`canvas`", f"a multiple of {PATCH} pixels, at least {low}", self.canvas
            )
        check_range(self, classes=(1, CLASSES), scenes=(20, 10**6))

    def data(self, data_dir: Path | None) -> Mapping[str, Split]:
        files = data_set("fashion_mnist").need(data_dir)
        images, labels = read_images(files, "train")
        train = len(images) * TRAINED_ON // TRAIN
        parts = {
            "train": (self.scenes, images[:train], labels[:train]),
            "val": (self.scenes // 20, images[train:], labels[train:]),
            "test": (self.scenes // 20, *read_images(files, "t10k")),
        }
        return {
            name: Tensors(*self._scenes(np.random.default_rng(seed), *part))
            for seed, (name, part) in enumerate(parts.items())
        }

    def _scenes(
        self, rng: np.random.Generator, count: int, images: Pixels, labels: Pixels
    ) -> tuple[Tensor, Tensor]:
        selected = labels < self.classes
        garments, kinds = _halved(images[selected]), labels[selected] + 1
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
        # A pixel with NaN or infinite logits has no predicted class: -1 is not even a wrong class.
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
        """Computes each class's IoU over all pixels of the split: the ratio of two means over
        images is the ratio of their sums. A class that is neither present nor predicted has IoU
        0 / 0 and is left out of the mean."""
        overlap = means["intersection"] / means["union"]
        return {
            "pixel_error": means["pixel_error"],
            "loss": means["loss"],
            "mean_iou": overlap.nanmean(),
        }


class UNet(nn.Module):
    """A U-Net (Ronneberger et al. 2015, arXiv:1505.04597). It maps images [N, 1, H, W] to logits
    [N, classes, H, W]. Unlike in the original, convolutions are padded, so that logits have
    the size of the images, and followed by norms.

    Level i has `widths[i]` channels, and its height and width are H / 2^i and W / 2^i, which must
    be whole numbers.
    """

    def __init__(self, widths: Sequence[int], classes: int) -> None:
        super().__init__()
        self.down = nn.ModuleList(_two_convolutions(*pair) for pair in pairwise([1, *widths]))
        levels = list(pairwise(reversed(widths)))
        self.widen = nn.ModuleList(nn.ConvTranspose2d(low, high, 2, 2) for low, high in levels)
        self.up = nn.ModuleList(_two_convolutions(2 * high, high) for _, high in levels)
        self.head = nn.Conv2d(widths[0], classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        levels = [self.down[0](images)]
        for block in self.down[1:]:
            levels.append(block(functional.max_pool2d(levels[-1], 2)))
        x = levels.pop()
        for widen, block in zip(self.widen, self.up, strict=True):
            x = block(torch.cat([levels.pop(), widen(x)], dim=1))
        logits: Tensor = self.head(x)
        return logits


def _two_convolutions(before: int, after: int) -> nn.Module:
    layers: list[nn.Module] = []
    for width in (before, after):
        layers += [
            nn.Conv2d(width, after, 3, padding=1, bias=False),
            GhostBatchNorm2d(after, ghost_size=GHOST_SIZE),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers)


def paste(
    pictures: Pixels, masks: Pixels, garments: Pixels, kinds: Pixels, corners: NDArray[np.int64]
) -> None:
    """Pastes one garment into each picture, with its top left corner at `corners` [2, N], and
    writes its class to the mask."""
    scene = np.arange(len(pictures))[:, None, None]
    rows = corners[0, :, None, None] + np.arange(SIDE)[:, None]
    columns = corners[1, :, None, None] + np.arange(SIDE)
    covers = garments > VISIBLE
    pictures[scene, rows, columns] = np.where(covers, garments, pictures[scene, rows, columns])
    masks[scene, rows, columns] = np.where(
        covers, kinds[:, None, None], masks[scene, rows, columns]
    )


def _halved(images: Pixels) -> Pixels:
    """Halves height and width of the images by means over 2x2 pixels."""
    halved: Pixels = images.reshape(-1, SIDE, 2, SIDE, 2).mean(axis=(2, 4)).astype(np.uint8)
    return halved


def _canvases(rng: np.random.Generator, count: int, side: int) -> Pixels:
    """Draws `count` canvases: patches of random brightness with noise on each pixel."""
    patches = rng.integers(96, size=(count, side // PATCH, side // PATCH), dtype=np.uint8)
    noise = rng.integers(32, size=(count, side, side), dtype=np.uint8)
    return patches.repeat(PATCH, axis=1).repeat(PATCH, axis=2) + noise


def _cross_entropies(logits: Tensor, masks: Tensor) -> Tensor:
    """Returns each example's cross entropy, the mean over its pixels."""
    return functional.cross_entropy(logits, masks.long(), reduction="none").mean(dim=(1, 2))
