"""Computes gradients of single examples or of chunks, and the sums that `estimates` needs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import torch
from torch import Tensor
from torch.func import grad, vmap

from orchestrator.noise.estimates import CHUNKS, Sample, Vector

LEAST_CHUNKS = 8
"""Smallest number of chunks of a sample."""
CHUNKS_BYTES = {"cpu": 2**30, "cuda": 2**33}
"""Largest number of bytes of the gradients of all chunks. A larger model has fewer chunks."""

BYTES_AT_ONCE = {"cpu": 2**26, "cuda": 2**30}
"""Largest number of bytes of the gradients of examples that are computed together."""

Weights = Mapping[str, Tensor]


def chunks_for(weights: Collection[Tensor]) -> int:
    device = next(iter(weights)).device.type
    return max(LEAST_CHUNKS, min(CHUNKS, CHUNKS_BYTES[device] // _bytes(weights)))


def per_example(
    loss: Callable[[Weights, Sequence[Tensor]], Tensor],
    weights: Weights,
    parts: Sequence[Tensor],
    at_once: int | None = None,
    pulse: Callable[[], None] = lambda: None,
) -> Sample:
    """Returns a sample. `loss` computes the loss of one example, from `parts` without their first
    dimension. At most `at_once` examples are computed together."""
    like, count = next(iter(weights.values())), len(parts[0])
    chunks = min(chunks_for(weights.values()), count)
    numbers = torch.arange(count, device=like.device) * chunks // count
    # Gradients are added up for each weight separately: concatenating the gradients of all examples
    # would take most of the time of a small model.
    sums = [weight.new_zeros(chunks, weight.numel()) for weight in weights.values()]
    squares = torch.zeros(chunks, dtype=torch.float64, device=like.device)
    gradient = vmap(grad(loss), in_dims=(None, 0), randomness="different")
    most = max(1, BYTES_AT_ONCE[like.device.type] // _bytes(weights.values()))
    pieces = (torch.split(tensor, min(at_once or most, most)) for tensor in (numbers, *parts))
    for chunk_of, *piece in zip(*pieces, strict=True):
        pulse()
        found = gradient(weights, piece)
        for total, name in zip(sums, weights, strict=True):
            gradients = found.pop(name).flatten(1)
            total.index_add_(0, chunk_of, gradients)
            lengths = torch.linalg.vector_norm(gradients, dim=1).double()
            squares.index_add_(0, chunk_of, lengths**2)
    size = count / chunks
    rows = torch.cat(sums, dim=1) / size
    return Sample(size=size, products=_products(rows), squares=(squares / size).cpu().numpy())


def per_chunk(gradients: Iterable[Sequence[Tensor]], size: int) -> Sample:
    """A sample from the mean `gradients` of chunks of `size` examples."""
    rows = torch.stack([torch.cat([part.flatten() for part in parts]) for parts in gradients])
    return Sample(size=size, products=_products(rows))


def _products(rows: Tensor) -> Vector:
    products: Vector = (rows @ rows.T).double().cpu().numpy()
    return products


def _bytes(weights: Collection[Tensor]) -> int:
    return sum(weight.nbytes for weight in weights)
