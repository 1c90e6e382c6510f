"""One trial, from a fresh model to its last measurement."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Mapping
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

from orchestrator.records import Measurement, Outcome, Status, Study, Trial, derive_seed
from orchestrator.training.batches import BatchOrder, cut, micro_batches
from orchestrator.training.lr_schedules import Factor, make_schedule, split_params
from orchestrator.training.optimizers import make_optimizer
from orchestrator.training.ranks import Ranks, launch_ranks
from orchestrator.workloads import Split, Workload, load_workload

EVALUATION_BATCH = 4096
"""Examples put through the model at once when evaluating."""


def train(
    trial: Trial,
    ranks: Ranks,
    *,
    micro_batch: int | None = None,
    data_dir: Path | None = None,
) -> Generator[Measurement, None, Outcome]:
    """Trains `trial`, yielding each measurement as it is taken and returning how it ended.

    Every rank calls this with the same trial and takes the same decisions, since all of them see
    metrics that were summed over ranks.
    """
    study = trial.study
    workload, splits = _prepare(study.workload, data_dir, ranks.device)
    raw_model = _fresh_model(workload, derive_seed(trial.seed, "init"), ranks.device)
    model = ranks.wrap(raw_model)
    scheduled, own = split_params(trial.params)
    optimizer = make_optimizer(study.optimizer, raw_model, own)
    stepper = _Stepper(study, trial.seed, splits["train"], ranks, micro_batch)
    if scheduled:
        size = splits["train"].size
        stepper.schedule(
            optimizer,
            make_schedule(
                scheduled,
                horizon=study.budget_steps,
                steps_per_epoch=None if size is None else size / study.batch_size,
            ),
        )

    unmet = set(study.goals)
    step, seconds, batch_loss = 0, 0.0, math.nan
    while True:
        metrics = {} if step == 0 else {"batch/loss": batch_loss}
        metrics |= _evaluate(workload, raw_model, splits, trial.seed, ranks)
        yield Measurement(step=step, seconds=seconds, metrics=metrics)
        unmet = {goal for goal in unmet if not goal.passed(metrics.get(goal.metric))}
        status = _ending(
            metrics, step, study.budget_steps, goals_met=bool(study.goals) and not unmet
        )
        if status is not None:
            return Outcome(status=status, steps=step, seconds=seconds)
        until = min(study.grid.after(step), study.budget_steps)
        batch_loss, spent = stepper.advance(workload, model, optimizer, range(step, until))
        step, seconds = until, seconds + spent


def train_on_ranks(
    trial: Trial,
    count: int,
    *,
    micro_batch: int | None = None,
    data_dir: Path | None = None,
) -> Generator[Measurement, None, tuple[Outcome, list[int]]]:
    """`train` with `count` processes of this machine, this one and others started for it.

    Yields the measurements, returns the outcome and the process ids in order of rank.
    """
    with launch_ranks(count, follow, trial, micro_batch, data_dir) as (ranks, processes):
        outcome = yield from train(trial, ranks, micro_batch=micro_batch, data_dir=data_dir)
    return outcome, processes


def follow(ranks: Ranks, trial: Trial, micro_batch: int | None, data_dir: Path | None) -> None:
    """What a rank other than 0 does: the same, to nobody's ears."""
    for _ in train(trial, ranks, micro_batch=micro_batch, data_dir=data_dir):
        pass


def metric_names(workload_name: str, data_dir: Path | None = None) -> list[str]:
    """What every measurement of the workload holds, goals to choose from."""
    device = torch.device("cpu")
    workload, splits = _prepare(workload_name, data_dir, device)
    model = _fresh_model(workload, 0, device).eval()
    names = ["batch/loss"]
    for split, examples in splits.items():
        if split != "train":
            batch = examples.batch(torch.zeros(1, dtype=torch.int64), 0)
            names += [f"{split}/{metric}" for metric in workload.metrics(model, batch)]
    return names


def _ending(
    metrics: Mapping[str, float], step: int, budget_steps: int, *, goals_met: bool
) -> Status | None:
    if goals_met:
        return "reached"
    if not all(map(math.isfinite, metrics.values())):
        return "diverged"
    return "exhausted" if step >= budget_steps else None


