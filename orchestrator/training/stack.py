"""The engine that trains many trials of one study as one model, each in a slot, on one rank.

A slot is a row of the weights and of every tensor of the optimizer's state. Each slot has its own
step, batches and metaparameters. The measurements of a trial do not depend on its slot, on the
trials in other slots or on trials that were in the slot before.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from orchestrator.records import Trial, derive_seed
from orchestrator.records.lr_schedules import cooled
from orchestrator.training.batches import INDICES_AT_ONCE, moved
from orchestrator.training.engine import Engine
from orchestrator.training.evaluation import Sums, Values
from orchestrator.training.memory import forget_peak, memory_told
from orchestrator.training.modifiers import Function, Stream
from orchestrator.training.rules import Numbers, clip, is_muon, make_rule
from orchestrator.training.settings import Sorted, sort
from orchestrator.training.stacked_model import Computation, StackedModel
from orchestrator.training.stacked_trial import (
    Ahead,
    SlotNumbers,
    StackedTrial,
    make_stacked,
    moving_of,
    numbers_among,
)
from orchestrator.training.trainer import fresh_model, losses_of_first
from orchestrator.workloads import Batch, ghosts, mapped
from orchestrator.workloads.ghost_batch_norm import ghost_norms

LEAST_WIDTH = 2
"""Smallest number of slots. With a single slot, kernels use other algorithms than with several, so
the last bits differ."""

SLOTS_AT_ONCE = 8
"""Number of slots that a CPU evaluates at once. With more, the activations between two layers would
not fit into a cache. A rest is filled up to a power of two, so that few tapes serve any number."""

MOST_COMPUTATIONS = 8
_COMPUTATIONS: dict[Any, Computation] = {}
"""Workload, and what else decides what a stack computes -> that, the latest last."""


class Stack(Engine):
    """The slots of a stack, with their weights, optimizer states and trials."""

    @memory_told()
    def _begin(self, first: Trial) -> None:
        """The stack takes trials of the study of `first` that are of its kind: metaparameters have
        the same names, and values that are not numbers are equal."""
        width, self._study, self._kind = self.width, first.study, first.kind
        assert width >= LEAST_WIDTH, width
        forget_peak(self.ranks.device)
        self._split = self._splits["train"]
        settings = sort(first.params, self._workload)
        self._cast = settings.modifiers.cast
        self._loss_numbers = numbers_among(settings.loss, first)
        self._loss_shared = {
            name: value for name, value in settings.loss.items() if name not in self._loss_numbers
        }
        self.model = StackedModel(self._computation(first, settings), width)
        self._layout = self.model.layout
        weights = self.model.weights
        hidden = self._hidden(first, settings) if is_muon(self._study.optimizer) else ()
        self._rule = make_rule(self._study.optimizer, settings.optimizer, self._layout, hidden)
        self._state = {name: torch.zeros_like(weights) for name in self._rule.state}
        self._gradient = torch.zeros_like(weights)
        self._gradient_views = self._layout.views(self._gradient)
        self._sums = None if settings.modifiers.ema_decay is None else torch.zeros_like(weights)
        size = self._study.batch_size
        self._losses = weights.new_zeros(width, size)
        self.in_slots: list[StackedTrial | None] = [None] * width
        self._idle = 0.0
        """Seconds that the steps of free slots have taken since the stack got its width."""
        self._at_once = max(1, INDICES_AT_ONCE // size)
        self._make_ahead()

    @memory_told()
    @torch.no_grad()
    def put(self, slot: int, trial: Trial, state: Mapping[str, Any] | None = None) -> None:
        """Puts `trial` into a free slot, at its beginning or at `state`. The state may come from a
        `Trainer` or from a stack."""
        assert self.in_slots[slot] is None, f"slot {slot} is taken"
        assert trial.study == self._study, "a stack trains trials of one study"
        assert trial.kind == self._kind, (trial.params, self._kind)
        settings = sort(trial.params, self._workload)
        model = self._fresh_model(trial, settings)
        # The loss can refuse these numbers. Later it gets those of all slots as tensors, whose
        # values it does not check.
        if self._first_loss(model, settings)[1] is not None:
            raise ValueError("its losses have weights, or half precision")
        stacked = self._stacked(trial, settings, model)
        for rows in (self._losses, self._gradient, *self._state.values()):
            rows[slot] = 0
        if self._sums is not None:
            self._sums[slot] = 0
        if state is not None:
            model.load_state_dict(state["model"])
            self._load(slot, stacked, state)
        self.model.put(slot, model)
        self.in_slots[slot] = stacked
        self._forget_numbers()

    def cool(self, slot: int, start: int) -> None:
        stacked = self.at(slot)
        assert self._study.cooldown is not None
        factor = cooled(stacked.factor, self._study.cooldown, start)
        self.in_slots[slot] = replace(stacked, factor=factor)  # another one: its numbers are others
        self._forget_numbers()

    def clear(self, slot: int) -> None:
        self.in_slots[slot] = None
        # The slot is still computed with the others, but nobody reads the result. Zeros are the
        # fastest numbers to compute with.
        self.model.weights[slot] = 0
        self._forget_numbers()

    @memory_told()
    @torch.no_grad()
    def narrow(self) -> list[int] | None:
        """The bits do not depend on the number of slots, except with convolutions, or on a GPU.
        Another number of slots has to be recorded, which takes as long as some steps."""
        occupied, model = self.occupied, self.model
        width = max(len(occupied), LEAST_WIDTH)
        if self._idle <= model.computation.recording_seconds or width == self.width:
            return None
        if self.ranks.device.type != "cpu" or model.computation.convolves is not False:
            return None
        free = [slot for slot, stacked in enumerate(self.in_slots) if stacked is None]
        kept = [*occupied, *free[: width - len(occupied)]]
        rows = torch.tensor(kept)
        model.narrow(rows)
        self._state = {name: part.index_select(0, rows) for name, part in self._state.items()}
        self._gradient, self._losses = (
            part.index_select(0, rows) for part in (self._gradient, self._losses)
        )
        self._gradient_views = self._layout.views(self._gradient)
        self._sums = None if self._sums is None else self._sums.index_select(0, rows)
        self.in_slots, self.width, self._idle = [self.in_slots[slot] for slot in kept], width, 0.0
        self._make_ahead()
        self._forget_numbers()
        return occupied

    @property
    def occupied(self) -> list[int]:
        return [slot for slot, stacked in enumerate(self.in_slots) if stacked is not None]

    def at(self, slot: int) -> StackedTrial:
        stacked = self.in_slots[slot]
        assert stacked is not None, f"slot {slot} is empty"
        return stacked

    @memory_told()
    @torch.no_grad()
    def advance(self, steps: int) -> None:
        occupied = [self.at(slot) for slot in self.occupied]
        assert steps > 0, steps
        assert occupied, "a stack without trials can't advance"
        self.ranks.synchronise()
        began = time.perf_counter()
        for first in range(0, steps, self._at_once):
            count = min(self._at_once, steps - first)
            tables = self._draws_ahead.rows(self.in_slots, count)
            draws = [moved(table, self._split.draws_on) for table in tables]
            numbers = self._numbers.of_steps(count)
            for step in range(count):
                batch = self._batch([table[step] for table in draws])
                self._take_step(batch, numbers(step))
                self._pulse()
            for stacked in occupied:
                stacked.step += count
        self.ranks.synchronise()
        spent = time.perf_counter() - began
        self.seconds, self.rate = self.seconds + spent, spent / steps
        self._idle += spent * (1 - len(occupied) / self.width)
        for stacked in occupied:
            stacked.seconds += spent / len(occupied)
            stacked.since += steps

    def trained(self, slots: Sequence[int]) -> list[Values]:
        totals = self._losses.double().sum(dim=1).tolist()
        found = []
        for slot in slots:
            stacked, metrics = self.at(slot), {}
            if stacked.since:
                total = stacked.folded + totals[slot]
                metrics["batch/loss"] = total / (self._study.batch_size * stacked.since)
            stacked.since, stacked.folded = 0, 0.0
            self._losses[slot] = 0
            found.append(metrics)
        return found

    @memory_told()
    def evaluated(self, slots: Sequence[int], *, test: bool) -> list[Values]:
        """Evaluates these slots. The bits do not depend on the other slots that are measured."""
        numbers = torch.tensor(slots, dtype=torch.int64, device=self.ranks.device)
        return self._evaluator.measure(
            len(slots),
            lambda averaged: nullcontext(
                partial(self._sums_of, self._weights(numbers, averaged=averaged), numbers)
            ),
            averages=self._sums is not None,
            test=test,
        )

    def _sums_of(self, weights: Tensor, slots: Tensor, batch: Batch) -> Sums:
        """Returns each metric's sum over a batch, for each of the slots with these weights."""
        batch = self._cast(batch)
        at_once, least = self._group(weights, slots, batch)
        parts = []
        for first in range(0, len(slots), at_once):
            rows, numbers = weights[first : first + at_once], slots[first : first + at_once]
            count = len(numbers)
            if more := min(at_once, max(least, 2 ** (count - 1).bit_length())) - count:
                rows = torch.cat([rows, rows[:1].expand(more, -1)])
                numbers = torch.cat([numbers, numbers[:1].expand(more)])
            values = self.model.metrics(rows, numbers, batch)
            parts.append({m: value[:count].double().sum(dim=1) for m, value in values.items()})
        return {metric: torch.cat([part[metric] for part in parts]) for metric in parts[0]}

    def _group(self, weights: Tensor, slots: Tensor, batch: Batch) -> tuple[int, int]:
        """Returns the largest and the smallest number of slots that are put through the model at
        once. They are equal if the number of slots changes the bits."""
        if self.ranks.device.type != "cpu":
            return self.width, self.width
        computation = self.model.computation
        if computation.convolves is None:
            self.model.metrics(weights[:1], slots[:1], batch)
        most = min(SLOTS_AT_ONCE, self.width)
        return (1, 1) if computation.convolves else (most, LEAST_WIDTH)

    def _weights(self, slots: Tensor, *, averaged: bool) -> Tensor:
        """Returns the weights of these slots for an evaluation, one row per slot."""
        rows = self.model.weights.index_select(0, slots)
        if not averaged:
            return rows
        assert self._sums is not None
        shares = [self.at(slot).averaged_share for slot in slots.tolist()]
        share = rows.new_tensor(shares).unsqueeze(1)
        # Before the first step there is no average, so the weights themselves are evaluated.
        return torch.where(share > 0, self._sums.index_select(0, slots) / share, rows)

    def state(self, slot: int) -> dict[str, Any]:
        """Returns everything that the next steps of a trial depend on. It has the form of the state
        of a `Trainer` with one rank, so that a stack and a `Trainer` can both resume from it."""
        stacked, module = self.at(slot), self.model.module
        self.model.take(slot, module)
        numbers = {name: number for number, name in enumerate(stacked.order)}
        moments: dict[int, dict[str, Tensor]] = {}
        for number, name in enumerate(self.model.names):
            tensors = {
                moment: self._layout.view(self._state[rows][slot], number).clone()
                for rows, moment in self._rule.tensors(number).items()
            }
            if self._rule.counts_steps == "in state":
                tensors["step"] = torch.tensor(float(stacked.step))
            if tensors:
                moments[numbers[name]] = tensors
        groups = stacked.groups
        if stacked.factor is not None and stacked.step:
            factor = stacked.factor(stacked.step - 1)
            groups = [{**group, "lr": group["lr"] * factor} for group in groups]
        if self._rule.counts_steps == "in groups" and stacked.step:
            groups = [{**group, "step": stacked.step} for group in groups]
        dropout_seed = derive_seed(stacked.trial.seed, "dropout", 0)
        rank_state = {
            "stream": Stream(dropout_seed, self.ranks.device).states,
            "losses": [self._losses[slot].clone().cpu()],
            "folded": torch.tensor(stacked.folded, dtype=torch.float64),
        }
        return {
            "model": deepcopy(module.state_dict()),
            "optimizer": {"state": moments, "param_groups": groups},
            "average": self._average(slot),
            "step": stacked.step,
            "seconds": stacked.seconds,
            "evaluation_seconds": stacked.evaluation_seconds,
            "since": stacked.since,
            "micro_batch": None,
            "ranks": [rank_state],
        }

    def _computation(self, first: Trial, settings: Sorted) -> Computation:
        """What this stack computes, as far as stacks before it have recorded it."""
        modifiers, size = settings.modifiers, self._study.batch_size
        of_loss = (*self._loss_numbers, repr(self._loss_shared))
        kind = (modifiers.precision, modifiers.dropout, size, self.ranks.device, *of_loss)
        key = (id(self._workload), *kind)  # a computation keeps its workload, and so the number
        computation = _COMPUTATIONS.pop(key, None)
        if computation is None:
            computation = Computation(self._fresh_model(first, settings), self._workload)
        _COMPUTATIONS[key] = computation
        if len(_COMPUTATIONS) > MOST_COMPUTATIONS:
            del _COMPUTATIONS[next(iter(_COMPUTATIONS))]
        return computation

    def _fresh_model(self, trial: Trial, settings: Sorted) -> torch.nn.Module:
        model = fresh_model(self._workload, derive_seed(trial.seed, "init"), self.ranks.device)
        settings.modifiers.prepare(model)
        for norm in ghost_norms(model):
            norm.defer(ghosts(trial.study.batch_size, norm.ghost_size))
        return model

    def _stacked(self, trial: Trial, settings: Sorted, model: torch.nn.Module) -> StackedTrial:
        with_graph = torch.enable_grad()(self._first_loss)
        return make_stacked(
            trial, settings, model, self._split.size, lambda: with_graph(model, settings)[0]
        )

    def _first_loss(self, model: torch.nn.Module, settings: Sorted) -> tuple[Tensor, Tensor | None]:
        loss: Function = self._workload.loss
        return losses_of_first(partial(loss, **settings.loss), model, self._split, self._cast)

    def _hidden(self, first: Trial, settings: Sorted) -> list[int]:
        """Returns the numbers of the parameters that Muon orthogonalises."""
        stacked = self._stacked(first, settings, self._fresh_model(first, settings))
        groups = [group["params"] for group in stacked.groups if group["use_muon"]]
        hidden = {stacked.order[number] for members in groups for number in members}
        return [n for n, name in enumerate(self.model.names) if name in hidden]

    def _load(self, slot: int, stacked: StackedTrial, state: Mapping[str, Any]) -> None:
        moments = state["optimizer"]["state"]
        for number, name in enumerate(self.model.names):
            parts = moments.get(stacked.order.index(name), {})
            for rows, moment in self._rule.tensors(number).items():
                if (part := parts.get(moment)) is not None:
                    self._layout.view(self._state[rows][slot], number).copy_(part)
        stacked.step, stacked.seconds = state["step"], state["seconds"]
        stacked.evaluation_seconds = state["evaluation_seconds"]
        stacked.since = state["since"]
        rank_states = state["ranks"]
        stacked.folded = sum(float(rank_state["folded"]) for rank_state in rank_states)
        losses = [losses for rank_state in rank_states for losses in rank_state["losses"]]
        if len(losses) == 1 and losses[0].shape in {(), self._losses[slot].shape}:
            self._losses[slot] = losses[0].to(self._losses)
        else:
            stacked.folded += sum(float(part.double().sum()) for part in losses)
        if self._sums is not None:
            named = [name for name, _ in self.model.module.named_parameters()]
            sums = dict(zip(named, state["average"]["sums"], strict=True))
            self._sums[slot] = self._layout.row([sums[name] for name in self.model.names])

    def _average(self, slot: int) -> dict[str, Any] | None:
        if self._sums is None:
            return None
        stacked = self.at(slot)
        share = stacked.averaged_share
        of_trained = zip(self.model.names, self._layout.views(self._sums[slot]), strict=True)
        sums = {name: view.clone() for name, view in of_trained}
        # The average of a parameter that is not trained is the parameter itself.
        return {
            "sums": [
                sums[name] if name in sums else share * parameter.detach()
                for name, parameter in self.model.module.named_parameters()
            ],
            "steps": stacked.step,
        }

    def _make_ahead(self) -> None:
        self._draws_ahead = Ahead(self._draws, self.width, self._at_once)
        self._numbers_ahead = Ahead(partial(moving_of, self._rule), self.width, self._at_once)

    def _draws(self, stacked: StackedTrial, steps: range) -> list[Tensor]:
        """Returns the indices, and seeds if the split is seeded, of a trial's batches: (steps,
        batch size)."""
        return stacked.batches.tables(steps, seeded=self._split.seeded)

    def _batch(self, draw: Sequence[Tensor]) -> Batch:
        """Returns one batch for each slot. All of them are gathered at once."""
        batch = self._split.batch(*(part.flatten() for part in draw))
        shape = (self.width, self._study.batch_size)
        return self._cast(mapped(lambda tensor: tensor.unflatten(0, shape), batch))

    def _take_step(self, batch: Batch, numbers: Numbers) -> None:
        losses = self.model.gradients(
            batch, self._numbers.loss, self._loss_shared, self._gradient_views
        )
        self._losses += losses
        if "gradient_clip" in self._numbers.modifiers:
            clip(self._gradient, self._numbers.modifiers["gradient_clip"], self._layout)
        self._rule.update(self.model.weights, self._gradient, self._state, numbers)
        self.model.commit()
        if self._sums is not None:
            self._sums.lerp_(self.model.weights, self._numbers.modifiers["share"])

    @cached_property
    def _numbers(self) -> SlotNumbers:
        weights, of_loss = self.model.weights, self._loss_numbers
        return SlotNumbers(self._rule, self.in_slots, weights, of_loss, self._numbers_ahead)

    def _forget_numbers(self) -> None:
        """Has the numbers of the slots computed anew. Call this after their trials have changed."""
        self.__dict__.pop("_numbers", None)
