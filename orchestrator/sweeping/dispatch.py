"""Drives a sweep: hands out packs, records what ended, and decides when a sweep is over."""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field

from orchestrator.planning.sweep import Faults
from orchestrator.records import (
    FinishedTrial,
    Outcome,
    Study,
    StudyKey,
    SweepFailed,
    Trial,
    TrialKey,
)
from orchestrator.results import RunFiles
from orchestrator.search import Queue
from orchestrator.sweeping.executor import (
    LAST_WORDS_SECONDS,
    Executor,
    Failure,
    Listener,
    News,
    Pack,
    between_looks,
)
from orchestrator.sweeping.progress import Progress
from orchestrator.sweeping.records import Records
from orchestrator.sweeping.retries import Retries

logger = logging.getLogger(__name__)

GIVE_UP_AFTER = 6
"""Number of failures after which a sweep without a single successful trial is stopped, unless there
is a study of which no trial has failed: more of the others would fail, too."""

PUZZLED_AFTER_SECONDS = 60.0
"""Seconds without a running trial after which a message is shown: a machine may be starting, or may
never come."""

SILENT = (
    "the trial's process gave no sign of life for {seconds:g} seconds and was ended; either it was "
    "stopped, or code in it held the interpreter's lock"
)

ALONE = (
    "{where} does not see {run}. Results are written there all the same, but a trial whose machine "
    "is lost begins anew. With --out in a bucket, or in a folder that all machines share, it would "
    "go on from its checkpoint."
)

LEAVE_SECONDS = 20.0
"""Seconds that trials have to save their state when the user asks for the end."""

TIMES = 3
"""How often a step of each study is timed alone, over the course of the sweep. The shortest time
counts: other work that shares the machine can only add to it."""


@dataclass
class _Out:
    """A pack that an executor has."""

    pack: Pack
    left: dict[TrialKey, Trial]
    """The trials that have not ended."""
    begun: set[TrialKey] = field(default_factory=set)
    started: bool = False
    """Whether a process has taken it."""
    silent: float = 0.0
    """Seconds for which its process has not made a step, as far as that is known."""
    ended_for: str | None = None
    """The reason for which the dispatcher has ended its process; None: it has not."""


