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


@dataclass(kw_only=True)
class Evaluator:
    """Measures the model of a trainer on the splits of a workload."""

    workload: Workload
    splits: Mapping[str, Split]
    extras: Extras
    ranks: Ranks
    pulse: Callable[[], None] = lambda: None
    """Function that is called for every batch, as a sign of life."""

    def __post_init__(self) -> None:
        self.at_once = EXAMPLES_AT_ONCE[self.ranks.device.type]
        self._subset = train_subset(self.extras, self.splits["train"])

    def measure(self, trainer: Trainer, *, test: bool) -> dict[str, float]:
        """Returns `split/metric` -> value for the `test` split if `test`, else for all other splits
        except the training split. The metrics of `Extras.train_examples` come with the latter."""
        names = [name for name in self.splits if name != "train" and (name == "test") == test]
        metrics: dict[str, float] = {}
        with torch.no_grad(), trainer.evaluating():
            metrics |= self._measure(trainer, names, "")
            if self._subset is not None and not test:
                metrics |= self._means(trainer, "train", self._subset, "")
        if trainer.has_average:
            with torch.no_grad(), trainer.evaluating(averaged=True):
                metrics |= self._measure(trainer, names, "ema_")
        return metrics

    def _measure(self, trainer: Trainer, names: list[str], prefix: str) -> dict[str, float]:
        metrics: dict[str, float] = {}
        for name in names:
            size = self.splits[name].size
            assert size is not None, f"split {name!r} must be finite to be evaluated"
            metrics |= self._means(trainer, name, size, prefix)
        return metrics

    def _means(
        self, trainer: Trainer, name: str, examples: int | Tensor, prefix: str
    ) -> dict[str, float]:
        """Returns the mean of each metric over the first `examples`, or over the examples at the
        indices `examples`."""
        size = examples if isinstance(examples, int) else len(examples)
        start, stop = cut(size, self.ranks.count)[self.ranks.rank]
        split = self.splits[name]
        sums: dict[str, Tensor] = {}
        # A rank whose slice is empty still evaluates one empty batch, to know the metrics' names.
        if isinstance(examples, int):
            index = torch.arange(start, stop, device=split.draws_on)
        else:
            index = examples[start:stop]
        draws = [(indices,) for indices in torch.split(index, self.at_once)]
        # Starting processes that fetch batches ahead pays only for several batches.
        batches = split.batches(draws) if len(draws) > 1 else [split.batch(index)]
        for batch in batches:
            self.pulse()
            for metric, value in self._sums(trainer, trainer.cast(batch)).items():
                sums[metric] = sums.get(metric, 0) + value
        if not sums:
            raise BadInput(f"{type(self.workload).__name__} must return a metric.", code="empty")
        means = self.ranks.sum(torch.cat([total.flatten() for total in sums.values()])) / size
        pieces = torch.split(means, [total.numel() for total in sums.values()])
        shaped = zip(sums.items(), pieces, strict=True)
        means_of = {metric: mean.view_as(total) for (metric, total), mean in shaped}
        numbers = summary_of(self.workload, means_of)
        return {f"{name}/{prefix}{metric}": number for metric, number in numbers.items()}

    def _sums(self, trainer: Trainer, batch: Batch) -> dict[str, Tensor]:
        """Returns each metric's sum over a batch. If memory runs out, the batch is put through the
        model in smaller parts."""
        sums: dict[str, Tensor] = {}
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
