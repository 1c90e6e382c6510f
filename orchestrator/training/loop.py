"""One trial, from a fresh model to its last measurement."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from orchestrator.records import (
    BadInput,
    Goal,
    Measurement,
    Outcome,
    Status,
    Trial,
)
from orchestrator.training.checkpoint import Checkpoint
from orchestrator.training.evaluation import Evaluator
from orchestrator.training.memory import forget_peak, peak
from orchestrator.training.ranks import Ranks, launch_ranks
from orchestrator.training.standing import Standing
from orchestrator.training.trainer import OutOfMemory, Trainer
from orchestrator.workloads import Batch, Split, Workload, load_workload, splits_of

Ending = Callable[[Collection[Goal], int], Literal["dominated", "paused"] | None]
"""Whether a trial ends that has not passed these goals and would be measured next at that step: for
good or, paused, to go on from its checkpoint perhaps."""

WORTH_KEEPING_SECONDS = 0.1
"""A trial that is paused after less training begins anew if it must."""


def train(
    trial: Trial,
    ranks: Ranks,
    *,
    micro_batch: int | None = None,
    data_dir: Path | None = None,
    checkpoint: Checkpoint | None = None,
    ending: Ending | None = None,
    pulse: Callable[[], None] = lambda: None,
) -> Generator[Measurement, None, Outcome]:
    """Trains `trial`, yielding each measurement as it is taken and returning how it ended. With a
    `checkpoint` it goes on from there, after yielding what was measured before. `ending` is asked
    after each measurement, on the first rank only; `pulse` is called whenever something moved.

    Every rank calls this with the same trial and takes the same decisions, since all of them see
    numbers that were summed over ranks.
    """
    workload, splits = _prepare(trial.study.workload, data_dir, ranks.device)
    forget_peak(ranks.device)
    evaluator = Evaluator(
        workload=workload, splits=splits, extras=trial.study.extras, ranks=ranks, pulse=pulse
    )
    make_trainer = partial(Trainer, trial, workload, splits["train"], ranks, micro_batch, pulse)
    trainer, standing = make_trainer(), Standing(trial.study)
    kept = checkpoint.load(trial, trainer, ranks) if checkpoint else []
    if kept is None:
        # What was in the file did not fit: the trial begins anew, with nothing of it.
        trainer = make_trainer()
    for measurement in kept or []:
        standing.add(measurement)
        yield measurement
    saved_at = trainer.seconds
    resumed = (trainer.step, trainer.seconds + trainer.evaluation_seconds)
    try:
        end = _end(standing, ranks, ending) if kept else None
        while end is None:
            if trainer.step < standing.upcoming:
                trainer.advance(_no_longer_than(standing.upcoming, trainer, checkpoint))
            if trainer.step == standing.upcoming:
                measurement = _measure(trainer, evaluator, standing)
                standing.add(measurement)
                yield measurement
                end = _end(standing, ranks, ending)
            if checkpoint and trainer.seconds - saved_at >= checkpoint.every_seconds:
                checkpoint.save(trial, trainer, standing.measurements, ranks)
                saved_at = trainer.seconds
    except OutOfMemory as error:
        return Outcome(
            status="failed",
            steps=trainer.step,
            seconds=trainer.seconds,
            evaluation_seconds=trainer.evaluation_seconds,
            error=str(error),
        )
    finally:
        trainer.close()
    if checkpoint:
        to_go_on = end == "paused" and trainer.seconds > WORTH_KEEPING_SECONDS
        checkpoint.finish(trial, trainer, standing.measurements, ranks, to_go_on=to_go_on)
    return Outcome(
        status=end,
        steps=trainer.step,
        seconds=trainer.seconds,
        evaluation_seconds=trainer.evaluation_seconds,
        micro_batch=trainer.micro_batch,
        memory=peak(ranks.device),
        resumed_steps=resumed[0],
        resumed_seconds=resumed[1],
    )


def _measure(trainer: Trainer, evaluator: Evaluator, standing: Standing) -> Measurement:
    trainer.settle()
    metrics = trainer.batch_metrics() | evaluator.measure(trainer, test=False)
    if standing.wants_test(metrics, trainer.step):
        metrics |= evaluator.measure(trainer, test=True)
    return Measurement(step=trainer.step, seconds=trainer.seconds, metrics=metrics)


def _end(standing: Standing, ranks: Ranks, ending: Ending | None) -> Status | None:
    """How the trial ends here, if it does: by what was measured, or as `ending` says on the first
    rank, on all."""
    if standing.status is not None:
        return standing.status
    cut = ending(standing.unmet, standing.upcoming) if ending else None
    if ranks.count == 1:
        return cut
    answers: tuple[Status | None, ...] = (None, "dominated", "paused")
    number = torch.tensor(answers.index(cut), device=ranks.device)
    return answers[int(ranks.maximum(number))]


def train_on_ranks(
    trial: Trial,
    count: int,
    *,
    micro_batch: int | None = None,
    data_dir: Path | None = None,
    checkpoint: Checkpoint | None = None,
) -> Generator[Measurement, None, tuple[Outcome, list[int]]]:
    """`train` with `count` processes of this machine, this one and others started for it.

    Yields the measurements, returns the outcome and the process ids in order of rank.
    """
    options = {"micro_batch": micro_batch, "data_dir": data_dir, "checkpoint": checkpoint}
    with launch_ranks(count, follow, trial, options) as (ranks, processes):
        outcome = yield from train(trial, ranks, **options)  # type: ignore[arg-type]
    return outcome, processes


def follow(ranks: Ranks, trial: Trial, options: Mapping[str, object]) -> None:
    """What a rank other than 0 does: the same, to nobody's ears."""
    for _ in train(trial, ranks, **options):  # type: ignore[arg-type]
        pass


