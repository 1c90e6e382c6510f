"""Trains a model: it takes optimizer steps on this rank's slice of each global batch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from functools import partial
from typing import Any, ClassVar
from weakref import WeakSet

import torch
from torch import Tensor, nn

from orchestrator.records import BadInput, Stage, Trial, derive_seed
from orchestrator.records.lr_schedules import cooled, schedule_of
from orchestrator.training.batch_losses import BatchLosses, with_weights
from orchestrator.training.batches import BatchSlices
from orchestrator.training.compiler import check_alike, compile_in_place, refusals, step_of
from orchestrator.training.memory import OutOfMemory, out_of_memory
from orchestrator.training.modifiers import Average, Function, Stream, in_precision, kept
from orchestrator.training.optimizers import make_optimizer
from orchestrator.training.ranks import Ranks, strictly_alike
from orchestrator.training.settings import sort
from orchestrator.training.stacked_model import Method
from orchestrator.workloads import Batch, Split, Workload, ghosts
from orchestrator.workloads.ghost_batch_norm import commit, discard, ghost_norms

STRICT = ("cuda",)
"""Kinds of devices on which gradients may have two kernels, of which one is deterministic."""

GUARDED_STEPS = 3
"""Number of steps after which all memory of a step has been allocated once: weights, gradients, the
optimizer's state and temporary tensors. Up to then, ranks agree on whether memory ran out."""

MANY_STEPS = 10_000
"""Steps of a process from which on it pays to load a library for symbols, which takes more than a
second. torch wants it where it is given the gradient of the losses, which is the fastest way."""


MADE: WeakSet[nn.Module] = WeakSet()
"""The models that trials of this process began with, and their layers that are trained. One that
comes again has been trained."""


