"""The queue of trials: which trial of all studies starts next. The trials of a study are those of
a search, or those that an owner chose."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence

from orchestrator.records import FinishedTrial, Study, StudyKey, Trial, TrialKey, Value, grouped
from orchestrator.search.race import Bounds, Proposal, result_of
from orchestrator.search.rounds import StudySearch

STEP_IN_EXAMPLES = 64
"""Fixed cost of a step in examples, for the order of studies only."""

STOPPED = ("paused", "dominated")
"""Statuses of trials that stopped at a limit and may go on from there. `paused` becomes `dominated`
when the files of single trials are merged."""


class Chosen:
    """The trials of one study that its owner wants: waiting ones, those in training, ended ones."""

    begun = True
    stalled = False
    may_repeat = 0
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

    def is_final(self, key: TrialKey) -> bool:
        return self.done or self.ended[key].outcome.status not in STOPPED

    def set_aside(self) -> set[TrialKey]:
        return {key for key in self.ended if not self.is_final(key)}


AnySearch = StudySearch | Chosen


class Queue(ABC):
    """Decides which trial of a run starts next, which changes the result of no search."""

    searches: Mapping[StudyKey, AnySearch]
    _unfinished: Sequence[AnySearch]
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

    def next_pack(self, most: Callable[[Study, int], int]) -> list[Proposal]:
        """The trials to start next, all of one study and of one kind. The list is empty if no trial
        waits, at present or ever again. `most` gets the study and the number of its waiting trials,
        and returns the largest number of trials to return; 0: those of another study."""
        for search in self._unfinished:
            if search.waiting and (count := most(search.study, search.waiting)):
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
        """A point of a study near which other good ones are likely; None if not known."""
        return None


class Director(Queue):
    """The queue of a sweep. Studies with the same shape of gang follow each other, long ones first.
    While one waits for the end of a round, others are served. No result depends on the order."""

    def __init__(
        self,
        studies: Iterable[Study],
        sweep_seed: int,
        shape: Callable[[Study], int] = lambda study: 1,
    ) -> None:
        ordered = sorted(studies, key=lambda study: (-shape(study), -_cost(study), study.key))
        self.searches: dict[StudyKey, StudySearch] = {
            study.key: StudySearch(study, sweep_seed) for study in ordered
        }
        self._unfinished: list[StudySearch] = list(self.searches.values())
        self._families = grouped(
            self.searches.values(), lambda search: (search.study.workload, search.study.recipe)
        )
        """(Workload, recipe) -> searches, one for each batch size."""

    def load(self, finished: FinishedTrial) -> None:
        self.searches[finished.trial.study.key].record(result_of(finished))

    def begin(self) -> None:
        """Begins all searches that can begin. It is called again when a search is done."""
        waiting = True
        while waiting:
            waiting = False
            for search in self._unfinished:
                smaller = self._inherits_from(search)
                if not search.begun and (smaller is None or smaller.done):
                    steps = smaller.frontier_step() if smaller else None
                    factor = search.study.inherit or 1
                    search.begin(None if steps is None else math.ceil(factor * steps))
                    waiting = True
            self._unfinished = [search for search in self._unfinished if not search.done]

    def record(self, finished: FinishedTrial) -> Bounds | None:
        search = self.searches[finished.trial.study.key]
        changed = search.record(result_of(finished))
        if search.done:
            self.begin()
        return search.bounds if changed and search.study.stop_dominated else None

    def _inherits_from(self, search: StudySearch) -> StudySearch | None:
        """The search whose budget is inherited, at the next smaller batch size, if there is one."""
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
        """The best point so far that reached the goal, else that of the nearest batch size, else
        the point of the study that came closest."""
        search = self.searches[study.key]
        if (best := search.best(reached=True)) is not None:
            return best
        size = search.study.batch_size
        found = [
            (abs(math.log(other.study.batch_size / size)), other.study.batch_size, point)
            for other in self._siblings(search)
            if (point := other.best(reached=True)) is not None
        ]
        return min(found, key=lambda f: f[:2])[2] if found else search.best(reached=False)


def _cost(study: Study) -> int:
    return study.budget_examples + study.budget_steps * STEP_IN_EXAMPLES
