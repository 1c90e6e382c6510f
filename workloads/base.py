"""The base class of workloads. A workload is data, a model, a loss, metrics, a default goal and a
default budget."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from orchestrator.records import BadInput, counted, unknown, wrong_value
from orchestrator.workloads.splits import Split
from orchestrator.workloads.trees import Batch

LABELS = ("labels", "label")
"""Names that Hugging Face's models and data sets give to the class of an example."""

IGNORED = -100
"""The label or target that is none, as in torch and Hugging Face's libraries."""

Share = float | Tensor
"""A share from 0 to 1. It is a tensor where several models are trained as one and each model has
its own share."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """Parameters of a model that the optimizer treats differently from the rest."""

    parameters: Sequence[str]
    """Their names in `model.named_parameters()`."""
    learning_rate: float = 1.0
    """Factor on the learning rate."""
    weight_decay: float = 1.0
    """Factor on the weight decay; 0: none."""
    hidden: bool | None = None
    """Whether Muon and its kin orthogonalise their updates. None: by kind of module."""

    def __post_init__(self) -> None:
        for name in ("learning_rate", "weight_decay"):
            if not 0 <= getattr(self, name) < math.inf:
                raise wrong_value(f"`{name}` of a group", "at least 0", getattr(self, name))


class Workload(ABC):
    """Subclass this to train your own code. Make the subclass a dataclass if it takes options.

    Losses and metrics are per example. Their means over a batch or a split are then the same
    however the examples are spread over ranks and micro-batches.
    """

    goal: ClassVar[str]
    """The goal of a training unless the sweep gives another one, e.g. `val/error < 0.04`."""
    budget: ClassVar[Mapping[str, float]] = {"epochs": 40, "at_least_steps": 2000}
    """How long a trial may train unless the sweep gives another budget. The keys are those of
    `budget` in a sweep file."""
    evaluation_spacing: ClassVar[float] = 0.02
    """Relative distance between evaluations: 0.02 means that the next evaluation comes when the
    number of steps has grown by 2 %."""
    evaluation_min_examples: ClassVar[int | None] = None
    """Fewest training examples between two evaluations. This keeps evaluations cheap compared with
    training. None: twice the number of examples that an evaluation reads, so that evaluations take
    about a seventh of the time."""

    train_examples: int = 0
    """Number of training examples to train on, always the same ones; 0: all. Every workload takes
    this option behind its name: `digits/mlp?train_examples=700`."""

    data_dir: Path | None = None
    """The folder given by `--data-dir`, which `data` gets as an argument. A `model` that starts
    from trained weights reads them there."""

    @abstractmethod
    def data(self, data_dir: Path | None) -> Mapping[str, Split]:
        """Returns the splits: `train`, and the splits that are evaluated (`val`, `test`). Every
        call must return the same data."""

    @abstractmethod
    def model(self) -> nn.Module:
        """Returns a new model for each trial, initialised at random or from trained weights. Random
        numbers must come from torch's global generator."""

    def groups(self, model: nn.Module) -> Sequence[Group]:
        """Returns the groups of parameters that are not treated as usual."""
        return ()

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor | tuple[Tensor, Tensor]:
        """Returns the training loss of each example of the batch, as a vector. Examples that do not
        weigh the same (padded or masked tokens) need a second vector, their weights: a step then
        follows sum(weights * losses) / sum(weights) over the global batch. Keyword-only arguments
        with a default become metaparameters, which a recipe fixes or searches: see
        `Classification`."""

    @abstractmethod
    def metrics(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        """Returns metric -> its value for each example of the batch, as a vector. A metric that is
        no mean over examples, such as mean IoU, needs several values per example here; `summary`
        makes one number of them."""

    def summary(self, means: Mapping[str, Tensor]) -> Mapping[str, Tensor | float]:
        """Returns metric -> one number for a split. `means` are the means of `metrics` over the
        examples of the split."""
        return means


class Classification(Workload):
    """A workload with one class per example. Its batches are (inputs, class index), or a dict with
    `labels` (or `label`). Its model returns logits: alone, first in a tuple, or as `logits`. If
    the inputs are a dict, the model gets them as keyword arguments. The loss and the error of an
    example with the label -100, which is no class, are 0."""

    top: ClassVar[int] = 5
    """`top5_error` is measured if there are more classes than this."""

    def loss(
        self,
        model: nn.Module,
        batch: Batch,
        *,
        label_smoothing: Share = 0.0,
        smoothing_over: Literal["all", "others"] = "all",
    ) -> Tensor:
        logits, labels = _logits_and_labels(model, batch)
        if isinstance(label_smoothing, Tensor) or label_smoothing:
            label_smoothing = share_of_all(label_smoothing, smoothing_over, logits.shape[1])
        try:
            return _smoothed(logits, labels, label_smoothing)
        except (IndexError, RuntimeError) as error:
            raise _of_labels(error, logits, labels) from None

    def metrics(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        logits, labels = _logits_and_labels(model, batch)
        # With classes first, a CPU computes those of eight or sixteen examples at once.
        turned = logits.t().contiguous()[None]
        try:
            losses = cross_entropies(turned, labels[None])[0]
        except (IndexError, RuntimeError) as error:
            raise _of_labels(error, logits, labels) from None
        # Of NaNs, max returns the first, which may be the true label; no comparison with one holds.
        unknown = ~losses.isfinite()
        counts = labels != IGNORED
        wrong = (turned.max(dim=1).indices[0] != labels) | unknown
        metrics = {"error": wrong & counts, "loss": losses}
        if len(turned[0]) > self.top:
            true = turned[0].gather(0, (labels * counts)[None])
            missed = ((turned[0] > true).sum(dim=0) >= self.top) | unknown
            metrics[f"top{self.top}_error"] = missed & counts
        return metrics


@dataclass(frozen=True)
class HeldOut(Classification):
    """A data set of ten classes whose validation split is the end of the training examples."""

    split: int
    """Number of the complete data set's training examples that are trained on; the rest is the
    validation split. With all of them there is no validation split, and the goal is on
    test/error."""
    classes: int = 10
    """Number of classes: only examples of classes below this number are used."""

    complete: ClassVar[int]
    """Number of training examples of the complete data set."""

    def __post_init__(self) -> None:
        check_range(self, split=(1, self.complete), classes=(2, 10))
        if self.split == self.complete:
            object.__setattr__(self, "goal", self.goal.replace("val/", "test/"))

    def parts(self, examples: Sequence[Any], test: Sequence[Any]) -> dict[str, Sequence[Any]]:
        """Divides the training examples, which are (inputs, labels)."""
        # Small copies of the data, for trying things out, are split in the same proportion.
        count = len(examples[1])
        train = count * self.split // self.complete
        parts = {"train": [part[:train] for part in examples]}
        if train < count:
            parts["val"] = [part[train:] for part in examples]
        return {**parts, "test": test}


def cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    """Returns the cross entropy of each label, with classes in dimension 1, or in the only one.
    As torch's own does, it gives 0 for the label -100; under `vmap`, it takes fewer operations."""
    ignored, classes = labels == IGNORED, min(1, logits.dim() - 1)
    index = labels.masked_fill(ignored, 0).unsqueeze(classes)
    likelihoods = functional.log_softmax(logits, dim=classes).gather(classes, index)
    return (-likelihoods.squeeze(classes)).masked_fill(ignored, 0)


def _smoothed(logits: Tensor, labels: Tensor, smoothing: Share) -> Tensor:
    """Returns cross entropies. A share `smoothing` of each target but -100 goes to all classes."""
    if not isinstance(smoothing, Tensor):
        return functional.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)
    true = functional.cross_entropy(logits, labels, reduction="none")
    share = smoothing if labels.is_floating_point() else smoothing * (labels != IGNORED)
    return true.lerp(-functional.log_softmax(logits, dim=1).mean(dim=1), share)


def _logits_and_labels(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    if isinstance(batch, Mapping):
        name = next((name for name in LABELS if name in batch), None)
        if name is None:
            raise BadInput(
                f"A batch that is a dict must hold the classes under 'labels', but has the keys "
                f"{[*batch]}. Rename the column in `data`.",
                code="wrong-data",
            )
        inputs = {other: part for other, part in batch.items() if other != name}
        labels = batch[name]
    else:
        inputs, labels = batch
    output = model(**inputs) if isinstance(inputs, Mapping) else model(inputs)
    # Of uint8, which torch's loss takes and its `gather` does not, 156 would equal -100.
    return logits_of(output), labels if labels.is_floating_point() else labels.long()


def _of_labels(error: Exception, logits: Tensor, labels: Tensor) -> Exception:
    """Returns an error that says which labels torch refused; the `error` itself if it is about
    something else, or in a stack, where values can't be read: trials are then trained alone."""
    if torch._C._functorch.is_batchedtensor(labels):
        return error
    classes = logits.shape[1]
    known = {IGNORED, *range(classes)}
    odd = [label for label in labels.flatten().tolist() if label not in known]
    if not odd and not labels.is_floating_point() and labels.dim() == logits.dim() - 1:
        return error
    found = odd[0] if odd else f"{labels.dtype} of shape {tuple(labels.shape)}"
    return BadInput(
        f"The label of each example must be a whole number from 0 to {classes - 1:,}, as the model "
        f"has {counted(classes, 'output')}, or {IGNORED} for none, but got {found}. Change them in "
        "`data`.",
        code="wrong-data",
    )


def logits_of(output: Any) -> Tensor:
    """Finds the logits: a model's output itself, its first part, or its part called `logits`."""
    part = output.get("logits") if isinstance(output, Mapping) else output
    logits = part[0] if isinstance(part, tuple) else getattr(part, "logits", part)
    if not isinstance(logits, Tensor):
        rule = "logits: a tensor, alone, first in a tuple, or as `logits`"
        raise wrong_value("What the model returns", rule, output)
    return logits


def check_range(workload: Workload, **ranges: tuple[int, int]) -> None:
    """Refuses options outside of their ranges, which are given as option=(lowest, highest)."""
    for name, (low, high) in ranges.items():
        value = getattr(workload, name)
        if not low <= value <= high:
            raise wrong_value(f"`{name}`", f"from {low} to {high:,}", value)


def share_of_all(smoothing: Share, among: str, classes: int) -> Share:
    """Converts label smoothing to torch's definition: the share of a target that is spread evenly
    over all classes, the true class included. Shallue et al. spread it over the other classes only,
    which equals a share K / (K - 1) times as large over all K classes."""
    if among not in ("all", "others"):
        raise unknown("smoothing_over", str(among), ("all", "others"))
    share = smoothing if among == "all" else smoothing * classes / (classes - 1)
    # The values of a tensor were checked before, each as a number.
    if not isinstance(share, Tensor) and not 0 <= share <= 1:
        raise BadInput(
            f"'label_smoothing' over {among} of {classes} classes must leave the true class the "
            f"largest share, but got {smoothing!r}.",
            code="wrong-value",
        )
    return share
