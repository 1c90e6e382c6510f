"""Finds out whether the trials of a study can be trained as one model, by training two of them in a
stack and alone. Decides how many of them to train so, by counting operations and bytes: without
measuring time, the answer is the same in every run."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from operator import or_
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from orchestrator.records import BadInput, Extras, Trial, searched
from orchestrator.training.compiler import flop_counter
from orchestrator.training.engine import Single
from orchestrator.training.memory import OutOfMemory, memory_told
from orchestrator.training.ranks import Ranks
from orchestrator.training.rules import is_muon, why_no_rule
from orchestrator.training.same_bits import products_have_same_bits
from orchestrator.training.settings import sort
from orchestrator.training.stack import Stack
from orchestrator.training.trainer import Trainer, fresh_model
from orchestrator.workloads import Split, Workload, first, metaparameters_of, prepare
from orchestrator.workloads.splits import source_of
from orchestrator.workloads.trees import leaves

DeviceKind = Literal["cpu", "cuda"]
"""Type of device."""

WIDEST: dict[DeviceKind, int] = {"cpu": 64, "cuda": 256}
"""Largest number of slots."""
NARROWEST = 4
"""Smallest number of slots that saves enough time."""

FAST_BYTES: dict[DeviceKind, int] = {"cpu": 16 * 2**20, "cuda": 13 * 2**29}
"""Largest number of bytes of the weights, gradients and moments of all slots. On a CPU, it is what
the caches hold; with more, each step waits for memory. On a GPU, it gives the width at which most
steps per second were measured."""

BUSY_FLOPS: dict[DeviceKind, float] = {"cpu": 8e7, "cuda": 2e10}
"""Floating-point operations of a step above which a single trial keeps a device busy."""

BUSY_BYTES: dict[DeviceKind, float] = {"cpu": 1e6, "cuda": math.inf}
"""Bytes of a batch above which those of several trials push each other out of the cache."""

Costs = dict[tuple[object, ...], tuple[int, float, int]]
"""Workload and precision -> bytes of a model's weights; operations of a step and bytes of a batch
per example."""

PER_WEIGHT = 4
"""Numbers per weight: the weight, its gradient and two moments."""

POOL = 5
"""Number of examples to draw from: more than one batch, so that slots draw different ones."""
EXAMPLES, STEPS, LEARNING_RATE = 2, 2, 0.01
"""Batch size, number of steps and learning rate of the trainings that are compared."""

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3}
"""Largest difference of losses and weights, relative to the largest of them. It allows for rounding
in another order."""


def why_not(
    trial: Trial, workload: Workload, splits: Mapping[str, Split], device: torch.device
) -> str | None:
    """Returns the reason why the trials of the study of `trial` can't be stacked; None if they can.
    If they can't be trained alone, this raises the error that `rehearse` would raise."""
    if (reason := why_not_by_settings(trial, workload, splits["train"])) is not None:
        return reason
    if not products_have_same_bits(device, orthogonal=is_muon(trial.study.optimizer)):
        return "the bits of matrix products on this device depend on where matrices lie in memory"
    if workload.groups(fresh_model(workload, trial.seed, device)):
        return f"{type(workload).__name__} treats groups of parameters differently"
    small = {name: first(split, POOL) for name, split in splits.items()}
    plain = _plain(trial, workload, min(EXAMPLES, splits["train"].size or EXAMPLES))
    pair = [plain, replace(plain, index=plain.index + 1, seed=plain.seed + 1)]
    ranks, prepared = Ranks(device=device), (workload, small)
    alone = [_trained(Single(trial, ranks, prepared=prepared), [trial])[0] for trial in pair]
    try:
        # `vmap` warns if it can compute an operation only slot by slot.
        with warnings.catch_warnings(action="error", category=UserWarning):
            stacked = _trained(Stack(plain, ranks, len(pair), prepared=prepared), pair)
    except (BadInput, OutOfMemory):
        raise
    except Exception as error:
        # `vmap` and tapes raise errors of many types for operations that they do not support.
        first_line, _, _ = str(error).strip().partition("\n")
        return f"{type(error).__name__}: {first_line}"
    differences = map(_difference, stacked, alone)
    return next((f"a stack makes {one}" for one in differences if one is not None), None)


@memory_told()
def why_not_here(
    trial: Trial, width: int, workload: Workload, splits: Mapping[str, Split], device: torch.device
) -> str | None:
    """Returns the reason why this device must not stack trials that a CPU can; None if it may: the
    bits of a trial in a stack of this `width` depend neither on its slot nor on other trials."""
    if (reason := why_not(trial, workload, splits, device)) is not None:
        return reason
    small = {name: first(split, POOL) for name, split in splits.items() if name != "train"}
    prepared = workload, {**small, "train": splits["train"]}
    plain, ranks = _plain(trial, workload, trial.study.batch_size), Ranks(device=device)
    if is_muon(trial.study.optimizer):
        plain = replace(plain, study=replace(plain.study, optimizer="muon"))
    trials = [replace(plain, index=slot, seed=plain.seed + slot) for slot in range(width)]
    *_, among = _trained(Stack(plain, ranks, width, prepared=prepared), trials)
    (lone,) = _trained(Stack(plain, ranks, width, prepared=prepared), trials[-1:])
    same = all(torch.equal(among.after[name], tensor) for name, tensor in lone.after.items())
    if not same or among.metrics != lone.metrics:
        return f"the bits of a trial in a stack of {width} depend on its slot on this device"
    return None


