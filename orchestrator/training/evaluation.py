"""Measuring a model: means over whole splits, each rank seeing its share of the examples."""

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
"""How many are put through the model at once. On a CPU, what fits its caches is twice as fast."""


@dataclass(kw_only=True)
class Evaluator:
    workload: Workload
    splits: Mapping[str, Split]
    extras: Extras
    ranks: Ranks
    pulse: Callable[[], None] = lambda: None
    """Called for every batch."""

    def __post_init__(self) -> None:
        self.at_once = EXAMPLES_AT_ONCE[self.ranks.device.type]
        self._subset = train_subset(self.extras, self.splits["train"])

    def measure(self, trainer: Trainer, *, test: bool) -> dict[str, float]:
        """`split/metric` of every split to evaluate on; `test` splits only if asked for."""
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
        """The mean of each metric over the first `examples`, or over those at some indices."""
        size = examples if isinstance(examples, int) else len(examples)
        start, stop = cut(size, self.ranks.count)[self.ranks.rank]
        split = self.splits[name]
        sums: dict[str, Tensor] = {}
        # A rank without a share still looks at one (empty) batch, to know the metrics' names.
        if isinstance(examples, int):
            index = torch.arange(start, stop, device=split.draws_on)
        else:
            index = examples[start:stop]
        draws = [(some,) for some in torch.split(index, self.at_once)]
        # Several are worth the processes that fetch them ahead.
        batches = split.batches(draws) if len(draws) > 1 else [split.batch(index)]
        for batch in batches:
            self.pulse()
            for metric, value in self._sums(trainer, trainer.cast(batch)).items():
                sums[metric] = sums.get(metric, 0) + value
        if not sums:
            raise BadInput(f"{type(self.workload).__name__} must return at least one metric.")
        means = self.ranks.sum(torch.cat([total.flatten() for total in sums.values()])) / size
        pieces = torch.split(means, [total.numel() for total in sums.values()])
        shaped = zip(sums.items(), pieces, strict=True)
        means_of = {metric: mean.view_as(total) for (metric, total), mean in shaped}
        numbers = summary_of(self.workload, means_of)
        return {f"{name}/{prefix}{metric}": number for metric, number in numbers.items()}

    def _sums(self, trainer: Trainer, batch: Batch) -> dict[str, Tensor]:
        """Each metric's sum over a batch, put through the model in as many parts as it takes."""
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
    """What the workload makes of the means over a split, read from the device at once."""
    summary = workload.summary(means)
    for metric, value in summary.items():
        if value.dim():
            raise BadInput(
                f"Metric {metric!r} of {type(workload).__name__} must have one value per "
                f"example, or one number must be made of its means in `summary`, but it has "
                f"means of shape {tuple(value.shape)}."
            )
    return dict(zip(summary, torch.stack(list(summary.values())).tolist(), strict=True))


def train_subset(extras: Extras, train: Split) -> Tensor | None:
    """Which examples `train/*` is measured on; the same for every trial of every sweep, so that
    curves can be compared."""
    count, size = extras.train_examples, train.size
    if count == 0:
        return None
    if size is None:
        return torch.arange(count)
    generator = torch.Generator().manual_seed(derive_seed("train subset"))
    return torch.randperm(size, generator=generator)[:count].to(train.draws_on)
