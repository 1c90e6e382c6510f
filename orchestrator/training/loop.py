"""The training loop: takes one trial, or many at once, from a new model to the last measurement."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.records import FinishedTrial, Measurement, Outcome, Status, Trial, the_only
from orchestrator.records.cooling import CooledStanding
from orchestrator.training.checkpoint import Checkpoint
from orchestrator.training.engine import Engine, Single
from orchestrator.training.entry import Cut, Ending, Entry, Task, copied
from orchestrator.training.memory import OutOfMemory
from orchestrator.training.ranks import Ranks, launch_ranks

MOST_SAVING = 0.02
"""Largest share of the training time that is spent on saving checkpoints."""

LOOK_SECONDS = 5.0
"""Seconds of training after which ranks look whether they have to leave."""

WORTH_KEEPING_SECONDS = 0.1
"""Smallest training time in seconds of a paused trial whose state is saved. A trial that trained
for less starts again from its beginning if it must go on."""


Event = tuple[Trial, Measurement | FinishedTrial]


class Left(Exception):
    """Raised once all trials are saved, when a rank had notice that its process is to be ended."""


def train_all(engine: Engine, tasks: Iterable[Task]) -> Generator[Event, None, None]:
    """Trains the trials of all `tasks`, each in a slot of the engine. A slot whose trial has ended
    gets the next trial at once. Yields each measurement when it is taken, and each trial when it
    has ended. The measurements in a checkpoint come first."""
    coming, entries, held = iter(tasks), dict[int, Entry](), list[Entry]()
    try:
        while True:
            for slot in range(engine.width):
                yield from _fill(engine, slot, coming, entries, held)
            if not entries:
                assert not held, "held for a trial that is over"
                return
            kept = engine.narrow()
            entries = {slot: entries[was] for slot, was in enumerate(kept)} if kept else entries
            _turn(engine, entries)
            due = [s for s, t in entries.items() if engine.at(s).step == t.standing.upcoming]
            if due:
                measured = engine.measure({slot: entries[slot].standing for slot in due})
                for slot, measurement in zip(due, measured, strict=True):
                    _take_note(engine, slot, entries[slot], measurement)
                    yield entries[slot].task.trial, measurement
                    yield from _leave(engine, slot, entries, held)
            else:
                engine.advance(_steps(engine, entries))
            leaving = engine.ranks.are_leaving
            _keep(engine, entries, held if leaving else (), at_once=leaving)
            if leaving:
                raise Left("it was told to end, and has saved its state")
    except OutOfMemory as error:
        if engine.width > 1:
            raise  # fewer trials at once may fit
        for slot, entry in entries.items():
            yield entry.task.trial, _finished(engine, slot, entry, "failed", error=str(error))
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
) -> Generator[Measurement, None, Outcome]:
    """Trains `trial` alone. Yields each measurement when it is taken, and returns the outcome.

    Every rank calls this with the same trial. All ranks take the same decisions, since all of them
    see numbers that were summed over ranks.
    """
    engine = Single(trial, ranks, micro_batch=micro_batch, data_dir=data_dir)
    task = Task(trial=trial, checkpoint=checkpoint, ending=ending)
    return (yield from the_only(train_all(engine, [task])))


def _fill(
    engine: Engine, slot: int, coming: Iterator[Task], entries: dict[int, Entry], held: list[Entry]
) -> Iterator[Event]:
    """Puts a trial into the slot if it is free: one that is held no longer, or else the next."""
    while slot not in entries:
        known: list[Measurement] | None = None
        if (back := _released(held, engine.ranks)) is not None:
            back.come_back(engine, slot)
            entries[slot] = back
        elif (task := next(coming, None)) is not None:
            entries[slot], known = _enter(engine, slot, task)
            yield from ((task.trial, measurement) for measurement in known)
        else:
            return
        yield from _leave(engine, slot, entries, held, asked=known != [])


def _enter(engine: Engine, slot: int, task: Task) -> tuple[Entry, list[Measurement]]:
    """Puts a task into a slot. Returns it with the measurements of its checkpoint."""
    entry = Entry(task, engine, slot)
    put = partial(entry.put, engine, slot)
    known = task.checkpoint.load(task.trial, put, engine.ranks) if task.checkpoint else []
    if not known:
        # There was no checkpoint, or it did not fit, so the trial starts from its beginning.
        engine.clear(slot)
        entry.put(engine, slot, task.states.first(engine.ranks) if task.states else None)
    for measurement in known:
        entry.standing.add(measurement)
    standing, cooled = entry.standing, entry.cooled
    # If the cooldown has ended, the trial goes back to the trunk as it would have done.
    if isinstance(standing, CooledStanding) and None is not cooled == standing.cooling.start:
        entry.cool(engine, slot, cooled)
    return entry, known


def _turn(engine: Engine, entries: Mapping[int, Entry]) -> None:
    """Begins cooldowns where it is time, and goes back to the trunk after those that have ended."""
    for slot, entry in entries.items():
        standing = entry.standing
        if isinstance(standing, CooledStanding) and not standing.cools:
            if entry.cooled is not None:
                entry.go_back(engine, slot)
            if standing.turns(step := engine.at(slot).step):
                entry.cool(engine, slot, step)


def _released(held: list[Entry], ranks: Ranks) -> Entry | None:
    """Takes one of the trials out that are held no longer; None if there is none."""
    for number, entry in enumerate(held):
        if _end(entry, ranks) != "held":
            return held.pop(number)
    return None


def _leave(
    engine: Engine, slot: int, entries: dict[int, Entry], held: list[Entry], *, asked: bool = True
) -> Iterator[Event]:
    """Frees the slot if its trial ends here, and yields the finished trial. With `asked`, the trial
    ends if its measurements say so, or if the task's `ending` on the first rank says so; the first
    rank's answer holds for all ranks."""
    entry = entries[slot]
    end = _end(entry, engine.ranks) if asked else None
    if end is None:
        return
    if end == "held":
        entry.aside = copied(engine.state(slot))
        held.append(entry)
        del entries[slot]
        engine.clear(slot)
        return
    if (checkpoint := entry.task.checkpoint) is not None:
        to_go_on = end == "paused" and entry.spent(engine, slot).seconds > WORTH_KEEPING_SECONDS
        state = partial(entry.state, engine, slot)
        checkpoint.finish(
            entry.task.trial, state, entry.standing.measurements, engine.ranks, to_go_on=to_go_on
        )
    finished = _finished(engine, slot, entry, end, **engine.notes(slot))
    del entries[slot]
    engine.clear(slot)
    yield entry.task.trial, finished


