"""Splits, which give the examples of a data set: from memory, from files, or generated."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from orchestrator.records import BadInput, wrong_value
from orchestrator.workloads.augmentation import Augment
from orchestrator.workloads.examples import Collate, MapStyle, examples_of, random_examples_of
from orchestrator.workloads.trees import Batch, checked, described, divided, joined, leaves, mapped

Draw = tuple[Tensor, ...]
"""Indices of examples (int64) and, for a split that is `seeded`, a seed for each example."""

EXAMPLES_AT_ONCE = 128
"""Smallest number of examples that a worker process delivers at once."""
MOST_AT_ONCE = 512
"""Largest number of examples that a worker process delivers at once. Several deliveries wait in
shared memory, which whole batches of thousands of images would fill."""

PR_SET_PDEATHSIG = 1
"""The constant of this name in Linux's <sys/prctl.h>."""

MEMORY_SHARE = 0.5
"""Largest share of a GPU's free memory that a split may fill."""


class Split(ABC):
    """The examples of one part of a data set. The batches it returns are a function of the
    arguments alone."""

    size: int | None
    """Number of examples; None for an endless stream."""
    seeded: bool = False
    """Whether an example that is drawn for training also depends on a seed."""
    fetches: bool = False
    """Whether batches are fetched from outside of memory, ahead of time."""

    @abstractmethod
    def batch(self, index: Tensor, seeds: Tensor | None = None) -> Batch:
        """Returns the examples at `index`. Without `seeds` they are not augmented."""

    def batches(self, draws: Iterable[Draw]) -> Iterator[Batch]:
        """Yields one batch for each of `draws`, in their order."""
        return (self.batch(*draw) for draw in draws)

    def to(self, device: torch.device) -> Split:
        """Returns the same split, which delivers its batches on `device`."""
        return self

    draws_on: torch.device | None = None
    """The device on which `batch` expects indices and seeds; None: any. A split whose examples are
    on a device gathers them there."""


class Subset(Split):
    """The examples of another split at the given indices, or where a mask is true."""

    def __init__(self, split: Split, index: Tensor | Sequence[int]) -> None:
        if not isinstance(split, Split):
            rule = "a part of a split, such as Loaded(data_set)"  # type: ignore[unreachable]
            raise wrong_value("A `Subset`", rule, split)
        chosen = torch.as_tensor(index)
        if chosen.dtype == torch.bool:  # a list of rows would take True for 1
            chosen = chosen.nonzero().flatten()
        if split.size and len(chosen) and (most := int(chosen.max())) >= split.size:
            raise wrong_value("An index of a `Subset`", f"below {split.size:,}", most)
        self.split, self.index = split, chosen.to(split.draws_on)
        self.size: int | None = len(chosen)
        self.seeded, self.draws_on = split.seeded, split.draws_on

    def batch(self, index: Tensor, seeds: Tensor | None = None) -> Batch:
        return self.split.batch(self.index[index], seeds)

    def batches(self, draws: Iterable[Draw]) -> Iterator[Batch]:
        return self.split.batches((self.index[index], *seeds) for index, *seeds in draws)

    def to(self, device: torch.device) -> Split:
        return Subset(self.split.to(device), self.index)


def source_of(split: Split) -> Split:
    """Returns the split whose examples these are."""
    return source_of(split.split) if isinstance(split, Subset) else split


def first(split: Split, count: int) -> Split:
    """Returns the first `count` examples of the split, or all if it has fewer or is endless."""
    if split.size is None:
        return split
    return Subset(split, torch.arange(min(count, split.size), device=split.draws_on))


class Tensors(Split):
    """A split that fits in memory: tensors of equal length that stay on the device. A batch of
    `Tensors(inputs, labels)` is a tuple, a batch of `Tensors({"x": inputs, "labels": labels})` is a
    dict, and so on for any tree of tensors."""

    def __init__(self, *parts: Batch, augment: Augment | None = None) -> None:
        is_tree = len(parts) == 1 and not isinstance(parts[0], Tensor)
        self.tensors: Batch = parts[0] if is_tree else parts
        self.size: int | None = _common_length(self.tensors)
        self.augment = augment
        self.seeded = augment is not None
        self.draws_on = next(leaf.device for _, leaf in leaves(self.tensors))

    def batch(self, index: Tensor, seeds: Tensor | None = None) -> Batch:
        batch = mapped(lambda tensor: tensor.index_select(0, index), self.tensors)
        if seeds is None or self.augment is None:
            return batch
        return checked(self.augment(batch, seeds), len(index), "`augment`")

    def to(self, device: torch.device) -> Split:
        if device.type == "cuda":
            size = sum(tensor.nbytes for _, tensor in leaves(self.tensors))
            if size > MEMORY_SHARE * torch.cuda.mem_get_info(device)[0]:
                assert self.size is not None
                plain = Tensors(self.tensors)
                return Loaded(plain.batch, self.size, augment=self.augment).to(device)
        return Tensors(mapped(lambda tensor: tensor.to(device), self.tensors), augment=self.augment)


