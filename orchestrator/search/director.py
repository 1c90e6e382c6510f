"""All searches of a sweep together: which trial of which study starts next."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from orchestrator.records import FinishedTrial, Study, Trial, Value
from orchestrator.search.race import Bounds
from orchestrator.search.result import result_of
from orchestrator.search.rounds import StudySearch

STEP_IN_EXAMPLES = 64
"""What a step costs beside its examples, in examples: for the order of studies only."""


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A trial to start, and what was known then of what it has to be better than."""

    trial: Trial
    bounds: Bounds
    limit: int | None
    """The step up to which its study trains for now."""


class Director:
    """Studies of one gang shape follow each other, long ones first; while one waits for the end
    of a round, others are served. None of it changes what any study comes to."""

    def __init__(
        self,
        studies: Iterable[Study],
        sweep_seed: int,
        shape: Callable[[Study], int] = lambda study: 1,
    ) -> None:
        ordered = sorted(studies, key=lambda study: (-shape(study), -_cost(study), study.key))
        self.searches = {study.key: StudySearch(study, sweep_seed) for study in ordered}
        self._unfinished = list(self.searches.values())
        self._families: dict[tuple[str, str], list[StudySearch]] = {}
        """Workload and recipe -> its searches: one for each batch size."""
        for key, search in self.searches.items():
            self._families.setdefault((key.workload, key.recipe), []).append(search)

    def load(self, finished: FinishedTrial) -> None:
        """Takes note of a trial that a run holds already."""
        self.searches[finished.trial.study.key].record(result_of(finished))

    def begin(self) -> None:
        """Opens what can be opened; called once everything is loaded, and after each trial."""
        waiting = True
        while waiting:
            waiting = False
            for search in self._unfinished:
                smaller = self._inherits_from(search)
                if not search.begun and (smaller is None or smaller.done):
                    search.begin(_inherited(search, smaller))
                    waiting = True
            self._unfinished = [search for search in self._unfinished if not search.done]

    def record(self, finished: FinishedTrial) -> Bounds | None:
        """Takes note of a trial that ended; the new bounds of its study if they changed."""
        search = self.searches[finished.trial.study.key]
        changed = search.record(result_of(finished))
        if search.done:
            self.begin()
        return search.bounds if changed and search.study.stop_dominated else None

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
                return [*map(self.proposal, search.next(self._promising(search), count))]
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

    def _inherits_from(self, search: StudySearch) -> StudySearch | None:
        """The next smaller batch size, if the budget comes from there."""
        if search.study.inherit is None:
            return None
        size = search.study.batch_size
        smaller = [other for other in self._siblings(search) if other.study.batch_size < size]
        return max(smaller, key=lambda other: other.study.batch_size, default=None)

    def _siblings(self, search: StudySearch) -> list[StudySearch]:
        key = search.study.key
        family = self._families[key.workload, key.recipe]
        return [other for other in family if other is not search]

    def _promising(self, search: StudySearch) -> Mapping[str, Value] | None:
        """A point near which good ones are likely: the best so far, or that of the nearest batch
        size which has one."""
        if (own := search.best(reached=True)) is not None:
            return own
        size = search.study.batch_size
        found = [
            (abs(math.log(other.study.batch_size / size)), other.study.batch_size, point)
            for other in self._siblings(search)
            if (point := other.best(reached=True)) is not None
        ]
        return min(found, key=lambda f: f[:2])[2] if found else search.best(reached=False)


def _inherited(search: StudySearch, smaller: StudySearch | None) -> int | None:
    steps = smaller.frontier_step() if smaller else None
    return None if steps is None else math.ceil((search.study.inherit or 1) * steps)


def _cost(study: Study) -> int:
    return study.examples(study.budget_steps) + study.budget_steps * STEP_IN_EXAMPLES
