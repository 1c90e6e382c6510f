"""Makes a schedule of doublings of the batch size from verdicts along a training."""

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
    """The batch size and learning rate from a number of examples on."""

    examples: int
    batch_size: int
    rate: float
    """Learning rate as a multiple of the trunk's learning rate at that point."""


def schedule_of(
    verdicts: Collection[Verdict], *, end: Literal["low", "value"]
) -> list[ScheduleStep]:
    """The schedule that doubles the trunk's batch size at each point as often as costs at most a
    fifth more examples there. `end` chooses the number of the verdict: its value, or, on the safe
    side, the low end of its interval. The batch size never shrinks, and never grows beyond the
    largest measured factor."""
    sizes = sorted({verdict.batch_size for verdict in verdicts})
    if len(sizes) != 1:
        raise BadInput(
            f"A schedule needs verdicts of one trunk, but these have the trunk batch sizes {sizes}."
        )
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
    """The largest power of two, as a factor, that the verdict allows."""
    limit = verdict.fifth_more.low if end == "low" else verdict.fifth_more.value
    assert limit is not None
    return int(2 ** math.floor(math.log2(min(limit, verdict.costs[-1].factor))))


def _rate(verdict: Verdict, factor: int) -> float:
    """The learning rate for `factor`: that of the largest measured factor that does not exceed it.
    Factor 1 keeps the trunk's learning rate."""
    if factor == 1:
        return 1.0
    return [cost.rate for cost in verdict.costs if cost.factor <= factor][-1]


def megatron(schedule: Sequence[ScheduleStep]) -> str:
    """The schedule as text for Megatron-style trainers: SAMPLES:BATCH_SIZE from which on a batch
    size holds, such as "0:8 4096:16"."""
    grown = [schedule[0]] + [
        step for before, step in pairwise(schedule) if step.batch_size > before.batch_size
    ]
    return " ".join(f"{step.examples}:{step.batch_size}" for step in grown)


def steps_saved(schedule: Sequence[ScheduleStep], *, batch_size: int, total_examples: int) -> float:
    """The steps that the schedule saves, as a share of the steps that the constant batch size takes
    for the same number of examples."""
    starts = [min(step.examples, total_examples) for step in schedule]
    steps = sum(
        (until - start) / step.batch_size
        for step, (start, until) in zip(schedule, pairwise([*starts, total_examples]), strict=True)
    )
    return 1 - steps * batch_size / total_examples
