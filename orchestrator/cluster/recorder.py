"""What becomes of the trials of a sweep: written, counted, and tried again."""

from __future__ import annotations

import heapq
import logging
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray import tune

from orchestrator.cluster.board import last_words, numbered
from orchestrator.cluster.gang import FINISHED, RANK_LOST, REACHES_RUN, GangSettings
from orchestrator.cluster.metrics import Metrics
from orchestrator.cluster.tracking import Trackers
from orchestrator.progress import Progress
from orchestrator.records import FinishedTrial, Outcome, SweepFailed, Trial
from orchestrator.results import Run
from orchestrator.search import Director

logger = logging.getLogger(__name__)

MAX_LOSSES = 20
"""How often a trial is tried again because its machine was lost, which is nobody's fault."""

GIVE_UP_AFTER = 6
"""A sweep that has seen so many failures and no trial end well is broken: more would fail alike."""

BACKOFF_SECONDS = 1.0
"""Before the first new attempt at anything; twice as long before each further one."""

LONGEST_BACKOFF_SECONDS = 60.0

STORAGE_PATIENCE_SECONDS = 600.0
"""How long finished trials are held, at the end of a sweep, for a run that can't be written."""

ERROR_LINES = 20

PUZZLED_AFTER_SECONDS = 60.0
"""Of nothing running, which may be a machine coming up or one that never will."""

ALONE = (
    "{where} does not see {run}. Results come there all the same; a trial whose machine is lost "
    "begins anew. It would go on in a bucket, or a folder that all machines share (--out)."
)


class OfThisProcess:
    """Not for the snapshots that Tune takes of whatever it is given: the run's files are all that
    is needed to go on."""

    def __reduce__(self) -> Any:
        return object, ()


@dataclass(kw_only=True)
class Usage:
    """How much of the time there was went into training and evaluating."""

    spans: list[tuple[float, float]] = field(default_factory=list)
    """Start of each trial, seconds since the epoch, and what it trained and evaluated since, times
    its ranks."""
    examples: Counter[str] = field(default_factory=Counter)
    """Study -> how many were trained on, over all trials."""
    last_start: float = 0.0
    """When a trial was last handed out: from then on slots may have nothing left to do."""

    def add(self, finished: FinishedTrial) -> tuple[int, float]:
        """Returns the examples and the seconds of ranks that it took."""
        outcome, study = finished.outcome, finished.trial.study
        examples = (outcome.steps - outcome.resumed_steps) * study.batch_size
        self.examples[str(study.key)] += examples
        seconds = outcome.seconds + outcome.evaluation_seconds - outcome.resumed_seconds
        if finished.started is not None:
            self.spans.append((finished.started, seconds * finished.ranks))
        return examples, seconds * finished.ranks

    def summary(self, ranks: int) -> dict[str, Any]:
        began = min((start for start, _ in self.spans), default=self.last_start)
        window = max(self.last_start - began, 0.0)
        busy = sum(min(seconds, max(self.last_start - start, 0)) for start, seconds in self.spans)
        return {
            "ended": time.time(),
            "trials": len(self.spans),
            "examples": self.examples.total(),
            "examples_of": dict(self.examples),
            "slots": ranks,
            "seconds": window,
            "busy_share": busy / (ranks * window) if window else None,
        }


