"""Which metaparameters there are, and which part of a training takes each."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from orchestrator.records import BadInput, Value, check_kind, unknown
from orchestrator.records.lr_schedules import SCHEDULE_SETTINGS
from orchestrator.training.modifiers import MODIFIERS, Modifiers, modifiers_from
from orchestrator.training.optimizers import LAYERWISE, OPTIMIZERS, accepted_by
from orchestrator.workloads import Workload, metaparameters_of

GENERAL: dict[str, str] = {
    "decay": "shape of the learning rate after warmup: constant (default), linear, polynomial, "
    "cosine, cosine_restarts, cyclical, step",
    "decay_steps": "how long the decay takes; default: all that is left after warmup",
    "decay_fraction": "the same as a share of those steps",
    "end_factor": "linear, polynomial, cosine, cosine_restarts, cyclical: the last learning rate "
    "over the first [0; cyclical: 0.1]",
    "power": "polynomial: its power [2]",
    "cycles": "cosine_restarts, cyclical: how many [4]",
    "drops": "step: how many [2]",
    "drop_factor": "step: what each drop multiplies the learning rate with [0.1]",
    "warmup_steps": "steps until the learning rate is there [0]",
    "warmup_epochs": "the same in passes over the training set",
    "warmup_fraction": "the same as a share of the budget",
    "warmup_shape": "linear (default) or cosine",
    "layerwise_ratio": "layer-wise rates around sgd, momentum, nesterov, adagrad, rmsprop or adam: "
    "gradient (as LARS) or update (as LAMB)",
    "layerwise_trust": "what each ratio is multiplied with [1]",
    "layerwise_bound": "and its upper bound [none]",
    "gradient_clip": "the global norm that longer gradients are shortened to [none]",
    "dropout": "the probability, where the model has dropout [the model's]",
    "noise_activations": "standard deviation of noise on the output of each layer with weights [0]",
    "noise_weights": "... on the weights that gradients are computed at [0]",
    "noise_gradients": "... on the gradient of the global batch [0]",
    "ema_decay": "of a moving average of the weights, evaluated as val/ema_... [none]",
    "precision": "float32 (default), bfloat16 (forward passes of training), float64",
}
"""Metaparameters that any recipe may have, whatever its optimizer, and what they mean."""


@dataclass(frozen=True, kw_only=True)
class Sorted:
    """A trial's metaparameters, each with the part of the training that takes it."""

    optimizer: Mapping[str, Value]
    schedule: Mapping[str, Value]
    loss: Mapping[str, Value]
    modifiers: Modifiers


def sort(params: Mapping[str, Value], workload: Workload) -> Sorted:
    loss = metaparameters_of(workload)
    elsewhere = SCHEDULE_SETTINGS | set(MODIFIERS) | loss.keys()
    for name in loss.keys() & params.keys():
        check_kind(name, params[name], loss[name])
    return Sorted(
        optimizer={name: value for name, value in params.items() if name not in elsewhere},
        schedule={name: value for name, value in params.items() if name in SCHEDULE_SETTINGS},
        loss={name: value for name, value in params.items() if name in loss},
        modifiers=modifiers_from(params),
    )


ALIASES = {
    "lr": "learning_rate",
    "wd": "weight_decay",
    "eps": "epsilon",
    "beta_1": "beta1",
    "beta_2": "beta2",
    "alpha": "smoothing",
}
"""What others call a metaparameter -> what it is called here."""


def check_metaparameters(optimizer: str, names: Iterable[str], workload: Workload) -> None:
    """Refuses an unknown optimizer, and metaparameters that are missing or that nothing takes."""
    required, optional = accepted_by(optimizer)
    given, of_loss = set(names), metaparameters_of(workload)
    known = {*required, *optional, *GENERAL}
    if taken_twice := sorted(known & of_loss.keys()):
        raise BadInput(
            f"{taken_twice[0]!r} is a metaparameter of every recipe with {optimizer!r}; the loss "
            f"of {type(workload).__name__} must call its own by another name."
        )
    known |= of_loss.keys()
    if "layerwise_ratio" not in optional:
        known -= set(LAYERWISE)
    for name in sorted(given - known):
        if ALIASES.get(name) in known:
            raise BadInput(f"{name!r} is called {ALIASES[name]!r} here.")
        error = unknown(f"metaparameter of {optimizer!r}:", name, known)
        others = [other for other in OPTIMIZERS if name in itertools.chain(*accepted_by(other))]
        if not others:
            raise error
        raise BadInput(f"{error} Optimizers that have it: {', '.join(others)}.")
    missing = [name for name in required if name not in given]
    if missing:
        raise BadInput(f"Optimizer {optimizer!r} needs a value or range for {', '.join(missing)}.")
    if given & set(LAYERWISE) and "layerwise_ratio" not in given:
        raise BadInput("Layer-wise rates need 'layerwise_ratio': gradient or update.")
    if "smoothing_over" in given and "label_smoothing" not in given:
        raise BadInput("'smoothing_over' has no effect without 'label_smoothing': leave it out.")
