"""Which examples form global batch k: a function of (trial seed, k) alone, whoever trains it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from orchestrator.records import derive_seed
from orchestrator.workloads import Draw, example_seeds, ghosts

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
        *,
        seeded: bool = False,
        device: torch.device | None = None,
    ) -> Iterator[Draw]:
        """What positions `start` to `stop` of each of the global `batches` draw: the examples'
        indices and, if `seeded`, a seed for each that no other epoch repeats.

        They are made for many batches at once: on a small model, making them one by one costs a
        tenth of a step.
        """
        at_once = max(1, INDICES_AT_ONCE // self._batch_size)
        for first in range(batches.start, batches.stop, at_once):
            last = min(first + at_once, batches.stop)
            positions = range(first * self._batch_size, last * self._batch_size)
            examples = self._examples(positions)
            tables = [examples]
            if seeded:
                tables.append(self._seeds(positions, examples))
            yield from zip(
                *(
                    table.view(last - first, self._batch_size)[:, start:stop].to(device).unbind(0)
                    for table in tables
                ),
                strict=True,
            )

    def _examples(self, positions: range) -> Tensor:
        """The examples at `positions` of the endless row of epochs."""
        first, last = positions.start, positions.stop
        if self._size is None:
            return torch.arange(first, last)
        pieces = []
        for epoch in range(first // self._size, -(-last // self._size)):
            offset = epoch * self._size
            pieces.append(self._permutation(epoch)[max(first - offset, 0) : last - offset])
        return torch.cat(pieces)

    def _seeds(self, positions: range, examples: Tensor) -> Tensor:
        if self._size is None:
            return example_seeds(self._seed, examples)
        epochs = torch.arange(positions.start, positions.stop) // self._size
        return example_seeds(self._seed, epochs * self._size + examples)

    def _permutation(self, epoch: int) -> Tensor:
        if epoch != self._epoch:
            assert self._size is not None
            generator = torch.Generator().manual_seed(derive_seed(self._seed, "order", epoch))
            self._order = torch.randperm(self._size, generator=generator)
            self._epoch = epoch
        return self._order


def cut(size: int, pieces: int, ghost_size: int = 1) -> list[tuple[int, int]]:
    """`size` positions in `pieces` runs of whole ghosts, as even as can be, some of them empty if
    need be. Without batch norm, a ghost is one example."""
    count = ghosts(size, ghost_size)
    edges = [count * piece // pieces for piece in range(pieces + 1)]
    return [(_edge(a, size, ghost_size), _edge(b, size, ghost_size)) for a, b in pairwise(edges)]


def micro_batches(size: int, micro_batch: int | None, ghost_size: int = 1) -> list[tuple[int, int]]:
    """One rank's slice of `size` examples in runs of at most `micro_batch`, rounded down to whole
    ghosts; at least one run, so that a rank with nothing to train still joins the others in
    averaging gradients."""
    if micro_batch is None or size == 0:
        return [(0, size)]
    count, step = ghosts(size, ghost_size), max(1, micro_batch // ghost_size)
    edges = [*range(0, count, step), count]
    return [(_edge(a, size, ghost_size), _edge(b, size, ghost_size)) for a, b in pairwise(edges)]


def _edge(ghost: int, size: int, ghost_size: int) -> int:
    """Where `ghost` begins; past the last one, the end. The last ghost may be a bigger one."""
    return size if ghost >= ghosts(size, ghost_size) else ghost * ghost_size
