"""scikit-learn's handwritten digits, 1,797 images of 8x8: real data that needs no download."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from orchestrator.workloads.base import Classification, check_range
from orchestrator.workloads.splits import Split, Tensors

TRAIN_EXAMPLES = 1400
PIXELS, CLASSES = 64, 10


@dataclass(frozen=True)
class Digits(Classification):
    """The digits with 1,400 training and 397 validation images. Subclasses define the model."""

    classes: int = CLASSES
    """Number of classes: only images of the digits below this number are used."""

    evaluation_spacing: ClassVar[float] = 0.05

    def __post_init__(self) -> None:
        check_range(self, classes=(2, CLASSES))

    def data(self, data_dir: Path | None) -> Mapping[str, Split]:
        table = np.loadtxt(_file(), delimiter=",", dtype=np.int64)
        # The file is sorted by writer. One fixed shuffle puts every writer on both sides.
        table = table[np.random.default_rng(0).permutation(len(table))]
        parts = {"train": table[:TRAIN_EXAMPLES], "val": table[TRAIN_EXAMPLES:]}
        return {name: self._tensors(part) for name, part in parts.items()}

    def _tensors(self, table: np.ndarray) -> Tensors:
        rows = table[table[:, PIXELS] < self.classes]
        inputs = torch.tensor(rows[:, :PIXELS] / 16, dtype=torch.float32)
        return Tensors(inputs, torch.tensor(rows[:, PIXELS], dtype=torch.int64))


@dataclass(frozen=True)
class DigitsMLP(Digits):
    """A multilayer perceptron with one hidden layer on the digits: 64-64-10."""

    width: int = 64
    """Units of the hidden layer."""

    goal: ClassVar[str] = "val/error < 0.04"
    # An evaluation costs about two steps: every 16 examples, a sixth of a trial's time.
    evaluation_min_examples: ClassVar[int] = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, width=(1, 1 << 16))

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(PIXELS, self.width), nn.ReLU(), nn.Linear(self.width, self.classes)
        )


class DigitsCNN(Digits):
    """Two 3x3 convolutions with max-pooling in between, which halves the image, and a linear
    layer."""

    goal: ClassVar[str] = "val/error < 0.02"
    # Evaluating 397 images takes as long as training on 150.
    evaluation_min_examples: ClassVar[int] = 700

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)),
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 4 * 4, self.classes),
        )


def _file() -> Path:
    """The file of scikit-learn, which is not imported, since that would take a second. A row holds
    the pixels of an image, from 0 to 16, and its label."""
    package = find_spec("sklearn")
    assert package is not None, "scikit-learn is installed with this project"
    assert package.origin is not None
    return Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