class Recorder(OfThisProcess, tune.Callback):
    """Writes each trial to the run the moment it ends, and tells the director. Nobody hears of a
    trial before it is written: what others were ended for must not get lost."""

    def __init__(
        self,
        run: Run,
        settings: GangSettings,
        director: Director,
        progress: Progress,
        metrics: Metrics,
        trackers: Trackers | None,
        max_failures: int,
    ) -> None:
        self._run, self._settings = run, settings
        self._metrics, self._trackers = metrics, trackers
        self._director, self._progress = director, progress
        self._max_failures = max_failures
        self.usage = Usage()
        self.failures = 0
        self.last_error = ""
        self._any_success = False
        self._attempts: dict[tuple[int, ...], tuple[int, int]] = {}
        """Trial -> failures and losses so far."""
        self._again: list[tuple[float, tuple[int, ...], Trial]] = []
        """When a trial is due once more."""
        self._micro_batches: dict[int, int] = {}
        """Study -> what is known to fit, once something did not."""
        self._noted: set[str] = set()
        self._ran_at = time.monotonic()
        self._unwritten: deque[FinishedTrial] = deque()
        self._write_at, self._write_wait = 0.0, BACKOFF_SECONDS

    @property
    def over(self) -> bool:
        """Whether there is nothing more to start, now or later."""
        return self._director.done and not self._again and not self._unwritten

    @property
    def hopeless(self) -> bool:
        enough = self.failures >= GIVE_UP_AFTER or self._director.done
        return self.failures > 0 and not self._any_success and enough

    def next_config(self) -> dict[str, Any] | None:
        """The trial to start next, if there is one now."""
        self._flush()
        if self._again and self._again[0][0] <= time.monotonic():
            proposal = self._director.proposal(heapq.heappop(self._again)[2])
        elif (found := self._director.next()) is not None:
            proposal = found
        else:
            return None
        self.usage.last_start = time.time()
        config = self._settings.config(proposal)
        return {**config, "micro_batch": self._micro_batches.get(config["study"])}

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        self._flush()
        if self._progress.running or self._director.done:
            self._ran_at = time.monotonic()
        elif time.monotonic() - self._ran_at > PUZZLED_AFTER_SECONDS:
            self._note("idle", self._why_nothing_runs())

    def _why_nothing_runs(self) -> str:
        bundles = (self._settings.bundles({"study": n}) for n in range(len(self._settings.studies)))
        ranks, each = max(((len(some), some[0]) for some in bundles), key=lambda found: found[0])
        there = {name: ray.cluster_resources().get(name, 0) for name in each}
        return (
            f"Nothing has run for {PUZZLED_AFTER_SECONDS:g} s. Trials take up to {ranks} x {each}, "
            f"and the machines there now have {there} in all. `ray status` tells what is coming."
        )

    def _note(self, kind: str, text: str) -> None:
        """Says something of its kind once."""
        if kind not in self._noted:
            self._noted.add(kind)
            self._progress.notes.append(text)
            logger.warning("%s", text)

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._progress.start(self._settings.trial(trial.config))

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        # Popped, so that Tune doesn't keep every measurement of the sweep in memory.
        finished = result.pop(FINISHED, None)
        if finished is not None:
            if not result[REACHES_RUN]:
                self._note("alone", ALONE.format(where=finished.where, run=self._run.place))
            outcome = finished.outcome
            if outcome.status == "failed":
                self.failures += 1
                self.last_error = outcome.error or ""
            else:
                self._any_success = True
            if outcome.micro_batch is not None:
                self._micro_batches[trial.config["study"]] = outcome.micro_batch
            self._keep(finished)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        ours, number = self._settings.trial(trial.config), numbered(trial.config)
        died, text = _error_of(trial)
        self.last_error = (died and last_words(self._settings.board, number)) or text
        failures, losses = self._attempts.get(number, (0, 0))
        lost = _machine_was_lost(trial, text)
        failures, losses = (failures, losses + 1) if lost else (failures + 1, losses)
        self._attempts[number] = failures, losses
        # A process that dies says nothing about the sweep; code that raises does.
        self.failures += not died
        if failures > self._max_failures or losses > MAX_LOSSES:
            outcome = Outcome(status="failed", steps=0, seconds=0.0, error=self.last_error)
            self._keep(FinishedTrial(trial=ours, outcome=outcome))
            return
        self._progress.stop(ours)
        wait = min(BACKOFF_SECONDS * 2 ** (failures + losses - 1), LONGEST_BACKOFF_SECONDS)
        logger.warning("%s trial %d is tried again in %g s", ours.study.key, ours.index, wait)
        heapq.heappush(self._again, (time.monotonic() + wait, number, ours))

    def settle(self) -> None:
        """Waits until all that ended is written."""
        deadline = time.monotonic() + STORAGE_PATIENCE_SECONDS
        while self._unwritten:
            if time.monotonic() > deadline:
                raise SweepFailed(
                    f"{len(self._unwritten)} finished trials could not be written to "
                    f"{self._run.place}. They will be trained again by `orchestrate resume`."
                )
            self._flush()
            time.sleep(0.1)

    def _keep(self, finished: FinishedTrial) -> None:
        examples, busy = self.usage.add(finished)
        self._metrics.add(finished, examples=examples, busy_seconds=busy)
        self._progress.stop(finished.trial)
        self._unwritten.append(finished)
        self._flush()

    def _flush(self) -> None:
        if not self._unwritten or time.monotonic() < self._write_at:
            return
        try:
            while self._unwritten:
                self._run.write(self._unwritten[0])
                self._count(self._unwritten.popleft())
            self._write_wait = BACKOFF_SECONDS
        except OSError as error:
            logger.warning("%s can't be written, it is tried again: %s", self._run.place, error)
            self._write_at = time.monotonic() + self._write_wait
            self._write_wait = min(2 * self._write_wait, LONGEST_BACKOFF_SECONDS)

    def _count(self, finished: FinishedTrial) -> None:
        study = finished.trial.study
        bounds = self._director.record(finished)
        if bounds is not None:
            self._settings.board.post.remote(self._settings.number(study), bounds)
        search = self._director.searches[study.key]
        self._progress.follow(study.key, search)
        self._metrics.best(study.key, search.frontier_step())
        if self._trackers is not None:
            self._trackers.hear(finished)


def _error_of(trial: Any) -> tuple[bool, str]:
    """Whether the process died, and the end of the traceback that Tune keeps beside the trial."""
    try:
        text = Path(trial.error_file).read_text(encoding="utf-8").strip()
    except (OSError, TypeError):
        return True, "the worker died without a word"
    died = "ActorDiedError" in text or "actor died" in text or RANK_LOST in text
    return died, "\n".join(text.splitlines()[-ERROR_LINES:])


def _machine_was_lost(trial: Any, text: str) -> bool:
    error = trial.get_pickled_error()
    return getattr(error, "preempted", False) or "node has died" in text or "node died" in text
