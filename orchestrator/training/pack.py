"""Trains packs. A pack is a list of trials of one study and of one kind, which one process
trains. Also measures the time of a step of a trial that trains alone."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from statistics import median

import torch
from torch.nn.modules.conv import _ConvNd

from orchestrator.records import (
    BadInput,
    FinishedTrial,
    Measurement,
    Outcome,
    StudyKey,
    Trial,
    the_only,
)
from orchestrator.training.engine import Engine, Single
from orchestrator.training.entry import Task
from orchestrator.training.loop import Event, train_all
from orchestrator.training.memory import OutOfMemory
from orchestrator.training.ranks import Ranks
from orchestrator.training.stack import LEAST_WIDTH, Stack
from orchestrator.training.stackable import why_not, why_not_by_settings, why_not_here
from orchestrator.training.trainer import fresh_model
from orchestrator.workloads import prepare

logger = logging.getLogger(__name__)

TRIED = ("cpu",)
"""Types of devices on which the plan has tried the stacks."""
_reasons: dict[tuple[type, StudyKey, int, torch.device], str | None] = {}
"""Study, width and device -> the reason why trials are not stacked there; None if they are."""

TIMED_SECONDS = 0.05
"""Duration of one measurement in seconds."""


def train_pack(
    tasks: Sequence[Task],
    width: int,
    ranks: Ranks,
    *,
    micro_batch: int | None = None,
    data_dir: Path | None = None,
    pulse: Callable[[], None] = lambda: None,
    begun: Callable[[Task], None] = lambda task: None,
) -> Generator[Event, None, None]:
    """Trains the trials of all `tasks`, `width` of them at once as one model, or each alone if
    `width` is 1. If the memory of the device does not suffice, half as many are trained at once.
    `begun` is called with each task when it gets a slot."""
    waiting = list(tasks)

    def coming() -> Iterator[Task]:
        for task in [*waiting]:
            begun(task)
            yield task

    while waiting:
        first, slots = waiting[0].trial, width
        try:
            slots = _slots(first, width, len(waiting), ranks, data_dir)
            kind = Single if slots < LEAST_WIDTH else Stack
            engine: Engine = kind(
                first, ranks, slots, micro_batch=micro_batch, data_dir=data_dir, pulse=pulse
            )
            for trial, event in train_all(engine, coming()):
                if isinstance(event, FinishedTrial):
                    waiting = [task for task in waiting if task.trial is not trial]
                yield trial, event
        except OutOfMemory as error:
            width = slots // 2
            key = tasks[0].trial.study.key
            logger.warning("%s: %s; from now on, %d trials are trained at once", key, error, width)


def _slots(trial: Trial, width: int, waiting: int, ranks: Ranks, data_dir: Path | None) -> int:
    """Returns the number of slots of the engine; 1: each trial is trained alone. Where the bits may
    depend on the number, as with convolutions, it is always the width. On a device where the plan
    could not try it, a stack of this width is tried now."""
    if width < LEAST_WIDTH:
        return 1
    workload, splits = prepare(trial.study.workload, data_dir, ranks.device)
    # The plan has tried one trial of the study, and this may be one of another kind.
    if why_not_by_settings(trial, workload, splits["train"]) is not None:
        return 1
    if ranks.device.type in TRIED:
        modules = fresh_model(workload, 0, ranks.device).modules()
        convolves = any(isinstance(module, _ConvNd) for module in modules)
        return width if convolves else max(min(width, waiting), LEAST_WIDTH)
    where = type(workload), trial.study.key, width, ranks.device
    if where not in _reasons:
        _reasons[where] = reason = why_not_here(trial, width, workload, splits, ranks.device)
        if reason is not None:
            logger.warning("%s: trials are trained one by one, since %s", trial.study.key, reason)
    return width if _reasons[where] is None else 1


def train_in_stack(
    trial: Trial, width: int, *, data_dir: Path | None = None
) -> Generator[Measurement, None, tuple[Outcome, list[int]]]:
    """Trains one trial in a stack of `width` slots, of which it uses one. Its measurements do not
    depend on the other slots. Yields and returns the same as `train_on_ranks`."""
    ranks = Ranks()
    prepared = prepare(trial.study.workload, data_dir, ranks.device)
    if (reason := why_not(trial, *prepared, ranks.device)) is not None:
        raise BadInput(f"This trial can't be trained in a stack: {reason}.", code="not-stackable")
    pack = train_pack([Task(trial=trial)], width, ranks, data_dir=data_dir)
    outcome = yield from the_only(pack)
    return outcome, [os.getpid()]


def time_alone(trial: Trial, ranks: Ranks, data_dir: Path | None) -> float:
    """Returns the seconds per step of the trial, which is trained for a moment."""
    engine = Single(trial, ranks, data_dir=data_dir)
    engine.put(0, trial)
    try:
        left = trial.study.budget_steps
        engine.advance(1)  # this step also allocates memory and chooses kernels
        paces, steps, began = [engine.rate], 1, engine.seconds
        while engine.seconds - began < TIMED_SECONDS and (left := left - steps) > 0:
            steps = min(2 * steps, left)
            engine.advance(steps)
            paces.append(engine.rate)
    finally:
        engine.clear(0)
    # The last measurements have the most steps, so a pause disturbs them least.
    return median(paces[-3:])
