"""The trials of a study whose owner decides which of them are trained, and how far."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from orchestrator.records import FinishedTrial, Study, Trial, TrialKey, Value
from orchestrator.search.race import Bounds

STOPPED = ("paused", "dominated")
"""Statuses of trials that stopped at a limit and may go on from there. `paused` becomes `dominated`
when the files of single trials are merged."""


class Chosen:
    """The trials of one study that its owner wants: waiting ones, those in training, ended ones."""

    bounds: Bounds = ()
    begun = True
    stalled = False
    lost: Sequence[Trial] = ()

    def __init__(self, study: Study) -> None:
        self.study = study
        self.limit: int | None = None
        self.done = False
        self.ended: dict[TrialKey, FinishedTrial] = {}
        self._wanted: dict[TrialKey, Trial] = {}
        self._waiting: dict[TrialKey, Trial] = {}
        self._out: set[TrialKey] = set()
        """Trials that were handed out and have not ended."""

    def want(self, trials: Iterable[Trial], limit: int) -> None:
        """Sets the trials that are wanted from now on, and the step up to which they train."""
        self._wanted, self.limit = {trial.key: trial for trial in trials}, limit
        self._waiting = {k: t for k, t in self._wanted.items() if self._is_due(k)}

    def _is_due(self, key: TrialKey) -> bool:
        return key not in self._out and not self.is_there(key, self.limit or 0)

    def is_there(self, key: TrialKey, step: int) -> bool:
        """Whether a trial is at that step, or ended before for good."""
        if key not in self.ended:
            return False
        outcome = self.ended[key].outcome
        return outcome.status not in STOPPED or outcome.steps >= step

    def record(self, finished: FinishedTrial) -> None:
        key = finished.trial.key
        self.ended[key] = finished
        self._out.discard(key)
        self._waiting.pop(key, None)
        if key in self._wanted:
            # It may have been started with a smaller limit; then it waits again.
            self.put_back(self._wanted[key])

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def next(self, near: Mapping[str, Value] | None, most: int = 1) -> list[Trial]:
        taken = [*self._waiting.values()][:most]
        for trial in taken:
            del self._waiting[trial.key]
        self._out.update(trial.key for trial in taken)
        return taken

    def put_back(self, trial: Trial) -> None:
        self._out.discard(trial.key)
        if trial.key in self._wanted and self._is_due(trial.key):
            self._waiting[trial.key] = trial

    def bounds_for(self, trial: Trial) -> Bounds:
        return ()

    def frontier_step(self) -> int | None:
        return None

    @property
    def planned(self) -> int:
        return max(len(self._wanted), len(self.ended))

    @property
    def settled(self) -> int:
        wanted = sum(self.is_there(key, self.limit or 0) for key in self._wanted)
        return wanted + len(self.ended.keys() - self._wanted.keys())

    def over(self, key: TrialKey) -> bool:
        return self.done or self.ended[key].outcome.status not in STOPPED

    def set_aside(self) -> set[TrialKey]:
        return {key for key in self.ended if not self.over(key)}