def why_not_by_settings(trial: Trial, workload: Workload, train: Split) -> str | None:
    """Returns the reason why no stack can train trials of the kind of `trial`, as far as it is
    known without trying."""
    study, settings = trial.study, sort(trial.params, workload)
    if (reason := why_no_rule(study.optimizer, settings.optimizer)) is not None:
        return reason
    modifiers = settings.modifiers
    source, draws = source_of(train), modifiers.dropout or "dropout" in searched(study.space)
    reasons = {
        "its batch size grows along the training": study.grows,
        "'precision' is bfloat16": modifiers.precision == "bfloat16",
        "'evaluate.precision' is bfloat16": study.extras.precision == "bfloat16",
        "'compile' is true": modifiers.compile,
        "'dropout' draws random numbers in every step": draws,
        f"{type(source).__name__} fetches batches for one trial at a time": (
            type(source).batches is not Split.batches
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _plain(trial: Trial, workload: Workload, size: int) -> Trial:
    """Returns a trial with the same model, loss and data, and with the simplest optimizer, which
    does not amplify rounding. The update rules of optimizers do not depend on the model, except for
    Muon's products of matrices."""
    needed = {*metaparameters_of(workload), "precision", "dropout"}
    params = {name: value for name, value in trial.params.items() if name in needed}
    alone = trial.study.with_batches_of(size)
    study = replace(alone, optimizer="sgd", batch_schedule=None, goals=(), extras=Extras())
    return replace(trial, study=study, params={**params, "learning_rate": LEARNING_RATE})


@dataclass(frozen=True)
class _Result:
    """What a trial's training gives."""

    before: Mapping[str, Tensor]
    """Weights and buffers before the first step."""
    after: Mapping[str, Tensor]
    metrics: Mapping[str, float]


def _trained(engine: Single | Stack, trials: Sequence[Trial]) -> list[_Result]:
    """Trains the trials for a few steps."""
    slots = range(len(trials))

    def tensors(slot: int) -> dict[str, Tensor]:
        # Buffers that no checkpoint holds count, too. A stack's model has those of the slot then.
        model = engine.at(slot).model if isinstance(engine, Single) else engine.model.module
        found = {**engine.state(slot)["model"], **dict(model.named_buffers())}
        return {name: tensor.detach().clone() for name, tensor in found.items()}

    for slot, trial in enumerate(trials):
        engine.put(slot, trial)
    before = [*map(tensors, slots)]
    engine.advance(STEPS)
    metrics = map(or_, engine.trained(slots), engine.evaluated(slots, test=False))
    return [*map(_Result, before, map(tensors, slots), metrics)]


def _difference(stacked: _Result, alone: _Result) -> str | None:
    """Describes a difference that is larger than rounding; None if there is none."""
    before = alone.before
    floats = [name for name, tensor in before.items() if tensor.is_floating_point()]
    tolerance = TOLERANCE.get(before[floats[0]].dtype, max(TOLERANCE.values()))
    for name, value in alone.metrics.items():
        ours = stacked.metrics[name]
        near = math.isclose(ours, value, rel_tol=tolerance, abs_tol=tolerance)
        if math.isfinite(value) and not near:
            return f"{name} {ours:g}, which is {value:g} alone"
    moved = _largest(alone.after[name] - before[name] for name in floats)
    largest = _largest(before[name] for name in floats)
    allowed = tolerance * (moved + LEARNING_RATE * tolerance * largest)
    for name, tensor in alone.after.items():
        if not torch.allclose(stacked.after[name], tensor, rtol=0, atol=allowed, equal_nan=True):
            return f"{name!r} differ from its value alone"
    return None


def _largest(tensors: Iterable[Tensor]) -> float:
    """Returns the largest absolute value that is finite: masks of attention are infinite."""
    values = torch.cat([tensor.flatten() for tensor in tensors]).abs()
    return float(values.nan_to_num(0, 0, 0).max())


def best_width(
    trial: Trial, kind: DeviceKind, data_dir: Path | None, costs: Costs | None = None
) -> tuple[int, str]:
    """Returns the number of trials of the study of `trial` that are trained fastest as one model,
    and the reason if it is 1, in words. Whether they can be stacked at all is decided by
    `why_not`. What models cost is kept in `costs`, since a large one is not made twice."""
    costs = {} if costs is None else costs
    model = trial.study.workload, trial.params.get("precision")
    if model not in costs:
        costs[model] = _cost(trial, data_dir, FAST_BYTES[kind] // (PER_WEIGHT * NARROWEST))
    weights, flops, example = costs[model]
    width = int(FAST_BYTES[kind] / (PER_WEIGHT * weights))
    if width < NARROWEST:
        return 1, f"several models of {weights / 2**20:,.3g} MiB do not fit into a cache"
    if (flops := flops * trial.study.batch_size) > BUSY_FLOPS[kind]:
        return 1, f"a step of {flops:.2g} operations keeps a device busy by itself"
    if (batch := example * trial.study.batch_size) > BUSY_BYTES[kind]:
        return 1, f"several batches of {batch / 2**20:,.3g} MiB do not fit into a cache"
    return min(width, WIDEST[kind]), ""


def _cost(trial: Trial, data_dir: Path | None, largest: int) -> tuple[int, float, int]:
    """Returns what a model costs, with no operations and bytes if it is larger than `largest`."""
    ranks = Ranks()
    workload, splits = prepare(trial.study.workload, data_dir, ranks.device)
    examples = min(2, trial.study.batch_size)
    # What an optimizer computes does not grow with the batch.
    plain = _plain(trial, workload, examples)
    with closing(Trainer(plain, workload, splits["train"], ranks)) as trainer:
        weights = sum(parameter.nbytes for parameter in trainer.parameters)
        if weights > largest:
            return weights, 0, 0
        with flop_counter() as counter:
            trainer.advance(1)
    example = sum(leaf.nbytes for _, leaf in leaves(splits["train"].batch(torch.tensor([0]))))
    return weights, counter.get_total_flops() / examples, example
