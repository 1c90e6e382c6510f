"""Trials trained in a stack, slots refilled as trials end, the way that a loop will do it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from orchestrator.records import Measurement, Trial
from orchestrator.training.stack import Stack
from orchestrator.training.stack_evaluation import StackEvaluator
from orchestrator.training.standing import Standing
from orchestrator.training.warm import prepare

Metrics = dict[str, float]


def make_stack(trial: Trial, width: int, data_dir: Any = None) -> tuple[Stack, StackEvaluator]:
    workload, splits = prepare(trial.study.workload, data_dir, torch.device("cpu"))
    evaluator = StackEvaluator(workload=workload, splits=splits, extras=trial.study.extras)
    return Stack(trial, workload, splits["train"], width), evaluator


def train_stacked(
    trials: Sequence[Trial],
    width: int,
    *,
    data_dir: Any = None,
    slots: Sequence[int] | None = None,
) -> list[list[Measurement]]:
    """What is measured in each trial. They take free slots in the order of `slots`."""
    stack, evaluator = make_stack(trials[0], width, data_dir)
    free, waiting = list(slots or range(width)), list(range(len(trials)))
    standings = [Standing(trial.study) for trial in trials]
    inside: dict[int, int] = {}
    while waiting or inside:
        while free and waiting:
            number, slot = waiting.pop(0), free.pop(0)
            stack.put(slot, trials[number])
            inside[slot] = number
        due = [s for s, n in inside.items() if stack.tenant(s).step == standings[n].upcoming]
        if due:
            for slot, measurement in zip(
                due, measure(stack, evaluator, due, standings, inside), strict=True
            ):
                standings[inside[slot]].add(measurement)
                if standings[inside[slot]].status is not None:
                    stack.clear(slot)
                    del inside[slot]
                    free.append(slot)
        else:
            stack.advance(
                min(standings[n].upcoming - stack.tenant(s).step for s, n in inside.items())
            )
    return [standing.measurements for standing in standings]


def measure(
    stack: Stack,
    evaluator: StackEvaluator,
    slots: list[int],
    standings: list[Standing],
    inside: dict[int, int],
) -> list[Measurement]:
    found = stack.batch_metrics(slots)
    for place, more in enumerate(evaluator.measure(stack, slots, test=False)):
        found[place] |= more
    wanting = [
        place
        for place, slot in enumerate(slots)
        if standings[inside[slot]].wants_test(found[place], stack.tenant(slot).step)
    ]
    tested = evaluator.measure(stack, [slots[place] for place in wanting], test=True)
    for place, more in zip(wanting, tested, strict=True):
        found[place] |= more
    return [
        replace(stack.measurement(slot, metrics), seconds=0.0)
        for slot, metrics in zip(slots, found, strict=True)
    ]


def variants(trial: Trial, count: int, **changes: Sequence[Any]) -> list[Trial]:
    """Trials of one study, each with a seed and a learning rate of its own; `changes` has values of
    other metaparameters, one for each."""
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
