"""How far a sweep has come: counts per study, kept by the one who runs it, drawn by others."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from orchestrator.records import Study, StudyKey, Trial, TrialKey


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
    """Wall-clock time of the trials timed so far, added up."""
    timed: int = 0

    @property
    def left(self) -> int:
        return max(0, self.planned - self.done)


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

    def stop(self, trial: Trial) -> None:
        """A trial is off its worker, whether it ended or will be tried again."""
        key = trial.study.key
        began = self._started.pop(trial.key, None)
        if began is not None:
            self.studies[key].running -= 1
            self.studies[key].busy_seconds += time.monotonic() - began
            self.studies[key].timed += 1

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
