"""Branches from points of a trunk: which are trained next, and how far.

A trunk is a training whose states at some steps are kept. From each of these points, branches go on
at several batch sizes and learning rates, with several orders of examples. Their length is doubled
until a judge has seen enough. What is trained depends on what was measured alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from orchestrator.records import (
    BadInput,
    FinishedTrial,
    Study,
    StudyKey,
    Trial,
    derive_seed,
)
from orchestrator.search.chosen import Chosen
from orchestrator.search.queue import Queue
from orchestrator.search.race import Bounds


@dataclass(frozen=True, kw_only=True)
class Point:
    """A point of a trunk, with a study for each batch size that goes on from there."""

    at_examples: int
    studies: tuple[Study, ...]
    """From the trunk's own batch size up. Their points are learning rates."""
    lengths: tuple[int, ...]
    """Examples of the branches, one after the other."""
    seeds: int
    choosing: int
    """So many of the seeds choose the learning rates, the others judge."""

    def rate_of(self, trial: Trial) -> int:
        """The number of its learning rate."""
        return trial.index // self.seeds

    def seed_of(self, trial: Trial) -> int:
        """The number of its seed, which is an order of examples: the same at each point, batch
        size and learning rate."""
        return trial.index % self.seeds


Verdict_co = TypeVar("Verdict_co", covariant=True)


class Judge(Protocol[Verdict_co]):
    """Who knows what branches say, of one point and up to one length."""

    def chosen(self, point: Point, length: int, ended: Sequence[FinishedTrial]) -> dict[int, int]:
        """Batch size -> number of the best learning rate, by the seeds that choose."""

    def settled(self, point: Point, lengths: Sequence[int], ended: Sequence[FinishedTrial]) -> bool:
        """Whether longer branches than these would not say anything else."""

    def verdict(self, point: Point, length: int, ended: Sequence[FinishedTrial]) -> Verdict_co:
        """What branches of that length say."""


@dataclass
class _Progress:
    """How far a point has come."""

    point: Point
    done: bool = False
    lengths: list[int] = field(default_factory=list)
    """Those that were trained."""
    problem: str | None = None
    """Why nothing more can be said."""


class Branching(Queue, Generic[Verdict_co]):
    """The trunk first, then all points side by side."""

    def __init__(
        self,
        trunk: Trial,
        points: Sequence[Point],
        judge: Judge[Verdict_co],
        seed: int,
    ) -> None:
        self._trunk, self._judge, self._seed = trunk, judge, seed
        self._points = [_Progress(point) for point in points]
        studies = [trunk.study, *(study for point in points for study in point.studies)]
        self._chosen = {study.key: Chosen(study) for study in studies}
        self._of_study = {
            study.key: progress for progress in self._points for study in progress.point.studies
        }
        self.searches = self._chosen
        self._unfinished = [*self._chosen.values()]

    @property
    def trunk(self) -> Trial:
        return self._trunk

    @property
    def points(self) -> list[Point]:
        return [progress.point for progress in self._points]

    def load(self, finished: FinishedTrial) -> None:
        self._chosen[finished.trial.study.key].record(finished)

    def begin(self) -> None:
        trunk = self._chosen[self._trunk.study.key]
        last = self._trunk.study.states_at[-1]
        trunk.done = trunk.is_there(self._trunk.key, last)
        if not trunk.done:
            trunk.want([self._trunk], last)
        else:
            for progress in self._points:
                self._advance(progress)
        self._unfinished = [each for each in self._chosen.values() if not each.done]

    def record(self, finished: FinishedTrial) -> Bounds | None:
        key = finished.trial.study.key
        self._chosen[key].record(finished)
        if key in self._of_study:
            self._advance(self._of_study[key])
            self._unfinished = [each for each in self._chosen.values() if not each.done]
        else:
            self.begin()
        return None

    @property
    def problems(self) -> dict[int, str]:
        """Point, by examples -> why nothing more can be said of it."""
        return {
            each.point.at_examples: each.problem
            for each in self._points
            if each.problem is not None
        }

    def judged(self) -> list[list[Verdict_co]]:
        """What is said of each point, by branches of each length that were trained in full."""
        return [
            [
                self._judge.verdict(each.point, length, [*self.ended(each.point.studies)])
                for length in each.lengths
            ]
            for each in self._points
        ]

    def _advance(self, progress: _Progress) -> None:
        """Wants the branches that are to be trained next."""
        point = progress.point
        while not progress.done:
            length = point.lengths[len(progress.lengths)]
            try:
                if not self._trained(point, length):
                    return
                lengths = [*progress.lengths, length]
                settled = self._judge.settled(point, lengths, [*self.ended(point.studies)])
            except BadInput as error:  # all of them diverged, or failed
                progress.done, progress.problem = True, str(error)
                break
            progress.lengths = lengths
            progress.done = settled or length == point.lengths[-1]
        for study in point.studies:
            self._chosen[study.key].done = True

    def _trained(self, point: Point, length: int) -> bool:
        """Whether all branches are that long which choose a learning rate, and of those that judge
        the ones at the best."""
        wanted = {study.key: [*branches(study, self._seed, point)] for study in point.studies}
        choosing = {
            key: [trial for trial in trials if point.seed_of(trial) < point.choosing]
            for key, trials in wanted.items()
        }
        if not self._want(point, choosing, length):
            return False
        best = {study.batch_size: 0 for study in point.studies}
        if point.choosing:
            best = self._judge.chosen(point, length, [*self.ended(point.studies)])
        judging = {
            key: [
                trial
                for trial in trials
                if point.seed_of(trial) < point.choosing
                or point.rate_of(trial) == best[key.batch_size]
            ]
            for key, trials in wanted.items()
        }
        return self._want(point, judging, length)

    def _want(self, point: Point, wanted: Mapping[StudyKey, list[Trial]], length: int) -> bool:
        """Wants these trials if they are not all that long; whether they are."""
        limits = {s.key: s.batches.steps(point.at_examples + length) for s in point.studies}
        if all(
            self._chosen[key].is_there(trial.key, limits[key])
            for key, trials in wanted.items()
            for trial in trials
        ):
            return True
        for key, trials in wanted.items():
            self._chosen[key].want(trials, limits[key])
        return False

    def ended(self, studies: Iterable[Study]) -> Iterator[FinishedTrial]:
        """What was trained of them, as far as it came."""
        for study in studies:
            yield from self._chosen[study.key].ended.values()


def branches(study: Study, seed: int, point: Point) -> Iterator[Trial]:
    """All trials there could be of a study."""
    for rate, params in enumerate(study.search.points):
        for number in range(point.seeds):
            yield Trial(
                study=study,
                index=rate * point.seeds + number,
                seed=derive_seed(seed, "branch", number),
                params=params,
            )