class _Stepper:
    """Takes optimizer steps on this rank's slice of each global batch."""

    def __init__(
        self, study: Study, seed: int, train_split: Split, ranks: Ranks, micro_batch: int | None
    ) -> None:
        slices = cut(study.batch_size, ranks.count)
        assert sum(stop - start for start, stop in slices) == study.batch_size, (slices, study)
        self._slice = slices[ranks.rank]
        self._pieces = micro_batches(self._slice[1] - self._slice[0], micro_batch)
        self._order = BatchOrder(size=train_split.size, batch_size=study.batch_size, seed=seed)
        self._batch_size = study.batch_size
        self._seed = derive_seed(seed, "data")
        self._split, self._ranks = train_split, ranks
        self._weights: dict[int, Tensor] = {}
        self._factor: Factor | None = None
        self._base_rates: list[float] = []

    def schedule(self, optimizer: torch.optim.Optimizer, factor: Factor) -> None:
        """Has `advance` set the learning rate before each step."""
        self._factor = factor
        self._base_rates = [group["lr"] for group in optimizer.param_groups]

    def advance(
        self,
        workload: Workload,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        steps: range,
    ) -> tuple[float, float]:
        """Trains through `steps`. Returns the mean loss over those batches, before each
        update, and the seconds that the slowest rank took."""
        model.train()
        parameters = list(model.parameters())
        losses = [torch.zeros((), device=self._ranks.device) for _ in self._pieces]
        self._ranks.synchronise()
        began = time.perf_counter()
        batches = self._order.walk(steps, *self._slice, device=self._ranks.device)
        for step, index in zip(steps, batches, strict=True):
            if self._factor is not None:
                for group, rate in zip(optimizer.param_groups, self._base_rates, strict=True):
                    group["lr"] = rate * self._factor(step)
            # What zero_grad does, without its bookkeeping, which costs as much as a small layer.
            for parameter in parameters:
                parameter.grad = None
            for number, (start, stop) in enumerate(self._pieces[:-1]):
                with self._ranks.without_averaging(model):
                    loss = self._backward(workload, model, index[start:stop])
                losses[number] = losses[number] + loss
            last = index if len(self._pieces) == 1 else index[self._pieces[-1][0] :]
            losses[-1] = losses[-1] + self._backward(workload, model, last)
            optimizer.step()
        self._ranks.synchronise()
        took = torch.tensor(time.perf_counter() - began, dtype=torch.float64)
        took = self._ranks.maximum(took.to(self._ranks.device))
        total = self._ranks.sum(torch.stack([loss.double().sum() for loss in losses]).sum())
        return float(total) / (self._batch_size * len(steps)), float(took)

    def _backward(self, workload: Workload, model: nn.Module, index: Tensor) -> Tensor:
        """Adds the gradients of the examples at `index`; returns the loss of each."""
        losses = workload.loss(model, self._split.batch(index, self._seed))
        losses.backward(self._weights_like(losses))  # type: ignore[no-untyped-call]
        return losses.detach()

    def _weights_like(self, losses: Tensor) -> Tensor:
        """What each example's loss counts in the gradient: a step needs the sum over the global
        batch over its size, and DDP averages over ranks."""
        weights = self._weights.get(len(losses))
        if weights is None:
            weights = torch.full_like(losses, self._ranks.count / self._batch_size)
            self._weights[len(losses)] = weights.detach()
        return weights


@torch.no_grad()
def _evaluate(
    workload: Workload, model: nn.Module, splits: Mapping[str, Split], seed: int, ranks: Ranks
) -> dict[str, float]:
    """Means over every split but `train`, each rank seeing its share of the examples."""
    model.eval()
    metrics: dict[str, float] = {}
    for name, split in splits.items():
        if name == "train":
            continue
        assert split.size is not None, f"split {name!r} must be finite to be evaluated"
        start, stop = cut(split.size, ranks.count)[ranks.rank]
        sums: dict[str, Tensor] = {}
        # A rank without a share still looks at one (empty) chunk, to know the metrics' names.
        for low in range(start, max(stop, start + 1), EVALUATION_BATCH):
            index = torch.arange(low, min(low + EVALUATION_BATCH, stop), device=ranks.device)
            values = workload.metrics(model, split.batch(index, seed))
            for metric, value in values.items():
                sums[metric] = sums.get(metric, 0) + value.double().sum()
        means = ranks.sum(torch.stack(list(sums.values()))) / split.size
        metrics |= {
            f"{name}/{metric}": mean for metric, mean in zip(sums, means.tolist(), strict=True)
        }
    return metrics


@lru_cache(maxsize=4)
def _prepare(
    name: str, data_dir: Path | None, device: torch.device
) -> tuple[Workload, dict[str, Split]]:
    """The workload and its splits on the device; kept, since a warm process trains many trials."""
    workload = load_workload(name)
    splits = {split: data.to(device) for split, data in workload.data(data_dir).items()}
    return workload, splits


def _fresh_model(workload: Workload, seed: int, device: torch.device) -> nn.Module:
    """A model whose initial weights are a function of `seed`, without disturbing the process."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return workload.model().to(device)
