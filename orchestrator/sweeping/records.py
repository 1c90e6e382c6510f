"""Writes trials that ended to the run, and then tells everybody of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from orchestrator.planning.sweep import Faults
from orchestrator.records import FinishedTrial, StudyKey, SweepFailed
from orchestrator.results import RunFiles
from orchestrator.results.merger import Merger
from orchestrator.search import Queue
from orchestrator.sweeping.executor import Executor, Listener
from orchestrator.sweeping.progress import Progress
from orchestrator.sweeping.retries import BACKOFF_SECONDS, LONGEST_BACKOFF_SECONDS
from orchestrator.sweeping.usage import Usage

logger = logging.getLogger(__name__)


class Records:
    """Keeps trials in memory while the run can't be written. Nobody hears of a trial before it is
    on disk."""

    def __init__(
        self,
        run: RunFiles,
        queue: Queue,
        executor: Executor,
        faults: Faults,
        progress: Progress,
        listeners: Sequence[Listener],
        clock: Callable[[], float],
    ) -> None:
        self._run, self._queue, self._executor, self._progress = run, queue, executor, progress
        self._patience, self._listeners, self._clock = faults.storage_seconds, listeners, clock
        self.merger, self.usage = Merger(run, queue.searches), Usage()
        self._waiting: dict[tuple[StudyKey, bool], list[FinishedTrial]] = {}
        """Study, whether repeats -> trials that ended and are not on disk yet. They are written
        together."""
        self._unwritable_since: float | None = None
        self._write_at, self._write_wait = -float("inf"), BACKOFF_SECONDS

    @property
    def waiting(self) -> int:
        """Number of trials that ended and are not on disk yet."""
        return sum(map(len, self._waiting.values()))

    def add(self, finished: FinishedTrial) -> None:
        """Takes a trial that ended, to be written by the next `flush`."""
        trial = finished.trial
        self._waiting.setdefault((trial.study.key, trial.repeat > 0), []).append(finished)

    @property
    def are_lost(self) -> bool:
        """Whether the run could not be written for so long that the sweep ends."""
        since = self._unwritable_since
        return since is not None and self._clock() - since > self._patience

    def flush(self) -> None:
        """Writes what waits, unless an attempt has failed a moment ago."""
        if not self._waiting or self._clock() < self._write_at:
            return
        for (key, repeated), group in [*self._waiting.items()]:
            try:
                self._run.write(*group)
            except OSError as error:
                self._pause(error)
                return
            del self._waiting[key, repeated]
            self.merger.wrote(key, len(group))
            for finished in group:
                self._tell(finished)
        self._unwritable_since, self._write_wait = None, BACKOFF_SECONDS
        self._progress.forget("storage")

    def _pause(self, error: OSError) -> None:
        now, reason = self._clock(), error.strerror or str(error)
        self._write_at = now + self._write_wait
        self._write_wait = min(2 * self._write_wait, LONGEST_BACKOFF_SECONDS)
        place = self._run.place
        logger.warning("%s can't be written; another attempt follows: %s", place, error)
        if self._unwritable_since is None:
            self._unwritable_since = now
            self._progress.note(
                "storage",
                f"{place} can't be written: {reason}. Finished trials are kept in memory until it "
                f"can be written. If that takes longer than {self._patience:g} s "
                f"(faults.storage_seconds), the sweep ends.",
            )

    def settle(self) -> None:
        """Writes what waits once more, at the end. Raises `SweepFailed` if that fails."""
        self._write_at = -float("inf")
        self.flush()
        if self.waiting:
            raise SweepFailed(
                f"{self.waiting} finished trials could not be written to {self._run.place}. "
                f"`orchestrate resume` will train them again."
            )
        with suppress(OSError):  # on a full disk only this record is lost
            self._run.add_session(self.usage.summary(self._executor.ranks))

    def _tell(self, finished: FinishedTrial) -> None:
        """Reports a trial that is on disk."""
        key = finished.trial.study.key
        bounds = self._queue.record(finished)
        if bounds is not None:
            self._executor.post(key, bounds)
        search = self._queue.searches[key]
        self._progress.follow(key, search)
        self.usage.add(finished)
        for listener in self._listeners:
            try:
                listener(finished, search)
            # No error here may end the sweep, which needs no trackers.
            except Exception as error:
                said = f"Trackers missed trials ({error}). Details are in log.txt."
                if self._progress.note("telling", said):
                    logger.exception("the sweep goes on, but trackers missed a trial")
