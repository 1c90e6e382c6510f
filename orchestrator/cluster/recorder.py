"""Records the trials of a sweep: writes them to the run, counts them and reports them."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import ray
from ray import tune

from orchestrator.cluster.board import Silence, last_words, numbered
from orchestrator.cluster.failures import error_of, failure_of
from orchestrator.cluster.gang import BEGUN, FINISHED, REACHES_RUN, TIMED, GangSettings
from orchestrator.cluster.metrics import Metrics
from orchestrator.cluster.packs import BACKOFF_SECONDS, LONGEST_BACKOFF_SECONDS, Packs
from orchestrator.cluster.progress import Progress
from orchestrator.cluster.usage import Usage
from orchestrator.planning.sweep import Faults
from orchestrator.records import FinishedTrial, Outcome, SweepFailed
from orchestrator.results import Run
from orchestrator.results.merger import Merger
from orchestrator.search import Queue
from orchestrator.sweeping.tracking import Trackers

logger = logging.getLogger(__name__)

GIVE_UP_AFTER = 6
"""Number of failures after which a sweep without a single successful trial is stopped, since more
trials would fail, too."""

PUZZLED_AFTER_SECONDS = 60.0
"""Seconds without a running trial after which a message is shown: a machine may be starting, or may
never come."""

UNWRITABLE = (
    "{run} can't be written: {reason}. Finished trials are kept in memory until it can be written. "
    "If that takes longer than {patience:g} s (faults.storage_seconds), the sweep ends."
)

SILENT = (
    "the trial's process gave no sign of life for {seconds:g} seconds and was ended; either it was "
    "stopped, or code in it held the interpreter's lock"
)

ALONE = (
    "{where} does not see {run}. Results are written there all the same, but a trial whose machine "
    "is lost begins anew. With --out in a bucket, or in a folder that all machines share, it would "
    "go on from its checkpoint."
)


class OfThisProcess:
    """Keeps an object out of the snapshots that Tune takes, since the run's files are all that is
    needed to go on."""

    def __reduce__(self) -> Any:
        return object, ()


class Recorder(OfThisProcess, tune.Callback):
    """Writes each trial to the run as soon as it ends, and then reports it to the director. A trial
    is written before anyone hears of it: other trials are ended because of it, so it must not get
    lost."""

    def __init__(
        self,
        run: Run,
        settings: GangSettings,
        packs: Packs,
        director: Queue,
        progress: Progress,
        metrics: Metrics,
        trackers: Trackers | None,
        faults: Faults,
    ) -> None:
        self._run, self._settings, self._packs = run, settings, packs
        self._metrics, self._trackers = metrics, trackers
        self._director, self._progress = director, progress
        self._faults = faults
        self.merger = Merger(run, director.searches)
        self.usage = Usage()
        self.failures = 0
        self.last_error = ""
        self._any_success = False
        self._noted: set[str] = set()
        self._ran_at = time.monotonic()
        self._running: dict[tuple[int, ...], Any] = {}
        self._timed = {**run.timed()}
        self._silence = Silence(settings.board, settings.hang_seconds)
        self._silenced: set[tuple[int, ...]] = set()
        """The trials whose processes were ended because they gave no sign of life."""
        self._unwritten: deque[FinishedTrial] = deque()
        self._unwritable_since: float | None = None
        self._write_at, self._write_wait = 0.0, BACKOFF_SECONDS

    @property
    def over(self) -> bool:
        """Whether no trial is left to start, now or later."""
        return self._nothing_left and self._packs.none_again and not self._unwritten

    @property
    def _nothing_left(self) -> bool:
        return self._director.done or self._director.stalled

    @property
    def hopeless(self) -> bool:
        return self._nothing_works or self._storage_is_lost

    @property
    def _nothing_works(self) -> bool:
        enough = self.failures >= GIVE_UP_AFTER or self._nothing_left
        return self.failures > 0 and not self._any_success and enough

    @property
    def _storage_is_lost(self) -> bool:
        since = self._unwritable_since
        return since is not None and time.monotonic() - since > self._faults.storage_seconds

    def next_config(self) -> dict[str, Any] | None:
        """The config to start next, or None if there is none now."""
        self._flush()
        return self._packs.next_config()

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        self._flush()
        for number in self._silence.too_long(self._running):
            self._silenced.add(number)
            ray.kill(self._running.pop(number).temporary_state.ray_actor)
        if self._running or self._unwritten or self._nothing_left:
            self._ran_at = time.monotonic()
        elif time.monotonic() - self._ran_at > PUZZLED_AFTER_SECONDS:
            self._note("idle", self._why_nothing_runs())

    def _why_nothing_runs(self) -> str:
        bundles = (self._settings.bundles({"study": n}) for n in range(len(self._settings.studies)))
        ranks, each = max(
            ((len(ranks_of_trial), ranks_of_trial[0]) for ranks_of_trial in bundles),
            key=lambda found: found[0],
        )
        available = {name: ray.cluster_resources().get(name, 0) for name in each}
        return (
            f"No trial has run for {PUZZLED_AFTER_SECONDS:g} s. Trials need up to {ranks} x "
            f"{each}, and the machines that are up have {available} in total. `ray status` shows "
            f"which machines are starting."
        )

    def _note(self, kind: str, text: str) -> None:
        """Shows a message, but only the first one of its kind."""
        if kind not in self._noted:
            self._noted.add(kind)
            self._progress.notes.append(text)
            logger.warning("%s", text)

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        number = numbered(trial.config)
        if not self._packs.is_out(trial.config):
            # Tune did this once, on a busy machine: it started a pack on a second gang after the
            # first gang had worked through it. The same trials give the same bits.
            logger.warning("Tune started pack %s again; its results are ignored", number)
            return
        self._running[number] = trial
        self._silence.begin(number)
        for started in self._packs.started(trial.config):
            self._progress.start(started)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        if not self._packs.is_out(trial.config):
            result.pop(FINISHED)
            return
        for key in result[BEGUN]:
            self._progress.start(self._packs.begun(trial.config, key))
        if (seconds := result[TIMED]) is not None:
            self._timed[self._settings.studies[trial.config["study"]].key] = seconds
            with suppress(OSError):  # the step will be timed again
                self._run.write_timed(self._timed)
        # Removed from the result, so that Tune doesn't keep all measurements of the sweep in
        # memory.
        for finished in result.pop(FINISHED):
            self._packs.ended(trial.config, finished.trial.key)
            self._hear(finished, trial.config["study"], reaches_run=result[REACHES_RUN])
        if result["done"]:
            self._packs.worked_through(trial.config)
            self._running.pop(numbered(trial.config), None)

    def _hear(self, finished: FinishedTrial, study: int, *, reaches_run: bool) -> None:
        if not reaches_run:
            self._note("alone", ALONE.format(where=finished.where, run=self._run.place))
        outcome = finished.outcome
        if outcome.status == "failed":
            self.failures += 1
            self.last_error = outcome.error or ""
        else:
            self._any_success = True
        if outcome.micro_batch is not None:
            self._packs.micro_batches[study] = outcome.micro_batch
        self._keep(finished)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        if not self._packs.is_out(trial.config):
            return
        number, failure = numbered(trial.config), failure_of(error_of(trial))
        self._running.pop(number, None)
        self.last_error = self._said_of(number) or failure.text if failure.died else failure.text
        verdict = self._packs.failed(trial.config, failure)
        self.failures += verdict.counts
        for again in verdict.again:
            self._progress.stop(again)
        if (ours := verdict.failed) is not None:
            outcome = Outcome(
                status="failed", steps=0, seconds=0.0, error=self.last_error, died=failure.died
            )
            self._keep(FinishedTrial(trial=ours, outcome=outcome))

    def _said_of(self, number: tuple[int, ...]) -> str | None:
        """The known reasons for the end of a trial's process, besides Ray's message."""
        if number in self._silenced:
            self._silenced.discard(number)
            return SILENT.format(seconds=self._settings.hang_seconds)
        return last_words(self._settings.board, number)

    def settle(self, *, asked_to_end: Callable[[], bool]) -> None:
        """Waits until all trials that ended are written, unless the user asks for the end. Raises
        `SweepFailed` if they can't be written or all trials failed."""
        while self._unwritten:
            last = asked_to_end() or self._storage_is_lost
            self._write_at = 0.0 if last else self._write_at
            self._flush()
            if self._unwritten and last:
                raise SweepFailed(
                    f"{len(self._unwritten)} finished trials could not be written to "
                    f"{self._run.place}. `orchestrate resume` will train them again."
                )
            time.sleep(0.1)
        if self._nothing_works:
            raise SweepFailed(
                f"Nothing but failures ({self.failures} so far), so the sweep was stopped. "
                f"The last error:\n{self.last_error}"
            )

    def _keep(self, finished: FinishedTrial) -> None:
        self._progress.stop(finished.trial, finished.outcome)
        self._unwritten.append(finished)
        self._flush()

    def _flush(self) -> None:
        if not self._unwritten or time.monotonic() < self._write_at:
            return
        try:
            while self._unwritten:
                self._run.write(self._unwritten[0])
                self._count(self._unwritten.popleft())
        except OSError as error:
            now, reason = time.monotonic(), error.strerror or str(error)
            self._write_at = now + self._write_wait
            self._write_wait = min(2 * self._write_wait, LONGEST_BACKOFF_SECONDS)
            logger.warning(
                "%s can't be written; another attempt follows: %s", self._run.place, error
            )
            if self._unwritable_since is None:
                self._unwritable_since = now
                patience = self._faults.storage_seconds
                self._note(
                    "storage",
                    UNWRITABLE.format(run=self._run.place, reason=reason, patience=patience),
                )
        else:
            self._unwritable_since, self._write_wait = None, BACKOFF_SECONDS
            self._noted.discard("storage")

    def _count(self, finished: FinishedTrial) -> None:
        """Reports a trial that is on disk to metrics and trackers."""
        study = finished.trial.study
        bounds = self._director.record(finished)
        if bounds is not None:
            self._settings.board.post.remote(self._settings.number(study), bounds)
        search = self._director.searches[study.key]
        self.merger.wrote(study.key)
        if search.done:
            self.merger.over(study.key)
        self._progress.follow(study.key, search)
        self._progress.keep(finished)
        examples, busy = self.usage.add(finished)
        try:
            self._metrics.add(finished, examples=examples, busy_seconds=busy)
            self._metrics.best(study.key, search.frontier_step())
            if search.done:
                self._metrics.over(study.key)
            if self._trackers is not None:
                self._trackers.hear(finished)
        # No error here may end the sweep, which needs neither metrics nor trackers.
        except Exception as error:
            if "telling" not in self._noted:
                logger.exception("the sweep goes on, but metrics or trackers missed a trial")
            self._note(
                "telling", f"Metrics or trackers missed trials ({error}). Details are in log.txt."
            )
