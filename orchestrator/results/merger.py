"""Merges separate files of trials while others are written, so that a run stays fast to read."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from threading import Condition, Thread

from orchestrator.records import StudyKey
from orchestrator.results.store import RunFiles

logger = logging.getLogger(__name__)

MOST_LOOSE = 100
"""Number of separate files that a run may have."""

LOOSE_SHARE = 1 / 16
"""Number of separate files per trial written so far that a run may have, if that is more than
MOST_LOOSE. A trial is then rewritten at most sixteen times on average, however large the run is."""

RETRY_SECONDS = 60.0
"""Seconds to wait after a failed attempt to write to the storage."""


class Merger:
    """A thread of the process that writes a run. Once there are too many separate files, it merges
    those of one study after another, the one with the most first."""

    def __init__(self, run: RunFiles, keys: Iterable[StudyKey]) -> None:
        self._run = run
        keys = [*keys]
        self._loose = Counter(dict(zip(keys, run.in_parallel(run.loose, keys), strict=True)))
        self._written = self._loose.total()
        self._closed = False
        self._news = Condition()
        self._thread = Thread(target=self._work, name="merger", daemon=True)
        self._thread.start()

    def wrote(self, key: StudyKey, trials: int = 1) -> None:
        """Takes note that a file with so many trials of this study has been written."""
        with self._news:
            self._loose[key] += 1
            self._written += trials
            self._news.notify()

    def close(self) -> None:
        """Ends the thread. Returns when the merge in progress is done."""
        with self._news:
            self._closed = True
            self._news.notify()
        self._thread.join()

    def _work(self) -> None:
        while (key := self._next()) is not None:
            count = self._loose[key]
            try:
                self._run.put_together(key, finished=False)
            except Exception as error:
                # No error here may end the sweep. The files stay as they are until more trials of
                # the study are written, or the sweep is complete.
                logger.warning("The separate files of %s can't be merged now: %s", key, error)
                with self._news:
                    self._news.wait_for(lambda: self._closed, RETRY_SECONDS)
            with self._news:
                self._loose[key] -= count

    def _next(self) -> StudyKey | None:
        """Waits for the next study whose files are to be merged; None when the merger is closed."""
        with self._news:
            self._news.wait_for(
                lambda: (
                    self._closed
                    or self._loose.total() > max(MOST_LOOSE, LOOSE_SHARE * self._written)
                )
            )
            if self._closed:
                return None
            return max(self._loose, key=self._loose.__getitem__)
