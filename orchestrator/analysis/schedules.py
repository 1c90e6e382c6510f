"""From the trials of a run of branches to a schedule: verdicts on points of a training, a schedule
of doublings of the batch size, and what trainings with it saved."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from orchestrator.analysis.branches import Branch, Verdict, chosen_rates, settled, verdict_of
from orchestrator.analysis.estimates import Estimate, Floats, reach_of_mean
from orchestrator.records import FinishedTrial, TrialKey, Value
from orchestrator.search import STOPPED, Fork

ENDED = ("exhausted", "reached")
"""Outcomes of trainings that came to the end."""


@dataclass(frozen=True, kw_only=True)
class BranchJudge:
    loss: str
    learning_rate: float
    _courses: dict[TrialKey, tuple[FinishedTrial, tuple[Floats, Floats, Floats]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """What was read of each trial, since a point is judged at many lengths and learning rates."""

    def chosen(self, point: Fork, length: int, ended: Sequence[FinishedTrial]) -> dict[int, int]:
        """Batch size -> number of the learning rate that is best for the choosing seeds."""
        choosing = [
            finished for finished in ended if point.seed_of(finished.trial) < point.choosing
        ]
        rates = chosen_rates([*self.branches(point, length, choosing)], length)
        return {
            study.batch_size: [*map(self._rate, study.search.points)].index(rates[factor])
            for study in point.studies
            for factor in [study.batch_size // study.batches.first]
        }

    settled = staticmethod(settled)

    def verdict(self, point: Fork, length: int, ended: Iterable[FinishedTrial]) -> Verdict:
        return verdict_of(
            [*self.branches(point, length, ended)],
            choosing=point.choosing,
            length=length,
            batch_size=point.studies[0].batches.first,
            at_examples=point.at_examples,
        )

    def _rate(self, params: Mapping[str, Value]) -> float:
        return float(params["learning_rate"]) / self.learning_rate

    def branches(
        self, point: Fork, length: int, ended: Iterable[FinishedTrial]
    ) -> Iterator[Branch]:
        """The branches of at least this length, cut off there. Failed trials count as diverged."""
        for finished in ended:
            study = finished.trial.study
            steps, examples, losses = self._course(finished)
            count = int(np.searchsorted(steps, study.batches.steps(point.at_examples + length + 1)))
            examples, losses = examples[:count] - point.at_examples, losses[:count]
            if not count or examples[-1] < length:
                if finished.outcome.status in STOPPED:
                    continue
                examples, losses = np.append(examples, length), np.append(losses, math.inf)
            yield Branch(
                factor=study.batch_size // study.batches.first,
                rate=self._rate(finished.trial.params),
                seed=point.seed_of(finished.trial),
                examples=examples,
                loss=losses,
            )

    def _course(self, finished: FinishedTrial) -> tuple[Floats, Floats, Floats]:
        """The steps of a trial's measurements, with the examples and the loss at each."""
        known = self._courses.get(finished.trial.key)
        if known is None or known[0] is not finished:
            there = [
                (m.step, finished.trial.study.examples(m.step), m.metrics[self.loss])
                for m in finished.measurements
                # Before the first batch, metrics of batches are not known.
                if self.loss in m.metrics
            ]
            steps, examples, losses = np.array(there, dtype=np.float64).reshape(-1, 3).T
            known = finished, (steps, examples, losses)
            self._courses[finished.trial.key] = known
        return known[1]


@dataclass(frozen=True, kw_only=True)
class ScheduleStep:
    """The batch size and learning rate from a number of examples on."""

    examples: int
    batch_size: int
    rate: float
    """Learning rate as a multiple of the trunk's learning rate at that point."""


