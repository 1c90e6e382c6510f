"""Trials trained in a stack, slots refilled as trials end."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from orchestrator.records import FinishedTrial, Measurement, Trial
from orchestrator.training import Ranks, Task, train_pack
from orchestrator.training.loop import train_all
from orchestrator.training.stack import Stack


def train_stacked(
    trials: Sequence[Trial], width: int, *, data_dir: Any = None, order: Sequence[int] | None = None
) -> list[list[Measurement]]:
    """Returns the measurements of each trial without its times. Trials take slots in that
    `order`."""
    ours = [replace(trial) for trial in trials]
    found: dict[int, list[Measurement]] = {id(trial): [] for trial in ours}
    engine = Stack(trials[0], Ranks(), width, data_dir=data_dir)
    tasks = [Task(trial=ours[number]) for number in order or range(len(ours))]
    for trial, event in train_all(engine, tasks):
        if isinstance(event, Measurement):
            found[id(trial)].append(replace(event, seconds=0.0))
    return [found[id(trial)] for trial in ours]


def packed(tasks: Sequence[Task], width: int) -> list[FinishedTrial]:
    """Trains what one process of a sweep gets at a time. Returns the trials in order of index."""
    events = [event for _, event in train_pack(tasks, width, Ranks())]
    ended = [event for event in events if isinstance(event, FinishedTrial)]
    return sorted(ended, key=lambda one: one.trial.index)


def variants(trial: Trial, count: int, **changes: Sequence[Any]) -> list[Trial]:
    """Returns trials of one study with different seeds and learning rates. `changes` has a value of
    other metaparameters for each trial."""
    return [
        replace(
            trial,
            index=number,
            seed=trial.seed + number,
            params={
                **trial.params,
                "learning_rate": trial.params["learning_rate"] / (number + 1),
                **{name: values[number] for name, values in changes.items()},
            },
        )
        for number in range(count)
    ]