def _take_note(engine: Engine, slot: int, entry: Entry, measurement: Measurement) -> None:
    entry.standing.add(measurement)
    if entry.task.states is not None:
        entry.task.states.keep(measurement.step, partial(engine.state, slot), engine.ranks)


def _keep(
    engine: Engine, entries: Mapping[int, Entry], held: Iterable[Entry], *, at_once: bool
) -> None:
    """Saves a checkpoint of every trial for which it is time, or of all of them `at_once`."""
    for slot, entry in [*entries.items(), *((0, entry) for entry in held)]:
        checkpoint = entry.task.checkpoint
        if checkpoint is None:
            continue
        since = engine.seconds - entry.kept_at
        if at_once or since >= max(checkpoint.every_seconds, entry.pause):
            state, began = partial(entry.state, engine, slot), time.monotonic()
            checkpoint.save(entry.task.trial, state, entry.standing.measurements, engine.ranks)
            took = engine.ranks.from_first(time.monotonic() - began)
            entry.kept_at, entry.pause = engine.seconds, took / MOST_SAVING


def _finished(
    engine: Engine, slot: int, entry: Entry, status: Status, **fields: Any
) -> FinishedTrial:
    spent, resumed = entry.spent(engine, slot), entry.resumed
    return FinishedTrial(
        trial=entry.task.trial,
        outcome=Outcome(
            status=status,
            **asdict(spent),
            resumed_steps=resumed.steps,
            resumed_seconds=resumed.seconds + resumed.evaluation_seconds,
            width=entry.width,
            open_from=entry.standing.open_from,
            **fields,
        ),
        measurements=tuple(entry.standing.measurements),
        ranks=engine.ranks.count,
        started=entry.began,
        where=f"{platform.node()}:{os.getpid()}",
    )


def _end(entry: Entry, ranks: Ranks) -> Status | Cut:
    standing, ending = entry.standing, entry.task.ending
    if standing.status is not None:
        return standing.status
    cut: Cut = None
    if ending is not None and not standing.staying:
        cut = ending(standing.unmet, standing.open_from or standing.upcoming, standing.passed)
    answers: tuple[Cut, ...] = (None, "dominated", "paused", "held")
    return answers[int(ranks.maximum(answers.index(cut)))]


def _steps(engine: Engine, entries: Mapping[int, Entry]) -> int:
    """Returns the number of steps to train at once: up to the next measurement of any trial, or
    until a checkpoint is due or ranks look whether to leave. All ranks know the same rate, so they
    get the same number."""
    steps = min(t.standing.upcoming - engine.at(s).step for s, t in entries.items())
    checkpoints = (entry.task.checkpoint for entry in entries.values())
    every = min([LOOK_SECONDS, *(each.every_seconds for each in checkpoints if each)])
    return steps if engine.rate * steps <= every else max(1, int(every / engine.rate))


def train_on_ranks(
    trial: Trial, count: int, *, data_dir: Path | None = None
) -> Generator[Measurement, None, tuple[Outcome, list[int]]]:
    """Calls `train` with `count` processes on this machine: this process, and others that it
    starts.

    Yields the measurements. Returns the outcome and the process ids in order of rank.
    """
    with launch_ranks(count, follow, trial, {"data_dir": data_dir}) as (ranks, processes):
        outcome = yield from train(trial, ranks, data_dir=data_dir)
    return outcome, processes


def follow(ranks: Ranks, trial: Trial, options: Mapping[str, object]) -> None:
    """Runs the same training on a rank other than 0, whose measurements nobody reads."""
    for _ in train(trial, ranks, **options):  # type: ignore[arg-type]
        pass
