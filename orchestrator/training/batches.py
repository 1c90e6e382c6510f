"""Which examples form global batch k: a function of (trial seed, k) alone, whoever trains it."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from orchestrator.records import derive_seed


class BatchOrder:
    """Global batches of `batch_size`: cut from one permutation of the training set per epoch,
    across epoch boundaries, or one after another from an endless stream."""

    def __init__(self, *, size: int | None, batch_size: int, seed: int) -> None:
        assert 1 <= batch_size <= (size or batch_size), (batch_size, size)
        self._size = size
        self._batch_size = batch_size
        self._seed = seed
        self._epoch = -1
        self._order = torch.empty(0, dtype=torch.int64)

    def indices(self, k: int, start: int = 0, stop: int | None = None) -> Tensor:
        """Example indices of positions `start` to `stop` of global batch `k`."""
        first = k * self._batch_size + start
        last = k * self._batch_size + (self._batch_size if stop is None else stop)
        if self._size is None:
            return torch.arange(first, last)
        epoch, offset = divmod(first, self._size)
        if offset + last - first <= self._size:
            return self._permutation(epoch)[offset : offset + last - first]
        here = self._permutation(epoch)[offset:]
        return torch.cat([here, self._permutation(epoch + 1)[: last - first - len(here)]])

    def _permutation(self, epoch: int) -> Tensor:
        if epoch != self._epoch:
            assert self._size is not None
            generator = torch.Generator().manual_seed(derive_seed(self._seed, "order", epoch))
            self._order = torch.randperm(self._size, generator=generator)
            self._epoch = epoch
        return self._order


def cut(size: int, pieces: int) -> list[tuple[int, int]]:
    """`size` positions in `pieces` runs as even as can be, some of them empty if need be."""
    edges = [size * piece // pieces for piece in range(pieces + 1)]
    return list(pairwise(edges))


def micro_batches(size: int, micro_batch: int | None) -> list[tuple[int, int]]:
    """One rank's slice of `size` examples in runs of at most `micro_batch`; at least one run, so
    that a rank with nothing to train still joins the others in averaging gradients."""
    if micro_batch is None or size == 0:
        return [(0, size)]
    return [(start, min(start + micro_batch, size)) for start in range(0, size, micro_batch)]
