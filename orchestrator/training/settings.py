"""Lists the metaparameters, and assigns each to the part of a training that uses it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.records import BadInput, Value, check_kind, unknown, wrong_value
from orchestrator.records.lr_schedules import SCHEDULE_SETTINGS
from orchestrator.training.modifiers import MODIFIERS, Modifiers
from orchestrator.training.optimizers import LAYERWISE, OPTIMIZERS, accepted_by
from orchestrator.workloads import Workload, metaparameters_of

GENERAL: dict[str, str] = {
    **SCHEDULE_SETTINGS,
    "layerwise_ratio": "layer-wise rates for sgd, momentum, nesterov, adagrad, rmsprop or adam: "
    "gradient (as in LARS) or update (as in LAMB)",
    "layerwise_trust": "factor on each layer-wise ratio [1]",
    "layerwise_bound": "largest layer-wise ratio [none]",
    "gradient_clip": "largest norm of the global gradient; longer ones are scaled down [none]",
    "dropout": "probability of every dropout layer of the model [the model's]",
    "ema_decay": "decay of a moving average of the weights, evaluated as val/ema_... [none]",
    "precision": "float32 (default), bfloat16 (forward passes of training), float64",
    "compile": "true or false: train with torch's compiler, one trial at a time [false]",
}
"""Metaparameters that any recipe may have, whatever its optimizer, with their meaning and, in
brackets, their default."""


@dataclass(frozen=True, kw_only=True)
class Sorted:
    """The metaparameters of a trial, sorted by the part of the training that uses them."""

    optimizer: Mapping[str, Value]
    schedule: Mapping[str, Value]
    loss: Mapping[str, Value]
    modifiers: Modifiers


CHOICES = {
    "precision": ("float32", "bfloat16", "float64"),
    "layerwise_ratio": ("gradient", "update"),
}

RANGES: dict[str, tuple[Callable[[float], bool], tuple[str, ...]]] = {
    "at least 0": (lambda value: value >= 0, ("learning_rate", "weight_decay", "epsilon")),
    "above 0": (
        lambda value: value > 0,
        ("trust", "layerwise_trust", "layerwise_bound", "gradient_clip"),
    ),
    "from 0 to below 1": (
        lambda value: 0 <= value < 1,
        ("momentum", "smoothing", "beta1", "beta2", "dropout", "ema_decay"),
    ),
}
"""Range of numbers -> whether a number lies in it, and the metaparameters that must."""


def _check_values(params: Mapping[str, Value]) -> None:
    for name in CHOICES.keys() & params.keys():
        if params[name] not in CHOICES[name]:
            raise unknown(name, str(params[name]), CHOICES[name])
    if "compile" in params:
        check_kind("compile", params["compile"], False)
    for rule, (holds, names) in RANGES.items():
        for name in params.keys() & names:
            check_kind(name, params[name], 0.0)
            if not holds(float(params[name])):
                raise wrong_value(repr(name), rule, params[name])


def sort(params: Mapping[str, Value], workload: Workload) -> Sorted:
    loss = metaparameters_of(workload)
    modifiers: dict[str, Any] = {name: params[name] for name in MODIFIERS if name in params}
    elsewhere = {*SCHEDULE_SETTINGS, *MODIFIERS, *loss}
    for name in loss.keys() & params.keys():
        check_kind(name, params[name], loss[name])
    _check_values({name: value for name, value in params.items() if name not in loss})
    return Sorted(
        optimizer={name: value for name, value in params.items() if name not in elsewhere},
        schedule={name: value for name, value in params.items() if name in SCHEDULE_SETTINGS},
        loss={name: value for name, value in params.items() if name in loss},
        modifiers=Modifiers(**modifiers),
    )


NEEDED = {
    "layerwise_trust": "layerwise_ratio",
    "layerwise_bound": "layerwise_ratio",
    "smoothing_over": "label_smoothing",
}
"""Metaparameter -> the one without which it has no effect."""

ALIASES = {
    "lr": "learning_rate",
    "wd": "weight_decay",
    "eps": "epsilon",
    "beta_1": "beta1",
    "beta_2": "beta2",
    "alpha": "smoothing",
}
"""Common other name of a metaparameter -> its name in this project."""


def check_metaparameters(optimizer: str, names: Iterable[str], workload: Workload) -> None:
    """Refuses an unknown optimizer, and metaparameters that are missing or that nothing uses."""
    required, optional = accepted_by(optimizer)
    given, of_loss = set(names), metaparameters_of(workload)
    known = {*required, *optional, *GENERAL}
    if taken_twice := sorted(known & of_loss.keys()):
        raise BadInput(
            f"The loss of {type(workload).__name__} must not have the metaparameter "
            f"{taken_twice[0]!r} of {optimizer!r}. Rename the argument of the loss.",
            code="given-twice",
        )
    if ":" in optimizer and (ours := sorted({*required, *optional} & GENERAL.keys() & given)):
        raise BadInput(
            f"{ours[0]!r} is a setting of every recipe, so {optimizer!r} would not get it: "
            f"{GENERAL[ours[0]]}. Rename the argument of the optimizer.",
            code="given-twice",
        )
    known |= of_loss.keys()
    if "layerwise_ratio" not in optional:
        known -= set(LAYERWISE)
    for name in sorted(given - known):
        if ALIASES.get(name) in known:
            raise BadInput(f"Write {ALIASES[name]!r} in place of {name!r}.", code="other-name")
        error = unknown(f"metaparameter of {optimizer!r}:", name, known)
        others = [other for other in OPTIMIZERS if name in itertools.chain(*accepted_by(other))]
        if not others:
            raise error
        raise BadInput(f"{error} Optimizers that have it: {', '.join(others)}.", code=error.code)
    if missing := [name for name in required if name not in given]:
        raise BadInput(
            f"Optimizer {optimizer!r} needs a value or range for {', '.join(missing)}.",
            code="missing-value",
        )
    for name, other in NEEDED.items():
        if name in given and other not in given:
            problem = f"{name!r} has no effect without {other!r}. Set both, or neither."
            raise BadInput(problem, code="no-effect")
