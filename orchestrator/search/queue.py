"""The queue of trials: the interface through which gangs get the next trial and report results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from orchestrator.records import FinishedTrial, Study, StudyKey, Trial, TrialKey, Value
from orchestrator.search.race import Bounds


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A trial to start, with the bounds of its study at the time of the proposal."""

    trial: Trial
    bounds: Bounds
    limit: int | None
    """Step up to which trials of the study are trained at present; None: the whole budget."""


class Search(Protocol):
    """The trials of one study: the part of a search that queues and gangs use."""

    study: Study
    bounds: Bounds
    done: bool

    @property
    def begun(self) -> bool: ...
    @property
    def limit(self) -> int | None: ...
    @property
    def stalled(self) -> bool: ...
    @property
    def lost(self) -> list[Trial]: ...
    @property
    def waiting(self) -> int: ...
    @property
    def planned(self) -> int: ...
    @property
    def settled(self) -> int: ...
    def next(self, near: Mapping[str, Value] | None, most: int = 1) -> list[Trial]: ...
    def put_back(self, trial: Trial) -> None: ...
    def bounds_for(self, trial: Trial) -> Bounds: ...
    def frontier_step(self) -> int | None: ...
    def over(self, key: TrialKey) -> bool: ...
    def set_aside(self) -> set[TrialKey]: ...


class Queue(ABC):
    """Decides which trial of all searches of a run starts next. The order does not change the
    result of any search."""

    searches: Mapping[StudyKey, Search]
    _unfinished: Sequence[Search]
    """Searches that are not done, in the order in which they are served."""

    @abstractmethod
    def load(self, finished: FinishedTrial) -> None:
        """Records a trial that the run already holds."""

    @abstractmethod
    def begin(self) -> None:
        """Begins all searches that can begin. Call this once all trials are loaded."""

    @abstractmethod
    def record(self, finished: FinishedTrial) -> Bounds | None:
        """Records a trial that ended. Returns the new bounds of its study if they changed."""

    def next(self) -> Proposal | None:
        """Returns the trial to start next; None if no trial waits, at present or ever again."""
        return next(iter(self.next_pack(lambda study, waiting: 1)), None)

    def next_pack(self, most: Callable[[Study, int], int]) -> list[Proposal]:
        """Returns the trials to start next, all of one study and of one kind. The list is empty if
        no trial waits, at present or ever again. `most` gets the study and the number of its
        waiting trials, and returns the largest number of trials to return."""
        for search in self._unfinished:
            if search.waiting:
                count = most(search.study, search.waiting)
                return [*map(self.proposal, search.next(self._promising(search.study), count))]
        return []

    def put_back(self, trial: Trial) -> None:
        """Takes back a trial that was handed out but not started."""
        self.searches[trial.study.key].put_back(trial)

    def proposal(self, trial: Trial) -> Proposal:
        search = self.searches[trial.study.key]
        return Proposal(
            trial=trial,
            bounds=search.bounds_for(trial),
            limit=None if trial.repeat else search.limit,
        )

    @property
    def done(self) -> bool:
        return not self._unfinished

    @property
    def stalled(self) -> bool:
        """Whether the rest of the run can't go on without trials whose processes were lost."""
        return not self.done and all(s.stalled or not s.begun for s in self._unfinished)

    @property
    def planned(self) -> int:
        return sum(search.planned for search in self.searches.values())

    def _promising(self, study: Study) -> Mapping[str, Value] | None:
        """Returns a point of a study near which other good points are likely; None if none is
        known."""
        return None
