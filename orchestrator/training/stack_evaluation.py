"""Measures slots of a stack: means over whole splits, as `Evaluator` computes them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from orchestrator.records import BadInput, Extras
from orchestrator.training.evaluation import EXAMPLES_AT_ONCE, summary_of, train_subset
from orchestrator.training.stack import LEAST_WIDTH, Stack
from orchestrator.workloads import Batch, Split, Workload

SLOTS_AT_ONCE = 8
"""Number of slots that a CPU puts through the model at once, each with `EXAMPLES_AT_ONCE` examples.
With more slots, the activations between two layers would not fit into a cache."""

Metrics = dict[str, float]


@dataclass(kw_only=True)
class StackEvaluator:
    """Measures slots of a stack on the splits of a workload."""

    workload: Workload
    splits: Mapping[str, Split]
    extras: Extras
    pulse: Callable[[], None] = lambda: None
    """Function that is called for every batch, as a sign of life."""

    def __post_init__(self) -> None:
        self._subset = train_subset(self.extras, self.splits["train"])

    def measure(self, stack: Stack, slots: Sequence[int], *, test: bool) -> list[Metrics]:
        """Returns `split/metric` -> value for each of `slots`: for the `test` split if `test`, else
        for all other splits except the training split. The bits do not depend on the other slots
        that are measured."""
        if not slots:
            return []
        began = time.perf_counter()
        numbers = torch.tensor(slots, device=stack.device)
        names = [name for name in self.splits if name != "train" and (name == "test") == test]
        weights = stack.weights(numbers)
        parts = [self._means(stack, weights, numbers, name, self._all(name), "") for name in names]
        if self._subset is not None and not test:
            parts.append(self._means(stack, weights, numbers, "train", self._subset, ""))
        if stack.has_average:
            weights = stack.weights(numbers, averaged=True)
            parts += [
                self._means(stack, weights, numbers, name, self._all(name), "ema_")
                for name in names
            ]
        share = (time.perf_counter() - began) / len(slots)
        for slot in slots:
            stack.tenant(slot).evaluation_seconds += share
        return [
            {metric: value for part in parts for metric, value in part[place].items()}
            for place in range(len(slots))
        ]

    def _all(self, name: str) -> Tensor:
        split = self.splits[name]
        assert split.size is not None, f"split {name!r} must be finite to be evaluated"
        return torch.arange(split.size, device=split.draws_on)

    def _means(
        self,
        stack: Stack,
        weights: Tensor,
        slots: Tensor,
        name: str,
        examples: Tensor,
        prefix: str,
    ) -> list[Metrics]:
        split, sums = self.splits[name], dict[str, Tensor]()
        at_once = EXAMPLES_AT_ONCE[stack.device.type]
        draws = [(indices,) for indices in torch.split(examples, at_once)]
        batches: Iterable[Batch] = (
            split.batches(draws) if len(draws) > 1 else [split.batch(examples)]
        )
        for batch in batches:
            self.pulse()
            for metric, total in self._sums(stack, weights, slots, stack.cast(batch)).items():
                sums[metric] = sums.get(metric, 0) + total
        if not sums:
            raise BadInput(f"{type(self.workload).__name__} must return a metric.", code="empty")
        means = {metric: (total / len(examples)).cpu() for metric, total in sums.items()}
        return [
            {
                f"{name}/{prefix}{metric}": number
                for metric, number in summary_of(
                    self.workload, {metric: mean[place] for metric, mean in means.items()}
                ).items()
            }
            for place in range(len(slots))
        ]

    def _sums(
        self, stack: Stack, weights: Tensor, slots: Tensor, batch: Batch
    ) -> dict[str, Tensor]:
        """Returns each metric's sum over a batch, for each of the slots."""
        at_once, least = self._group(stack, weights, slots, batch)
        parts = []
        for first in range(0, len(slots), at_once):
            rows, numbers = weights[first : first + at_once], slots[first : first + at_once]
            count = len(numbers)
            if count < least:
                more = least - count
                rows = torch.cat([rows, rows[:1].expand(more, -1)])
                numbers = torch.cat([numbers, numbers[:1].expand(more)])
            values = stack.model.metrics(rows, numbers, batch)
            parts.append({m: value[:count].double().sum(dim=1) for m, value in values.items()})
        return {metric: torch.cat([part[metric] for part in parts]) for metric in parts[0]}

    def _group(self, stack: Stack, weights: Tensor, slots: Tensor, batch: Batch) -> tuple[int, int]:
        """Returns the largest and the smallest number of slots that are put through the model at
        once. They are equal if the number of slots changes the bits."""
        if stack.device.type != "cpu":
            return stack.width, stack.width
        if stack.model.convolves is None:
            stack.model.metrics(weights[:1], slots[:1], batch)
        return (1, 1) if stack.model.convolves else (SLOTS_AT_ONCE, LEAST_WIDTH)
