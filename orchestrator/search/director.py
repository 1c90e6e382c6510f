"""Runs all searches of a sweep and decides in which order they are served."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from orchestrator.records import FinishedTrial, Study, Value
from orchestrator.search.queue import Queue
from orchestrator.search.race import Bounds
from orchestrator.search.result import result_of
from orchestrator.search.rounds import StudySearch

STEP_IN_EXAMPLES = 64
"""Fixed cost of a step, as the number of examples that would cost as much. It is used for the order
of studies only."""


class Director(Queue):
    """The queue of a sweep. Studies with the same shape of gang follow each other, long studies
    first. While a study waits for the end of a round, other studies are served. The order does not
    change the result of any study."""

    def __init__(
        self,
        studies: Iterable[Study],
        sweep_seed: int,
        shape: Callable[[Study], int] = lambda study: 1,
    ) -> None:
        ordered = sorted(studies, key=lambda study: (-shape(study), -_cost(study), study.key))
        self._searches = {study.key: StudySearch(study, sweep_seed) for study in ordered}
        self.searches = self._searches
        self._unfinished: list[StudySearch] = list(self._searches.values())
        self._families: dict[tuple[str, str], list[StudySearch]] = {}
        """(Workload, recipe) -> searches, one for each batch size."""
        for key, search in self._searches.items():
            self._families.setdefault((key.workload, key.recipe), []).append(search)

    def load(self, finished: FinishedTrial) -> None:
        """Records a trial that the run already holds."""
        self._searches[finished.trial.study.key].record(result_of(finished))

    def begin(self) -> None:
        """Begins all searches that can begin. Call this once all trials are loaded; it is called
        again when a search is done."""
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
        """Records a trial that ended. Returns the new bounds of its study if they changed."""
        search = self._searches[finished.trial.study.key]
        changed = search.record(result_of(finished))
        if search.done:
            self.begin()
        return search.bounds if changed and search.study.stop_dominated else None

    def _inherits_from(self, search: StudySearch) -> StudySearch | None:
        """Returns the search at the next smaller batch size if the budget is inherited from it;
        None if there is no such search."""
        if search.study.inherit is None:
            return None
        size = search.study.batch_size
        smaller = [other for other in self._siblings(search) if other.study.batch_size < size]
        return max(smaller, key=lambda other: other.study.batch_size, default=None)

    def _siblings(self, search: StudySearch) -> list[StudySearch]:
        key = search.study.key
        family = self._families[key.workload, key.recipe]
        return [other for other in family if other is not search]

    def _promising(self, study: Study) -> Mapping[str, Value] | None:
        """Returns the best point so far that reached the goal. Without one, returns that of the
        nearest batch size, and without any, the point of the study that came closest to the
        goal."""
        search = self._searches[study.key]
        if (best := search.best(reached=True)) is not None:
            return best
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
