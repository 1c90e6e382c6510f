"""Decides which branches from the points of a trunk are trained next, and how far.

A trunk is a training whose states at some steps are saved. Branches begin at each of these points,
at several batch sizes and learning rates, with several orders of examples. Their length is doubled
until a judge has seen enough. The decisions depend on measurements alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from orchestrator.records import (
    BadInput,
    FinishedTrial,
    Outcome,
    Study,
    StudyKey,
    Trial,
    derive_seed,
)
from orchestrator.search.queue import Chosen, Queue
from orchestrator.search.race import Bounds


@dataclass(frozen=True, kw_only=True)
class Fork:
    """A point of a trunk, with a study for each batch size of the branches that begin there."""

    at_examples: int
    """Number of examples that the trunk has trained before the point."""
    studies: tuple[Study, ...]
    """By growing batch size, from the trunk's up. The points of their spaces are learning rates."""
    lengths: tuple[int, ...]
    """Lengths of the branches in examples. The next length is trained only if it is needed."""
    seeds: int
    """Number of seeds per learning rate."""
    choosing: int
    """Number of seeds whose branches choose the learning rates. The other seeds judge."""
    asked: tuple[int, ...]
    """For each study, how many rates were asked for; others are tried beside the best."""

    @property
    def start_step(self) -> int:
        """The step of the trunk at the point."""
        return self.studies[0].start_step

    def rate_of(self, trial: Trial) -> int:
        """The number of the trial's learning rate."""
        return trial.index // self.seeds

    def seed_of(self, trial: Trial) -> int:
        """The number of the trial's seed. A seed is an order of examples, the same at each point,
        batch size and learning rate."""
        return trial.index % self.seeds

    def branches(self, study: Study, sweep_seed: int, rates: Set[int], seeds: range) -> list[Trial]:
        """The trials of a study of the point at these learning rates with these seeds."""
        return [
            Trial(
                study=study,
                index=rate * self.seeds + seed,
                seed=derive_seed(sweep_seed, "branch", seed),
                params=study.search.points[rate],
            )
            for rate in sorted(rates)
            for seed in seeds
        ]


Verdict = TypeVar("Verdict")


class Judge(Protocol[Verdict]):
    """Evaluates the branches of a point up to a length in examples."""

    def chosen(self, point: Fork, length: int, ended: Sequence[FinishedTrial]) -> dict[int, int]:
        """Batch size -> number of the best learning rate, from the seeds that choose."""

    def settled(self, verdicts: Sequence[Verdict]) -> bool:
        """Whether longer branches would give the same verdict as the last of these."""

    def verdict(self, point: Fork, length: int, ended: Sequence[FinishedTrial]) -> Verdict:
        """The verdict from branches of that length."""


@dataclass
class _Progress(Generic[Verdict]):
    """The progress of the branches of one point."""

    point: Fork
    done: bool = False
    verdicts: list[Verdict] = field(default_factory=list)
    """The verdicts from branches of each length that was trained in full, by the learning rates
    that were tried by then. Those that are tried later have no branches that judge them there."""
    problem: str | None = None
    """The reason why longer branches can't be judged; None if there is no problem."""
    rates: dict[StudyKey, set[int]] = field(default_factory=dict)
    """The numbers of the learning rates that are tried so far at each batch size."""

    def __post_init__(self) -> None:
        pairs = zip(self.point.studies, self.point.asked, strict=True)
        self.rates = {study.key: {*range(count)} for study, count in pairs}

    def further(self, best: Mapping[int, int]) -> bool:
        """Whether learning rates are added: those next to a best one, if there are several."""
        added = False
        for study in self.point.studies:
            rates = [float(point["learning_rate"]) for point in study.search.points]
            new = beside(rates, self.rates[study.key], best[study.batch_size])
            self.rates[study.key] |= new
            added |= bool(new)
        return added


def beside(rates: Sequence[float], tried: Set[int], best: int) -> set[int]:
    """The untried rates next to the best one, by number; none if a single one was asked for."""
    order = sorted(range(len(rates)), key=lambda number: rates[number])
    position = order.index(best)
    return {*order[max(position - 1, 0) : position + 2]} - tried if len(tried) > 1 else set()


