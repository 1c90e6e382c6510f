"""What a workload is: data, a model, a loss, metrics and a default goal. Nothing else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

Batch = tuple[Tensor, ...]


class Split(Protocol):
    """The examples of one split. `batch` is a function of its arguments alone."""

    @property
    def size(self) -> int | None:
        """How many examples there are; None for an endless stream."""

    def batch(self, index: Tensor, seed: int) -> Batch:
        """The examples at `index` (int64). `seed` is the trial's, for whatever is generated."""

    def to(self, device: torch.device) -> Split:
        """The same split, its batches delivered on `device`."""


class Tensors:
    """A split that fits in memory: tensors of equal length, kept on the device."""

    def __init__(self, *tensors: Tensor) -> None:
        lengths = {len(tensor) for tensor in tensors}
        if len(lengths) != 1:
            raise ValueError(f"Tensors of one split must have equal length, but got {lengths}.")
        self.tensors = tensors
        self.size: int | None = lengths.pop()

    def batch(self, index: Tensor, seed: int) -> Batch:
        return tuple(tensor.index_select(0, index) for tensor in self.tensors)

    def to(self, device: torch.device) -> Tensors:
        return Tensors(*(tensor.to(device) for tensor in self.tensors))


class Workload(ABC):
    """Subclass this, as a dataclass if it takes options, to bring your own training code.

    Losses and metrics come per example, so that means over a batch or a split come out the same
    however the examples are spread over ranks and micro-batches.
    """

    goal: ClassVar[str]
    """Where steps are counted to unless the sweep says otherwise, e.g. `val/error < 0.04`."""
    budget: ClassVar[Mapping[str, float]] = {"epochs": 40, "at_least_steps": 2000}
    """How long a trial may train unless the sweep says otherwise, in a sweep file's words."""
    evaluation_spacing: ClassVar[float] = 0.02
    """Relative distance between evaluations."""
    evaluation_min_examples: ClassVar[int] = 1
    """Fewest training examples between evaluations: keeps evaluating cheap beside training."""

    @abstractmethod
    def data(self, data_dir: Path | None) -> Mapping[str, Split]:
        """The splits: `train`, and those to evaluate on (`val`, `test`). Deterministic."""

    @abstractmethod
    def model(self) -> nn.Module:
        """A freshly initialised model; random numbers come from torch's global generator."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The training loss of each example of the batch, as a vector."""

    @abstractmethod
    def metrics(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        """Metric -> its value for each example of the batch, as a vector."""


class Classification(Workload):
    """A workload whose batches are (inputs, class index) and whose model returns logits."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        inputs, labels = batch
        return functional.cross_entropy(model(inputs), labels, reduction="none")

    def metrics(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        inputs, labels = batch
        logits = model(inputs)
        return {
            "error": logits.argmax(dim=1) != labels,
            "loss": functional.cross_entropy(logits, labels, reduction="none"),
        }
