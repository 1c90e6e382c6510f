"""Measures slots of a stack: means over whole splits, as `Evaluator` computes them."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from orchestrator.training.evaluation import EXAMPLES_AT_ONCE, SplitEvaluator, summary_of
from orchestrator.training.stack import LEAST_WIDTH, Stack
from orchestrator.workloads import Batch

SLOTS_AT_ONCE = 8
"""Number of slots that a CPU puts through the model at once, each with `EXAMPLES_AT_ONCE` examples.
With more slots, the activations between two layers would not fit into a cache."""

Metrics = dict[str, float]


class StackEvaluator(SplitEvaluator):
    """Measures slots of a stack on the splits of a workload."""

    def measure(self, stack: Stack, slots: Sequence[int], *, test: bool) -> list[Metrics]:
        """Returns `split/metric` -> value for each of `slots`, for the splits of `examples`. The
        bits do not depend on the other slots that are measured."""
        if not slots:
            return []
        began = time.perf_counter()
        numbers = torch.tensor(slots, device=stack.device)
        weights = stack.weights(numbers)
        parts = [
            self._means(stack, weights, numbers, name, index, "")
            for name, index in self.examples(test=test).items()
        ]
        if stack.has_average:
            weights = stack.weights(numbers, averaged=True)
            parts += [
                self._means(stack, weights, numbers, name, index, "ema_")
                for name, index in self.examples(test=test, train=False).items()
            ]
        share = (time.perf_counter() - began) / len(slots)
        for slot in slots:
            stack.tenant(slot).evaluation_seconds += share
        return [
            {metric: value for part in parts for metric, value in part[place].items()}
            for place in range(len(slots))
        ]

    def _means(
        self,
        stack: Stack,
        weights: Tensor,
        slots: Tensor,
        name: str,
        index: Tensor,
        prefix: str,
    ) -> list[Metrics]:
        sums = self.summed(
            self.splits[name], index, EXAMPLES_AT_ONCE[stack.device.type],
            lambda batch: self._sums(stack, weights, slots, stack.cast(batch)),
        )  # fmt: skip
        means = {metric: (total / len(index)).cpu() for metric, total in sums.items()}
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