def _common_length(tensors: Batch) -> int:
    found = [*leaves(tensors)]
    if any(not isinstance(leaf, Tensor) or not leaf.dim() for _, leaf in found) or (
        len({len(leaf) for _, leaf in found}) != 1
    ):
        kinds = ", ".join(f"{path or 'all'}: {described(leaf)}" for path, leaf in found)
        raise BadInput(
            f"The parts of a split must be tensors of equal length, but are {kinds or 'none'}. "
            "Use Loaded for a data set that returns its examples one by one.",
            code="wrong-data",
        )
    return len(found[0][1])


class Loaded(Split):
    """A split that is too large for the device, or whose examples are made one by one. Worker
    processes fetch batches before they are needed."""

    fetches = True

    def __init__(
        self,
        source: MapStyle | Callable[[Tensor], Batch],
        size: int | None = None,
        *,
        collate: Collate | None = None,
        random_rows: bool = False,
        augment: Augment | None = None,
        fetch_drawn: Callable[[Tensor, Tensor], Batch] | None = None,
        workers: int = 2,
    ) -> None:
        """`source` is a map-style data set, such as torch's and Hugging Face's, whose rows are
        tuples, dicts or nested trees of tensors, arrays and numbers. The rows are stacked to a
        batch of the same structure, or combined by `collate`, which gets a list of rows. If the
        rows draw random numbers, `random_rows` makes these numbers depend on the trial's seed, the
        epoch and the example alone.

        Or `source` is a function that takes indices and returns the batch at these indices in main
        memory, for example from a memory-mapped array. Then `size` is the number of examples.

        Examples that are drawn for training are passed through `augment`, or fetched by
        `fetch_drawn`, which also gets their seeds. `fetch_drawn` is for random crops of images of
        different sizes."""
        assert fetch_drawn is None or (augment is None and not random_rows)
        # `collate` may pad to the longest row of a batch. That length must not depend on other
        # batches, so each batch is fetched alone, and whole.
        self._least = EXAMPLES_AT_ONCE if collate is None else 1
        self._most = MOST_AT_ONCE if collate is None else None
        if size is None:
            dataset: Any = source
            source, size = examples_of(dataset, collate), len(dataset)
            if random_rows:
                source = fetch_drawn = random_examples_of(dataset, collate)
        elif collate is not None or random_rows or not callable(source):
            raise BadInput(
                "Loaded takes a data set, with or without `collate` and `random_rows`, or a "
                f"function and the number of examples, but got {described(source)} and {size}.",
                code="wrong-data",
            )
        self.size = size
        self.seeded = augment is not None or fetch_drawn is not None
        self._fetched = _Fetched(source, augment, fetch_drawn)
        self._workers = workers if sys.platform == "linux" else 0  # macOS breaks what is forked
        self._device = torch.device("cpu")

    def batch(self, index: Tensor, seeds: Tensor | None = None) -> Batch:
        draw = (index.cpu(),) if seeds is None else (index.cpu(), seeds.cpu())
        return self._delivered(self._fetched.fetch(*draw))

    def batches(self, draws: Iterable[Draw]) -> Iterator[Batch]:
        loader: DataLoader[tuple[list[int], Batch | BadInput]] = DataLoader(
            self._fetched,
            batch_size=None,
            sampler=_gathered(draws, self._least, self._most),
            num_workers=self._workers,
            prefetch_factor=4 if self._workers else None,
            # In a process that was spawned, the default is to spawn workers, too. That takes
            # seconds instead of a fork's milliseconds, and the data set would have to be picklable.
            multiprocessing_context="fork" if self._workers else None,
            worker_init_fn=_end_with_parent,
            # Random numbers of workers must not depend on numbers that this process drew before.
            generator=torch.Generator().manual_seed(0),
            pin_memory=self._device.type == "cuda",
        )
        arriving = iter(loader)  # workers start now, and not within the first step

        def batches() -> Iterator[Batch]:
            parts: list[Batch] = []
            for sizes, fetched in arriving:
                if isinstance(fetched, BadInput):
                    raise fetched
                parts.append(self._delivered(fetched))
                if sizes:
                    yield from divided(joined(parts), sizes)
                    parts = []

        return batches()

    def to(self, device: torch.device) -> Loaded:
        moved = copy(self)
        moved._device = device
        return moved

    def _delivered(self, batch: Batch) -> Batch:
        return mapped(lambda tensor: tensor.to(self._device, non_blocking=True), batch)


