"""What a workload is: data, a model, a loss, metrics and a default goal. Nothing else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from orchestrator.records import BadInput, unknown
from orchestrator.workloads.splits import Split
from orchestrator.workloads.trees import Batch

LABELS = ("labels", "label")
"""What Hugging Face's models and data sets call the class of an example."""


Share = float | Tensor
"""A number, or a tensor where each of many models that train as one has a number of its own."""


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
    evaluation_min_examples: ClassVar[int | None] = None
    """Fewest training examples between evaluations, which keeps them cheap beside training; None:
    twice as many as are evaluated, which takes a seventh of the time or so."""

    train_examples: int = 0
    """Train on so many examples only, drawn once and for all; 0: on all. Any workload's name takes
    it: `digits/mlp?train_examples=700`."""

    data_dir: Path | None = None
    """The folder that `--data-dir` names, as `data` is given it: a `model` that starts from weights
    reads them there."""

    @abstractmethod
    def data(self, data_dir: Path | None) -> Mapping[str, Split]:
        """The splits: `train`, and those to evaluate on (`val`, `test`). Deterministic."""

    @abstractmethod
    def model(self) -> nn.Module:
        """A new model for each trial, initialised at random or from weights that were trained
        before. Random numbers come from torch's global generator."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The training loss of each example of the batch, as a vector. Keyword-only arguments
        with a default become metaparameters, to be fixed or searched: see `Classification`."""

    @abstractmethod
    def metrics(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        """Metric -> its value for each example of the batch, as a vector. For metrics that aren't
        means over examples, such as mean IoU: several values per example, to be made one number
        of in `summary`."""

    def summary(self, means: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Metric -> one number for a split, from the means of `metrics` over its examples."""
        return means


class Classification(Workload):
    """A workload whose batches are (inputs, class index) or a dict with `labels` (or `label`), and
    whose model returns logits: as they are, first in a tuple, or as `.logits`. The model takes
    inputs that are a dict as keywords."""

    top: ClassVar[int] = 5
    """`top5_error` is measured where there are more classes than this."""

    def loss(
        self,
        model: nn.Module,
        batch: Batch,
        *,
        label_smoothing: Share = 0.0,
        smoothing_over: Literal["all", "others"] = "all",
        noise_labels: float = 0.0,
    ) -> Tensor:
        logits, labels = _logits_and_labels(model, batch)
        if isinstance(label_smoothing, Tensor) or label_smoothing:
            label_smoothing = share_of_all(label_smoothing, smoothing_over, logits.shape[1])
        losses = _smoothed(logits, labels, label_smoothing)
        if noise_labels:
            noise = noise_labels * torch.randn_like(logits)
            losses = losses - (noise * functional.log_softmax(logits, dim=1)).sum(dim=1)
        return losses

    def metrics(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        logits, labels = _logits_and_labels(model, batch)
        metrics = {
            # The largest of what isn't a number is the first: that would be right now and then.
            "error": (logits.argmax(dim=1) != labels) | ~logits.isfinite().all(dim=1),
            "loss": functional.cross_entropy(logits, labels, reduction="none"),
        }
        if logits.shape[1] > self.top:
            true = logits.gather(1, labels[:, None])
            # Not a number compares as false: then the true class is among none.
            among = (logits > true).sum(dim=1).lt(self.top) & true[:, 0].isfinite()
            metrics[f"top{self.top}_error"] = ~among
        return metrics


def _smoothed(logits: Tensor, labels: Tensor, smoothing: Share) -> Tensor:
    """Cross entropies with the share `smoothing` of each target spread evenly over all classes."""
    if not isinstance(smoothing, Tensor):
        return functional.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)
    true = functional.cross_entropy(logits, labels, reduction="none")
    return true.lerp(-functional.log_softmax(logits, dim=1).mean(dim=1), smoothing)


def _logits_and_labels(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    if isinstance(batch, Mapping):
        name = next((name for name in LABELS if name in batch), None)
        if name is None:
            raise BadInput(
                f"A batch of a Classification that is a dict must have its classes as 'labels', "
                f"but has {[*batch]}. Rename the column in `data`."
            )
        inputs = {other: part for other, part in batch.items() if other != name}
        labels = batch[name]
    else:
        inputs, labels = batch
    output = model(**inputs) if isinstance(inputs, Mapping) else model(inputs)
    return logits_of(output), labels


def logits_of(output: Any) -> Tensor:
    """What a model returns: its logits, or these first in a tuple, or as `.logits`."""
    logits: Tensor = output[0] if isinstance(output, tuple) else getattr(output, "logits", output)
    return logits


def check_range(workload: Workload, **ranges: tuple[int, int]) -> None:
    """Refuses options outside of their ranges: option=(lowest, highest)."""
    for name, (low, high) in ranges.items():
        value = getattr(workload, name)
        if not low <= value <= high:
            raise BadInput(f"`{name}` must be from {low} to {high:,}, but got {value}.")


def share_of_all(smoothing: Share, over: str, classes: int) -> Share:
    """Label smoothing as torch has it: the share of a target that is spread evenly over all
    classes, the true one included. Shallue et al. spread it over the others only, which is the
    same as K / (K - 1) times as much over all K."""
    if over not in ("all", "others"):
        raise unknown("smoothing_over", str(over), ("all", "others"))
    share = smoothing if over == "all" else smoothing * classes / (classes - 1)
    # Those of a tensor were looked at one by one, as numbers.
    if not isinstance(share, Tensor) and not 0 <= share <= 1:
        raise BadInput(
            f"'label_smoothing' over {over} of {classes} classes must leave the true class the "
            f"largest share, but got {smoothing!r}."
        )
    return share
