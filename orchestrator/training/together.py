"""The engine with several slots. It trains trials of one study as one model, on one rank."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.conv import _ConvNd

from orchestrator.records import Measurement, Trial
from orchestrator.records.standing import Standing
from orchestrator.training.memory import OutOfMemory, forget_peak, out_of_memory, peak
from orchestrator.training.noise_scale import NoiseMeter
from orchestrator.training.ranks import Ranks
from orchestrator.training.stack import Stack
from orchestrator.training.stack_evaluation import StackEvaluator
from orchestrator.training.tenant import Tenant
from orchestrator.training.trainer import fresh_model
from orchestrator.workloads import prepare


class Together:
    """The engine with several slots."""

    def __init__(
        self,
        first: Trial,
        width: int,
        ranks: Ranks,
        *,
        data_dir: Path | None = None,
        pulse: Callable[[], None] = lambda: None,
    ) -> None:
        """The engine takes trials of the study of `first` that are of its kind."""
        device, study = ranks.device, first.study
        self.ranks, self.width = ranks, width
        workload, splits = prepare(study.workload, data_dir, device)
        forget_peak(device)
        self._stack = Stack(first, workload, splits["train"], width, device, pulse)
        self._evaluator = StackEvaluator(
            workload=workload, splits=splits, extras=study.extras, pulse=pulse
        )
        self._noise = NoiseMeter(
            workload=workload, train=splits["train"], device=device, pulse=pulse
        )
        self.seconds = 0.0
        self.rate = float("inf")

    def put(self, slot: int, trial: Trial, state: Mapping[str, Any] | None = None) -> None:
        with _memory_told():
            self._stack.put(slot, trial, state)

    def at(self, slot: int) -> Tenant:
        return self._stack.tenant(slot)

    def advance(self, steps: int) -> None:
        began = time.perf_counter()
        with _memory_told():
            self._stack.advance(steps)
        spent = time.perf_counter() - began
        self.seconds, self.rate = self.seconds + spent, spent / steps

    def measure(self, standings: Mapping[int, Standing]) -> list[Measurement]:
        slots = list(standings)
        with _memory_told():
            measured = self._evaluator.measure(self._stack, slots, test=False)
        parts = [self._stack.batch_metrics(slots), measured]
        found = {
            slot: {name: value for part in parts for name, value in part[place].items()}
            for place, slot in enumerate(slots)
        }
        wanting = [
            slot
            for slot, standing in standings.items()
            if standing.wants_test(found[slot], self.at(slot).step)
        ]
        tested = self._evaluator.measure(self._stack, wanting, test=True)
        for slot, metrics in zip(wanting, tested, strict=True):
            found[slot] |= metrics
        for slot, standing in standings.items():
            tenant = self.at(slot)
            if tenant.trial.measures_noise and standing.wants_noise(found[slot], tenant.step):
                began = time.perf_counter()
                found[slot] |= self._noise.measure(tenant.trial, self.state(slot))
                tenant.evaluation_seconds += time.perf_counter() - began
        return [self._stack.measurement(slot, metrics) for slot, metrics in found.items()]

    def state(self, slot: int) -> Mapping[str, Any]:
        return self._stack.state(slot)

    def notes(self, slot: int) -> dict[str, Any]:
        return {"memory": peak(self.ranks.device)}

    def clear(self, slot: int) -> None:
        self._stack.clear(slot)


@contextmanager
def _memory_told() -> Iterator[None]:
    """Turns errors that mean that memory ran out into `OutOfMemory`."""
    try:
        yield
    except RuntimeError as error:
        if out_of_memory(error):
            raise OutOfMemory(str(error)) from None
        raise


def convolves(trial: Trial, data_dir: Path | None) -> bool:
    """Tells whether a trial's model has convolutions. The bits of their results may depend on the
    width of the stack."""
    workload, _ = prepare(trial.study.workload, data_dir, torch.device("cpu"))
    model = fresh_model(workload, 0, torch.device("cpu"))
    return any(isinstance(module, _ConvNd) for module in model.modules())
