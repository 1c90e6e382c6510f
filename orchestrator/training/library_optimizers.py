"""Finds optimizers of torch.optim and pytorch_optimizer by name, from a table, and all other
classes as `FILE.py:Class`.

The metaparameters of these optimizers get this project's names (`lr` is `learning_rate`). Weight
decay is 0 unless it is given, whatever the library's default is.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from importlib import import_module
from types import NoneType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from orchestrator.files.own_code import import_own
from orchestrator.records import BadInput, Value, check_kind, plain, unknown
from orchestrator.training.groups import Losses, sorted_parameters
from orchestrator.workloads import Group

_OUR_WORDS = {"lr": "learning_rate", "eps": "epsilon"}
"""Library's name of a metaparameter -> this project's name. In addition, the parts of a tuple are
numbered: `betas` becomes beta1, beta2, ..."""

_NOT_TUNED = ("maximize", "foreach", "fused", "capturable", "differentiable")
"""Arguments that change how the same step is computed, or that reverse its direction."""

_DECAYS = ("weight_decay", "weight_decay_1d", "adamw_wd")

_TABLE = {
    torch.optim.__name__: {
        "Adadelta": "arXiv 1212.5701", "Adamax": "arXiv 1412.6980", "ASGD": "Polyak, Juditsky 1992",
        "NAdam": "Dozat 2016", "RAdam": "arXiv 1908.03265", "Rprop": "Riedmiller, Braun 1993",
    },
    # Its import takes one to two seconds, so it happens only if one of these is used.
    "pytorch_optimizer": {
        "A2Grad": "arXiv 1810.00553", "AdaBelief": "arXiv 2010.07468", "ADOPT": "arXiv 2411.02853",
        "Adan": "arXiv 2208.06677", "CAME": "arXiv 2307.02047", "DAdaptAdam": "arXiv 2301.07733",
        "Grams": "arXiv 2412.17107", "LaProp": "arXiv 2002.04839", "Lion": "arXiv 2302.06675",
        "MARS": "arXiv 2411.10438", "Muon": "Jordan et al. 2024, kellerjordan.github.io/posts/muon",
        "NovoGrad": "arXiv 1905.11286", "Prodigy": "arXiv 2306.06101", "QHAdam": "arXiv 1810.06801",
        "ScheduleFreeAdamW": "arXiv 2405.15682", "ScheduleFreeRAdam": "arXiv 2405.15682",
        "ScheduleFreeSGD": "arXiv 2405.15682", "Shampoo": "arXiv 1802.09568",
        "SOAP": "arXiv 2409.11321", "StableAdamW": "arXiv 2304.13013",
        "Tiger": "Su 2023, kexue.fm/archives/9512", "Yogi": "Zaheer et al. 2018",
    },
}  # fmt: skip
"""Library -> the classes of it that tests train -> source. torch's Muon is not among them, since it
takes matrices only."""

_PAPERS: dict[str, dict[str, Value]] = {
    "adadelta": {"rho": 0.95},
    "adopt": {"weight_decouple": True},
    "qhadam": {"beta1": 0.995, "nu1": 0.7},  # with the library's 0.9 and 1 it is Adam
    "radam": {"decoupled_weight_decay": True},
    "rprop": {"learning_rate": 0.1},
}
"""Defaults of the source where the library has others."""

LIBRARY = {name.lower(): (library, name) for library, names in _TABLE.items() for name in names}
"""Name in lower case -> library and class."""


@dataclass(frozen=True)
class LibraryOptimizer:
    """An optimizer class of a library or of the user, with its metaparameters."""

    name: str
    """Name of its class in lower case, or FILE.py:Class for the user's own class."""
    settings: Mapping[str, Value | None]
    """Metaparameter that it takes -> default. None: the library computes one."""
    kind: type[Optimizer]
    required: tuple[str, ...] = ()
    """Metaparameters without a default, which must be given."""

    def build(
        self,
        model: nn.Module,
        params: Mapping[str, Value],
        groups: Sequence[Group] = (),
        losses: Losses | None = None,
    ) -> Optimizer:
        """Makes the optimizer of all parameters of `model`. `params` replace the defaults.

        Muon orthogonalises the updates of the hidden matrices, and treats the rest as AdamW does.
        """
        for name in params:
            if name not in (*self.settings, *self.required):
                raise unknown(f"metaparameter of {self.name!r}:", name, self.settings)
            default = self.settings.get(name)
            check_kind(name, params[name], 0.0 if default is None else default)
        values: dict[str, Any] = {**self.settings, **params}
        # Optimizers that start at d0 find one rate for all groups.
        rate = None if "d0" in values else values.get("learning_rate")
        rates, decays = [rate] * 2, [values.get("weight_decay")] * 2
        like_muon = "adamw_lr" in values
        if like_muon:
            rates[1], decays[1] = values["adamw_lr"], values["adamw_wd"]
        found = sorted_parameters(model, groups, rates, decays, losses if like_muon else None)
        try:
            return self.kind(found, **_arguments(self.kind, values))
        # The library's errors have no common base class.
        except Exception as error:
            raise BadInput(f"{self.name}: {error}", code="wrong-value") from error


