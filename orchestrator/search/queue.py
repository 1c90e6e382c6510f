"""Which trial of which study starts next, and what those who train have to know of a search."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from orchestrator.records import FinishedTrial, Study, StudyKey, Trial, TrialKey, Value
from orchestrator.search.race import Bounds


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A trial to start, and what was known then of what it has to be better than."""

    trial: Trial
    bounds: Bounds
    limit: int | None
    """The step up to which its study trains for now."""


class Search(Protocol):
    """The trials of one study, as far as others have to know of them."""

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
    """Which trial starts next, of all searches of a run. None of it changes what any comes to."""

    searches: Mapping[StudyKey, Search]
    _unfinished: Sequence[Search]
    """In the order in which they are served."""

    @abstractmethod
    def load(self, finished: FinishedTrial) -> None:
        """Takes note of a trial that a run holds already."""

    @abstractmethod
    def begin(self) -> None:
        """Opens what can be opened; called once everything is loaded."""

    @abstractmethod
    def record(self, finished: FinishedTrial) -> Bounds | None:
        """Takes note of a trial that ended; the new bounds of its study if they changed."""

    def next(self) -> Proposal | None:
        """The trial to start next; None if there is none, for now or for good."""
        return next(iter(self.next_pack(lambda study, waiting: 1)), None)

    def next_pack(self, most: Callable[[Study, int], int]) -> list[Proposal]:
        """The trials to start next, all of one study and of one kind; none if there are none, for
        now or for good. They are at most so many as `most` makes of the study and of how many of
        its trials wait."""
        for search in self._unfinished:
            if search.waiting:
                count = most(search.study, search.waiting)
                return [*map(self.proposal, search.next(self._promising(search.study), count))]
        return []

    def put_back(self, trial: Trial) -> None:
        """A trial that was handed out has not been begun."""
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
        """Whether what is left of the sweep needs trials that were lost, or studies which do."""
        return not self.done and all(s.stalled or not s.begun for s in self._unfinished)

    @property
    def planned(self) -> int:
        return sum(search.planned for search in self.searches.values())

    def _promising(self, study: Study) -> Mapping[str, Value] | None:
        """A point near which good ones of a study are likely."""
        return None
