"""Whether the trials of a study can be trained as one model, found out by doing it with two."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace

import torch
from torch import Tensor

from orchestrator.records import BadInput, Choice, Extras, Range, Trial
from orchestrator.training.alike import products_are_alike
from orchestrator.training.evaluation import Evaluator
from orchestrator.training.optimizers import is_built_in
from orchestrator.training.ranks import Ranks
from orchestrator.training.settings import sort
from orchestrator.training.stack import Stack
from orchestrator.training.stack_evaluation import StackEvaluator
from orchestrator.training.trainer import Trainer
from orchestrator.workloads import Split, Subset, Workload, metaparameters_of

POOL = 5
"""Examples to draw from: more than one batch, so that two slots draw different ones."""
EXAMPLES, STEPS, LEARNING_RATE = 2, 2, 0.01

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3}
"""How far losses and weights may be apart, relative to the largest: rounding in another order."""

RANDOM = ("dropout", "noise_activations", "noise_weights", "noise_gradients")


def why_not(
    trial: Trial, workload: Workload, splits: Mapping[str, Split], device: torch.device
) -> str | None:
    """Why the trials of the study of `trial` can't be stacked; None if they can. What the study
    could train alone is taken for granted: this raises what `rehearse` would."""
    if (reason := _by_its_settings(trial, workload)) or (reason := _by_its_data(splits["train"])):
        return reason
    if not products_are_alike(device):
        return "matrix products on this device differ by the place of a matrix in memory"
    few = {name: _first(split) for name, split in splits.items()}
    one = _plain(trial, workload, few["train"])
    pair = [one, replace(one, index=one.index + 1, seed=one.seed + 1)]
    alone = [_alone(of_pair, workload, few, device) for of_pair in pair]
    try:
        with warnings.catch_warnings():
            # One that `vmap` gives where it knows an operation only slot by slot.
            warnings.simplefilter("error", UserWarning)
            stacked = _stacked(pair, workload, few, device)
    except BadInput:
        raise
    except Exception as error:
        # Whatever a model does may be what `vmap` and tapes have no way for.
        return f"{type(error).__name__}: {_first_line(error)}"
    for mine, theirs in zip(stacked, alone, strict=True):
        if (found := _difference(mine, *theirs)) is not None:
            return f"a stack makes {found}"
    return None


def _by_its_settings(trial: Trial, workload: Workload) -> str | None:
    if trial.study.grows:
        return "its batch size grows along the training"
    if not is_built_in(trial.study.optimizer):
        return f"optimizer {trial.study.optimizer!r} is not one of ours"
    modifiers = sort(trial.params, workload).modifiers
    if modifiers.precision == "bfloat16":
        return "'precision' is bfloat16"
    for name in RANDOM:
        varies = isinstance(trial.study.space.get(name), Range | Choice)
        if name in trial.params and (varies or getattr(modifiers, name)):
            return f"{name!r} draws random numbers in every step"
    return None


def _by_its_data(split: Split) -> str | None:
    inner = split
    while isinstance(inner, Subset):
        inner = inner.split
    if type(inner).batches is not Split.batches:
        return f"{type(inner).__name__} fetches batches for one trial at a time"
    return None


def _first(split: Split) -> Split:
    if split.size is None:
        return split
    return Subset(split, torch.arange(min(POOL, split.size), device=split.draws_on))


def _plain(trial: Trial, workload: Workload, train: Split) -> Trial:
    """The same model, loss and data with the simplest optimizer, which makes nothing of rounding:
    how the optimizers are stacked depends on no model."""
    kept = {*metaparameters_of(workload), "precision", "dropout"}
    params = {name: value for name, value in trial.params.items() if name in kept}
    size = min(EXAMPLES, train.size or EXAMPLES)
    alone = trial.study.with_batches_of(size)
    study = replace(alone, optimizer="sgd", batch_schedule=None, goals=(), extras=Extras())
    return replace(trial, study=study, params={**params, "learning_rate": LEARNING_RATE})


Found = tuple[dict[str, float], Mapping[str, Tensor]]
"""What was measured after a few steps, and the weights and buffers then."""


def _alone(
    trial: Trial, workload: Workload, splits: Mapping[str, Split], device: torch.device
) -> tuple[Found, Mapping[str, Tensor]]:
    """What there is to find, and the weights before."""
    ranks = Ranks(device=device)
    evaluator = Evaluator(workload=workload, splits=splits, extras=trial.study.extras, ranks=ranks)
    trainer = Trainer(trial, workload, splits["train"], ranks)
    before = deepcopy(trainer.model.state_dict())
    trainer.advance(STEPS)
    metrics = trainer.batch_metrics() | evaluator.measure(trainer, test=False)
    return (metrics, trainer.model.state_dict()), before


def _stacked(
    trials: Sequence[Trial], workload: Workload, splits: Mapping[str, Split], device: torch.device
) -> list[Found]:
    stack = Stack(trials[0], workload, splits["train"], len(trials), device)
    evaluator = StackEvaluator(workload=workload, splits=splits, extras=trials[0].study.extras)
    for slot, trial in enumerate(trials):
        stack.put(slot, trial)
    stack.advance(STEPS)
    slots = stack.occupied
    told, measured = stack.batch_metrics(slots), evaluator.measure(stack, slots, test=False)
    return [(told[slot] | measured[slot], stack.state(slot)["model"]) for slot in slots]


def _difference(stacked: Found, alone: Found, before: Mapping[str, Tensor]) -> str | None:
    """What differs by more than rounding, in words."""
    floats = [name for name, tensor in before.items() if tensor.is_floating_point()]
    tolerance = TOLERANCE.get(before[floats[0]].dtype, max(TOLERANCE.values()))
    for name, value in alone[0].items():
        if not math.isclose(stacked[0][name], value, rel_tol=tolerance, abs_tol=tolerance) and (
            math.isfinite(value)
        ):
            return f"{name} {stacked[0][name]:g}, which is {value:g} alone"
    moved = max(float((alone[1][name] - before[name]).abs().max()) for name in floats)
    largest = max(float(before[name].abs().max()) for name in floats)
    allowed = tolerance * (moved + LEARNING_RATE * tolerance * largest)
    for name, tensor in alone[1].items():
        if float((stacked[1][name] - tensor).abs().max()) > allowed:
            return f"{name!r} otherwise than alone"
    return None


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
