"""Makes branches from trials that went on from points of a trunk, and verdicts from the
branches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.analysis.branches import Branch, Verdict, chosen_rates, settled, verdict_of
from orchestrator.records import FinishedTrial, Value
from orchestrator.search import STOPPED, Point


@dataclass(frozen=True, kw_only=True)
class BranchJudge:
    loss: str
    """Name of the metric by which branches are compared."""
    learning_rate: float
    """The learning rate of the trunk."""

    def chosen(self, point: Point, length: int, ended: Sequence[FinishedTrial]) -> dict[int, int]:
        """Batch size -> number of the learning rate that is best for the choosing seeds."""
        choosing = [
            finished for finished in ended if point.seed_of(finished.trial) < point.choosing
        ]
        rates = chosen_rates([*self.branches(point, length, choosing)])
        return {
            study.batch_size: [*map(self._rate, study.search.points)].index(rates[factor])
            for study in point.studies
            for factor in [study.batch_size // study.batches.first]
        }

    def settled(self, point: Point, lengths: Sequence[int], ended: Sequence[FinishedTrial]) -> bool:
        """Whether longer branches are not expected to change the verdict."""
        return settled([self.verdict(point, length, ended) for length in lengths])

    def verdict(self, point: Point, length: int, ended: Iterable[FinishedTrial]) -> Verdict:
        return verdict_of(
            [*self.branches(point, length, ended)],
            batch_size=point.studies[0].batches.first,
            at_examples=point.at_examples,
        )

    def _rate(self, params: Mapping[str, Value]) -> float:
        return float(params["learning_rate"]) / self.learning_rate

    def branches(
        self, point: Point, length: int, ended: Iterable[FinishedTrial]
    ) -> Iterator[Branch]:
        """The branches of at least this length, cut off there. Failed trials count as diverged."""
        for finished in ended:
            study = finished.trial.study
            beyond = study.batches.steps(point.at_examples + length + 1)
            there = [
                (study.examples(m.step) - point.at_examples, m.metrics[self.loss])
                for m in finished.measurements
                # Before the first batch, metrics of batches are not known.
                if m.step < beyond and self.loss in m.metrics
            ]
            if not there or there[-1][0] < length:
                if finished.outcome.status in STOPPED:
                    continue
                there.append((length, math.inf))
            examples, losses = np.array(there, dtype=np.float64).T
            yield Branch(
                factor=study.batch_size // study.batches.first,
                rate=self._rate(finished.trial.params),
                seed=point.seed_of(finished.trial),
                examples=examples,
                loss=losses,
            )
