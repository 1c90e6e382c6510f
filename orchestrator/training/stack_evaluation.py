"""Measuring some slots of a stack: means over whole splits, as `Evaluator` takes them."""

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

SLOTS_AT_ONCE = {"cpu": 8, "cuda": 64}
"""How many are put through the model at once, each with `EXAMPLES_AT_ONCE` examples."""

Metrics = dict[str, float]


@dataclass(kw_only=True)
class StackEvaluator:
    workload: Workload
    splits: Mapping[str, Split]
    extras: Extras
    pulse: Callable[[], None] = lambda: None
    """Called for every batch."""

    def __post_init__(self) -> None:
        self._subset = train_subset(self.extras, self.splits["train"])

    def measure(self, stack: Stack, slots: Sequence[int], *, test: bool) -> list[Metrics]:
        """`split/metric` of every split to evaluate on, for each of `slots`; `test` splits only if
        asked for. The same bits whichever slots are measured along."""
        began = time.perf_counter()
        at_once = SLOTS_AT_ONCE[stack.device.type]
        found: list[Metrics] = []
        for first in range(0, len(slots), at_once):
            group = list(slots[first : first + at_once])
            # One alone would take other ways: it is measured beside itself.
            together = group if len(group) >= LEAST_WIDTH else group * LEAST_WIDTH
            found += self._measure(stack, torch.tensor(together), test=test)[: len(group)]
        for slot in slots:
            stack.tenant(slot).evaluation_seconds += (time.perf_counter() - began) / len(slots)
        return found

    def _measure(self, stack: Stack, slots: Tensor, *, test: bool) -> list[Metrics]:
        slots = slots.to(stack.device)
        names = [name for name in self.splits if name != "train" and (name == "test") == test]
        weights = stack.weights(slots)
        parts = [self._means(stack, weights, slots, name, self._all(name), "") for name in names]
        if self._subset is not None and not test:
            parts.append(self._means(stack, weights, slots, "train", self._subset, ""))
        if stack.has_average:
            weights = stack.weights(slots, averaged=True)
            parts += [
                self._means(stack, weights, slots, name, self._all(name), "ema_") for name in names
            ]
        of_slots: Iterable[tuple[Metrics, ...]] = zip(*parts, strict=True)
        return [
            {metric: value for part in of_slot for metric, value in part.items()}
            for of_slot in of_slots
        ] or [{} for _ in slots]

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
        draws = [(some,) for some in torch.split(examples, EXAMPLES_AT_ONCE[stack.device.type])]
        batches: Iterable[Batch] = (
            split.batches(draws) if len(draws) > 1 else [split.batch(examples)]
        )
        for batch in batches:
            self.pulse()
            values = stack.model.metrics(weights, slots, stack.cast(batch))
            for metric, value in values.items():
                sums[metric] = sums.get(metric, 0) + value.double().sum(dim=1)
        if not sums:
            raise BadInput(f"{type(self.workload).__name__} must return at least one metric.")
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
