"""The side channel of a sweep. It tells running trials the bounds of the race at once, and keeps
the last words of processes that end themselves."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator.sweeping.executor import LAST_WORDS_SECONDS, between_looks

if TYPE_CHECKING:
    from orchestrator.search import Bounds
    from orchestrator.sweeping.executor import Failure


class _Board:
    """Holds the bounds of every study and sends new ones to those who wait for them."""

    def __init__(self) -> None:
        self._news: list[tuple[str, Bounds]] = []
        self._more = asyncio.Event()
        self._last_words: dict[int, str] = {}
        self._moved: set[int] = set()
        self._ending = asyncio.Event()

    async def end(self) -> None:
        self._ending.set()

    async def ended(self) -> None:
        """Waits until the sweep is to end."""
        await self._ending.wait()

    async def post(self, study: str, bounds: Bounds) -> None:
        self._news.append((study, bounds))
        self._more.set()
        self._more = asyncio.Event()

    async def after(self, count: int) -> tuple[int, dict[str, Bounds]]:
        """Waits for messages after the first `count`. Returns their total number and the bounds
        that were posted."""
        while len(self._news) <= count:
            await self._more.wait()
        return len(self._news), dict(self._news[count:])

    async def moves(self, serial: int) -> None:
        self._moved.add(serial)

    async def moved_since(self) -> set[int]:
        """The packs that have made a step since the last call."""
        moved, self._moved = self._moved, set()
        return moved

    async def leave(self, serial: int, words: str) -> None:
        self._last_words[serial] = words

    async def last_words(self, serial: int) -> str | None:
        return self._last_words.pop(serial, None)


def open_board() -> Any:
    """Starts the board on the machine of the driver."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor = ray.remote(_Board).options(num_cpus=0, max_concurrency=10_000, scheduling_strategy=here)
    return actor.remote()


LOOK_SECONDS = 0.05
"""Time between two looks at what has arrived."""


class Listener:
    """The messages of the board that have arrived. Reading them never waits."""

    def __init__(self, board: Any) -> None:
        self._board = board
        self._known: dict[str, Bounds] = {}
        self._coming = board.after.remote(0)
        self._looked = 0.0

    def bounds(self, study: str) -> Bounds | None:
        # The trials of a stack ask one after another, and looking takes as long as some steps.
        if (now := time.monotonic()) < self._looked + LOOK_SECONDS:
            return self._known.get(study)
        self._looked = now
        while self._coming is not None and ray.wait([self._coming], timeout=0)[0]:
            try:
                count, news = ray.get(self._coming)
            except RayError:
                # Without the board, trials only train longer than necessary.
                self._coming = None
                break
            self._known.update(news)
            self._coming = self._board.after.remote(count)
        return self._known.get(study)


class Watchdog:
    """Ends this process if a trial makes no step for `seconds`, and leaves the trial's stack trace
    on the board. No gentler way reaches code that waits for ever. The board also hears that steps
    are made, because a process that is stopped as a whole can't end itself: then the dispatcher
    does."""

    def __init__(self, board: Any, seconds: float | None) -> None:
        self._board = board
        self._moved = self._told = time.monotonic()
        self._serial: int | None = None
        self._main = threading.get_ident()
        if seconds is not None:
            threading.Thread(target=self._watch, args=(seconds,), daemon=True).start()

    def pulse(self) -> None:
        self._moved = time.monotonic()

    @contextmanager
    def watching(self, serial: int) -> Iterator[None]:
        self.pulse()
        self._serial, self._main = serial, threading.get_ident()
        try:
            yield
        finally:
            self._serial = None

    def _watch(self, seconds: float) -> None:
        silent, looked = 0.0, time.monotonic()
        while True:
            time.sleep(between_looks(seconds))
            serial, moved, now = self._serial, self._moved, time.monotonic()
            # Time in which this process was stopped, as a queue stops whole jobs, is no silence.
            silent, looked = silent + min(now - looked, seconds / 2), now
            if serial is None or moved != self._told:
                silent, self._told = 0.0, moved
                if serial is not None:
                    self._board.moves.remote(serial)
            if silent <= seconds:
                continue
            stack = "".join(traceback.format_stack(sys._current_frames()[self._main]))
            words = f"{stack}the trial took no step for {seconds:g} seconds and was ended"
            try:
                ray.get(self._board.leave.remote(serial, words), timeout=LAST_WORDS_SECONDS)
            finally:
                os._exit(1)


def last_words(board: Any, serial: int, failure: Failure) -> Failure:
    """The failure of a pack, with what its process has said before it ended itself."""
    try:
        words: str | None = ray.get(board.last_words.remote(serial), timeout=LAST_WORDS_SECONDS)
    except RayError:
        words = None
    return replace(failure, text=words or failure.text)
