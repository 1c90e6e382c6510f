"""Measures a model: means of metrics over whole splits. Each rank evaluates its slice of the
examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from orchestrator.records import BadInput, Extras, derive_seed
from orchestrator.training.batches import cut
from orchestrator.training.memory import out_of_memory
from orchestrator.training.ranks import Ranks
from orchestrator.training.trainer import Trainer
from orchestrator.workloads import Batch, Split, Workload, divided

EXAMPLES_AT_ONCE = {"cpu": 512, "cuda": 1024}
"""Largest number of examples that are put through the model at once, by type of device. A CPU is
twice as fast if the data fit into its caches."""

Sums = dict[str, Tensor]


@dataclass(kw_only=True)
class SplitEvaluator:
    """What the evaluators of a trainer and of a stack have in common: the examples that they look
    at, in batches."""

    workload: Workload
    splits: Mapping[str, Split]
    extras: Extras
    pulse: Callable[[], None] = lambda: None
    """Function that is called for every batch, as a sign of life."""

    def __post_init__(self) -> None:
        self._train = train_subset(self.extras, self.splits["train"])

    def examples(self, *, test: bool, train: bool = True) -> dict[str, Tensor]:
        """Returns split -> indices of the examples to measure: those of the `test` split if `test`,
        else of all other splits. Of the training split, these are `Extras.train_examples`, which
        come with the latter unless `train` is false."""
        found = {}
        for name, split in self.splits.items():
            if name != "train" and (name == "test") == test:
                assert split.size is not None, f"split {name!r} must be finite to be evaluated"
                found[name] = torch.arange(split.size, device=split.draws_on)
        if self._train is not None and train and not test:
            found["train"] = self._train
        return found

    def summed(
        self, split: Split, index: Tensor, at_once: int, sums_of: Callable[[Batch], Sums]
    ) -> Sums:
        """Returns each metric's sum over the examples at `index`, from its sums over batches."""
        sums: Sums = {}
        draws = [(indices,) for indices in torch.split(index, at_once)]
        # Starting processes that fetch batches ahead pays only for several batches.
        for batch in split.batches(draws) if len(draws) > 1 else [split.batch(index)]:
            self.pulse()
            for metric, value in sums_of(batch).items():
                sums[metric] = sums.get(metric, 0) + value
        if not sums:
            raise BadInput(f"{type(self.workload).__name__} must return a metric.", code="empty")
        return sums


@dataclass(kw_only=True)
class Evaluator(SplitEvaluator):
    """Measures the model of a trainer on the splits of a workload."""

    ranks: Ranks

    def __post_init__(self) -> None:
        super().__post_init__()
        self.at_once = EXAMPLES_AT_ONCE[self.ranks.device.type]

    def measure(self, trainer: Trainer, *, test: bool) -> dict[str, float]:
        """Returns `split/metric` -> value for the splits of `examples`."""
        metrics: dict[str, float] = {}
        with torch.no_grad(), trainer.evaluating():
            for name, index in self.examples(test=test).items():
                metrics |= self._means(trainer, name, index, "")
        if trainer.has_average:
            with torch.no_grad(), trainer.evaluating(averaged=True):
                for name, index in self.examples(test=test, train=False).items():
                    metrics |= self._means(trainer, name, index, "ema_")
        return metrics

    def _means(self, trainer: Trainer, name: str, index: Tensor, prefix: str) -> dict[str, float]:
        """Returns the mean of each metric over the examples at `index`."""
        # A rank whose slice is empty still evaluates one empty batch, to know the metrics' names.
        start, stop = cut(len(index), self.ranks.count)[self.ranks.rank]
        sums = self.summed(
            self.splits[name], index[start:stop], self.at_once,
            lambda batch: self._sums(trainer, trainer.cast(batch)),
        )  # fmt: skip
        flat = torch.cat([total.flatten() for total in sums.values()])
        means = self.ranks.sum(flat) / len(index)
        pieces = torch.split(means, [total.numel() for total in sums.values()])
        shaped = zip(sums.items(), pieces, strict=True)
        means_of = {metric: mean.view_as(total) for (metric, total), mean in shaped}
        numbers = summary_of(self.workload, means_of)
        return {f"{name}/{prefix}{metric}": number for metric, number in numbers.items()}

    def _sums(self, trainer: Trainer, batch: Batch) -> Sums:
        """Returns each metric's sum over a batch. If memory runs out, the batch is put through the
        model in smaller parts."""
        sums: Sums = {}
        try:
            for part in divided(batch, self.at_once):
                for metric, value in self.workload.metrics(trainer.model, part).items():
                    sums[metric] = sums.get(metric, 0) + value.double().sum(dim=0)
            return sums
        except RuntimeError as error:
            if not out_of_memory(error) or self.at_once == 1:
                raise
        self.at_once //= 2
        return self._sums(trainer, batch)


def summary_of(workload: Workload, means: Mapping[str, Tensor]) -> dict[str, float]:
    """Returns the workload's summary of the means over a split. All numbers are read from the
    device at once."""
    summary = workload.summary(means)
    for metric, value in summary.items():
        if value.dim():
            raise BadInput(
                f"Metric {metric!r} of {type(workload).__name__} must have one value per "
                f"example, or one number must be made of its means in `summary`, but it has "
                f"means of shape {tuple(value.shape)}.",
                code="wrong-result",
            )
    return dict(zip(summary, torch.stack(list(summary.values())).tolist(), strict=True))


def train_subset(extras: Extras, train: Split) -> Tensor | None:
    """Returns the indices of the training examples on which `train/*` is measured. They are the
    same for every trial of every sweep, so that curves can be compared."""
    count, size = extras.train_examples, train.size
    if count == 0:
        return None
    if size is None:
        return torch.arange(count)
    generator = torch.Generator().manual_seed(derive_seed("train subset"))
    return torch.randperm(size, generator=generator)[:count].to(train.draws_on)
