"""VGG (Simonyan, Zisserman 2014, arXiv:1409.1556) without batch norm, as in Shallue et al."""

from __future__ import annotations

from torch import nn

CHANNELS = ((64,), (128,), (256, 256), (512, 512), (512, 512))
"""Channels of the 3x3 convolutions before each pooling: configuration A of the paper."""

HIDDEN = 4096
"""Number of units of each of the two hidden layers."""


def vgg_11(classes: int) -> nn.Module:
    """Makes VGG-11, with dropout at rate 0.5 after each hidden layer. For images of other sizes
    than 224x224, adaptive average pooling gives the same number of features."""
    layers: list[nn.Module] = []
    before = 3
    for stage in CHANNELS:
        for width in stage:
            layers += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU()]
            before = width
        layers.append(nn.MaxPool2d(2))
    layers += [nn.AdaptiveAvgPool2d(7), nn.Flatten()]
    before *= 7 * 7
    for _ in range(2):
        layers += [nn.Linear(before, HIDDEN), nn.ReLU(), nn.Dropout()]
        before = HIDDEN
    model = nn.Sequential(*layers, nn.Linear(HIDDEN, classes))
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
