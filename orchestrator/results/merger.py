"""Merges separate files of trials while others are written, so that a run stays fast to read."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor

from orchestrator.records import StudyKey
from orchestrator.results.store import RunFiles

logger = logging.getLogger(__name__)

MOST_LOOSE = 100
"""Number of separate files that a run may have."""

LOOSE_SHARE = 1 / 16
"""Number of separate files per trial written so far that a run may have, if that is more than
MOST_LOOSE. A trial is then rewritten at most sixteen times on average, however large the run is."""


class Merger:
    """Belongs to the process that writes a run. Once there are too many separate files, a thread
    merges those of the study with the most, and at later writes those of another one."""

    def __init__(self, run: RunFiles, keys: Iterable[StudyKey]) -> None:
        self._run = run
        keys = [*keys]
        self._loose = Counter(dict(zip(keys, run.in_parallel(run.loose, keys), strict=True)))
        self._written = self._loose.total()
        self._pool = ThreadPoolExecutor(1)
        self._merging: Future[None] | None = None

    def wrote(self, key: StudyKey, trials: int = 1) -> None:
        """Takes note that a file with so many trials of this study has been written."""
        self._loose[key] += 1
        self._written += trials
        too_many = self._loose.total() > max(MOST_LOOSE, LOOSE_SHARE * self._written)
        if too_many and (self._merging is None or self._merging.done()):
            most = max(self._loose, key=self._loose.__getitem__)
            self._loose[most] = 0
            self._merging = self._pool.submit(self._merge, most)

    def close(self) -> None:
        """Returns when the merge in progress is done."""
        self._pool.shutdown()

    def _merge(self, key: StudyKey) -> None:
        try:
            self._run.put_together(key, finished=False)
        except Exception as error:
            # No error here may end the sweep. The files stay as they are until more trials of the
            # study are written, or the sweep is complete.
            logger.warning("The separate files of %s can't be merged now: %s", key, error)
