"""Computes gradients of single examples or of chunks, and the sums that `estimates` needs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from orchestrator.noise.estimates import CHUNKS, Sample, Vector

LEAST_CHUNKS = 8
"""Smallest number of chunks of a sample."""
CHUNKS_BYTES = {"cpu": 2**30, "cuda": 2**33}
"""Largest number of bytes of the gradients of all chunks. A larger model has fewer chunks."""

BYTES_AT_ONCE = {"cpu": 2**26, "cuda": 2**30}
"""Largest number of bytes of the gradients of examples that are computed together."""

Weights = Mapping[str, Tensor]
Scales = Sequence[Tensor | None]
"""Factors on gradients, each a vector with one factor per weight; None: no scaling."""


def of_norms(modules: Iterable[nn.Module]) -> set[int]:
    """Returns the identities of the scales and shifts of norm layers, of whatever library."""
    norms = [module for module in modules if "norm" in type(module).__name__.lower()]
    return {id(p) for norm in norms for p in norm.parameters(recurse=False) if p.dim() < 2}


def chunks_for(weights: Collection[Tensor]) -> int:
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
    """Returns a sample for each of `scales`. `loss` computes the loss of one example, from `parts`
    without their first dimension. At most `at_once` examples are computed together."""
    like, count = next(iter(weights.values())), len(parts[0])
    chunks = min(chunks_for(weights.values()), count)
    numbers = torch.arange(count, device=like.device) * chunks // count
    # Gradients are added up for each weight separately: concatenating the gradients of all examples
    # would take most of the time of a small model.
    sums = [weight.new_zeros(chunks, weight.numel()) for weight in weights.values()]
    sizes = [weight.numel() for weight in weights.values()]
    factors = [None if scale is None else torch.split(scale, sizes) for scale in scales]
    used = [
        [factor is None or bool(factor[n].any()) for n in range(len(sizes))] for factor in factors
    ]
    squares = [torch.zeros(chunks, dtype=torch.float64, device=like.device) for _ in scales]
    gradient = vmap(grad(loss), in_dims=(None, 0), randomness="different")
    most = max(1, BYTES_AT_ONCE[like.device.type] // _bytes(weights.values()))
    pieces = (torch.split(tensor, min(at_once or most, most)) for tensor in (numbers, *parts))
    for chunk_of, *piece in zip(*pieces, strict=True):
        pulse()
        found = gradient(weights, piece)
        for number, name in enumerate(weights):
            gradients = found.pop(name).flatten(1)
            sums[number].index_add_(0, chunk_of, gradients)
            for factor, is_used, total in zip(factors, used, squares, strict=True):
                if not is_used[number]:
                    continue
                scaled = gradients if factor is None else gradients * factor[number]
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
    """A sample for each of `scales`, from the mean `gradients` of chunks of `size` examples."""
    rows = torch.stack([torch.cat([part.flatten() for part in parts]) for parts in gradients])
    return [Sample(size=size, products=_products(rows, scale)) for scale in scales]


def _products(rows: Tensor, scale: Tensor | None) -> Vector:
    scaled = rows if scale is None else rows * scale
    products: Vector = (scaled @ scaled.T).double().cpu().numpy()
    return products


def _bytes(weights: Collection[Tensor]) -> int:
    return sum(weight.nbytes for weight in weights)