class Trainer:
    """A trial in training, alone: its model, optimizer, schedule and position."""

    _steps_of_process: ClassVar[int] = 0

    def __init__(
        self,
        trial: Trial,
        workload: Workload,
        train_split: Split,
        ranks: Ranks,
        micro_batch: int | None = None,
        pulse: Callable[[], None] = lambda: None,
    ) -> None:
        study, settings = trial.study, sort(trial.params, workload)
        self.trial = trial
        self._ranks, self._modifiers = ranks, settings.modifiers
        self._pulse = pulse
        self.cast = self._modifiers.cast
        loss = in_precision(self._modifiers.precision, workload.loss, ranks.device)
        self.loss = partial(loss, **settings.loss)
        self._batches, self._budget_steps = study.batches, study.budget_steps
        self._split, self._seed = train_split, trial.seed

        self.model = fresh_model(workload, derive_seed(trial.seed, "init"), ranks.device)
        self._modifiers.prepare(self.model)
        self.parameters = list(self.model.parameters())
        # Layers in evaluation mode, such as the batch norms of a pretrained model, stay in it.
        self._frozen = [module for module in self.model.modules() if not module.training]
        self._norms = ghost_norms(self.model)
        self.optimizer = make_optimizer(
            study.optimizer,
            self.model,
            settings.optimizer,
            workload.groups(self.model),
            lambda: losses_of_first(self.loss, self.model, train_split, self.cast)[0],
        )
        self._update = step_of(self.optimizer)
        # Those that have other weights for evaluation may begin with these.
        getattr(self.optimizer, "train", lambda: None)()
        decay = self._modifiers.ema_decay
        self.average = None if decay is None else Average(self.parameters, decay)
        self._few_steps = self._steps_of_process + study.budget_steps < MANY_STEPS
        if not self._few_steps:
            # The library is loaded here, outside of the steps, whose seconds are measured.
            torch.zeros(1, requires_grad=True).backward(torch.ones(1))  # type: ignore[no-untyped-call]
        if self._modifiers.compile:
            compile_in_place(self.model)
        # This comes last, since modules must not change once hooks on gradients are registered. The
        # loss is within, since it may use more of the model than its output.
        self._wrapped = ranks.wrap(Method(self.model, self.loss))

        self._base_rates = [group.get("lr", math.nan) for group in self.optimizer.param_groups]
        self._trunk = self._factor = schedule_of(study, settings.schedule, train_split.size)
        if (self._factor or study.cooldown) and any(
            "lr" not in group for group in self.optimizer.param_groups
        ):
            raise BadInput(
                f"Optimizer {study.optimizer!r} has no learning rate to schedule. Leave out the "
                "schedule.",
                code="no-effect",
            )

        self._enter(self._batches.stages[0])
        self._slices.deliver(micro_batch, from_step=0)
        self._losses = BatchLosses(ranks.device, self._slices.pieces)
        self._stream = Stream(derive_seed(trial.seed, "dropout", ranks.rank), ranks.device)

        self.step = 0
        self.seconds = 0.0
        """Seconds that the slowest rank has spent in steps."""
        self.evaluation_seconds = 0.0
        """Seconds that this rank has spent in evaluations."""
        self.rate = math.inf
        """Seconds per step in the last call of `advance`."""
        self._since = 0
        """Number of steps since the batch loss was last read."""

    def _enter(self, stage: Stage) -> None:
        """Prepares the steps of `stage`. Afterwards, the caller must say at which step its batches
        begin, with `self._slices.deliver`."""
        self._stage = stage
        for norm in self._norms:
            norm.defer(ghosts(stage.batch_size, norm.ghost_size))
        self._slices = BatchSlices(
            self._split,
            stage=stage,
            until=self._batches.end(stage, self._budget_steps),
            seed=self._seed,
            rank=self._ranks.rank,
            ranks=self._ranks.count,
            ghost_size=self._norms[0].ghost_size if self._norms else 1,
        )
        self._shares: dict[int, Tensor] = {}
        self._guarded = GUARDED_STEPS
        self._unproven = self._modifiers.compile
        self._strict = self._ranks.device.type in STRICT

    def advance(self, until: int) -> None:
        """Trains up to step `until`."""
        self.model.train()
        for module in self._frozen:
            module.eval()
        self._ranks.synchronise()
        began, self._untimed = time.perf_counter(), 0.0
        with self._stream.in_use():
            for step in range(self.step, until):
                self._take_step(step)
                self._pulse()
        self._ranks.synchronise()
        spent = self._ranks.maximum(time.perf_counter() - began - self._untimed)
        self._since += until - self.step
        Trainer._steps_of_process += until - self.step
        self.rate = spent / (until - self.step)
        self.step, self.seconds = until, self.seconds + spent

    def batch_metrics(self) -> dict[str, float]:
        """Returns the metrics that come from training itself, over the steps since the last call.
        Before the first step there are none of the batch."""
        metrics: dict[str, float] = {}
        if self._since:
            # This is the mean over the examples of these steps, each computed before its update.
            total, began = self._ranks.sum(self._losses.total()), self.step - self._since
            examples = self._batches.examples(self.step) - self._batches.examples(began)
            metrics["batch/loss"] = float(total) / examples
        self._since = 0
        self._losses.forget(self._slices.pieces)
        return metrics

    @contextmanager
    def evaluating(self, *, averaged: bool = False) -> Iterator[None]:
        """Prepares the model for an evaluation within the context, and restores it afterwards, bit
        by bit. Schedule-free optimizers have other weights for evaluation than for training."""
        swap = getattr(self.optimizer, "eval", None) if self.step and not averaged else None
        average = self.average if averaged else None
        compiles = self._modifiers.compile
        own_code = torch.compiler.set_stance("force_eager") if compiles else nullcontext()
        with torch.no_grad(), own_code, average.in_place() if average else nullcontext():
            self.model.eval()
            if swap is None:
                yield
            else:
                with kept(self.parameters):
                    swap()
                    yield
                    self.optimizer.train()  # type: ignore[attr-defined]

    def close(self) -> None:
        """Ends the processes that fetch batches ahead."""
        self._slices.close()

    @property
    def micro_batch(self) -> int | None:
        """Most examples that are put through the model at once; None: a rank's whole slice."""
        return self._slices.micro_batch

    @property
    def _gradients(self) -> list[Tensor]:
        return [p.grad for p in self.parameters if p.grad is not None]

    def state(self) -> dict[str, Any]:
        """Returns all that the next steps depend on, and no more. All ranks must call this."""
        rank_state = {"stream": self._stream.states, **self._losses.state()}
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            **({"counted": counted} if (counted := _counted(self.optimizer)) else {}),
            "average": self.average and self.average.state(),
            "step": self.step,
            "seconds": self.seconds,
            "evaluation_seconds": self.evaluation_seconds,
            "since": self._since,
            "micro_batch": self.micro_batch,
            "ranks": self._ranks.gather(rank_state),
        }

    def cool(self, start: int) -> None:
        """Cools down from step `start` on."""
        assert self.trial.study.cooldown is not None
        self._factor = cooled(self._trunk, self.trial.study.cooldown, start)

    def load(self, state: Mapping[str, Any]) -> None:
        """Restores `state`. If the number of ranks has changed, rank 0 gets the sum of the losses
        and each rank begins a new stream of random numbers for dropout."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        vars(self.optimizer).update(deepcopy(state.get("counted", {})))
        if self.average is not None:
            self.average.load(state["average"])
        self._factor = self._trunk
        self.step, self.seconds = state["step"], state["seconds"]
        self.evaluation_seconds = state["evaluation_seconds"]
        self._since = state["since"]
        # If a stage begins at this step, its first step enters it; until then the last one holds.
        self._enter(self._batches.stage(max(self.step - 1, 0)))
        sizes = [size for size in (self.micro_batch, state["micro_batch"]) if size is not None]
        self._slices.deliver(min(sizes, default=None), from_step=self.step)
        self._losses.forget(self._slices.pieces)
        rank_states = state["ranks"]
        if len(rank_states) == self._ranks.count and state["micro_batch"] == self.micro_batch:
            rank_state = rank_states[self._ranks.rank]
            self._losses.load(rank_state)
            self._stream.states = rank_state["stream"]
        elif self._ranks.rank == 0:
            self._losses.load_sum(rank_states)

    def _take_step(self, step: int) -> None:
        if (stage := self._batches.stage(step)) is not self._stage:
            micro_batch = self.micro_batch
            self.close()
            self._enter(stage)
            self._slices.deliver(micro_batch, from_step=step)
            self._losses.regroup(self._slices.pieces)
        if self._factor is not None:
            factor = self._factor(step)
            for group, rate in zip(self.optimizer.param_groups, self._base_rates, strict=True):
                group["lr"] = rate * factor
        self._compute_gradients(step)
        self._modifiers.clip(self.parameters)
        self._update()
        if self._norms:
            commit(self._norms, self._ranks.sum if self._ranks.count > 1 else None)
        if self.average is not None:
            self.average.update()

    def _compute_gradients(self, step: int) -> None:
        """Computes the gradients of the global batch on every rank. If memory runs out, it tries
        again with smaller micro-batches."""
        before = [buffer.clone() for buffer in self.model.buffers()] if self._guarded == 1 else []
        while True:
            guarded = self._guarded > 0 and self._ranks.count > 1
            try:
                if self._unproven:
                    self._prove(step)
                losses = self._backward(average=not guarded)
            except RuntimeError as error:
                if self._strict and "deterministic" in str(error):
                    # It says so in the first step, and all ranks do.
                    self._strict = False
                    self._begin_again(self.micro_batch, step)
                    continue
                # Ranks that wait in a collective operation can't be told that memory ran out here.
                # In guarded steps, no rank waits in one at this point.
                if not out_of_memory(error) or (self._ranks.count > 1 and not guarded):
                    raise
                losses = None
            if guarded:
                lacks = any(p.requires_grad and p.grad is None for p in self.parameters)
                if (worst := self._ranks.maximum(1 if losses is None else 2 * lacks)) == 2:
                    raise BadInput(
                        "Where several ranks train a trial, the loss of each rank's examples must "
                        "depend on every parameter that is trained. Train on one rank, or add each "
                        "parameter that may be left out to the loss, times 0.",
                        code="no-gradient",
                    )
                if worst:
                    losses = None
                else:
                    self._ranks.average(self.parameters)
            if losses is not None:
                break
            self._make_room(step)
        if before:
            self._check_buffers(before)
        self._guarded -= 1
        self._losses.add(self._normalised(losses))

    def _check_buffers(self, before: Sequence[Tensor]) -> None:
        """Refuses buffers that depend on how a batch is divided. It is asked in the last guarded
        step, since a model may fill some in its first."""
        named = dict(self.model.named_buffers())
        real = (part.nan_to_num(0, 0, 0) for part in named.values() if not part.is_complex())
        total = sum(float(part.double().sum()) for part in real)
        # Machines of two kinds may round differently.
        apart = self._ranks.maximum(total) + self._ranks.maximum(-total) > 1e-6 * abs(total)
        same = self._slices.pieces == 1 or all(map(torch.equal, before, named.values()))
        if self._ranks.maximum(apart or not same):
            raise BadInput(
                f"No forward pass may change the buffers of {type(self.model).__name__} "
                f"({', '.join(named)}) where ranks or micro-batches divide a batch. Train on one "
                "rank with memory for a whole batch, or use layers without such buffers.",
                code="unusable",
            )

    def _prove(self, step: int) -> None:
        """Compiles the model for the sizes of this stage, outside of the time of training. Refuses
        it if it computes other gradients. Nothing of this remains in the training."""
        began = time.perf_counter()
        devices = [self._ranks.device] if self._ranks.device.type == "cuda" else []
        found = []
        try:
            for code in (torch.compiler.set_stance("force_eager"), refusals()):
                with code, kept([*self.model.buffers()]), torch.random.fork_rng(devices):
                    self._backward(average=False)
                found.append(self._gradients)
                discard(self._norms)
                self._slices.deliver(self.micro_batch, from_step=step)
            check_alike(found[0], found[1], self._modifiers.precision)
            self._unproven = False
        finally:
            self._ranks.synchronise()
            self._untimed += time.perf_counter() - began

    def _backward(self, *, average: bool) -> list[tuple[Tensor, Tensor | None]]:
        """Computes the gradients of this rank's slice, and with `average` averages them over ranks.
        Returns the losses of examples and their weights, vectors for each micro-batch."""
        # zero_grad does the same with bookkeeping, which takes as long as a small layer.
        for parameter in self.parameters:
            parameter.grad = None
        losses = []
        for number in range(self._slices.pieces):
            averages = average and number == self._slices.pieces - 1
            with nullcontext() if averages else self._ranks.without_averaging(self._wrapped):
                losses.append(self._backward_piece())
        return losses

    def _backward_piece(self) -> tuple[Tensor, Tensor | None]:
        batch = self.cast(self._slices.next())
        losses, weights = with_weights(self._wrapped(batch, {}))
        shares = self._shares_like(losses) if weights is None else weights.to(losses.dtype)
        with strictly_alike() if self._strict else nullcontext():
            if self._few_steps:
                torch.dot(losses, shares).backward()  # type: ignore[no-untyped-call]
            else:
                losses.backward(shares)  # type: ignore[no-untyped-call]
        return losses.detach(), weights

    def _shares_like(self, losses: Tensor) -> Tensor:
        """Returns the share of each example's loss in the gradient. A step needs the sum over the
        global batch divided by its size, but averaging over ranks also divides by their number."""
        count, share = len(losses), self._ranks.count / self._stage.batch_size
        if count not in self._shares:
            self._shares[count] = torch.full_like(losses, share)
        return self._shares[count]

    def _normalised(self, losses: Sequence[tuple[Tensor, Any]]) -> list[Tensor]:
        """Divides the gradients of weighted losses by the sum of all weights of the global batch,
        which is known only now. Returns the losses, weighted so that their mean is the batch's."""
        if losses[0][1] is None:
            return [of_piece for of_piece, _ in losses]
        total: Any = self._ranks.sum(sum(weights.sum() for _, weights in losses))
        # A batch of weight 0 has no gradient.
        scale = torch.where(total > 0, 1 / total, 0.0)
        torch._foreach_mul_(self._gradients, scale * self._ranks.count)
        return [
            of_piece * weights * (scale * self._stage.batch_size) for of_piece, weights in losses
        ]

    def _make_room(self, step: int) -> None:
        """Halves the micro-batch, and prepares to repeat the step that did not fit."""
        halved = self._slices.halved()
        if halved is None:
            raise OutOfMemory("out of memory, even with the smallest possible micro-batch")
        self._begin_again(halved, step)
        self._unproven = self._modifiers.compile
        self._losses.regroup(self._slices.pieces)

    def _begin_again(self, micro_batch: int | None, step: int) -> None:
        for parameter in self.parameters:
            parameter.grad = None
        discard(self._norms)
        if self._ranks.device.type == "cuda":
            torch.cuda.empty_cache()
        self._slices.deliver(micro_batch, from_step=step)


