"""VGG (Simonyan, Zisserman 2014, arXiv:1409.1556) without batch norm, as in Shallue et al."""

from __future__ import annotations

from torch import nn

CHANNELS = ((64,), (128,), (256, 256), (512, 512), (512, 512))
"""Of the 3x3 convolutions before each pooling: configuration A."""

HIDDEN = 4096


def vgg_11(classes: int) -> nn.Module:
    """Dropout of a half behind each hidden layer. Images of other sizes than 224 are averaged to as
    many features."""
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
    # Without norms, torch's smaller weights would let signals fade from layer to layer. Those of
    # the hidden layers are the authors', and leave logits that the first step doesn't upset.
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.01)
        if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    return model
