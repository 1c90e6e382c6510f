"""The models for MNIST and its relatives: images of one channel and 28x28 pixels."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

PIXELS = 28 * 28


def fully_connected(widths: Sequence[int], classes: int) -> nn.Module:
    """Makes a network with hidden layers of `widths` units and ReLU (Shallue et al.'s FC-w-w-w)."""
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise([PIXELS, *widths]):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear([PIXELS, *widths][-1], classes))


def simple_cnn(channels: tuple[int, int], hidden: int, classes: int) -> nn.Module:
    """Makes a network of two 5x5 convolutions, each followed by max-pooling that halves the image,
    and a hidden layer (Shallue et al.)."""
    first, second = channels
    return nn.Sequential(
        nn.Conv2d(1, first, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(second * 7 * 7, hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    )


def lenet(classes: int) -> nn.Module:
    """Makes LeNet-5 (LeCun et al. 1998) with ReLU and max-pooling, as it is used today."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 5 * 5, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, classes),
    )
