"""The examples of one split: in memory, from files, or generated."""

from __future__ import annotations

import ctypes
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from orchestrator.records import BadInput
from orchestrator.workloads.augmentation import Augment, Batch

Draw = tuple[Tensor, ...]
"""Indices of examples (int64) and, for a split that is `seeded`, a seed for each."""

EXAMPLES_AT_ONCE = 128
"""The fewest that a worker process delivers at once."""

PR_SET_PDEATHSIG = 1
"""From Linux's <sys/prctl.h>."""

MEMORY_SHARE = 0.5
"""The share of a GPU's free memory that a split may fill."""


class Split(ABC):
    """What is drawn from it is a function of the arguments alone."""

    size: int | None
    """How many examples there are; None for an endless stream."""
    seeded: bool = False
    """Whether an example drawn for training depends on a seed, too."""

    @abstractmethod
    def batch(self, index: Tensor, seeds: Tensor | None = None) -> Batch:
        """The examples at `index`; as they are, without `seeds`."""

    def batches(self, draws: Iterable[Draw]) -> Iterator[Batch]:
        """One batch for each of `draws`, in their order."""
        return (self.batch(*draw) for draw in draws)

    def to(self, device: torch.device) -> Split:
        """The same split, its batches delivered on `device`."""
        return self

    draws_on: torch.device | None = None
    """Where draws are wanted: the device, for one that gathers there."""


class Subset(Split):
    """The examples of a split at some indices."""

    def __init__(self, split: Split, index: Tensor) -> None:
        self.split, self.index = split, index.to(split.draws_on)
        self.size: int | None = len(index)
        self.seeded, self.draws_on = split.seeded, split.draws_on

    def batch(self, index: Tensor, seeds: Tensor | None = None) -> Batch:
        return self.split.batch(self.index[index], seeds)

    def batches(self, draws: Iterable[Draw]) -> Iterator[Batch]:
        return self.split.batches((self.index[index], *seeds) for index, *seeds in draws)

    def to(self, device: torch.device) -> Split:
        return Subset(self.split.to(device), self.index)


class Tensors(Split):
    """A split that fits in memory: tensors of equal length, kept on the device."""

    def __init__(self, *tensors: Tensor, augment: Augment | None = None) -> None:
        lengths = [len(tensor) for tensor in tensors]
        if len(set(lengths)) != 1 or not all(isinstance(tensor, Tensor) for tensor in tensors):
            kinds = sorted({type(tensor).__name__ for tensor in tensors})
            raise BadInput(
                f"The parts of a split must be tensors of equal length, but got {lengths} "
                f"({kinds})."
            )
        self.tensors = tensors
        self.size: int | None = lengths[0]
        self.augment = augment
        self.seeded = augment is not None
        self.draws_on = tensors[0].device

    def batch(self, index: Tensor, seeds: Tensor | None = None) -> Batch:
        batch = tuple(tensor.index_select(0, index) for tensor in self.tensors)
        return batch if seeds is None or self.augment is None else self.augment(batch, seeds)

    def to(self, device: torch.device) -> Split:
        if device.type == "cuda":
            size = sum(tensor.nbytes for tensor in self.tensors)
            if size > MEMORY_SHARE * torch.cuda.mem_get_info(device)[0]:
                assert self.size is not None
                plain = Tensors(*self.tensors)
                return Loaded(plain.batch, self.size, augment=self.augment).to(device)
        return Tensors(*(tensor.to(device) for tensor in self.tensors), augment=self.augment)


