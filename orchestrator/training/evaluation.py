"""Measures models: means of metrics over whole splits. Each rank evaluates a slice of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from orchestrator.records import BadInput, Extras, derive_seed, wrong_value
from orchestrator.training.batches import in_slices
from orchestrator.training.memory import out_of_memory
from orchestrator.training.modifiers import Stream, in_precision
from orchestrator.training.ranks import Ranks
from orchestrator.training.trainer import Trainer
from orchestrator.workloads import Batch, Draw, Split, Workload, divided, mapped
from orchestrator.workloads.splits import source_of
from orchestrator.workloads.trees import leaves

EXAMPLES_AT_ONCE = {"cpu": 512, "cuda": 1024}
"""Largest number of examples that are put through the model at once, by type of device. A CPU is
twice as fast if the data fit into its caches."""

KEPT_BYTES = {"cpu": 2**30, "cuda": 2**33}
"""Main memory for examples that were fetched to be evaluated. Machines with GPUs have more."""

Values = dict[str, float]
Sums = dict[str, Tensor]
"""Each metric's sum over examples, for each model: (models, ...)."""
SumsOf = Callable[[Batch], Sums]


@dataclass(kw_only=True)
class Evaluator:
    """Measures the models of an engine on the splits of a workload."""

    workload: Workload
    splits: Mapping[str, Split]
    extras: Extras
    ranks: Ranks
    pulse: Callable[[], None] = lambda: None
    """Function that is called for every batch, as a sign of life."""

    def __post_init__(self) -> None:
        self.at_once = EXAMPLES_AT_ONCE[self.ranks.device.type]
        self._kept: dict[str, list[Batch] | None] = {}
        """Split -> the batches that were fetched; None if they need not or can't be kept."""
        self._room = KEPT_BYTES[self.ranks.device.type]
        self._train = train_subset(self.extras, self.splits["train"])
        self._draws = Stream(derive_seed("evaluation", self.ranks.rank), self.ranks.device)
        """What metrics draw at random, such as the noise of a variational autoencoder: the same at
        every evaluation. Stacks refuse such metrics."""
        self._metrics = in_precision(
            self.extras.precision, self.workload.metrics, self.ranks.device
        )

    def alone(self, trainer: Trainer, *, test: bool) -> Values:
        """Measures the model of a trial that trains alone."""

        @contextmanager
        def evaluating(averaged: bool) -> Iterator[SumsOf]:
            with trainer.evaluating(averaged=averaged):
                yield lambda batch: self._sums(trainer, trainer.cast(batch))

        averages = trainer.average is not None
        with copy(self._draws).in_use():
            return self.measure(1, evaluating, averages=averages, test=test)[0]

    def measure(
        self,
        models: int,
        evaluating: Callable[[bool], AbstractContextManager[SumsOf]],
        *,
        averages: bool,
        test: bool,
    ) -> list[Values]:
        """Returns `split/metric` -> value for each model, for the splits of `examples`.
        `evaluating` prepares the models for its context, or their averages if it gets True, and
        returns the function that sums up their metrics. With `averages`, these are measured, too,
        but not on the training split."""
        found: list[Values] = [{} for _ in range(models)]
        for averaged in (False, True) if averages else (False,):
            with evaluating(averaged) as sums_of:
                for name, index in self.examples(test=test, train=not averaged).items():
                    numbers = self._numbers(name, index, sums_of)
                    prefix = f"{name}/ema_" if averaged else f"{name}/"
                    for metrics, of_model in zip(found, numbers, strict=True):
                        metrics |= {f"{prefix}{metric}": one for metric, one in of_model.items()}
        return found

    def examples(self, *, test: bool, train: bool = True) -> dict[str, Tensor]:
        """Returns split -> indices of the examples to measure: those of the `test` split if `test`,
        else of all other splits. Of the training split, these are `Extras.train_examples`, which
        come with the latter unless `train` is false."""
        found = {}
        for name, split in self.splits.items():
            if name != "train" and (name == "test") == test:
                assert split.size is not None
                found[name] = torch.arange(split.size, device=split.draws_on)
        if self._train is not None and train and not test:
            found["train"] = self._train
        return found

    def _numbers(self, split: str, index: Tensor, sums_of: SumsOf) -> list[Values]:
        """Returns the workload's summary of the split's examples at `index`, for each model."""
        # A rank whose slice is empty still evaluates one empty batch, to know the metrics' names.
        start, stop = in_slices(len(index), self.ranks.count)[self.ranks.rank]
        draws = [(indices,) for indices in torch.split(index[start:stop], self.at_once)]
        sums: Sums = {}
        for batch in self._batches(split, draws):
            self.pulse()
            for metric, value in sums_of(batch).items():
                sums[metric] = sums.get(metric, 0) + value
        if not sums:
            raise BadInput(f"{type(self.workload).__name__} must return a metric.", code="empty")
        means = {name: (self.ranks.sum(total) / len(index)).cpu() for name, total in sums.items()}
        of_models = zip(*means.values(), strict=True)
        return [self._summary(dict(zip(means, values, strict=True))) for values in of_models]

    def _batches(self, name: str, draws: Sequence[Draw]) -> Iterator[Batch]:
        """Yields the batches of a split. Those that were fetched are kept as they are, for images
        as bytes, as long as there is room: decoding takes longer than an evaluation on a GPU."""
        if (known := self._kept.get(name)) is not None:
            for batch in known:
                yield mapped(lambda leaf: leaf.to(self.ranks.device, copy=True), batch)
            return
        split, room = self.splits[name], self._room
        keeps, kept = name not in self._kept and source_of(split).fetches, list[Batch]()
        # Starting processes that fetch batches ahead pays only for several batches.
        for batch in split.batches(draws) if len(draws) > 1 else [split.batch(*draws[0])]:
            if keeps:
                room -= sum(leaf.nbytes for _, leaf in leaves(batch))
                kept.append(mapped(lambda leaf: leaf.to("cpu", copy=True), batch))
            if room < 0:
                keeps, kept = False, []
            yield batch
        if keeps:
            self._room = room
        self._kept[name] = kept if keeps else None

    def _sums(self, trainer: Trainer, batch: Batch) -> Sums:
        """Returns each metric's sum over a batch, which is divided further if memory runs out."""
        sums: Sums = {}
        try:
            for part in divided(batch, self.at_once):
                for metric, value in self._metrics(trainer.model, part).items():
                    sums[metric] = sums.get(metric, 0) + value.double().sum(dim=0, keepdim=True)
            return sums
        except RuntimeError as error:
            if not out_of_memory(error) or self.at_once == 1:
                raise
        self.at_once //= 2
        return self._sums(trainer, batch)

    def _summary(self, means: Mapping[str, Tensor]) -> Values:
        """Returns the workload's summary of the means over a split."""
        summary = self.workload.summary(means)
        if not isinstance(summary, Mapping):
            raise wrong_value("What `summary` returns", "a dict of numbers", summary)
        for metric, value in summary.items():
            if shape := torch.as_tensor(value).shape:
                raise BadInput(
                    f"Metric {metric!r} of {type(self.workload).__name__} must have one value per "
                    f"example, or one number must be made of its means in `summary`, but it has "
                    f"means of shape {tuple(shape)}.",
                    code="wrong-result",
                )
        return {metric: float(value) for metric, value in summary.items()}


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