class Branching(Queue, Generic[Verdict]):
    """The queue of a trunk and then its branches, those of all points side by side."""

    def __init__(
        self, trunk: Trial, points: Sequence[Fork], judge: Judge[Verdict], seed: int
    ) -> None:
        self.trunk, self._judge, self._seed = trunk, judge, seed
        self._points = [_Progress[Verdict](point) for point in points]
        studies = [trunk.study, *(study for point in points for study in point.studies)]
        self.searches: dict[StudyKey, Chosen] = {study.key: Chosen(study) for study in studies}
        self._of_study = {
            study.key: progress for progress in self._points for study in progress.point.studies
        }
        self._unfinished = [*self.searches.values()]

    @property
    def points(self) -> list[Fork]:
        return [progress.point for progress in self._points]

    def load(self, finished: FinishedTrial) -> None:
        self.searches[finished.trial.study.key].record(finished)

    def begin(self) -> None:
        trunk = self.searches[self.trunk.study.key]
        last = self.trunk.study.states_at[-1]
        trunk.done = trunk.is_there(self.trunk.key, last)
        if not trunk.done:
            trunk.want([self.trunk], last)
        else:
            for progress in self._points:
                self._advance(progress)
        self._unfinished = [chosen for chosen in self.searches.values() if not chosen.done]

    def train_trunk_again(self) -> None:
        """Asks for the trunk once more, before any branch: its states are lost."""
        self.searches[self.trunk.study.key].ended.clear()
        for key in self._of_study:
            self.searches[key].want([], 0)
        self.begin()

    def record(self, finished: FinishedTrial) -> Bounds | None:
        key = finished.trial.study.key
        self.searches[key].record(finished)
        if key in self._of_study:
            self._advance(self._of_study[key])
            self._unfinished = [chosen for chosen in self.searches.values() if not chosen.done]
        else:
            self.begin()
        return None

    @property
    def has_failed(self) -> bool:
        """Whether any trial failed, so that another attempt may come further."""
        return any(
            finished.outcome.status == "failed"
            for chosen in self.searches.values()
            for finished in chosen.ended.values()
        )

    @property
    def needed_states(self) -> set[int]:
        """Steps of the trunk, once it is trained, whose states branches still need."""
        if not self.searches[self.trunk.study.key].done:
            return set()
        return {p.point.start_step for p in self._points if not p.done}

    @property
    def problems(self) -> dict[int, str]:
        """Position of a point in examples -> the reason why longer branches can't be judged."""
        return {
            progress.point.at_examples: progress.problem
            for progress in self._points
            if progress.problem is not None
        }

    def judged(self) -> list[list[Verdict]]:
        """The verdicts of each point, from branches of each length that was trained in full."""
        return [progress.verdicts for progress in self._points]

    def _advance(self, progress: _Progress[Verdict]) -> None:
        """Asks for the branches that must be trained next, until the point is settled."""
        point = progress.point
        trunk = self.searches[self.trunk.study.key].ended[self.trunk.key].outcome
        if trunk.steps < point.start_step:
            progress.done = True
            progress.problem = _failed("The trunk", trunk, f"{trunk.status} before this point")
        while not progress.done:
            length = point.lengths[len(progress.verdicts)]
            try:
                if not self._trained(progress, length):
                    return
                verdict = self._judge.verdict(point, length, self._tried(progress))
                settled = self._judge.settled([*progress.verdicts, verdict])
            except BadInput as error:  # some failed, or all diverged
                progress.done, progress.problem = True, str(error)
                break
            progress.verdicts.append(verdict)
            progress.done = settled or length == point.lengths[-1]
        for study in point.studies:
            self.searches[study.key].done = True

    def _trained(self, progress: _Progress[Verdict], length: int) -> bool:
        """Whether all branches that are needed have that length: those that choose, at all learning
        rates, and those that judge, at the best. Asks for those that are missing."""
        point = progress.point
        best = {study.batch_size: 0 for study in point.studies}
        while True:
            choosing = {
                study.key: point.branches(
                    study, self._seed, progress.rates[study.key], range(point.choosing)
                )
                for study in point.studies
            }
            if not self._want(point, choosing, length):
                return False
            if not point.choosing:
                break
            best = self._judge.chosen(point, length, self._tried(progress))
            if not progress.further(best):
                break
        judges = range(point.choosing, point.seeds)
        judging = {
            study.key: choosing[study.key]
            + point.branches(study, self._seed, {best[study.batch_size]}, judges)
            for study in point.studies
        }
        return self._want(point, judging, length)

    def _tried(self, progress: _Progress[Verdict]) -> list[FinishedTrial]:
        """The branches of a point that ended at the learning rates that are tried so far. A run
        that goes on may have tried more of them, at greater length."""
        return [
            finished
            for finished in self.ended(progress.point.studies)
            if progress.point.rate_of(finished.trial) in progress.rates[finished.trial.study.key]
        ]

    def _want(self, point: Fork, wanted: Mapping[StudyKey, list[Trial]], length: int) -> bool:
        """Whether all of these trials have that length. If not, asks for them. Raises `BadInput` if
        some failed: nothing is known of them, as it is of those that diverged."""
        limits = {s.key: s.batches.steps(point.at_examples + length) for s in point.studies}
        if all(
            self.searches[key].is_there(trial.key, limits[key])
            for key, trials in wanted.items()
            for trial in trials
        ):
            for key, trials in wanted.items():
                ended = [self.searches[key].ended[trial.key].outcome for trial in trials]
                if failed := [outcome for outcome in ended if outcome.status == "failed"]:
                    what = f"{len(failed)} of {len(ended)} branches at batch size {key.batch_size}"
                    raise BadInput(_failed(what, failed[-1], "failed"))
            return True
        for key, trials in wanted.items():
            self.searches[key].want(trials, limits[key])
        return False

    def ended(self, studies: Iterable[Study]) -> Iterator[FinishedTrial]:
        """Yields all trials of these studies that ended, whatever their length."""
        for study in studies:
            yield from self.searches[study.key].ended.values()


def _failed(what: str, outcome: Outcome, how: str) -> str:
    lines = (outcome.error or "").strip().splitlines()
    why = f": {lines[-1]}. `orchestrate resume` tries again" if lines else ""
    return f"{what} {how}{why}."
