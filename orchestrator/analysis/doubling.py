"""When to double the batch of a training, by verdicts along it."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from orchestrator.analysis.branches import Verdict
from orchestrator.records import BadInput


@dataclass(frozen=True, kw_only=True)
class ScheduleStep:
    """What holds from so many examples on."""

    examples: int
    batch_size: int
    rate: float
    """Learning rate over the one that the trunk has there."""


def schedule_of(
    verdicts: Collection[Verdict], *, end: Literal["low", "value"]
) -> list[ScheduleStep]:
    """The batch of the trunk, doubled at each point as often as costs at most a fifth more examples
    there, by the value of the verdict or, to be on the safe side, by the low end of its interval.
    It never shrinks, and never grows beyond the largest factor that was measured."""
    sizes = sorted({verdict.batch_size for verdict in verdicts})
    if len(sizes) != 1:
        raise BadInput(f"A schedule needs verdicts of one trunk, but its batch sizes are {sizes}.")
    (batch_size,) = sizes
    steps = [ScheduleStep(examples=0, batch_size=batch_size, rate=1.0)]
    for verdict in sorted(verdicts, key=lambda verdict: verdict.at_examples):
        factor = max(steps[-1].batch_size // batch_size, _affordable(verdict, end))
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


def _affordable(verdict: Verdict, end: Literal["low", "value"]) -> int:
    """The largest power of two."""
    limit = verdict.fifth_more.low if end == "low" else verdict.fifth_more.value
    assert limit is not None
    return int(2 ** math.floor(math.log2(min(limit, verdict.costs[-1].factor))))


def _rate(verdict: Verdict, factor: int) -> float:
    """Of the largest factor measured that is no larger; the trunk keeps its own."""
    if factor == 1:
        return 1.0
    return [cost.rate for cost in verdict.costs if cost.factor <= factor][-1]


def megatron(schedule: Sequence[ScheduleStep]) -> str:
    """Batch sizes by the samples from which on they hold, as trainers after Megatron read them:
    "0:8 4096:16"."""
    grown = [schedule[0]] + [
        step for before, step in pairwise(schedule) if step.batch_size > before.batch_size
    ]
    return " ".join(f"{step.examples}:{step.batch_size}" for step in grown)


def steps_saved(schedule: Sequence[ScheduleStep], *, batch_size: int, total_examples: int) -> float:
    """The share of the optimizer's steps that a constant batch would take for as many examples."""
    starts = [min(step.examples, total_examples) for step in schedule]
    steps = sum(
        (until - start) / step.batch_size
        for step, (start, until) in zip(schedule, pairwise([*starts, total_examples]), strict=True)
    )
    return 1 - steps * batch_size / total_examples
