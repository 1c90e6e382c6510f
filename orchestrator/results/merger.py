"""Puts trials together while others are written, so that a run is fast to read at any time."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from threading import Condition, Thread

from orchestrator.records import StudyKey
from orchestrator.results.store import Run

logger = logging.getLogger(__name__)

MOST_LOOSE = 2_000
"""So many trials of a run may have files of their own ..."""

LOOSE_SHARE = 1 / 16
"""... or this share of those written so far: then a trial is written anew sixteen times at most, on
average, however large the run is."""

RETRY_SECONDS = 60.0
"""After a storage that can't be written."""


class Merger:
    """A thread of the process that writes a run. Once too many trials have files of their own, it
    puts studies together: those that are over first, then those with the most."""

    def __init__(self, run: Run, keys: Iterable[StudyKey]) -> None:
        self._run = run
        keys = [*keys]
        self._loose = Counter(dict(zip(keys, run.in_parallel(run.loose, keys), strict=True)))
        self._written = self._loose.total()
        self._over: set[StudyKey] = set()
        self._closed = False
        self._news = Condition()
        self._thread = Thread(target=self._work, name="merger", daemon=True)
        self._thread.start()

    def wrote(self, key: StudyKey) -> None:
        """A trial of this study has been written."""
        with self._news:
            self._loose[key] += 1
            self._written += 1
            self._news.notify()

    def over(self, key: StudyKey) -> None:
        """No trial of this study will be written any more, for all that is known."""
        with self._news:
            self._over.add(key)

    def close(self) -> None:
        """Returns once nothing is being put together any more."""
        with self._news:
            self._closed = True
            self._news.notify()
        self._thread.join()

    def _work(self) -> None:
        while (key := self._next()) is not None:
            count = self._loose[key]
            try:
                self._run.compact(key, over=key in self._over)
            except Exception as error:
                # Whatever it is, the sweep goes on. The files stay as they are until more trials of
                # the study are there, or the sweep is complete.
                logger.warning("%s can't be put together now: %s", key, error)
                with self._news:
                    self._news.wait_for(lambda: self._closed, RETRY_SECONDS)
            with self._news:
                self._loose[key] -= count

    def _next(self) -> StudyKey | None:
        """The study to put together next, once there is one; None when it is closed."""
        with self._news:
            self._news.wait_for(lambda: self._closed or self._too_many())
            if self._closed:
                return None
            over = [key for key in self._over if self._loose[key]]
            return max(over or self._loose, key=self._loose.__getitem__)

    def _too_many(self) -> bool:
        return self._loose.total() > max(MOST_LOOSE, LOOSE_SHARE * self._written)
