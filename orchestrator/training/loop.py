"""Trials, from a fresh model to their last measurement: one loop for one trial or many."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from orchestrator.records import FinishedTrial, Goal, Measurement, Outcome, Status, Trial
from orchestrator.training.checkpoint import Checkpoint, States
from orchestrator.training.engine import Engine, Position, Single
from orchestrator.training.memory import OutOfMemory
from orchestrator.training.ranks import Ranks, launch_ranks
from orchestrator.training.standing import Standing

Cut = Literal["dominated", "paused"] | None
Ending = Callable[[Collection[Goal], int], Cut]
"""Whether a trial ends that has not passed these goals and would be measured next at that step: for
good or, paused, to go on from its checkpoint perhaps."""

WORTH_KEEPING_SECONDS = 0.1
"""A trial that is paused after less training begins anew if it must."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A trial to be trained, and what its end depends on."""

    trial: Trial
    checkpoint: Checkpoint | None = None
    """It goes on from there, and leaves its state there now and then."""
    ending: Ending | None = None
    """Asked after each measurement, on the first rank only."""
    states: States | None = None
    """What it begins with, and what it keeps for others."""


class _Tenant:
    """A task in a slot."""

    def __init__(self, task: Task, engine: Engine, position: Position) -> None:
        self.task, self.standing = task, Standing(task.trial.study)
        self.began = time.time()
        self.resumed_steps = position.step
        self.resumed_seconds = position.seconds + position.evaluation_seconds
        self.kept_at = engine.seconds
        """When its state was last kept, by the engine's clock."""


Event = tuple[Trial, Measurement | FinishedTrial]


def train_all(engine: Engine, tasks: Iterable[Task]) -> Generator[Event, None, None]:
    """Trains the trials of all `tasks`, each in a slot of the engine's: a slot whose trial has
    ended is given the next one at once. Yields each measurement as it is taken, those that a
    checkpoint holds first, and how each trial ended."""
    coming, tenants = iter(tasks), dict[int, _Tenant]()
    try:
        while True:
            for slot in range(engine.width):
                while slot not in tenants and (task := next(coming, None)) is not None:
                    tenants[slot], known = _enter(engine, slot, task)
                    yield from ((task.trial, measurement) for measurement in known)
                    yield from _leave(engine, slot, tenants, asked=bool(known))
            if not tenants:
                return
            due = [s for s, t in tenants.items() if engine.at(s).step == t.standing.upcoming]
            if due:
                measured = engine.measure({slot: tenants[slot].standing for slot in due})
                for slot, measurement in zip(due, measured, strict=True):
                    _take_note(engine, slot, tenants[slot], measurement)
                    yield tenants[slot].task.trial, measurement
                    yield from _leave(engine, slot, tenants)
            else:
                engine.advance(_steps(engine, tenants))
            _keep(engine, tenants)
    except OutOfMemory as error:
        if engine.width > 1:
            raise  # less at once may fit
        for slot, tenant in tenants.items():
            yield tenant.task.trial, _finished(engine, slot, tenant, "failed", error=str(error))
    finally:
        for slot in range(engine.width):
            engine.clear(slot)


def train(
    trial: Trial,
    ranks: Ranks,
    *,
    micro_batch: int | None = None,
    data_dir: Path | None = None,
    checkpoint: Checkpoint | None = None,
    ending: Ending | None = None,
    pulse: Callable[[], None] = lambda: None,
) -> Generator[Measurement, None, Outcome]:
    """Trains `trial` alone, yielding each measurement as it is taken and returning how it ended.
    `pulse` is called whenever something moved.

    Every rank calls this with the same trial and takes the same decisions, since all of them see
    numbers that were summed over ranks.
    """
    engine = Single(ranks, micro_batch=micro_batch, data_dir=data_dir, pulse=pulse)
    task = Task(trial=trial, checkpoint=checkpoint, ending=ending)
    with closing(train_all(engine, [task])) as events:
        for _, event in events:
            if isinstance(event, FinishedTrial):
                return event.outcome
            yield event
    raise AssertionError("a trial ends with an outcome")


def _enter(engine: Engine, slot: int, task: Task) -> tuple[_Tenant, list[Measurement]]:
    """A task in its slot, and what was measured of it before."""
    trial, put = task.trial, partial(engine.put, slot, task.trial)
    known = task.checkpoint.load(trial, put, engine.ranks) if task.checkpoint else []
    if not known:
        # There was nothing, or it did not fit: the trial begins anew.
        engine.clear(slot)
        put(task.states.first(engine.ranks) if task.states else None)
    tenant = _Tenant(task, engine, engine.at(slot))
    for measurement in known:
        tenant.standing.add(measurement)
    return tenant, known


