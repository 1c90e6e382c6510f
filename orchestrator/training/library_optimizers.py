"""Finds any optimizer of torch.optim or pytorch_optimizer by its name, and users' own classes,
given as `FILE.py:Class`.

The metaparameters of these optimizers get this project's names (`lr` is `learning_rate`). Weight
decay is 0 unless it is given, whatever the library's default is.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import ModuleType
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

_OWN_RANDOMNESS = "it draws random numbers that do not depend on the trial's seed"
_NOT_PLAIN_STATE = "its state can't be saved in a checkpoint that is read without running code"
_WITHOUT_RANK = "its groups would need a rank, without which it is Adam under another name"
_OBSTACLES = {
    "adashift": _NOT_PLAIN_STATE,
    "conda": _NOT_PLAIN_STATE,
    "scalableshampoo": _NOT_PLAIN_STATE,
    "dash": _OWN_RANDOMNESS,
    "gravity": _OWN_RANDOMNESS,
    "kron": _OWN_RANDOMNESS,
    "alig": "its step needs a closure that returns the loss",
    "demo": "it averages gradients over processes by itself",
    "distributedmuon": "it divides its step over processes, and there may be only one",
    "apollo": _WITHOUT_RANK,
    "fira": _WITHOUT_RANK,
    "galore": _WITHOUT_RANK,
    "lorarite": "it takes pairs of LoRA factors only",
    "sparseadam": "it takes sparse gradients only",
    "spectralsphere": "it takes matrices only, no biases",
}
"""Optimizer -> the reason why the training loop can't use it, if its signature does not show it."""


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
    None if there is none.

    Refuses optimizers that can't work in the training loop, which takes a step after each backward
    pass and passes nothing but the gradients.
    """
    wanted = name.replace("_", "").lower()
    # torch's Muon takes matrices only, so a model needs a second optimizer for its biases.
    kind = None if wanted == "muon" else _classes(torch.optim).get(wanted)
    if kind is None:
        # The import takes one to two seconds, so it happens only if an optimizer is not in torch.
        import pytorch_optimizer

        kind = _classes(pytorch_optimizer).get(wanted)
    if kind is None:
        return None
    obstacle = _obstacle(kind)
    if obstacle is not None:
        raise BadInput(f"Optimizer {name!r} can't be used here: {obstacle}.", code="unusable")
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


def all_classes() -> dict[str, type[Optimizer]]:
    """Returns the optimizers of both libraries by name, including those that are refused."""
    import pytorch_optimizer

    return dict(sorted((_classes(pytorch_optimizer) | _classes(torch.optim)).items()))


def _classes(library: ModuleType) -> dict[str, type[Optimizer]]:
    return {
        name.lower(): member
        for name, member in vars(library).items()
        if isinstance(member, type) and issubclass(member, Optimizer) and member is not Optimizer
    }


def _obstacle(kind: type[Optimizer]) -> str | None:
    """Returns the reason why the training loop can't use an optimizer; None if it can."""
    if extra := _without_default(kind):
        return f"it needs {', '.join(extra)}"
    return _obstacle_in_step(kind) or _OBSTACLES.get(kind.__name__.lower())


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
