"""Engines train trials, each in a slot. `Single` is the engine with one slot, for any trial."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from orchestrator.records import Measurement, Trial
from orchestrator.records.standing import Standing
from orchestrator.training.evaluation import Evaluator
from orchestrator.training.memory import forget_peak, peak
from orchestrator.training.noise_scale import NoiseMeter
from orchestrator.training.ranks import Ranks
from orchestrator.training.trainer import Trainer
from orchestrator.workloads import prepare


class Position(Protocol):
    """The position of the trial in a slot: its step, and its seconds of training and evaluation."""

    @property
    def step(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    @property
    def evaluation_seconds(self) -> float: ...


class Engine(Protocol):
    """Trains the trials in its slots. Each rank has an engine, and all ranks must make the same
    calls."""

    @property
    def width(self) -> int:
        """Number of slots."""

    @property
    def ranks(self) -> Ranks: ...
    @property
    def seconds(self) -> float:
        """Seconds spent in steps, by all trials together."""

    @property
    def rate(self) -> float:
        """Seconds per step of all slots together, as measured last; infinite before the first
        step."""

    def put(self, slot: int, trial: Trial, state: Mapping[str, Any] | None = None) -> None:
        """Puts `trial` into a free slot, at its beginning or at the position of `state`."""

    def at(self, slot: int) -> Position: ...
    def advance(self, steps: int) -> None:
        """Trains the trials in all slots for `steps` steps."""

    def measure(self, standings: Mapping[int, Standing]) -> list[Measurement]:
        """Measures the trials in the given slots, which are due, and returns the measurements in
        the order of the slots."""

    def state(self, slot: int) -> Mapping[str, Any]:
        """Returns everything that the next steps of the trial in the slot depend on."""

    def notes(self, slot: int) -> dict[str, Any]:
        """Returns further fields of the outcome of the trial in the slot."""

    def clear(self, slot: int) -> None:
        """Frees the slot."""


class Single:
    """The engine with one slot. It trains any model with any optimizer on any number of ranks."""

    width = 1

    def __init__(
        self,
        ranks: Ranks,
        *,
        micro_batch: int | None = None,
        data_dir: Path | None = None,
        pulse: Callable[[], None] = lambda: None,
    ) -> None:
        self.ranks = ranks
        self._micro_batch, self._data_dir, self._pulse = micro_batch, data_dir, pulse
        self._trainer: Trainer | None = None

    def put(self, slot: int, trial: Trial, state: Mapping[str, Any] | None = None) -> None:
        device = self.ranks.device
        workload, splits = prepare(trial.study.workload, self._data_dir, device)
        forget_peak(device)
        self._evaluator = Evaluator(
            workload=workload,
            splits=splits,
            extras=trial.study.extras,
            ranks=self.ranks,
            pulse=self._pulse,
        )
        self._noise = NoiseMeter(
            workload=workload, train=splits["train"], device=device, pulse=self._pulse
        )
        self._trial = trial
        self._trainer = Trainer(
            trial, workload, splits["train"], self.ranks, self._micro_batch, self._pulse
        )
        if state is not None:
            self._trainer.load(state)

    def at(self, slot: int = 0) -> Trainer:
        assert self._trainer is not None, "the slot is free"
        return self._trainer

    @property
    def seconds(self) -> float:
        return self.at().seconds

    @property
    def rate(self) -> float:
        return self.at().rate

    def advance(self, steps: int) -> None:
        trainer = self.at()
        trainer.advance(trainer.step + steps)

    def measure(self, standings: Mapping[int, Standing]) -> list[Measurement]:
        trainer = self.at()
        trainer.settle()
        metrics = trainer.batch_metrics() | self._evaluator.measure(trainer, test=False)
        if standings[0].wants_test(metrics, trainer.step):
            metrics |= self._evaluator.measure(trainer, test=True)
        if self._trial.measures_noise and standings[0].wants_noise(metrics, trainer.step):
            metrics |= self._noise_scale(trainer)
        return [Measurement(step=trainer.step, seconds=trainer.seconds, metrics=metrics)]

    def _noise_scale(self, trainer: Trainer) -> dict[str, float]:
        """Measures the noise scale on the first rank, the only rank whose measurements are read."""
        state, began = trainer.state(), time.perf_counter()
        first = self.ranks.rank == 0
        noise = self._noise.measure(self._trial, state) if first else {}
        trainer.evaluation_seconds += time.perf_counter() - began
        return noise

    def state(self, slot: int) -> Mapping[str, Any]:
        return self.at().state()

    def notes(self, slot: int) -> dict[str, Any]:
        return {"micro_batch": self.at().micro_batch, "memory": peak(self.ranks.device)}

    def clear(self, slot: int) -> None:
        if self._trainer is not None:
            self._trainer.close()
        self._trainer = None