def _leave(
    engine: Engine, slot: int, tenants: dict[int, _Tenant], *, asked: bool = True
) -> Iterator[Event]:
    """Frees the slot if its trial ends here: by what was measured or, if it is `asked`, as the
    task's `ending` says on the first rank, on all."""
    tenant = tenants[slot]
    end = _end(tenant, engine.ranks) if asked else None
    if end is None:
        return
    if (checkpoint := tenant.task.checkpoint) is not None:
        to_go_on = end == "paused" and engine.at(slot).seconds > WORTH_KEEPING_SECONDS
        state = partial(engine.state, slot)
        checkpoint.finish(
            tenant.task.trial, state, tenant.standing.measurements, engine.ranks, to_go_on=to_go_on
        )
    finished = _finished(engine, slot, tenant, end, **engine.notes(slot))
    del tenants[slot]
    engine.clear(slot)
    yield tenant.task.trial, finished


def _take_note(engine: Engine, slot: int, tenant: _Tenant, measurement: Measurement) -> None:
    tenant.standing.add(measurement)
    if tenant.task.states is not None:
        tenant.task.states.keep(measurement.step, partial(engine.state, slot), engine.ranks)


def _keep(engine: Engine, tenants: Mapping[int, _Tenant]) -> None:
    """Keeps the state of every trial for which it is time."""
    for slot, tenant in tenants.items():
        checkpoint = tenant.task.checkpoint
        if checkpoint and engine.seconds - tenant.kept_at >= checkpoint.every_seconds:
            state = partial(engine.state, slot)
            checkpoint.save(tenant.task.trial, state, tenant.standing.measurements, engine.ranks)
            tenant.kept_at = engine.seconds


def _finished(
    engine: Engine, slot: int, tenant: _Tenant, status: Status, **more: Any
) -> FinishedTrial:
    position = engine.at(slot)
    return FinishedTrial(
        trial=tenant.task.trial,
        outcome=Outcome(
            status=status,
            steps=position.step,
            seconds=position.seconds,
            evaluation_seconds=position.evaluation_seconds,
            resumed_steps=tenant.resumed_steps,
            resumed_seconds=tenant.resumed_seconds,
            width=engine.width,
            **more,
        ),
        measurements=tuple(tenant.standing.measurements),
        ranks=engine.ranks.count,
        started=tenant.began,
        where=f"{platform.node()}:{os.getpid()}",
    )


def _end(tenant: _Tenant, ranks: Ranks) -> Status | None:
    standing, ending = tenant.standing, tenant.task.ending
    if standing.status is not None:
        return standing.status
    cut = ending(standing.unmet, standing.upcoming) if ending else None
    if ranks.count == 1:
        return cut
    answers: tuple[Status | None, ...] = (None, "dominated", "paused")
    number = torch.tensor(answers.index(cut), device=ranks.device)
    return answers[int(ranks.maximum(number))]


def _steps(engine: Engine, tenants: Mapping[int, _Tenant]) -> int:
    """How far to train at once: to the next measurement of any, or until a checkpoint is due. All
    ranks agree on the rate, so on this too."""
    steps = min(t.standing.upcoming - engine.at(s).step for s, t in tenants.items())
    every = min(
        (t.task.checkpoint.every_seconds for t in tenants.values() if t.task.checkpoint),
        default=None,
    )
    if every is None or engine.rate * steps <= every:
        return steps
    return max(1, int(every / engine.rate))


def train_on_ranks(
    trial: Trial,
    count: int,
    *,
    micro_batch: int | None = None,
    data_dir: Path | None = None,
    checkpoint: Checkpoint | None = None,
) -> Generator[Measurement, None, tuple[Outcome, list[int]]]:
    """`train` with `count` processes of this machine, this one and others started for it.

    Yields the measurements, returns the outcome and the process ids in order of rank.
    """
    options = {"micro_batch": micro_batch, "data_dir": data_dir, "checkpoint": checkpoint}
    with launch_ranks(count, follow, trial, options) as (ranks, processes):
        outcome = yield from train(trial, ranks, **options)  # type: ignore[arg-type]
    return outcome, processes


def follow(ranks: Ranks, trial: Trial, options: Mapping[str, object]) -> None:
    """What a rank other than 0 does: the same, to nobody's ears."""
    for _ in train(trial, ranks, **options):  # type: ignore[arg-type]
        pass