def find(name: str) -> LibraryOptimizer | None:
    """Returns the optimizer called `name`, however it is spelt; None if it is not in the table."""
    wanted = plain(name)
    if wanted not in LIBRARY:
        return None
    library, member = LIBRARY[wanted]
    kind = getattr(import_module(library), member)
    return LibraryOptimizer(wanted, {**dict(_settings(kind)), **_PAPERS.get(wanted, {})}, kind)


def own(name: str) -> LibraryOptimizer:
    """Returns the user's own optimizer class. Its keyword arguments are metaparameters."""
    kind = import_own("optimizer", name)
    if not (isinstance(kind, type) and issubclass(kind, Optimizer)):
        raise BadInput(f"{name!r} must be a subclass of torch.optim.Optimizer.", code="wrong-class")
    step = inspect.signature(kind.step).parameters
    closed = "closure" in step and step["closure"].default is inspect.Parameter.empty
    if closed or "hessian" in step:
        needed = "a closure that computes the loss again" if closed else "second derivatives"
        raise BadInput(
            f"Optimizer {name!r} can't be used here: its step needs {needed}.", code="unusable"
        )
    required = tuple(
        _OUR_WORDS.get(name, name)
        for name, argument in inspect.signature(kind).parameters.items()
        if argument.default is argument.empty
        and argument.kind not in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD)
        and name != "params"
    )
    return LibraryOptimizer(name, dict(_settings(kind)), kind, required)


def _settings(kind: type[Optimizer]) -> Iterator[tuple[str, Value | None]]:
    for name, argument in inspect.signature(kind).parameters.items():
        default = argument.default
        if isinstance(default, tuple):
            yield from zip(_numbered(name, default), default, strict=True)
        elif name in _NOT_TUNED or (name, default) == ("lr", None):
            continue
        elif isinstance(default, (bool, int, float, str, NoneType)):
            # The default becomes part of the optimizer's state. torch.load refuses classes that it
            # doesn't know, such as enumerations. A plain number has the same effect.
            plain = int(default) if isinstance(default, IntEnum) else default
            yield _OUR_WORDS.get(name, name), 0.0 if name in _DECAYS else plain


def _numbered(name: str, default: tuple[Value, ...]) -> list[str]:
    """Returns the names of the parts of an argument that is a tuple: beta1, beta2, ..."""
    stem = _OUR_WORDS.get(name) or (name[:-1] if name.endswith("s") else f"{name}_")
    return [f"{stem}{number}" for number in range(1, len(default) + 1)]


def _arguments(kind: type[Optimizer], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `values` under the library's names of arguments."""
    arguments: dict[str, Any] = {}
    for name, argument in inspect.signature(kind).parameters.items():
        ours = _OUR_WORDS.get(name, name)
        if isinstance(argument.default, tuple):
            parts = _numbered(name, argument.default)
            arguments[name] = tuple(values[part] for part in parts)
        elif values.get(ours) is not None:
            arguments[name] = values[ours]
    return arguments
