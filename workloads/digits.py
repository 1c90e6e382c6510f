"""scikit-learn's handwritten digits, 1,797 images of 8x8: real data that needs no download."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from orchestrator.workloads.base import Classification
from orchestrator.workloads.splits import Split, Tensors

TRAIN_EXAMPLES = 1400


@dataclass(frozen=True)
class DigitsMLP(Classification):
    """A 64-64-10 multilayer perceptron on the digits: 1,400 to train on, 397 to validate."""

    goal: ClassVar[str] = "val/error < 0.04"
    # An evaluation costs about two steps: with these it takes a sixth of a trial's time.
    evaluation_spacing: ClassVar[float] = 0.05
    evaluation_min_examples: ClassVar[int] = 16

    def data(self, data_dir: Path | None) -> Mapping[str, Split]:
        # The import takes a second: only those who train on the digits pay for it.
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        # The file is sorted by writer. One fixed shuffle puts every writer on both sides.
        order = np.random.default_rng(0).permutation(len(images))
        inputs = torch.tensor(images[order] / 16, dtype=torch.float32)
        targets = torch.tensor(labels[order], dtype=torch.int64)
        return {
            "train": Tensors(inputs[:TRAIN_EXAMPLES], targets[:TRAIN_EXAMPLES]),
            "val": Tensors(inputs[TRAIN_EXAMPLES:], targets[TRAIN_EXAMPLES:]),
        }

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
