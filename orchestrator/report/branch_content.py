"""Gathers from a run of branches everything that its page shows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from orchestrator.analysis import (
    BranchJudge,
    Confirmed,
    Estimate,
    NoisePoint,
    Verdict,
    along,
    critical_in_words,
    fifth_more_in_words,
    in_words,
)
from orchestrator.planning.sweep import Sweep
from orchestrator.records import Measurement, Study
from orchestrator.report.figures.branches import BranchCurve, Mark, Series, Stairs
from orchestrator.report.figures.style import evenly, rounded
from orchestrator.results import Run
from orchestrator.results.noise_courses import courses_of
from orchestrator.search import Branching, Point

MOST_CURVES = 60
"""The most branches in the figure of the trunk's loss. If there are more, fewer points are shown,
but all batch sizes."""


@dataclass(frozen=True, kw_only=True)
class BranchContent:
    run: Run
    sweep: Sweep
    trunk: Study
    total_examples: int
    """Number of examples of the whole trunk, if the trunk is trained to its end."""
    queue: Branching[Verdict]
    by_length: Sequence[Sequence[Verdict]]
    """The verdicts of each point, from the shortest branches to the longest."""
    schedules: Mapping[str, Mapping[str, Any]]
    confirmed: Sequence[Confirmed]

    @property
    def verdicts(self) -> list[Verdict]:
        """The verdict of each point from its longest branches."""
        return [found[-1] for found in self.by_length if found]

    @property
    def loss(self) -> str:
        """The metric by which branches are compared."""
        assert self.sweep.branch is not None
        return self.sweep.branch.loss

    @property
    def factors(self) -> list[int]:
        assert self.sweep.branch is not None
        return sorted({*self.sweep.branch.factors})

    @property
    def points(self) -> list[int]:
        """The points of the trunk from which branches continue, in examples."""
        return [point.at_examples for point in self.queue.points]

    @cached_property
    def _measured(self) -> tuple[Measurement, ...]:
        """Returns what was measured along the trunk so far."""
        found = [*self.queue.ended([self.trunk])]
        return found[0].measurements if found else ()

    @cached_property
    def trunk_losses(self) -> list[tuple[int, float]]:
        """(examples, loss) along the trunk."""
        return [
            (self.trunk.examples(one.step), rounded(one.metrics[self.loss], 6))
            for one in self._measured
            if self.loss in one.metrics
        ]

    @cached_property
    def noise(self) -> dict[int, NoisePoint]:
        """Maps examples to the noise scale measured there, along the trunk."""
        rows = [{"step": one.step, **one.metrics} for one in self._measured]
        found = along(courses_of(rows, self.trunk.batch_size).plain)
        return {self.trunk.examples(point.step): point for point in found}

    @cached_property
    def curves(self) -> list[BranchCurve]:
        """Returns the longest branches of each point at the learning rates that were chosen. Where
        there are too many points, only some of them are returned."""
        points = {point.at_examples: point for point in self.queue.points}
        rate = float(self.queue.trunk.params["learning_rate"])
        judge = BranchJudge(loss=self.loss, learning_rate=rate)
        most = max(1, MOST_CURVES // len(self.factors))
        return [
            curve
            for verdict in evenly(self.verdicts, most)
            for curve in self._curves_of(verdict, points[verdict.at_examples], judge)
        ]

    def _curves_of(self, verdict: Verdict, point: Point, judge: BranchJudge) -> list[BranchCurve]:
        found = [*judge.branches(point, verdict.length, self.queue.ended(point.studies))]
        curves = []
        for cost in verdict.costs:
            judging = [
                each
                for each in found
                if (each.factor, each.rate) == (cost.factor, cost.rate)
                and each.seed >= point.choosing
            ]
            # One that diverged may have ended early.
            if judging and all(np.isfinite(each.loss).all() for each in judging):
                losses = np.mean([each.loss for each in judging], axis=0)
                curves.append(
                    BranchCurve(
                        at_examples=verdict.at_examples,
                        batch_size=cost.factor * verdict.batch_size,
                        factor=cost.factor,
                        seeds=len(judging),
                        rate=cost.rate,
                        examples=(verdict.at_examples + judging[0].examples).tolist(),
                        losses=[rounded(value, 6) for value in losses.tolist()],
                    )
                )
        return curves


def series_of(content: BranchContent) -> list[Series]:
    """Returns the batch sizes along the trunk: those that were measured, and the noise scale."""
    known = [verdict for verdict in content.verdicts if verdict.is_known]
    return [
        Series(name="local critical batch size", marks=[*_critical(known)]),
        _noise(content),
        Series(name="a fifth more examples", marks=[*map(_fifth_more, known)]),
    ]


def _critical(known: Sequence[Verdict]) -> Iterator[Mark]:
    for verdict in known:
        if verdict.critical is not None:
            said = f"local critical batch size {critical_in_words(verdict)}"
            yield _mark(verdict.at_examples, verdict.critical, verdict.critical.low or 0.0, said)


def _fifth_more(verdict: Verdict) -> Mark:
    said = f"a fifth more examples at batch size {fifth_more_in_words(verdict)}"
    size, sure = verdict.fifth_more_batch_size, verdict.sure_batch_size
    return _mark(verdict.at_examples, size, sure, said)


def _mark(examples: int, size: Estimate, bound: float, said: str) -> Mark:
    said = f"<b>after {examples:,} examples</b><br>{said}"
    return Mark(at_examples=examples, batch_size=size, bound=bound, said=said)


def _noise(content: BranchContent) -> Series:
    noise = content.noise
    marks = [
        _mark(examples, scale, scale.low or 0.0, f"noise scale {in_words(scale)}")
        for examples in content.points
        if examples in noise
        for scale in [noise[examples].scale]
    ]
    line = [
        (examples, point.scale.value)
        for examples, point in noise.items()
        if examples and math.isfinite(point.scale.value)
    ]
    return Series(name="noise scale", marks=marks, line=line)


def stairs_of(schedules: Mapping[str, Mapping[str, Any]]) -> list[Stairs]:
    return [
        Stairs(
            name=f"{name} schedule",
            stages=[
                (
                    stage["examples"],
                    stage["batch_size"],
                    f"<b>{name} schedule</b><br>from {stage['examples']:,} examples on: batch size "
                    f"{stage['batch_size']:,}, learning rate x{stage['learning_rate']:.3g}",
                )
                for stage in schedule["stages"]
            ],
        )
        for name, schedule in schedules.items()
    ]
