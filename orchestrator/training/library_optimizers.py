"""Finds optimizers of torch.optim and pytorch_optimizer by name, from a table, and all other
classes as `FILE.py:Class`.

The metaparameters of these optimizers get this project's names (`lr` is `learning_rate`). Weight
decay is 0 unless it is given, whatever the library's default is.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from orchestrator.files.own_code import import_own
from orchestrator.records import BadInput, Value, check_kind, unknown

_OUR_WORDS = {"lr": "learning_rate", "eps": "epsilon"}
"""Library's name of a metaparameter -> this project's name. In addition, `betas` becomes beta1,
beta2, ..."""

_NOT_TUNED = ("maximize", "foreach", "fused", "capturable", "differentiable")
"""Arguments that change how the same step is computed, or that reverse its direction."""

_DECAYS = ("weight_decay", "weight_decay_1d", "adamw_wd")

_CLASSES = {
    torch.optim.__name__: ("Adadelta", "Adamax", "ASGD", "NAdam", "RAdam", "Rprop"),
    # Its import takes one to two seconds, so it happens only if one of these is used.
    "pytorch_optimizer": (
        "A2Grad", "AdaBelief", "ADOPT", "Adan", "CAME", "DAdaptAdam", "Grams", "LaProp", "Lion",
        "MARS", "Muon", "NovoGrad", "Prodigy", "QHAdam", "ScheduleFreeAdamW", "ScheduleFreeRAdam",
        "ScheduleFreeSGD", "Shampoo", "SOAP", "StableAdamW", "Tiger", "Yogi",
    ),
}  # fmt: skip
"""Library -> the classes of it that tests train. torch's Muon is not among them, since it takes
matrices only."""

LIBRARY = {name.lower(): (library, name) for library, names in _CLASSES.items() for name in names}
"""Name in lower case -> library and class."""


@dataclass(frozen=True)
class LibraryOptimizer:
    """An optimizer class of a library or of the user, with its metaparameters."""

    name: str
    """Name of its class in lower case, or FILE.py:Class for the user's own class."""
    settings: Mapping[str, Value]
    """Metaparameter that it takes -> default."""
    kind: type[Optimizer]
    required: tuple[str, ...] = ()
    """Metaparameters without a default, which must be given."""

    def build(self, model: nn.Module, params: Mapping[str, Value]) -> Optimizer:
        """Makes the optimizer of all parameters of `model`. `params` replace the defaults.

        Biases and the scales of norms (vectors) are left out of weight decay. Muon and its kin
        orthogonalise the updates of the hidden matrices, and treat the rest as AdamW does.
        """
        for name in params:
            if name not in (*self.settings, *self.required):
                raise unknown(f"metaparameter of {self.name!r}:", name, self.settings)
            check_kind(name, params[name], self.settings.get(name, 0.0))
        values = {**self.settings, **params}
        groups = _groups(model, values)
        try:
            return self.kind(groups, **_arguments(self.kind, values))
        # The library's errors have no common base class.
        except Exception as error:
            raise BadInput(f"{self.name}: {error}", code="wrong-value") from error


def find(name: str) -> LibraryOptimizer | None:
    """Returns the optimizer called `name`, in upper or lower case and with or without underscores;
    None if it is not in the table."""
    wanted = name.replace("_", "").lower()
    if wanted not in LIBRARY:
        return None
    library, member = LIBRARY[wanted]
    kind = getattr(import_module(library), member)
    return LibraryOptimizer(wanted, dict(_settings(kind)), kind)


def own(place: str) -> LibraryOptimizer:
    """Returns the user's own optimizer class called `place`. Its keyword arguments are
    metaparameters."""
    kind = import_own("optimizer", place)
    if not (isinstance(kind, type) and issubclass(kind, Optimizer)):
        raise BadInput(
            f"{place!r} must be a subclass of torch.optim.Optimizer.", code="wrong-class"
        )
    obstacle = _obstacle_in_step(kind)
    if obstacle is not None:
        raise BadInput(f"Optimizer {place!r} can't be used here: {obstacle}.", code="unusable")
    required = tuple(_OUR_WORDS.get(name, name) for name in _without_default(kind))
    return LibraryOptimizer(place, dict(_settings(kind)), kind, required)


def _without_default(kind: type[Optimizer]) -> list[str]:
    """Returns the arguments without a default, except the parameters of the model."""
    return [
        name
        for name, argument in inspect.signature(kind).parameters.items()
        if argument.default is argument.empty
        and argument.kind is not argument.VAR_KEYWORD
        and name != "params"
    ]


def _obstacle_in_step(kind: type[Optimizer]) -> str | None:
    step = inspect.signature(kind.step).parameters
    if "closure" in step and step["closure"].default is inspect.Parameter.empty:
        return "its step needs a closure that computes the loss again"
    return "its step needs second derivatives" if "hessian" in step else None


def _settings(kind: type[Optimizer]) -> Iterator[tuple[str, Value]]:
    for name, argument in inspect.signature(kind).parameters.items():
        default = argument.default
        if name == "betas":
            yield from ((f"beta{place}", beta) for place, beta in enumerate(default, start=1))
        elif isinstance(default, (bool, int, float, str)) and name not in _NOT_TUNED:
            # The default becomes part of the optimizer's state. torch.load refuses classes that it
            # doesn't know, such as enumerations. A plain number has the same effect.
            plain = int(default) if isinstance(default, IntEnum) else default
            yield _OUR_WORDS.get(name, name), 0.0 if name in _DECAYS else plain


def _arguments(kind: type[Optimizer], values: Mapping[str, Value]) -> dict[str, Any]:
    """Returns `values` under the library's names of arguments."""
    arguments: dict[str, Any] = {}
    for name, argument in inspect.signature(kind).parameters.items():
        ours = _OUR_WORDS.get(name, name)
        if name == "betas":
            places = range(1, len(argument.default) + 1)
            arguments["betas"] = tuple(values[f"beta{place}"] for place in places)
        elif ours in values:
            arguments[name] = values[ours]
    return arguments


def _groups(model: nn.Module, values: Mapping[str, Value]) -> list[dict[str, Any]]:
    """Returns parameter groups: one, unless parameters need different treatment."""
    like_muon = "adamw_lr" in values
    matrices = [id(tensor) for tensor in model.parameters() if tensor.ndim > 1]
    # The first and the last matrix, embedding and head, are better optimized by AdamW (Jordan et
    # al. 2024, kellerjordan.github.io/posts/muon).
    hidden = matrices[1:-1] if len(matrices) > 2 else matrices
    members: dict[tuple[tuple[str, Value], ...], list[Tensor]] = {}
    for tensor in model.parameters():
        treatment: dict[str, Value] = {}
        decay = "weight_decay"
        if like_muon:
            treatment["use_muon"] = id(tensor) in hidden
            decay = decay if treatment["use_muon"] else "adamw_wd"
        if values.get(decay) and tensor.ndim <= 1:
            treatment["weight_decay"] = 0.0
        members.setdefault(tuple(treatment.items()), []).append(tensor)
    return [{"params": tensors, **dict(treatment)} for treatment, tensors in members.items()]
