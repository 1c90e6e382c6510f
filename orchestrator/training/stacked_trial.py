"""The trials in the slots of a stack, without their tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from orchestrator.records import Trial, Value, searched
from orchestrator.records.lr_schedules import Factor, schedule_of
from orchestrator.training.batches import BatchOrder
from orchestrator.training.groups import Losses
from orchestrator.training.optimizers import make_optimizer, numbers_by_default
from orchestrator.training.rules import Numbers, Rule, numbers_of
from orchestrator.training.settings import Sorted


@dataclass
class StackedTrial:
    """A trial in a slot of a stack."""

    trial: Trial
    settings: Sorted
    params: Mapping[str, float]
    """Metaparameters of the optimizer that are numbers, with defaults for those not given."""
    factor: Factor | None
    """Function from the step to the factor on the learning rate; None: it is constant."""
    batches: BatchOrder
    groups: list[dict[str, Any]]
    """Parameter groups of torch's optimizer."""
    order: list[str]
    """Names of the parameters in the order in which torch's optimizer numbers them."""
    step: int = 0
    """Number of steps that were trained."""
    seconds: float = 0.0
    """The trial's share of the seconds that the stack has spent in steps."""
    evaluation_seconds: float = 0.0
    """The trial's share of the seconds that the stack has spent in evaluations."""
    since: int = 0
    """Number of steps since the batch loss was last read."""
    folded: float = 0.0
    """Sum of the losses since then that are not in the stack's sums by position in the batch."""

    @property
    def averaged_share(self) -> float:
        """The total share of the weights after each step in their moving average. The rest is the
        share of the zeros at which the average started."""
        decay = self.settings.modifiers.ema_decay
        assert decay is not None
        return float(1 - decay**self.step)


def make_stacked(
    trial: Trial, settings: Sorted, model: nn.Module, size: int | None, losses: Losses
) -> StackedTrial:
    """Returns `trial` before its first step in a stack. `model` is the model of a trial that
    trains alone, with the `losses` of an example, and `size` the number of training examples."""
    study = trial.study
    optimizer = make_optimizer(study.optimizer, model, settings.optimizer, losses=losses)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    given = {name: float(v) for name, v in settings.optimizer.items() if is_number(v)}
    return StackedTrial(
        trial=trial,
        settings=settings,
        params={**numbers_by_default(study.optimizer), **given},
        factor=schedule_of(study, settings.schedule, size),
        batches=BatchOrder(size=size, stage=study.batches.stage(study.start_step), seed=trial.seed),
        groups=optimizer.state_dict()["param_groups"],
        order=[names[id(p)] for group in optimizer.param_groups for p in group["params"]],
    )


def numbers_among(settings: Mapping[str, Value], trial: Trial) -> list[str]:
    """Returns the names of `settings` that may differ between slots: numbers that the study's
    search space does not fix."""
    space = trial.study.space
    return [
        name
        for name, value in settings.items()
        if is_number(value) and (name not in space or name in searched(space))
    ]


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class SlotNumbers:
    """The numbers of all slots. They are valid as long as the same trials are in the slots. Empty
    slots get the numbers of another slot."""

    def __init__(
        self,
        rule: Rule,
        in_slots: Sequence[StackedTrial | None],
        like: Tensor,
        of_loss: Sequence[str],
        ahead: Ahead,
    ) -> None:
        """`ahead` makes the numbers that `moving_of` the rule returns."""
        first = next(stacked for stacked in in_slots if stacked is not None)
        self._rule, self._like, self._ahead, self._slots = rule, like, ahead, in_slots
        self._in_slots = [stacked or first for stacked in in_slots]
        self._constants = numbers_of([rule.constants(t.params) for t in self._in_slots], like)
        self.loss = {
            name: like.new_tensor([float(t.settings.loss[name]) for t in self._in_slots])
            for name in of_loss
        }
        """Metaparameters of the loss, each a tensor [slots]."""
        self.modifiers = numbers_of([_of_modifiers(stacked) for stacked in self._in_slots], like)
        """`gradient_clip`, and each step's `share` in averages of weights: tensors [slots, 1]."""
        self._names = [*rule.moving(first.params, 1.0, 1)]
        self._steady = self._steady_numbers()

    def of_steps(self, count: int) -> Callable[[int], Numbers]:
        """Returns a function from 0, ..., `count` - 1 to the rule's numbers in the next steps."""
        if (steady := self._steady) is not None:
            return lambda step: steady
        (table,), constants = self._ahead.rows(self._slots, count), self._constants
        numbers = dict(zip(self._names, table.to(self._like).unsqueeze(-1).unbind(2), strict=True))
        return lambda step: {**constants, **{name: part[step] for name, part in numbers.items()}}

    def _steady_numbers(self) -> Numbers | None:
        """Returns the numbers that are the same in every step; None if a slot has a schedule or the
        rule depends on the number of steps."""
        first, second = (
            [self._rule.moving(t.params, 1.0, step) for t in self._in_slots] for step in (1, 2)
        )
        if first != second or any(stacked.factor is not None for stacked in self._in_slots):
            return None
        return {**self._constants, **numbers_of(first, self._like)}