def _end_with_parent(worker: int) -> None:
    """Makes the operating system end a worker process when its parent ends. Without this, a worker
    whose parent was killed in the middle of a message would wait for the rest of it for ever."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@dataclass(eq=False)
class _Fetched(Dataset["tuple[list[int], Batch | BadInput]"]):
    """The data set that worker processes read. It returns errors in the data (`BadInput`) in place
    of batches: the message of an exception raised in a worker would hold the worker's traceback."""

    source: Callable[[Tensor], Batch]
    augment: Augment | None
    fetch_drawn: Callable[[Tensor, Tensor], Batch] | None

    def __getitem__(self, request: tuple[list[int], Draw]) -> tuple[list[int], Batch | BadInput]:
        sizes, draw = request
        try:
            return sizes, self.fetch(*draw)
        except BadInput as error:
            return sizes, error

    def fetch(self, index: Tensor, seeds: Tensor | None = None) -> Batch:
        count = len(index)
        if seeds is not None and self.fetch_drawn is not None:
            batch = checked(self.fetch_drawn(index, seeds), count, "`fetch_drawn`")
        else:
            batch = checked(self.source(index), count, "`fetch`")
        if seeds is None or self.augment is None:
            return batch
        return checked(self.augment(batch, seeds), count, "`augment`")


def _gathered(
    draws: Iterable[Draw], least: int, most: int | None
) -> Iterator[tuple[list[int], Draw]]:
    """Joins small draws until they have at least `least` examples. Handing a batch from one process
    to another takes longer than a small step."""
    waiting: list[Draw] = []
    for draw in draws:
        waiting.append(draw)
        # An empty draw counts as one example: a rank may have nothing to draw in many steps.
        if sum(max(1, len(part[0])) for part in waiting) >= least:
            yield from _requests(waiting, most)
            waiting = []
    if waiting:
        yield from _requests(waiting, most)


def _requests(draws: list[Draw], most: int | None) -> Iterator[tuple[list[int], Draw]]:
    """Yields parts of at most `most` examples of the joined draws. The last part comes with the
    sizes of the draws, the others come without."""
    whole = joined(draws)
    *parts, last = [whole] if most is None else divided(whole, most)
    yield from (([], part) for part in parts)
    yield [len(draw[0]) for draw in draws], last


class Streamed(Loaded):
    """An endless training split that is read in order. A worker process reads ahead. Every trial
    gets the same rows in the same order, whatever its seed. A rank reads the rows of all ranks."""

    def __init__(
        self, rows_from: Callable[[int], Iterable[Any]], *, collate: Collate | None = None
    ) -> None:
        """`rows_from(position)` returns all rows from this position on, always the same ones. After
        a kill, it is called with the position of the next row, and need not read those before it if
        it can find that place in another way. Rows are stacked, or combined by `collate`."""
        super().__init__(_Rows(rows_from), collate=collate, workers=1)
        self.size = None


class _Rows:
    """A map-style data set whose rows are asked for in order."""

    def __init__(self, rows_from: Callable[[int], Iterable[Any]]) -> None:
        self._rows_from = rows_from
        self._rows: Iterator[Any] = iter(())
        self._next = self._process = 0
        self._first: list[Any] = []

    def __len__(self) -> int:
        return 1

    def __getitem__(self, number: int) -> Any:
        if number == 0:
            # Batches without examples ask for this row, too, and must not move the place of others.
            found = self._first = self._first or [*islice(self._rows_from(0), 1)]
        else:
            # A process that was forked shares the places in open files with its parent.
            if number < self._next or self._process != os.getpid():
                self._rows, self._next = iter(self._rows_from(number)), number
                self._process = os.getpid()
            skipped, self._next = number - self._next, number + 1
            found = [*islice(self._rows, skipped, skipped + 1)]
        if not found:
            raise BadInput(
                f"The rows of a Streamed split must not end, but they end before row {number:,}. "
                "Let `rows_from` begin again behind the last row.",
                code="too-few",
            )
        return found[0]
