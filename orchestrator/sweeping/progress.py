"""The progress of a sweep: counts per study, updated by the code that runs the sweep and displayed
by `cli/terminal.py`."""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.planning.doubts import dear_evaluations
from orchestrator.records import FinishedTrial, Outcome, Study, StudyKey, Trial, TrialKey

if TYPE_CHECKING:
    from orchestrator.search import AnySearch

logger = logging.getLogger(__name__)

WORTH_SAYING_SECONDS = 10.0
"""Seconds of evaluation from which on a note may say that evaluations take much of the time."""


@dataclass(kw_only=True)
class StudyProgress:
    study: Study
    planned: int
    """Number of trials that are known to be needed."""
    done: int = 0
    running: int = 0
    best_steps: int | None = None
    """The step by which trials had passed every goal."""
    before: int = 0
    """Number of trials that were done before this session."""
    busy_seconds: float = 0.0
    """Seconds of workers that trained and evaluated in this session."""
    steps: int = 0
    """Number of steps trained in these seconds."""

    @property
    def left(self) -> int:
        return max(0, self.planned - self.done)

    def whole(self, trials: int) -> int:
        """Number of steps if so many trials are trained for the whole budget."""
        return trials * self.study.budget_steps


@dataclass(kw_only=True)
class _Evaluated:
    """The time that the trials of a workload have spent on training and evaluation so far."""

    examples: int = 0
    evaluations: int = 0
    trainings: int = 0
    training: float = 0.0
    evaluating: float = 0.0


class Progress:
    """The studies of a sweep; `slots` trials can run at once."""

    def __init__(self, studies: Iterable[Study]) -> None:
        self.studies = {
            study.key: StudyProgress(study=study, planned=study.trials) for study in studies
        }
        self.slots = 1
        self.notes: list[str] = []
        """Messages that are displayed below the table."""
        self._noted: set[str] = set()
        self.began = time.monotonic()
        self._started: dict[TrialKey, float] = {}
        self._first_start = self._last_stop = math.inf
        self._evaluated: defaultdict[str, _Evaluated] = defaultdict(_Evaluated)

    def note(self, kind: str, text: str) -> bool:
        """Shows a message, but only the first one of its kind. Returns whether it is the first."""
        if kind in self._noted:
            return False
        self._noted.add(kind)
        self.notes.append(text)
        logger.warning("%s", text)
        return True

    def forget(self, kind: str) -> None:
        """Lets the next message of this kind be shown again."""
        self._noted.discard(kind)

    def follow(self, key: StudyKey, search: AnySearch) -> None:
        """Takes the numbers of a study from its search."""
        study = self.studies[key]
        study.planned, study.done = search.planned, search.settled
        study.best_steps = search.frontier_step()
        if not study.steps:
            study.before = study.done

    def start(self, trial: Trial) -> None:
        if trial.key not in self._started:
            self.studies[trial.study.key].running += 1
        self._started[trial.key] = now = time.monotonic()
        self._first_start = min(self._first_start, now)

    def stop(self, trial: Trial, outcome: Outcome | None = None) -> None:
        """Takes note that a trial has left its worker: it ended with `outcome`, or, if that is
        None, will be tried again."""
        study = self.studies[trial.study.key]
        began = self._started.pop(trial.key, None)
        if began is None:
            return
        study.running -= 1
        self._last_stop = time.monotonic()
        if outcome is not None:
            alone = outcome.width == 1
            study.busy_seconds += self._last_stop - began if alone else outcome.own_seconds
            study.steps += outcome.steps - outcome.resumed_steps

    def keep(self, finished: FinishedTrial) -> None:
        """Takes note of a trial that is on disk."""
        study, outcome = finished.trial.study, finished.outcome
        if study.program is not None:
            return  # its evaluations can't be told apart
        so_far = self._evaluated[study.workload]
        so_far.examples += study.examples(outcome.steps)
        so_far.evaluations += len(finished.measurements)
        so_far.trainings += 1
        so_far.training += outcome.seconds
        so_far.evaluating += outcome.evaluation_seconds
        if so_far.evaluating >= WORTH_SAYING_SECONDS and (said := dear_evaluations(**vars(so_far))):
            self.note(f"dear {study.workload}", f"{study.workload}: {said}")

    @property
    def running(self) -> int:
        return sum(study.running for study in self.studies.values())

    @property
    def done(self) -> int:
        return sum(study.done for study in self.studies.values())

    @property
    def planned(self) -> int:
        return sum(study.planned for study in self.studies.values())

    def seconds_left(self) -> float:
        """Estimated seconds left; NaN before anything is known. Most trials are not trained for
        their whole budgets, and many are paused on the way. Finished studies show which share of
        their budgets all trials of a study take together. How far running
        trials have come is not known. So the estimate is made whenever a trial ends, and counted
        down from then on."""
        studies = self.studies.values()
        if not any(study.steps for study in studies):
            return math.nan
        work = sum(self._seconds_left(study) for study in studies if study.left)
        # Busy seconds of trials per second of time, pauses between trials included.
        passed = max(self._last_stop - self._first_start, 1e-9)
        at_once = min(sum(study.busy_seconds for study in studies) / passed, self.slots)
        left = work / max(at_once, 1e-9)
        return max(left - (time.monotonic() - self._last_stop), left / 10)

    def _seconds_left(self, progress: StudyProgress) -> float:
        trials = progress.planned - progress.before
        steps = self._share(progress.study) * progress.whole(trials)
        # If the study took more than others did, its last trials are still to be trained.
        least = steps * progress.left / trials / 4
        return max(steps - progress.steps, least) * self._step_seconds(progress.study)

    def _share(self, study: Study) -> float:
        """The share of the budgets of all trials of a study that is trained: as in finished studies
        of its workload, or else of any workload, or else estimated from finished trials."""
        trained = [each for each in self.studies.values() if each.steps]
        done = [each for each in trained if not each.left]
        known = [each for each in done if each.study.workload == study.workload] or done or trained
        whole = sum(each.whole(each.done - each.before) for each in known)
        return min(sum(each.steps for each in known) / whole, 1.0) if whole else 1.0

    def _step_seconds(self, study: Study) -> float:
        """Seconds per step, taken from the study that is most similar."""

        def unlike(other: StudyProgress) -> tuple[bool, bool, float]:
            there = other.study
            distance = abs(math.log(there.batch_size / study.batch_size))
            return there.key != study.key, there.workload != study.workload, distance

        best = min((each for each in self.studies.values() if each.steps), key=unlike)
        return best.busy_seconds / best.steps