class Loaded(Split):
    """A split too large for the device: worker processes fetch batches ahead of their use."""

    def __init__(
        self,
        fetch: Callable[[Tensor], Batch],
        size: int,
        *,
        augment: Augment | None = None,
        fetch_drawn: Callable[[Tensor, Tensor], Batch] | None = None,
        workers: int = 2,
        device: torch.device | None = None,
    ) -> None:
        """`fetch` gives the examples at some indices, in main memory: from a memory-mapped array
        for example. A torch data set has `examples_of` for that. What is drawn for training is
        put through `augment`, or fetched by `fetch_drawn`, which is given seeds as well: for
        random crops of images whose sizes differ."""
        assert augment is None or fetch_drawn is None
        self.size = size
        self.seeded = augment is not None or fetch_drawn is not None
        self._fetched = _Fetched(fetch, augment, fetch_drawn)
        self._workers = workers
        self._device = device or torch.device("cpu")

    def batch(self, index: Tensor, seeds: Tensor | None = None) -> Batch:
        draw = (index.cpu(),) if seeds is None else (index.cpu(), seeds.cpu())
        return self._delivered(self._fetched.fetch(*draw))

    def batches(self, draws: Iterable[Draw]) -> Iterator[Batch]:
        loader: DataLoader[tuple[list[int], Batch | BadInput]] = DataLoader(
            self._fetched,
            batch_size=None,
            sampler=_gathered(draws),
            num_workers=self._workers,
            prefetch_factor=4 if self._workers else None,
            # A process that was spawned would spawn its workers, too: seconds, where forks take
            # milliseconds, and nothing could be fetched that can't be pickled.
            multiprocessing_context="fork" if self._workers else None,
            worker_init_fn=_end_with_parent,
            # Whatever workers draw does not depend on what the process drew before.
            generator=torch.Generator().manual_seed(0),
            pin_memory=self._device.type == "cuda",
        )
        arriving = iter(loader)
        return (batch for sizes, several in arriving for batch in self._cut(sizes, several))

    def to(self, device: torch.device) -> Loaded:
        moved = copy(self)
        moved._device = device
        return moved

    def _cut(self, sizes: list[int], several: Batch | BadInput) -> Iterator[Batch]:
        if isinstance(several, BadInput):
            raise several
        return zip(*(torch.split(t, sizes) for t in self._delivered(several)), strict=True)

    def _delivered(self, batch: Batch) -> Batch:
        return tuple(tensor.to(self._device, non_blocking=True) for tensor in batch)


def _end_with_parent(worker: int) -> None:
    """Has the system end a worker process with its parent. One whose parent was killed in the midst
    of a message would wait for the rest of it for ever."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class _Fetched(Dataset["tuple[list[int], Batch | BadInput]"]):
    """What a worker process runs. Mistakes in data come back as what was fetched: those a worker
    raises arrive with its traceback around them."""

    def __init__(
        self,
        fetch: Callable[[Tensor], Batch],
        augment: Augment | None,
        fetch_drawn: Callable[[Tensor, Tensor], Batch] | None,
    ) -> None:
        self._fetch, self._augment, self._fetch_drawn = fetch, augment, fetch_drawn

    def __getitem__(self, request: tuple[list[int], Draw]) -> tuple[list[int], Batch | BadInput]:
        sizes, draw = request
        try:
            return sizes, self.fetch(*draw)
        except BadInput as error:
            return sizes, error

    def fetch(self, index: Tensor, seeds: Tensor | None = None) -> Batch:
        if seeds is not None and self._fetch_drawn is not None:
            return self._fetch_drawn(index, seeds)
        batch = self._fetch(index)
        return batch if seeds is None or self._augment is None else self._augment(batch, seeds)


def _gathered(draws: Iterable[Draw]) -> Iterator[tuple[list[int], Draw]]:
    """Small draws, several at once: handing a batch from one process to another takes longer than
    a small step. Their sizes come along."""
    waiting: list[Draw] = []
    for draw in draws:
        waiting.append(draw)
        # Each counts at least once: a rank may have nothing to draw, step after step.
        if sum(max(1, len(part[0])) for part in waiting) >= EXAMPLES_AT_ONCE:
            yield _joined(waiting)
            waiting = []
    if waiting:
        yield _joined(waiting)


def _joined(draws: list[Draw]) -> tuple[list[int], Draw]:
    return [len(draw[0]) for draw in draws], tuple(map(torch.cat, zip(*draws, strict=True)))


def examples_of(dataset: Sequence[Any]) -> Callable[[Tensor], Batch]:
    """For `Loaded`: the examples of anything that gives them one by one, as torch data sets do.
    Random transforms belong into `augment`, whose random numbers are the example's own."""

    def fetch(index: Tensor) -> Batch:
        # Of nothing there is nothing to collate, but it has a shape.
        examples = [dataset[i] for i in index.tolist() or [0]]
        return tuple(part[: len(index)] for part in default_collate(examples))

    return fetch
