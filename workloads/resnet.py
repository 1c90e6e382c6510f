"""ResNets v1 (He et al. 2015, arXiv:1512.03385). If a stage halves the image, its first convolution
has the stride (in a bottleneck, the first 1x1) and its shortcut is a 1x1 convolution."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from orchestrator.workloads.ghost_batch_norm import with_ghosts

GHOST_SIZE = 32
"""Number of examples per ghost: that of Shallue et al., as far as we recall."""

BOTTLENECK = 4
"""Ratio of the channels that a bottleneck returns to the channels of its 3x3 convolution."""


class Residual(nn.Module):
    def __init__(self, body: nn.Sequential, shortcut: nn.Module) -> None:
        super().__init__()
        self.body, self.shortcut = body, shortcut

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.relu(self.body(x) + self.shortcut(x))


def cifar_resnet(blocks: Sequence[int], classes: int, *, norm: bool = True) -> nn.Module:
    """Makes He et al.'s ResNet for images of 32x32 pixels: a 3x3 convolution, then three stages of
    basic blocks with 16, 32 and 64 channels. n blocks per stage give ResNet-(6n + 2). Without norm,
    layers have biases instead."""
    model = nn.Sequential(
        *_convolution(3, 16, 3, norm=norm), nn.ReLU(), *_stages(16, (16, 32, 64), blocks, norm=norm)
    )
    return _finished(model, 64, classes)


def resnet_50(classes: int, *, stem: str = "imagenet") -> nn.Module:
    """Makes ResNet-50: four stages of 3, 4, 6 and 3 bottlenecks. The stem `imagenet` makes images 4
    times smaller. The stem `cifar` is a 3x3 convolution, with which images of 32x32 pixels end as
    4x4, as is usual."""
    widths = (64, 128, 256, 512)
    if stem == "cifar":
        first = [*_convolution(3, 64, 3), nn.ReLU()]
    else:
        first = [*_convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
    model = nn.Sequential(*first, *_stages(64, widths, (3, 4, 6, 3), bottleneck=True))
    return _finished(model, 512 * BOTTLENECK, classes)


def _stages(
    before: int,
    widths: Sequence[int],
    blocks: Sequence[int],
    *,
    norm: bool = True,
    bottleneck: bool = False,
) -> list[nn.Module]:
    """Makes stages of so many blocks. All stages but the first begin by halving the image."""
    layers: list[nn.Module] = []
    for stage, (width, count) in enumerate(zip(widths, blocks, strict=True)):
        for block in range(count):
            stride = 2 if stage and not block else 1
            after = width * BOTTLENECK if bottleneck else width
            sizes = [(width, 1), (width, 3), (after, 1)] if bottleneck else [(width, 3)] * 2
            body = _body(before, sizes, stride, norm)
            shortcut: nn.Module = nn.Identity()
            if before != after:
                shortcut = nn.Sequential(*_convolution(before, after, 1, stride, norm=norm))
            layers.append(Residual(nn.Sequential(*body), shortcut))
            before = after
    return layers


def _body(
    before: int, sizes: Sequence[tuple[int, int]], stride: int, norm: bool
) -> list[nn.Module]:
    """Makes convolutions of these channels and sizes, with ReLU in between. The first one has the
    stride."""
    layers: list[nn.Module] = []
    for channels, size in sizes:
        layers += [*_convolution(before, channels, size, stride, norm=norm), nn.ReLU()]
        before, stride = channels, 1
    return layers[:-1]


def _convolution(
    before: int, after: int, size: int, stride: int = 1, *, norm: bool = True
) -> list[nn.Module]:
    layer = nn.Conv2d(before, after, size, stride, padding=size // 2, bias=not norm)
    return [layer, nn.BatchNorm2d(after)] if norm else [layer]


def _finished(model: nn.Sequential, width: int, classes: int) -> nn.Module:
    """Adds the classifier and initialises the weights so that signals neither fade nor grow much
    from layer to layer, with norms or without. Blocks that end in a norm begin as their shortcuts
    (Goyal et al. 2017)."""
    model.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes)])
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, Residual) and isinstance(module.body[-1], nn.BatchNorm2d):
            nn.init.zeros_(module.body[-1].weight)
    return with_ghosts(model, GHOST_SIZE)
