"""Tries out a trial on two examples, without training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from orchestrator.records import BadInput, Trial, frames_of_user, wrong_value
from orchestrator.training.batch_losses import with_weights
from orchestrator.training.engine import Single
from orchestrator.training.ranks import Ranks
from orchestrator.training.trainer import Trainer
from orchestrator.workloads import Batch, Split, Workload, first, prepare


def rehearse(
    trial: Trial,
    data_dir: Path | None = None,
    *,
    count: int = 1,
    changed: Callable[[Workload], Workload] = lambda workload: workload,
) -> list[str] | Exception:
    """Makes the trial's data, model and optimizer, and evaluates two examples without training. So
    errors in a workload or in metaparameters are found before a sweep costs anything. `count` is
    the number of ranks that will train the trial. The workload is `changed` before.

    Returns the names of the metrics. If the workload's code raised an exception, returns that: it
    may happen only for two examples or only on this machine, so the trials will tell.
    """
    ranks, extras = Ranks(), trial.study.extras
    workload, splits = prepare(trial.study.workload, data_dir, ranks.device)
    workload = changed(workload)
    two_examples: dict[str, Split] = {name: first(split, 2) for name, split in splits.items()}
    size = min(2, splits["train"].size or 2)
    trial = replace(trial, study=trial.study.with_batches_of(size))
    engine = Single(trial, ranks, prepared=(workload, two_examples))
    engine.put(0, trial)
    trainer = engine.at()
    try:
        with trainer.evaluating():
            train = two_examples["train"]
            index = torch.arange(size, device=train.draws_on)
            batch = trainer.cast(train.batch(index, index if train.seeded else None))
            losses = trainer.loss(trainer.model, batch)
            if isinstance(losses, tuple):
                losses, weights = losses
                _check_shape(workload, "weights of the loss", weights, size)
                if bool((weights < 0).any()) or extras.noise_scale != "never":
                    rule = "at least 0, without `noise_scale`, which takes all examples alike"
                    raise wrong_value("Weights of a loss", rule, weights.tolist())
            _check_shape(workload, "loss", losses, size)
            metrics = workload.metrics(trainer.model, batch)
            if not isinstance(metrics, Mapping):
                raise wrong_value("What `metrics` returns", "a dict of tensors", metrics)
            for name, values in metrics.items():
                _check_shape(workload, f"metric {name!r}", values, size, longer=True)
            if count > 1:
                _check_gradients(workload, trainer, batch)
        (measured,) = engine.evaluated([0], test=False)
        (tested,) = engine.evaluated([0], test=True)
    except BadInput:
        raise
    except Exception as error:
        if "positional argument" in str(error) and not frames_of_user(error):  # of our call
            rule = "`loss` and `metrics` take (self, model, batch), and `augment` (batch, seeds)."
            raise BadInput(f"{error}. {rule}", code="not-callable") from None
        return error
    finally:
        engine.clear(0)
    return ["batch/loss", *trainer.batch_metrics(), *measured, *tested]


def _check_gradients(workload: Workload, trainer: Trainer, batch: Batch) -> None:
    """Refuses parameters without a gradient, for which ranks would wait when they average."""
    with torch.enable_grad():
        losses, _ = with_weights(trainer.loss(trainer.model, batch))
        loss = losses.mean()
    trained = {name: p for name, p in trainer.model.named_parameters() if p.requires_grad}
    gradients = torch.autograd.grad(loss, [*trained.values()], allow_unused=True)
    if idle := [name for name, one in zip(trained, gradients, strict=True) if one is None]:
        raise BadInput(
            f"Where several ranks train a trial, the loss of {type(workload).__name__} must depend "
            f"on every parameter that is trained, but not on {idle[0]}"
            f"{f' and {len(idle) - 1} more' if len(idle) > 1 else ''}. Leave it out of the model, "
            f"or set its requires_grad to False.",
            code="no-gradient",
        )


def _check_shape(
    workload: Workload, name: str, value: object, size: int, *, longer: bool = False
) -> None:
    """Refuses losses and metrics that are not per example. With `longer`, further dimensions may
    follow."""
    shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
    if (shape[:1] if longer else shape) != (size,):
        raise BadInput(
            f"The {name} of {type(workload).__name__} must have one value per example, of "
            f"shape ({size},) for a batch of {size}, but is {shape}.",
            code="wrong-result",
        )
