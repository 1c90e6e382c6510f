"""Random changes of examples. They depend on (trial seed, epoch, example) alone, so an example
looks the same on every rank and in every micro-batch.

An augmentation takes a batch and a seed for each of its examples (int64). It returns the batch that
is trained on. It draws random numbers from `uniforms`, never from a generator with state.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from orchestrator.workloads.trees import Batch

Augment = Callable[[Batch, Tensor], Batch]


def example_seeds(seed: int, draws: Tensor) -> Tensor:
    """Returns a seed for each of `draws` (int64). A draw is one number that says which example is
    drawn and in which epoch."""
    return _mixed(draws + seed % 2**62)


def uniforms(seeds: Tensor, count: int) -> Tensor:
    """Returns `count` random numbers for each of `seeds`, uniform in [0, 1): float32, one row per
    seed."""
    streams = _mixed(torch.arange(1, count + 1, device=seeds.device))
    bits = _mixed(seeds[:, None] ^ streams)
    return ((bits >> 40) & 0xFFFFFF).to(torch.float32) / 2**24


def _mixed(numbers: Tensor) -> Tensor:
    """Applies the finaliser of SplitMix64 (Steele, Lea, Flood 2014), which makes neighbouring
    numbers unrelated. Products wrap around in int64; masks make arithmetic shifts logical."""
    numbers = numbers * -7046029254386353131  # the odd number nearest to 2^64 / golden ratio
    numbers = (numbers ^ ((numbers >> 30) & (2**34 - 1))) * -4658895280553007687
    numbers = (numbers ^ ((numbers >> 27) & (2**37 - 1))) * -7723592293110705685
    return numbers ^ ((numbers >> 31) & (2**33 - 1))


def random_flip(images: Tensor, uniform: Tensor) -> Tensor:
    """Mirrors the images [N, C, H, W] left to right where `uniform` [N] is below 0.5."""
    mirrored = (uniform < 0.5).view(-1, 1, 1, 1)
    return torch.where(mirrored, images.flip(3), images)


def random_shift(images: Tensor, uniform: Tensor, pixels: int) -> Tensor:
    """Moves the images [N, C, H, W] by up to `pixels` in each direction and fills the border with
    zeros: the usual padding and random crop. `uniform` [N, 2] says how far down and right."""
    height, width = images.shape[2:]
    padded = functional.pad(images, [pixels] * 4)
    shift = (uniform * (2 * pixels + 1)).to(torch.int64)
    rows = shift[:, :1] + torch.arange(height, device=images.device)
    columns = shift[:, 1:] + torch.arange(width, device=images.device)
    number = torch.arange(len(images), device=images.device).view(-1, 1, 1)
    moved = padded.permute(0, 2, 3, 1)[number, rows[:, :, None], columns[:, None, :]]
    return moved.permute(0, 3, 1, 2).contiguous()