class Dispatcher:
    """The only loop that drives a sweep. Each trial is written to the run before anyone hears of
    it: other trials are ended because of it, so it must not get lost."""

    def __init__(
        self,
        run: RunFiles,
        queue: Queue,
        executor: Executor,
        widths: Mapping[StudyKey, int],
        faults: Faults,
        *,
        progress: Progress,
        listeners: Sequence[Listener] = (),
        asked_to_end: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run, self._queue, self._executor, self._widths = run, queue, executor, widths
        self._faults, self._progress, self._clock = faults, progress, clock
        self._asked_to_end = asked_to_end
        self._records = Records(run, queue, executor, faults, progress, listeners, clock)
        self._retries = Retries(faults.max_failures, clock)
        self._serials = itertools.count(1)
        self._out: dict[int, _Out] = {}
        """Serial number -> every pack that an executor has. News of other packs is ignored."""
        self._timed = run.timed()
        self._to_time = {key: TIMES for key in widths if (key, 1) not in self._timed}
        self._micro_batches: dict[StudyKey, int] = {}
        self._failures = Counter[StudyKey]()
        self._any_success, self._last_error = False, ""
        self._any_before = any(search.settled for search in queue.searches.values())
        """Whether the run holds trials. They do not tell whether these machines work."""
        self._ran_at = self._looked = clock()
        self._leave_by: float | None = None
        """Time until which trials may save their state; None: nobody has asked for the end."""
        ranks = [executor.resources.ranks(s.study.batch_size) for s in queue.searches.values()]
        progress.slots = max(1, executor.ranks // max(ranks))

    def train(self) -> bool:
        """Trains until nothing is left to start, or the user asks for the end. Returns whether all
        trials of the queue were trained. Raises `SweepFailed` if all trials failed, if the run
        can't be written, or if a search can't go on without trials that it lost."""
        with closing(self._records.merger):
            while not self._over:
                if self._leave_by is None and self._asked_to_end():
                    self._leave_by = self._clock() + LEAVE_SECONDS * self._executor.leave()
                while self._executor.has_room and (pack := self._next_pack()) is not None:
                    self._executor.start(pack)
                for news in self._executor.wait():
                    self._hear(news)
                self._records.flush()
                self._end_silent()
                self._wonder()
        self._records.settle()
        self._complain()
        return self._queue.done

    def _complain(self) -> None:
        if self._nothing_works:
            raise SweepFailed(
                f"Nothing but failures ({self._failures.total()} so far), so the sweep was "
                f"stopped. The last error:\n{self._last_error}"
            )
        if self._queue.stalled and not self._asked_to_end():
            lost = [trial for search in self._queue.searches.values() for trial in search.lost]
            named = ", ".join(f"{trial.study.key} trial {trial.index}" for trial in lost)
            raise SweepFailed(
                f"The processes of some trials were lost at every attempt: {named}. The next "
                f"points of their searches depend on the results of these trials, so the searches "
                f"wait until the trials are tried again."
            )

    @property
    def _over(self) -> bool:
        if self._records.are_lost:
            return True
        if self._leave_by is not None:
            saving = any(out.pack.study.program is None for out in self._out.values())
            return not saving or self._clock() >= self._leave_by
        trained = self._nothing_left and not (self._out or self._retries)
        return (trained or self._nothing_works) and not self._records.waiting

    @property
    def _nothing_left(self) -> bool:
        return self._queue.done or self._queue.stalled

    @property
    def _only_failures(self) -> bool:
        """Whether so much has failed that only trials of other studies are started now."""
        return not self._any_success and self._failures.total() >= GIVE_UP_AFTER

    @property
    def _nothing_works(self) -> bool:
        if self._nothing_left:
            return bool(self._failures) and not (self._any_success or self._any_before)
        if not self._only_failures:
            return False
        waiting = {s.study.key for s in self._queue.searches.values() if s.waiting}
        running = {out.pack.study.key for out in self._out.values()}
        return waiting | running <= self._failures.keys()

    def _next_pack(self) -> Pack | None:
        """The pack to start next, or None if there is none now."""
        if self._nothing_works or self._leave_by is not None:
            return None
        if not self._only_failures and (again := self._retries.next()) is not None:
            proposals = [self._queue.proposal(again)]
        elif not (proposals := self._queue.next_pack(self._most)):
            return None
        trials = {proposal.trial.key: proposal.trial for proposal in proposals}
        key = proposals[0].trial.study.key
        width = 1 if trials.keys() & self._retries.alone else self._widths[key]
        pack = Pack(
            serial=next(self._serials),
            proposals=proposals,
            width=width,
            micro_batch=self._micro_batches.get(key),
            to_time=width > 1 and self._to_time.get(key, 0) > 0,
        )
        if pack.to_time:
            self._to_time[key] -= 1
        self._out[pack.serial] = _Out(pack, trials)
        return pack

    def _most(self, study: Study, waiting: int) -> int:
        """Number of trials for one pack: all that wait, or, if there are more slots than packs and
        studies that wait for one, so many that the pack's study gets its share of these slots."""
        if self._only_failures and study.key in self._failures:
            return 0
        if self._widths[study.key] == 1:
            return 1
        packs = Counter(out.pack.study.key for out in self._out.values() if out.left)
        own = packs.pop(study.key, 0)
        studies_waiting = sum(search.waiting > 0 for search in self._queue.searches.values())
        # Studies that come later find as many slots per study, or one less.
        share = math.ceil((self._progress.slots - packs.total()) / studies_waiting) - own
        return math.ceil(waiting / max(share, 1))

    def _hear(self, news: News) -> None:
        if (out := self._out.get(news.serial)) is None:
            # The pack was started twice, or its news comes late. Nothing is missed: its trials were
            # recorded, or are tried again in a pack of another number.
            logger.warning("news of pack %d, which is over, is ignored", news.serial)
            return
        if news.started:
            out.started = True
            for trial in [*out.left.values()][: out.pack.width]:
                self._progress.start(trial)
        for key in news.begun:
            if key in out.left:
                out.begun.add(key)
                self._progress.start(out.left[key])
        if news.timed is not None:
            alone = out.pack.study.key, 1
            self._timed[alone] = min(news.timed, self._timed.get(alone, math.inf))
            with suppress(OSError):  # the step will be timed again
                self._run.write_timed(self._timed)
        for finished in news.ended:
            if out.left.pop(finished.trial.key, None) is not None:
                self._end(finished, sees_run=news.sees_run)
        if news.done or news.failure is not None:
            del self._out[news.serial]
            left = [*out.left.values()]
            for trial in left:
                self._progress.stop(trial)
            for trial in left if news.failure is None else self._fail(out, left, news.failure):
                self._queue.put_back(trial)

    def _end(self, finished: FinishedTrial, *, sees_run: bool) -> None:
        if not sees_run:
            self._progress.note("alone", ALONE.format(where=finished.where, run=self._run.place))
        outcome = finished.outcome
        if outcome.status == "failed":
            self._failures[finished.trial.study.key] += 1
            self._last_error = outcome.error or ""
        else:
            self._any_success = True
        if outcome.micro_batch is not None:
            self._micro_batches[finished.trial.study.key] = outcome.micro_batch
        self._progress.stop(finished.trial, outcome)
        self._records.add(finished)

    def _fail(self, out: _Out, left: Sequence[Trial], failure: Failure) -> Sequence[Trial]:
        """Decides on the trials `left` of a pack. Returns those that wait again."""
        self._last_error = out.ended_for or failure.text
        decision = self._retries.judge(left, out.begun, out.pack.width, failure)
        if decision.counts:
            self._failures[out.pack.study.key] += 1
        if decision.failed is not None:
            outcome = Outcome(
                status="failed", steps=0, seconds=0.0, error=self._last_error, died=failure.died
            )
            self._records.add(FinishedTrial(trial=decision.failed, outcome=outcome))
        return decision.put_back

    def _end_silent(self) -> None:
        """Ends the packs that have made no step for longer than their own watchdogs take to act:
        their processes were stopped, or code holds the interpreter's lock, so that none of their
        threads can run."""
        if (seconds := self._faults.hang_seconds) is None:
            return
        every, now = between_looks(seconds), self._clock()
        if now - self._looked < every or (moved := self._executor.moved()) is None:
            return
        # Time in which this process was stopped, or nobody could answer, is no silence of trials.
        passed, self._looked = min(now - self._looked, 2 * every), now
        for serial, out in self._out.items():
            out.silent = out.silent + passed if out.started and serial not in moved else 0.0
            if out.silent > seconds + every + LAST_WORDS_SECONDS and out.ended_for is None:
                out.ended_for = SILENT.format(seconds=seconds)
                self._executor.end(serial)

    def _wonder(self) -> None:
        """Shows a message if nothing has run for a while although trials are left."""
        running = any(out.started for out in self._out.values())
        if running or self._records.waiting or self._nothing_left:
            self._ran_at = self._clock()
        elif self._clock() - self._ran_at > PUZZLED_AFTER_SECONDS:
            self._progress.note(
                "idle",
                f"No trial has run for {PUZZLED_AFTER_SECONDS:g} s. {self._executor.why_idle()}",
            )
