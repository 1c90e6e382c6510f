"""A trial in a slot of an engine: its task, its standing, and what it has taken."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from torch import Tensor

from orchestrator.records import Goal, Trial
from orchestrator.records.cooling import CooledStanding, standing_of
from orchestrator.training.checkpoint import Checkpoint, States
from orchestrator.training.engine import Engine
from orchestrator.training.stacked_trial import StackedTrial
from orchestrator.training.trainer import Trainer
from orchestrator.workloads import mapped

Cut = Literal["dominated", "paused", "held"] | None
Ending = Callable[[Mapping[Goal, int], int, Mapping[Goal, int]], Cut]
"""Function that decides whether a trial ends. It gets the goals that the trial has not reached,
each with the first step at which it may still turn out to be reached, the step of its next
measurement, and goals that it has passed but may turn out to reach sooner. A `dominated` trial ends
for good; a `paused` trial may go on from its checkpoint; a `held` trial leaves its slot until
another trial has ended, and is then asked again."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A trial to train, with its checkpoint and the rule that ends it."""

    trial: Trial
    checkpoint: Checkpoint | None = None
    """File from which the trial resumes, and to which it saves its state from time to time."""
    ending: Ending | None = None
    """Rule that may end the trial early, asked after each measurement, on the first rank."""
    states: States | None = None
    """State with which the trial begins, and states that it saves for other trials."""


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What a trial took."""

    steps: int = 0
    seconds: float = 0.0
    evaluation_seconds: float = 0.0

    @classmethod
    def at(cls, position: Trainer | StackedTrial) -> Spent:
        """What it took up to its position, on the way that leads there."""
        return cls(
            steps=position.step,
            seconds=position.seconds,
            evaluation_seconds=position.evaluation_seconds,
        )

    def plus(self, other: Spent, sign: int = 1) -> Spent:
        return Spent(
            **{name: value + sign * getattr(other, name) for name, value in asdict(self).items()}
        )


class Entry:
    """A task in a slot."""

    def __init__(self, task: Task, engine: Engine, slot: int) -> None:
        self.task = task
        self.standing = standing_of(task.trial)
        self.kept: dict[int, Mapping[str, Any]] = {}
        """Step of the trunk -> state from which the trial may have to go on."""
        self.before = Spent()
        """What it took up to where it went back to the trunk, beyond what the trunk had taken."""
        self.cooled: int | None = None
        """Step at which the cooldown began that it is in, or at the end of; None: on the trunk."""
        self.aside: Mapping[str, Any] | None = None
        """Its state while it is held."""
        self.width = engine.width
        self.began = time.time()
        self.resumed = Spent()
        """What it took before it was put into the slot."""
        self.kept_at = engine.seconds
        """Time of the last checkpoint, in seconds of the engine."""
        self.pause = 0.0
        """Seconds until the next one is worth its time."""

    def spent(self, engine: Engine, slot: int) -> Spent:
        """What the trial has taken so far."""
        return self.before.plus(Spent.at(engine.at(slot)))

    def state(self, engine: Engine, slot: int) -> Mapping[str, Any]:
        """Everything that the rest of the trial depends on."""
        state = engine.state(slot) if self.aside is None else self.aside
        if not isinstance(self.standing, CooledStanding):
            return state
        more = {"kept": self.kept, "before": asdict(self.before), "cooled": self.cooled}
        return {**state, **more}

    def put(self, engine: Engine, slot: int, state: Mapping[str, Any] | None) -> None:
        engine.put(slot, self.task.trial, state)
        found = state or {}
        self.kept, self.before = dict(found.get("kept", {})), Spent(**found.get("before", {}))
        self.cooled = found.get("cooled")
        self.began, self.resumed = time.time(), self.spent(engine, slot)
        self.kept_at = engine.seconds

    def go_back(self, engine: Engine, slot: int) -> None:
        """Goes back from the end of a cooldown to the last state before the next one begins."""
        assert isinstance(self.standing, CooledStanding)
        cooling, spent, seconds = self.standing.cooling, self.spent(engine, slot), engine.seconds
        self.kept = {start: s for start, s in self.kept.items() if start in cooling.bases}
        before = [start for start in self.kept if start <= (cooling.start or 0)]
        engine.go_back(slot, copied(self.kept[max(before)]) if before else None)
        self.before = spent.plus(Spent.at(engine.at(slot)), sign=-1)
        self.kept_at += engine.seconds - seconds
        self.cooled = None

    def come_back(self, engine: Engine, slot: int) -> None:
        """Puts a trial that was held into a slot."""
        engine.put(slot, self.task.trial, self.aside)
        self.aside, self.kept_at = None, engine.seconds

    def cool(self, engine: Engine, slot: int, start: int) -> None:
        """Begins a cooldown, or goes on with it."""
        assert isinstance(self.standing, CooledStanding)
        if start not in self.kept:
            self.kept[start] = copied(engine.state(slot))
        engine.cool(slot, start)
        self.cooled, self.standing.cools = start, True


def copied(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """A copy of a state in the memory of the machine, which training does not change."""
    own: Mapping[str, Any] = mapped(
        lambda leaf: leaf.detach().cpu().clone() if isinstance(leaf, Tensor) else leaf, state
    )
    return own
