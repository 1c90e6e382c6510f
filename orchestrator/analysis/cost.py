"""What a batch size costs: examples and device-seconds against time, and which one to take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.analysis.scaling import USEFUL_TOLERANCE
from orchestrator.results import FrontierRow


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What reaching the goal took at one batch size."""

    recipe: str
    batch_size: int
    steps: int
    examples: int
    seconds: float | None
    """Of training, as measured: of a trial that may have shared its machine with others."""
    device_seconds: float | None
    pareto: bool
    """Whether no other batch size or recipe needs both fewer steps and fewer examples."""


@dataclass(frozen=True, kw_only=True)
class Advice:
    """Which batch size to take for one workload and goal, of the best recipe there."""

    workload: str
    goal: str
    fastest: Cost
    """The fewest examples among those within a tenth of the fewest steps."""
    cheapest: Cost
    """The fewest steps among those within a tenth of the fewest examples, that is, of the least
    work."""
    balanced: Cost
    """The least product of both: at a hyperbola's B_crit, where each is twice its minimum."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def costs(rows: Sequence[FrontierRow]) -> list[Cost]:
    """Of one workload and goal, in order of recipe and batch size as given. A goal that was
    reached before the first step costs nothing, and is left out."""
    amounts = [
        (row.steps, row.steps * row.batch_size, row)
        for row in rows
        if row.steps and not row.censored
    ]
    return [
        Cost(
            recipe=row.recipe,
            batch_size=row.batch_size,
            steps=steps,
            examples=examples,
            seconds=row.seconds,
            device_seconds=row.seconds * row.ranks if row.seconds and row.ranks else None,
            pareto=not any(
                others <= steps and theirs <= examples and (others, theirs) != (steps, examples)
                for others, theirs, _ in amounts
            ),
        )
        for steps, examples, row in amounts
    ]


def advice(rows: Sequence[FrontierRow]) -> list[Advice]:
    """For each workload and goal that was reached."""
    panels: dict[tuple[str, str], list[FrontierRow]] = {}
    for row in rows:
        panels.setdefault((row.workload, row.goal), []).append(row)
    found = []
    for (workload, goal), panel in panels.items():
        if priced := costs(panel):
            one = Advice(
                workload=workload,
                goal=goal,
                fastest=min(_within_a_tenth(priced, _steps), key=_examples),
                cheapest=min(_within_a_tenth(priced, _examples), key=_steps),
                balanced=min(priced, key=lambda cost: cost.steps * cost.examples),
            )
            found.append(one)
    return found


def _within_a_tenth(priced: Sequence[Cost], amount: Callable[[Cost], int]) -> list[Cost]:
    least = min(map(amount, priced))
    return [cost for cost in priced if amount(cost) <= (1 + USEFUL_TOLERANCE) * least]


def _steps(cost: Cost) -> int:
    return cost.steps


def _examples(cost: Cost) -> int:
    return cost.examples
