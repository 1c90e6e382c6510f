"""The engine with several slots. It trains trials of one study as one model, on one rank."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.conv import _ConvNd

from orchestrator.records import Trial
from orchestrator.training.engine import Engine
from orchestrator.training.memory import OutOfMemory, forget_peak, out_of_memory
from orchestrator.training.ranks import Ranks
from orchestrator.training.stack import Stack
from orchestrator.training.stack_evaluation import StackEvaluator
from orchestrator.training.tenant import Tenant
from orchestrator.training.trainer import fresh_model
from orchestrator.workloads import prepare


@contextmanager
def _memory_told() -> Iterator[None]:
    """Turns errors that mean that memory ran out into `OutOfMemory`."""
    try:
        yield
    except RuntimeError as error:
        if out_of_memory(error):
            raise OutOfMemory(str(error)) from None
        raise


class Together(Engine):
    """The engine with several slots, for trials of one kind."""

    def __init__(
        self,
        first: Trial,
        width: int,
        ranks: Ranks,
        *,
        data_dir: Path | None = None,
        pulse: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(first, width, ranks, data_dir, pulse)
        forget_peak(ranks.device)
        train = self._splits["train"]
        self._stack = Stack(first, self._workload, train, width, ranks.device, pulse)
        self._evaluator = StackEvaluator(
            workload=self._workload, splits=self._splits, extras=first.study.extras, pulse=pulse
        )

    @_memory_told()
    def put(self, slot: int, trial: Trial, state: Mapping[str, Any] | None = None) -> None:
        self._stack.put(slot, trial, state)

    def at(self, slot: int) -> Tenant:
        return self._stack.tenant(slot)

    @_memory_told()
    def advance(self, steps: int) -> None:
        began = time.perf_counter()
        self._stack.advance(steps)
        spent = time.perf_counter() - began
        self.seconds, self.rate = self.seconds + spent, spent / steps

    def _trained(self, slots: Sequence[int]) -> list[dict[str, float]]:
        return self._stack.batch_metrics(slots)

    @_memory_told()
    def _evaluated(self, slots: Sequence[int], *, test: bool) -> list[dict[str, float]]:
        return self._evaluator.measure(self._stack, slots, test=test)

    def state(self, slot: int) -> Mapping[str, Any]:
        return self._stack.state(slot)

    def clear(self, slot: int) -> None:
        self._stack.clear(slot)


def convolves(trial: Trial, data_dir: Path | None) -> bool:
    """Tells whether a trial's model has convolutions. The bits of their results may depend on the
    width of the stack."""
    workload, _ = prepare(trial.study.workload, data_dir, torch.device("cpu"))
    model = fresh_model(workload, 0, torch.device("cpu"))
    return any(isinstance(module, _ConvNd) for module in model.modules())