def schedule_of(
    verdicts: Collection[Verdict], *, end: Literal["low", "value"]
) -> list[ScheduleStep]:
    """The schedule that doubles the trunk's batch size at each point as often as costs at most a
    fifth more examples, by the verdict's value or, on the safe side, the low `end` of its interval.
    The batch never shrinks, nor grows beyond the largest measured factor."""
    batch_size = next(iter(verdicts)).batch_size
    steps = [ScheduleStep(examples=0, batch_size=batch_size, rate=1.0)]
    for verdict in sorted(verdicts, key=lambda verdict: verdict.at_examples):
        limit = verdict.fifth_more.ends[0] if end == "low" else verdict.fifth_more.value
        power = math.floor(math.log2(min(limit, verdict.costs[-1].factor)))
        factor = max(steps[-1].batch_size // batch_size, int(2**power))
        step = ScheduleStep(
            examples=verdict.at_examples,
            batch_size=factor * batch_size,
            rate=_rate(verdict, factor),
        )
        if step.examples == steps[-1].examples:
            steps[-1] = step
        elif (step.batch_size, step.rate) != (steps[-1].batch_size, steps[-1].rate):
            steps.append(step)
    return steps


def _rate(verdict: Verdict, factor: int) -> float:
    """The rate for `factor`: of the largest measured one up to it. Factor 1 keeps the trunk's."""
    if factor == 1:
        return 1.0
    return [cost.rate for cost in verdict.costs if cost.factor <= factor][-1]


def megatron(schedule: Sequence[ScheduleStep]) -> str:
    """For Megatron-style trainers: START:BATCH_SIZE in samples, such as "0:8 4096:16"."""
    grown = [schedule[0]] + [
        step for before, step in pairwise(schedule) if step.batch_size > before.batch_size
    ]
    return " ".join(f"{step.examples}:{step.batch_size}" for step in grown)


def steps_saved(schedule: Sequence[ScheduleStep], *, batch_size: int, total_examples: int) -> float:
    """The share of the constant batch size's steps that the schedule saves for these examples."""
    starts = [min(step.examples, total_examples) for step in schedule]
    steps = sum(
        (until - start) / step.batch_size
        for step, (start, until) in zip(schedule, pairwise([*starts, total_examples]), strict=True)
    )
    return 1 - steps * batch_size / total_examples


@dataclass(frozen=True, kw_only=True)
class Confirmed:
    """Trainings with a schedule against those without it, for the same seeds and examples."""

    recipe: str
    seeds: int
    """Number of seeds whose trainings came to the end with and without the schedule."""
    failed: int
    """Number of trainings that diverged or failed with the schedule."""
    steps: int
    constant_steps: int
    differences: Mapping[str, Estimate]
    """Metric -> the difference at the end, with the schedule minus without it."""

    @property
    def steps_saved(self) -> float:
        return 1 - self.steps / self.constant_steps

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "steps_saved": self.steps_saved}


def confirmed(
    recipe: str, ours: list[FinishedTrial], constant: list[FinishedTrial], metrics: list[str]
) -> Confirmed | None:
    """The comparison; None if fewer than two seeds came to the end both ways."""
    constant_by_seed = {
        trained.trial.repeat: trained for trained in constant if trained.outcome.status in ENDED
    }
    pairs = [
        (trained, constant_by_seed[trained.trial.repeat])
        for trained in ours
        if trained.outcome.status in ENDED and trained.trial.repeat in constant_by_seed
    ]
    if len(pairs) < 2:
        return None
    return Confirmed(
        recipe=recipe,
        seeds=len(pairs),
        failed=sum(trained.outcome.status not in ENDED for trained in ours),
        steps=pairs[0][0].outcome.steps,
        constant_steps=pairs[0][1].outcome.steps,
        differences={name: _difference(pairs, name) for name in metrics},
    )


def _difference(pairs: Sequence[tuple[FinishedTrial, FinishedTrial]], metric: str) -> Estimate:
    ends = [[trained.measurements[-1].metrics[metric] for trained in pair] for pair in pairs]
    values = np.array([ours - constant for ours, constant in ends])
    mean, reach = float(values.mean()), float(reach_of_mean(values))
    return Estimate(value=mean, low=mean - reach, high=mean + reach)
