"""Chooses the examples of global batch k: a function of (trial seed, k) alone, which does not
depend on ranks and micro-batches."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from orchestrator.records import Stage, derive_seed
from orchestrator.workloads import Batch, Draw, Split, example_seeds, ghosts

INDICES_AT_ONCE = 4096


class BatchOrder:
    """The global batches of a stage. Each epoch is one permutation of the training set, and batches
    are consecutive runs of examples across epoch boundaries; or they are consecutive runs of an
    endless stream. The example at a position does not depend on the batch sizes before it."""

    def __init__(self, *, size: int | None, stage: Stage, seed: int) -> None:
        assert 1 <= stage.batch_size <= (size or stage.batch_size), (stage, size)
        self._size = size
        self._batch_size = stage.batch_size
        self._shift = stage.from_examples - stage.from_step * stage.batch_size
        """Position at which the batch of step 0 would begin if all steps had this batch size."""
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
        """Yields the draws at positions `start` to `stop` of each of the global `batches`: the
        indices of examples and, if `seeded`, a seed for each, which is different in each epoch.

        Draws are made for many batches at once. For a small model, making them one by one costs a
        tenth of a step.
        """
        at_once = max(1, INDICES_AT_ONCE // self._batch_size)
        for first in range(batches.start, batches.stop, at_once):
            tables = self.tables(range(first, min(first + at_once, batches.stop)), seeded=seeded)
            slices = (moved(table[:, start:stop], device).unbind(0) for table in tables)
            yield from zip(*slices, strict=True)

    def tables(self, batches: range, *, seeded: bool) -> list[Tensor]:
        """Returns tables (batches, examples) of the draws: indices and, if `seeded`, seeds."""
        first = self._shift + batches.start * self._batch_size
        positions = range(first, first + len(batches) * self._batch_size)
        examples = self._examples(positions)
        tables = [examples, self._seeds(positions, examples)] if seeded else [examples]
        return [table.view(len(batches), self._batch_size) for table in tables]

    def _examples(self, positions: range) -> Tensor:
        """Returns the examples at `positions`, which count through all epochs."""
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


def moved(table: Tensor, device: torch.device | None) -> Tensor:
    """Returns the table on the device. A GPU goes on computing while it is copied."""
    if device is None or device.type != "cuda":
        return table.to(device)
    return table.contiguous().pin_memory().to(device, non_blocking=True)


class BatchSlices:
    """This rank's slice of each global batch of a stage, delivered in micro-batches."""

    def __init__(
        self,
        split: Split,
        *,
        stage: Stage,
        until: int,
        seed: int,
        rank: int,
        ranks: int,
        ghost_size: int,
    ) -> None:
        slices = in_slices(stage.batch_size, ranks, ghost_size)
        assert sum(stop - start for start, stop in slices) == stage.batch_size, (slices, stage)
        self._slice = slices[rank]
        self._largest_slice = max(stop - start for start, stop in slices)
        self._split, self._until, self._ghost_size = split, until, ghost_size
        self._order = BatchOrder(size=split.size, stage=stage, seed=seed)
        self.micro_batch: int | None = None
        self.pieces = 1
        """Number of micro-batches in a step."""
        self._batches: Iterator[Batch] = iter([])

    def deliver(self, micro_batch: int | None, *, from_step: int) -> None:
        """Starts delivering at `from_step`, in micro-batches of at most `micro_batch` examples."""
        self.micro_batch = micro_batch
        start, stop = self._slice
        pieces = micro_batches(stop - start, micro_batch, self._ghost_size)
        self.pieces = len(pieces)
        draws: Iterator[Draw] = self._order.walk(
            range(from_step, self._until),
            start,
            stop,
            seeded=self._split.seeded,
            device=self._split.draws_on,
        )
        if self.pieces > 1:
            draws = (tuple(part[a:b] for part in row) for row in draws for a, b in pieces)
        self._batches = self._split.batches(draws)

    def next(self) -> Batch:
        """Returns the next micro-batch."""
        return next(self._batches)

    def halved(self) -> int | None:
        """Returns half the size of the present micro-batch, in whole ghosts; None if there is no
        smaller size. The result is the same on every rank."""
        largest = min(self.micro_batch or self._largest_slice, self._largest_slice)
        return ghosts(largest, self._ghost_size) // 2 * self._ghost_size or None

    def close(self) -> None:
        """Ends the processes that fetch batches ahead."""
        self._batches = iter([])


def in_slices(size: int, pieces: int, ghost_size: int = 1) -> list[tuple[int, int]]:
    """Divides `size` positions into `pieces` runs of whole ghosts, as evenly as possible. Runs may
    be empty. Without batch norm, a ghost is one example."""
    count = ghosts(size, ghost_size)
    edges = [count * piece // pieces for piece in range(pieces + 1)]
    return [(_edge(a, size, ghost_size), _edge(b, size, ghost_size)) for a, b in pairwise(edges)]


def micro_batches(size: int, micro_batch: int | None, ghost_size: int = 1) -> list[tuple[int, int]]:
    """Divides one rank's slice of `size` examples into runs of at most `micro_batch` examples,
    rounded down to whole ghosts. There is at least one run, so that a rank without examples still
    takes part when gradients are averaged."""
    if micro_batch is None or size == 0:
        return [(0, size)]
    count, step = ghosts(size, ghost_size), max(1, micro_batch // ghost_size)
    edges = [*range(0, count, step), count]
    return [(_edge(a, size, ghost_size), _edge(b, size, ghost_size)) for a, b in pairwise(edges)]


def _edge(ghost: int, size: int, ghost_size: int) -> int:
    """Returns the position at which `ghost` begins, and `size` for a ghost past the last one. The
    last ghost may be larger than the others."""
    return size if ghost >= ghosts(size, ghost_size) else ghost * ghost_size
