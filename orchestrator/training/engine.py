"""Engines train trials, each in a slot. `Single` is the engine with one slot, for any trial."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.records import Measurement, Trial
from orchestrator.records.standing import Standing
from orchestrator.training.evaluation import Evaluator, Values
from orchestrator.training.memory import forget_peak, peak
from orchestrator.training.noise_scale import NoiseMeter
from orchestrator.training.ranks import Ranks
from orchestrator.training.stacked_trial import StackedTrial
from orchestrator.training.trainer import Trainer
from orchestrator.workloads import Split, Workload, prepare


class Engine(ABC):
    """Trains the trials in its slots. Each rank has an engine, and all ranks must make the same
    calls."""

    seconds = 0.0
    """Seconds spent in steps, by all trials together."""
    rate = math.inf
    """Seconds per step of all slots together, as measured last."""

    def __init__(
        self,
        first: Trial,
        ranks: Ranks,
        width: int = 1,
        *,
        micro_batch: int | None = None,
        data_dir: Path | None = None,
        pulse: Callable[[], None] = lambda: None,
        prepared: tuple[Workload, Mapping[str, Split]] | None = None,
    ) -> None:
        """The engine takes trials of the study of `first`, in `width` slots. `prepared` replaces
        the study's workload and its splits."""
        self.ranks, self.width, self._pulse, self._micro_batch = ranks, width, pulse, micro_batch
        self._workload, self._splits = prepared or prepare(
            first.study.workload, data_dir, ranks.device
        )
        self._noise = NoiseMeter(
            workload=self._workload, train=self._splits["train"], device=ranks.device, pulse=pulse
        )
        self._evaluator = Evaluator(
            workload=self._workload,
            splits=self._splits,
            extras=first.study.extras,
            ranks=ranks,
            pulse=pulse,
        )
        self._begin(first)

    @abstractmethod
    def _begin(self, first: Trial) -> None:
        """Makes the slots, which are free."""

    @abstractmethod
    def put(self, slot: int, trial: Trial, state: Mapping[str, Any] | None = None) -> None:
        """Puts `trial` into a free slot, at its beginning or at the position of `state`."""

    @abstractmethod
    def cool(self, slot: int, start: int) -> None:
        """Has the trial in the slot cool down from step `start` on, at or before its own."""

    def go_back(self, slot: int, state: Mapping[str, Any] | None) -> None:
        """Takes the trial in the slot back to the `state` that it had, or to its beginning."""
        trial = self.at(slot).trial
        self.clear(slot)
        self.put(slot, trial, state)

    @abstractmethod
    def at(self, slot: int) -> Trainer | StackedTrial:
        """Returns the trial in the slot, with its step and its seconds."""

    @abstractmethod
    def advance(self, steps: int) -> None:
        """Trains the trials in all slots for `steps` steps."""

    @abstractmethod
    def trained(self, slots: Sequence[int]) -> list[Values]:
        """Returns the metrics of these slots that come from training itself, over the steps since
        the last call."""

    @abstractmethod
    def evaluated(self, slots: Sequence[int], *, test: bool) -> list[Values]:
        """Evaluates these slots, on the `test` split or on all other splits."""

    @abstractmethod
    def state(self, slot: int) -> Mapping[str, Any]:
        """Returns everything that the next steps of the trial in the slot depend on."""

    def notes(self, slot: int) -> dict[str, Any]:
        """Returns further fields of the outcome of the trial in the slot."""
        return {"memory": peak(self.ranks.device)}

    @abstractmethod
    def clear(self, slot: int) -> None:
        """Frees the slot."""

    def narrow(self) -> list[int] | None:
        """Gives up free slots if steps get faster by that, and no trial gets other bits. Returns
        the numbers that the slots had before; None: all slots are as they were."""
        return None

    def measure(self, standings: Mapping[int, Standing]) -> list[Measurement]:
        """Measures the trials in these slots, and returns the measurements in their order."""
        found = dict(zip(standings, self.trained([*standings]), strict=True))
        self._evaluate(found, standings, test=False)
        wanting = {
            slot: standing
            for slot, standing in standings.items()
            if standing.wants_test(found[slot], self.at(slot).step)
        }
        if wanting:
            self._evaluate(found, wanting, test=True)
        for slot, standing in standings.items():
            position, metrics = self.at(slot), found[slot]
            if position.trial.measures_noise and standing.wants_noise(metrics, position.step):
                state, began = self.state(slot), time.perf_counter()
                if self.ranks.rank == 0:  # the only rank whose measurements are read
                    metrics.update(self._noise.measure(position.trial, state))
                position.evaluation_seconds += time.perf_counter() - began
        return [
            Measurement(step=self.at(slot).step, seconds=self.at(slot).seconds, metrics=metrics)
            for slot, metrics in found.items()
        ]

    def _evaluate(
        self, found: Mapping[int, Values], standings: Mapping[int, Standing], *, test: bool
    ) -> None:
        """Adds the results to `found`, and each slot's share of the time to its trial."""
        began = time.perf_counter()
        evaluated = self.evaluated([*standings], test=test)
        for (slot, standing), metrics in zip(standings.items(), evaluated, strict=True):
            found[slot].update(standing.named(metrics))
        spent = time.perf_counter() - began
        for slot in standings:
            self.at(slot).evaluation_seconds += spent / len(standings)


class Single(Engine):
    """The engine with one slot. It trains any model with any optimizer on any number of ranks."""

    def _begin(self, first: Trial) -> None:
        self._trainer: Trainer | None = None

    def put(self, slot: int, trial: Trial, state: Mapping[str, Any] | None = None) -> None:
        forget_peak(self.ranks.device)
        self._trainer = Trainer(
            trial, self._workload, self._splits["train"], self.ranks, self._micro_batch, self._pulse
        )
        if state is not None:
            self._trainer.load(state)
        self.seconds, self.rate = self._trainer.seconds, self._trainer.rate

    def cool(self, slot: int, start: int) -> None:
        self.at(slot).cool(start)

    def go_back(self, slot: int, state: Mapping[str, Any] | None) -> None:
        if state is None:
            super().go_back(slot, state)
        else:  # without making a model, which may be compiled
            self.at(slot).load(state)
        self.seconds = self.at(slot).seconds

    def at(self, slot: int = 0) -> Trainer:
        assert self._trainer is not None, "the slot is free"
        return self._trainer

    def advance(self, steps: int) -> None:
        trainer = self.at()
        trainer.advance(trainer.step + steps)
        self.seconds, self.rate = trainer.seconds, trainer.rate

    def trained(self, slots: Sequence[int]) -> list[Values]:
        return [self.at().batch_metrics()]

    def evaluated(self, slots: Sequence[int], *, test: bool) -> list[Values]:
        return [self._evaluator.alone(self.at(slot), test=test) for slot in slots]

    def state(self, slot: int) -> Mapping[str, Any]:
        return self.at().state()

    def notes(self, slot: int) -> dict[str, Any]:
        return {"micro_batch": self.at().micro_batch, **super().notes(slot)}

    def clear(self, slot: int) -> None:
        if self._trainer is not None:
            self._trainer.close()
        self._trainer = None