def rehearse(trial: Trial, data_dir: Path | None = None) -> list[str] | Exception:
    """Makes what the trial needs and shows it two examples, without training: mistakes in a
    workload or in metaparameters come out before anything is paid for.

    Returns the metrics there will be, or what code raised that may do so for two examples or on
    this machine only. That is left to the trials to tell.
    """
    ranks, extras = Ranks(), trial.study.extras
    workload, splits = _prepare(trial.study.workload, data_dir, ranks.device)
    few: dict[str, Split] = {name: _Few(split) for name, split in splits.items()}
    size = min(2, splits["train"].size or 2)
    study = replace(trial.study, batch_size=size)
    trainer = Trainer(replace(trial, study=study), workload, few["train"], ranks)
    evaluator = Evaluator(workload=workload, splits=few, extras=extras, ranks=ranks)
    try:
        with trainer.evaluating(), torch.no_grad():
            batch = trainer.cast(few["train"].batch(torch.arange(size)))
            losses = workload.loss(trainer.model, batch, **trainer.loss_settings)
            _check_shape(workload, "loss", losses, size)
            for name, values in workload.metrics(trainer.model, batch).items():
                _check_shape(workload, f"metric {name!r}", values, size, more=True)
        measured = evaluator.measure(trainer, test=False) | evaluator.measure(trainer, test=True)
    except BadInput:
        raise
    except Exception as error:
        return error
    finally:
        trainer.close()
    by_training = ["batch/loss"] + ["batch/gradient_norm"] * extras.gradient_norm
    return [*by_training, *trainer.batch_metrics(), *measured]


def _no_longer_than(upcoming: int, trainer: Trainer, checkpoint: Checkpoint | None) -> int:
    """How far to train at once: to the next evaluation, or until a checkpoint is due. All ranks
    agree on the rate, so on this too."""
    if checkpoint is None or trainer.rate * (upcoming - trainer.step) <= checkpoint.every_seconds:
        return upcoming
    return trainer.step + max(1, int(checkpoint.every_seconds / trainer.rate))


class _Few(Split):
    """The first two examples of a split."""

    def __init__(self, split: Split) -> None:
        self._split = split
        self.size = None if split.size is None else min(2, split.size)
        self.seeded, self.draws_on = split.seeded, split.draws_on

    def batch(self, index: Tensor, seeds: Tensor | None = None) -> Batch:
        return self._split.batch(index, seeds)


def _check_shape(
    workload: Workload, name: str, value: object, size: int, *, more: bool = False
) -> None:
    """Refuses losses and metrics that aren't per example; `more` dimensions may follow."""
    shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
    if (shape[:1] if more else shape) != (size,):
        raise BadInput(
            f"The {name} of {type(workload).__name__} must be a tensor with one value per example, "
            f"of shape ({size},) for a batch of {size}, but is {shape}."
        )


@lru_cache(maxsize=4)
def _prepare(
    name: str, data_dir: Path | None, device: torch.device
) -> tuple[Workload, dict[str, Split]]:
    """The workload and its splits on the device; kept, since a warm process trains many trials."""
    workload = load_workload(name, data_dir)
    splits = splits_of(workload, data_dir)
    return workload, {split: data.to(device) for split, data in splits.items()}
