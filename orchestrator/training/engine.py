"""What trains trials, each in a slot of its own; and the engine with one slot, for any trial."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from orchestrator.records import Measurement, Trial
from orchestrator.training.evaluation import Evaluator
from orchestrator.training.memory import forget_peak, peak
from orchestrator.training.noise_scale import NoiseMeter
from orchestrator.training.ranks import Ranks
from orchestrator.training.standing import Standing
from orchestrator.training.trainer import Trainer
from orchestrator.training.warm import prepare


class Position(Protocol):
    """How far the trial in a slot has come."""

    @property
    def step(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    @property
    def evaluation_seconds(self) -> float: ...


class Engine(Protocol):
    """All ranks have the same one, and tell it the same."""

    @property
    def width(self) -> int:
        """How many slots there are."""

    @property
    def ranks(self) -> Ranks: ...
    @property
    def seconds(self) -> float:
        """Spent in steps, by all trials together."""

    @property
    def rate(self) -> float:
        """Seconds that a step of all slots took when last looked at; infinite before any."""

    def put(self, slot: int, trial: Trial, state: Mapping[str, Any] | None = None) -> None:
        """Gives a free slot to `trial`, from its beginning or from where `state` was taken."""

    def at(self, slot: int) -> Position: ...
    def advance(self, steps: int) -> None:
        """Trains the trials in all slots by so many steps."""

    def measure(self, standings: Mapping[int, Standing]) -> list[Measurement]:
        """Of the slots named, in that order; their trials have come to a measurement."""

    def state(self, slot: int) -> Mapping[str, Any]:
        """All that the steps to come of a trial depend on."""

    def notes(self, slot: int) -> dict[str, Any]:
        """What else an outcome says of the trial in a slot."""

    def clear(self, slot: int) -> None:
        """The slot is free."""


class Single:
    """One slot: any model, any optimizer, on as many ranks as it takes."""

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
        """On the first rank: no other needs to know."""
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
