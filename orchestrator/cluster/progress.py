"""How far a sweep has come: counts per study, kept by the one who runs it, drawn by others."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from orchestrator.planning.evaluations import dear_evaluations
from orchestrator.records import FinishedTrial, Outcome, Study, StudyKey, Trial, TrialKey

WORTH_SAYING_SECONDS = 10.0
"""Of evaluation, until it is said that they take much of the time."""


class Standing(Protocol):
    """What a search can tell of itself."""

    @property
    def planned(self) -> int: ...
    @property
    def settled(self) -> int: ...
    def frontier_step(self) -> int | None: ...


@dataclass(kw_only=True)
class StudyProgress:
    study: Study
    planned: int
    """Trials known to be needed."""
    done: int = 0
    running: int = 0
    best_steps: int | None = None
    """Fewest steps in which a trial has passed every goal."""
    busy_seconds: float = 0.0
    """Of a worker, that the trials timed so far have taken."""
    timed: int = 0

    @property
    def left(self) -> int:
        return max(0, self.planned - self.done)


@dataclass(kw_only=True)
class _Evaluated:
    """What the trials of a workload have taken so far."""

    examples: int = 0
    evaluations: int = 0
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
        """What whoever watches should know besides."""
        self.began = time.monotonic()
        self._started: dict[TrialKey, float] = {}
        self._evaluated: defaultdict[str, _Evaluated] = defaultdict(_Evaluated)
        self._called_dear: set[str] = set()

    def follow(self, key: StudyKey, search: Standing) -> None:
        """Takes over how far a study has come."""
        study = self.studies[key]
        study.planned, study.done, study.best_steps = (
            search.planned,
            search.settled,
            search.frontier_step(),
        )

    def start(self, trial: Trial) -> None:
        if trial.key not in self._started:
            self.studies[trial.study.key].running += 1
        self._started[trial.key] = time.monotonic()

    def stop(self, trial: Trial, outcome: Outcome | None = None) -> None:
        """A trial is off its worker: it ended so, or will be tried again."""
        study = self.studies[trial.study.key]
        began = self._started.pop(trial.key, None)
        if began is None:
            return
        study.running -= 1
        if outcome is not None:
            alone = outcome.width == 1
            study.busy_seconds += time.monotonic() - began if alone else outcome.own_seconds
            study.timed += 1

    def keep(self, finished: FinishedTrial) -> None:
        """Takes note of a trial that is on disk."""
        study, outcome = finished.trial.study, finished.outcome
        so_far = self._evaluated[study.workload]
        so_far.examples += outcome.steps * study.batch_size
        so_far.evaluations += len(finished.measurements)
        so_far.training += outcome.seconds
        so_far.evaluating += outcome.evaluation_seconds
        if so_far.evaluating < WORTH_SAYING_SECONDS or study.workload in self._called_dear:
            return
        if said := dear_evaluations(**vars(so_far)):
            self._called_dear.add(study.workload)
            self.notes.append(f"{study.workload}: {said}")

    @property
    def running(self) -> int:
        return sum(study.running for study in self.studies.values())

    @property
    def done(self) -> int:
        return sum(study.done for study in self.studies.values())

    @property
    def planned(self) -> int:
        return sum(study.planned for study in self.studies.values())

    def seconds_left(self, progress: StudyProgress | None = None) -> float:
        """An estimate from the trials timed so far, for one study or all; NaN before any.
        A study without a timed trial is judged by its budget beside that of the others."""
        timed = [p for p in self.studies.values() if p.timed]
        steps = sum(p.timed * p.study.budget_steps for p in timed)
        if not steps:
            return math.nan
        per_step = sum(p.busy_seconds for p in timed) / steps
        chosen = [progress] if progress else list(self.studies.values())
        seconds = sum(
            p.left * (p.busy_seconds / p.timed if p.timed else per_step * p.study.budget_steps)
            for p in chosen
        )
        return seconds / self.slots
