"""U-Net (Ronneberger et al. 2015, arXiv:1505.04597) for small images."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from orchestrator.workloads.ghost_batch_norm import GhostBatchNorm2d

GHOST_SIZE = 32


class UNet(nn.Module):
    """Maps images [N, channels, H, W] to logits [N, classes, H, W]. Unlike in the original,
    convolutions are padded, so that logits have the size of the images, and followed by norms.

    Level i has `widths[i]` channels, and its height and width are H / 2^i and W / 2^i, which must
    be whole numbers.
    """

    def __init__(self, widths: Sequence[int], classes: int, channels: int = 1) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            _two_convolutions(*pair) for pair in pairwise([channels, *widths])
        )
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
