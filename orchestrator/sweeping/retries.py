"""Decides which trials of a failed pack are tried again, when, and which have failed for good."""

from __future__ import annotations

import heapq
import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from orchestrator.records import Trial, TrialKey
from orchestrator.sweeping.executor import Failure

logger = logging.getLogger(__name__)

MAX_LOSSES = 20
"""Number of times that a trial is tried again because its machine was lost, which is not the
trial's fault."""

BACKOFF_SECONDS = 1.0
"""Seconds before the first new attempt; the wait doubles before each further attempt."""

LONGEST_BACKOFF_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The decision on the trials of a failed pack that had not ended. Those that are due later are
    not in it."""

    put_back: Sequence[Trial] = ()
    """Trials that certainly did not cause the failure. They wait again like trials that were never
    started."""
    failed: Trial | None = None
    """The trial that has failed for good, because it has used all its attempts."""
    counts: bool = False
    """Whether a trial was certainly at fault, rather than a machine or another trial of the
    pack."""


class Retries:
    """Every attempt so far, and the trials that are due for another one."""

    def __init__(self, max_failures: int, clock: Callable[[], float]) -> None:
        self._max_failures, self._clock = max_failures, clock
        self._failures, self._losses = Counter[TrialKey](), Counter[TrialKey]()
        self.alone: set[TrialKey] = set()
        """Trials that are trained outside of any stack from now on."""
        self._due: list[tuple[float, TrialKey, Trial]] = []

    def __bool__(self) -> bool:
        """Whether a trial is due for another attempt, now or later."""
        return bool(self._due)

    def next(self) -> Trial | None:
        """The trial that has been due longest; None if none is due now."""
        if not self._due or self._due[0][0] > self._clock():
            return None
        return heapq.heappop(self._due)[2]

    def judge(
        self, left: Sequence[Trial], begun: Collection[TrialKey], width: int, failure: Failure
    ) -> Decision:
        """Decides on the trials `left` of a failed pack; those in `begun` had a slot."""
        if len(left) != 1:
            return Decision(put_back=self._try_apart(left, begun, failure))
        (trial,) = left
        if width > 1 and not failure.died:
            # The cause may be the stack: trying two examples does not show every behaviour of code.
            self.alone.add(trial.key)
            self._again(trial, 0.0)
            return Decision()
        lost = failure.machine_lost
        (self._losses if lost else self._failures)[trial.key] += 1
        failures, losses = self._failures[trial.key], self._losses[trial.key]
        if failures > self._max_failures or losses > MAX_LOSSES:
            return Decision(failed=trial, counts=not lost)
        wait = BACKOFF_SECONDS * 2 ** (failures + losses - 1)
        self._again(trial, min(wait, LONGEST_BACKOFF_SECONDS))
        return Decision(counts=not lost)

    def _try_apart(
        self, left: Sequence[Trial], begun: Collection[TrialKey], failure: Failure
    ) -> list[Trial]:
        """It is not known which trial of a stack was at fault, so each that may have been is tried
        again without the others, and this failure counts against none of them. If a machine is lost
        for the first time, no trial was at fault. Returns the trials that can't have been."""
        blameless = []
        for trial in left:
            first_loss = failure.machine_lost and not self._losses[trial.key]
            self._losses[trial.key] += failure.machine_lost
            # A process that died could not report the trials that it began in its last second.
            if first_loss or not (failure.died or trial.key in begun):
                blameless.append(trial)
            else:
                self._again(trial, 0.0)
        return blameless

    def _again(self, trial: Trial, seconds: float) -> None:
        name = f"{trial.study.key} trial {trial.index}"
        logger.warning("%s is tried again in %g s", name, seconds)
        heapq.heappush(self._due, (self._clock() + seconds, trial.key, trial))
