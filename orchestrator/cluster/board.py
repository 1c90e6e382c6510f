"""The side channel of a sweep. It tells running trials the bounds of the race at once, and keeps
the last words of processes that end themselves."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

if TYPE_CHECKING:
    from orchestrator.search import Bounds


LAST_WORDS_SECONDS = 10.0


class _Board:
    """Holds the bounds of every study and sends new ones to those who wait for them."""

    def __init__(self) -> None:
        self._news: list[tuple[int, Bounds]] = []
        self._more = asyncio.Event()
        self._last_words: dict[tuple[int, ...], str] = {}
        self._moves: Counter[tuple[int, ...]] = Counter()

    async def post(self, study: int, bounds: Bounds) -> None:
        self._news.append((study, bounds))
        self._more.set()
        self._more = asyncio.Event()

    async def after(self, count: int) -> tuple[int, dict[int, Bounds]]:
        """Waits for messages after the first `count`. Returns their total number and the bounds
        that were posted."""
        while len(self._news) <= count:
            await self._more.wait()
        return len(self._news), dict(self._news[count:])

    async def moved(self, trial: tuple[int, ...]) -> None:
        self._moves[trial] += 1

    async def moves(self) -> Mapping[tuple[int, ...], int]:
        return self._moves

    async def leave(self, trial: tuple[int, ...], words: str) -> None:
        self._last_words[trial] = words

    async def last_words(self, trial: tuple[int, ...]) -> str | None:
        return self._last_words.pop(trial, None)


def open_board() -> Any:
    """Starts the board on the machine of the driver."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor = ray.remote(_Board).options(num_cpus=0, max_concurrency=10_000, scheduling_strategy=here)
    return actor.remote()


class Listener:
    """The messages of the board that have arrived. Reading them never waits."""

    def __init__(self, board: Any) -> None:
        self._board = board
        self._known: dict[int, Bounds] = {}
        self._coming = board.after.remote(0)

    def bounds(self, study: int) -> Bounds | None:
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
    on the board. No gentler way reaches code that waits for ever. Each step is reported to the
    board, too, because a process that is stopped as a whole can't end itself; see `Silence`."""

    def __init__(self, board: Any, seconds: float | None) -> None:
        self._board, self._seconds = board, seconds
        self._moved = self._told = time.monotonic()
        self._trial: tuple[int, ...] | None = None
        self._main = threading.get_ident()
        if seconds is not None:
            threading.Thread(target=self._watch, args=(seconds,), daemon=True).start()

    def pulse(self) -> None:
        self._moved = time.monotonic()

    @contextmanager
    def over(self, trial: tuple[int, ...]) -> Iterator[None]:
        self.pulse()
        self._trial, self._main = trial, threading.get_ident()
        try:
            yield
        finally:
            self._trial = None

    def _watch(self, seconds: float) -> None:
        while True:
            time.sleep(_between_looks(seconds))
            trial, moved = self._trial, self._moved
            if trial is not None and moved != self._told:
                self._told = moved
                self._board.moved.remote(trial)
            if trial is None or time.monotonic() - moved <= seconds:
                continue
            stack = "".join(traceback.format_stack(sys._current_frames()[self._main]))
            words = f"{stack}the trial took no step for {seconds:g} seconds and was ended"
            try:
                ray.get(self._board.leave.remote(trial, words), timeout=LAST_WORDS_SECONDS)
            finally:
                os._exit(1)


class Silence:
    """Finds from outside the trials that make no step: their processes were stopped, or code holds
    the interpreter's lock, so that none of their threads can run."""

    def __init__(self, board: Any, seconds: float | None) -> None:
        self._board, self._seconds = board, seconds
        self._moves: Mapping[tuple[int, ...], int] = {}
        self._silent: dict[tuple[int, ...], float] = {}
        self._asked = time.monotonic()
        self._coming: Any = None

    def begin(self, trial: tuple[int, ...]) -> None:
        """Takes note that a trial was started, perhaps not for the first time."""
        self._silent[trial] = 0.0

    def too_long(self, running: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """The `running` trials that have been silent for longer than their own watchdog takes to
        act. It never waits, and most calls only read the clock."""
        if self._seconds is None:
            return []
        every, now = _between_looks(self._seconds), time.monotonic()
        if self._coming is None:
            if now - self._asked >= every:
                self._coming = self._board.moves.remote()
            return []
        if not ray.wait([self._coming], timeout=0)[0]:
            return []
        # Time in which this process or the board was stopped does not count as silence of trials.
        passed, self._asked = min(now - self._asked, 2 * every), now
        try:
            moves = ray.get(self._coming)
        except RayError:
            self._seconds = None
            return []
        self._coming = None
        self._silent = {
            trial: self._silent.get(trial, 0.0) + passed
            if moves.get(trial) == self._moves.get(trial)
            else 0.0
            for trial in running
        }
        self._moves = moves
        limit = self._seconds + every + LAST_WORDS_SECONDS
        return [trial for trial, silent in self._silent.items() if silent > limit]


def _between_looks(seconds: float) -> float:
    return min(seconds / 4, 10)


def last_words(board: Any, trial: tuple[int, ...]) -> str | None:
    """The message that the process of `trial` left before it ended itself, or None."""
    try:
        words: str | None = ray.get(board.last_words.remote(trial), timeout=LAST_WORDS_SECONDS)
    except RayError:
        return None
    return words


def numbered(config: Mapping[str, Any]) -> tuple[int, ...]:
    """The numbers of the first trial in a config, by which the board identifies the pack."""
    first = config["trials"][0]
    return config["study"], first["index"], first["repeat"]