def losses_of_first(
    loss: Function, model: nn.Module, split: Split, cast: Callable[[Batch], Batch]
) -> tuple[Tensor, Tensor | None]:
    """Returns the loss of the first example, with its graph, and its weight. Neither the model nor
    the random numbers of the process are affected."""
    training = [module for module in model.modules() if module.training]
    batch = cast(split.batch(torch.zeros(1, dtype=torch.int64, device=split.draws_on)))
    with torch.random.fork_rng(devices=[]):
        found = with_weights(loss(model.eval(), batch))
    for module in training:
        module.training = True
    return found


def fresh_model(workload: Workload, seed: int, device: torch.device) -> nn.Module:
    """Makes a model from `seed` alone. The random numbers of the process are not affected."""
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed records each call stack for CUDA: 5 ms, and memory that is never freed.
        torch.default_generator.manual_seed(seed)
        model = workload.model().to(device)
    name, trained = type(workload).__name__, [model]
    for module in model.modules():
        weights = [*module.parameters(recurse=False)]
        if any(map(nn.parameter.is_lazy, weights)):
            raise BadInput(
                f"Layers of a new model must have their weights, but a {type(module).__name__} of "
                f"{name} gets them with its first batch, whatever the trial's seed. Give its "
                "sizes, or put an example through the model in `model`.",
                code="wrong-value",
            )
        if any(weight.requires_grad for weight in weights):
            trained.append(module)
    if again := [module for module in trained if module in MADE]:
        raise BadInput(
            f"`model` of {name} returns a {type(again[0]).__name__} that it returned before, which "
            "has been trained since. Make a new one each time.",
            code="wrong-value",
        )
    MADE.update(trained)
    # Hugging Face's `from_pretrained` returns the whole model in evaluation mode, which does not
    # mean that its layers are frozen.
    return model if model.training else model.train()


def _counted(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The attributes of an optimizer that are numbers or tensors: many that people write count
    their steps in one, of which torch's state knows nothing."""
    return {
        name: value
        for name, value in vars(optimizer).items()
        if type(value) in (int, float) or isinstance(value, Tensor)
    }