def moving_of(rule: Rule, stacked: StackedTrial, steps: range) -> list[Tensor]:
    """Returns the numbers of the rule that change from step to step as a table (steps, names)."""
    factor = stacked.factor
    factors = np.array([1.0 if factor is None else factor(step) for step in steps])
    moving = rule.moving(stacked.params, factors, np.arange(steps.start, steps.stop) + 1)
    return [torch.from_numpy(np.stack([*moving.values()], axis=1))]


class Ahead:
    """Tables with a row for each step of a slot, made for many steps at once: making the rows of
    the few steps up to the next measurement would take longer than these steps."""

    def __init__(
        self, make: Callable[[StackedTrial, range], Sequence[Tensor]], slots: int, at_once: int
    ) -> None:
        """`make` returns tables of a trial for a range of at most `at_once` steps."""
        self._make, self._at_once = make, at_once
        self._held: list[tuple[StackedTrial | None, int]] = [(None, 0)] * slots
        """The trial for which each slot holds rows, and the step of the first of them."""
        self._tables: list[Tensor] = []
        """[slots * steps, ...]"""

    def rows(self, in_slots: Sequence[StackedTrial | None], count: int) -> list[Tensor]:
        """Returns the rows of the next steps, at most `at_once`, of each slot: (count, slots, ...).
        Empty slots get those of another slot."""
        rows = []
        for slot, stacked in enumerate(in_slots):
            if stacked is None:
                rows.append(-1)
                continue
            held, first = self._held[slot]
            if held is not stacked or not 0 <= stacked.step - first <= self._at_once - count:
                self._fill(slot, stacked, count)
            rows.append(slot * self._at_once + stacked.step - self._held[slot][1])
        known = max(rows)
        steps = torch.tensor([known if row < 0 else row for row in rows])
        steps = steps + torch.arange(count)[:, None]
        return [
            table.index_select(0, steps.flatten()).view(*steps.shape, *table.shape[1:])
            for table in self._tables
        ]

    def _fill(self, slot: int, stacked: StackedTrial, count: int) -> None:
        last = max(stacked.trial.study.budget_steps, stacked.step + count)
        steps = range(stacked.step, min(stacked.step + self._at_once, last))
        made = self._make(stacked, steps)
        if not self._tables:
            rows = len(self._held) * self._at_once
            self._tables = [part.new_zeros(rows, *part.shape[1:]) for part in made]
        for table, part in zip(self._tables, made, strict=True):
            table[slot * self._at_once :][: len(steps)] = part
        self._held[slot] = stacked, stacked.step


def _of_modifiers(stacked: StackedTrial) -> dict[str, float]:
    modifiers, numbers = stacked.settings.modifiers, dict[str, float]()
    if modifiers.gradient_clip is not None:
        numbers["gradient_clip"] = modifiers.gradient_clip
    if modifiers.ema_decay is not None:
        numbers["share"] = 1 - modifiers.ema_decay
    return numbers
