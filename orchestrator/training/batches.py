"""Which examples form global batch k: a function of (trial seed, k) alone, whoever trains it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from orchestrator.records import derive_seed

INDICES_AT_ONCE = 4096


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

    def walk(
        self,
        batches: range,
        start: int = 0,
        stop: int | None = None,
        device: torch.device | None = None,
    ) -> Iterator[Tensor]:
        """Example indices of positions `start` to `stop` of each of the global `batches`.

        They are made for many batches at once: on a small model, making them one by one costs a
        tenth of a step.
        """
        at_once = max(1, INDICES_AT_ONCE // self._batch_size)
        for first in range(batches.start, batches.stop, at_once):
            last = min(first + at_once, batches.stop)
            positions = self._positions(first * self._batch_size, last * self._batch_size)
            table = positions.view(last - first, self._batch_size)[:, start:stop]
            yield from table.to(device).unbind(0)

    def _positions(self, first: int, last: int) -> Tensor:
        """The examples at positions `first` to `last` of the endless row of epochs."""
        if self._size is None:
            return torch.arange(first, last)
        pieces = []
        for epoch in range(first // self._size, -(-last // self._size)):
            offset = epoch * self._size
            pieces.append(self._permutation(epoch)[max(first - offset, 0) : last - offset])
        return torch.cat(pieces)

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
