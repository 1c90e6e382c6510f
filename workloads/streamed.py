"""Rows that can only be read in order, such as those of shards or of Hugging Face's streams."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from orchestrator.records import BadInput
from orchestrator.workloads.examples import Collate
from orchestrator.workloads.splits import Loaded


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
