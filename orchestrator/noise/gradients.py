"""Computes gradients of single examples or of chunks, and keeps what `estimates` needs of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import torch
from torch import Tensor
from torch.func import grad, vmap

from orchestrator.noise.estimates import CHUNKS, Sample, Vector

LEAST_CHUNKS = 8
CHUNKS_BYTES = {"cpu": 2**30, "cuda": 2**33}
"""So much the gradients of all chunks may take; of a larger model there are fewer chunks."""

BYTES_AT_ONCE = {"cpu": 2**26, "cuda": 2**30}
"""And so much those of the examples that are looked at together."""

Weights = Mapping[str, Tensor]
Scales = Sequence[Tensor | None]
"""What gradients are multiplied with, each in one row; None: as they are."""


def chunks_for(weights: Collection[Tensor]) -> int:
    """How many chunks a sample is cut into."""
    device = next(iter(weights)).device.type
    return max(LEAST_CHUNKS, min(CHUNKS, CHUNKS_BYTES[device] // _bytes(weights)))


def per_example(
    loss: Callable[[Weights, Sequence[Tensor]], Tensor],
    weights: Weights,
    parts: Sequence[Tensor],
    scales: Scales = (None,),
    at_once: int | None = None,
    pulse: Callable[[], None] = lambda: None,
) -> list[Sample]:
    """A sample for each of `scales`. `loss` is that of one example, whose tensors lack the
    dimension that `parts` have first; at most so many `at_once`."""
    like, count = next(iter(weights.values())), len(parts[0])
    chunks = min(chunks_for(weights.values()), count)
    numbers = torch.arange(count, device=like.device) * chunks // count
    # Weight by weight: to lay the gradients of all examples side by side would take most of the
    # time of a small model.
    sums = [weight.new_zeros(chunks, weight.numel()) for weight in weights.values()]
    sizes = [weight.numel() for weight in weights.values()]
    cut = [None if scale is None else torch.split(scale, sizes) for scale in scales]
    squares = [torch.zeros(chunks, dtype=torch.float64, device=like.device) for _ in scales]
    gradient = vmap(grad(loss), in_dims=(None, 0), randomness="different")
    most = max(1, BYTES_AT_ONCE[like.device.type] // _bytes(weights.values()))
    pieces = (torch.split(tensor, min(at_once or most, most)) for tensor in (numbers, *parts))
    for chunk_of, *piece in zip(*pieces, strict=True):
        pulse()
        found = gradient(weights, piece)
        for place, name in enumerate(weights):
            gradients = found.pop(name).flatten(1)
            sums[place].index_add_(0, chunk_of, gradients)
            for scale, total in zip(cut, squares, strict=True):
                scaled = gradients if scale is None else gradients * scale[place]
                lengths = torch.linalg.vector_norm(scaled, dim=1).double()
                total.index_add_(0, chunk_of, lengths**2)
    size = count / chunks
    rows = torch.cat(sums, dim=1) / size
    return [
        Sample(size=size, products=_products(rows, scale), squares=(total / size).cpu().numpy())
        for scale, total in zip(scales, squares, strict=True)
    ]


def per_chunk(
    gradients: Iterable[Sequence[Tensor]], size: int, scales: Scales = (None,)
) -> list[Sample]:
    """The same from the mean `gradients` of chunks of one size."""
    rows = torch.stack([torch.cat([part.flatten() for part in parts]) for parts in gradients])
    return [Sample(size=size, products=_products(rows, scale)) for scale in scales]


def _products(rows: Tensor, scale: Tensor | None) -> Vector:
    scaled = rows if scale is None else rows * scale
    products: Vector = (scaled @ scaled.T).double().cpu().numpy()
    return products


def _bytes(weights: Collection[Tensor]) -> int:
    return sum(weight.nbytes for weight in weights)
