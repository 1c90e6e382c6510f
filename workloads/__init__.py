"""The registry of workloads. `load_workload` makes a workload from its name in a sweep file:

digits/mlp                         a registered workload
noisy_quadratic?d=100&replicas=64  a registered workload with options
my_package.my_file:MyWorkload      a user's workload, by import path
path/to/my_file.py:MyWorkload      a user's workload, by file
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
import torch

from orchestrator.files.own_code import import_own
from orchestrator.records import BadInput, unknown, wrong_value
from orchestrator.workloads import cifar10, gpt, imagenet, mnist
from orchestrator.workloads.augmentation import (
    Augment,
    example_seeds,
    random_flip,
    random_shift,
    uniforms,
)
from orchestrator.workloads.base import Classification, Group, Workload
from orchestrator.workloads.digits import DigitsCNN, DigitsMLP
from orchestrator.workloads.examples import examples_of
from orchestrator.workloads.ghost_batch_norm import (
    GhostBatchNorm1d,
    GhostBatchNorm2d,
    ghosts,
    with_ghosts,
)
from orchestrator.workloads.next_token import NextToken
from orchestrator.workloads.noisy_quadratic import NoisyQuadratic
from orchestrator.workloads.splits import Draw, Loaded, Split, Streamed, Subset, Tensors, first
from orchestrator.workloads.trees import Batch, divided, mapped

__all__ = [
    "Augment", "Batch", "Classification", "Draw", "GhostBatchNorm1d", "GhostBatchNorm2d", "Group",
    "Loaded", "NextToken", "Split", "Streamed", "Subset", "Tensors", "Workload", "example_seeds",
    "examples_of", "random_flip", "random_shift", "uniforms", "with_ghosts",
]  # fmt: skip
"""What users' code may import."""

BOOLEANS = {"true": True, "false": False}

REGISTRY: dict[str, type[Workload]] = {
    **cifar10.REGISTERED,
    "digits/cnn": DigitsCNN,
    "digits/mlp": DigitsMLP,
    **gpt.REGISTERED,
    "imagenet/resnet_50": imagenet.ImageNet,
    **mnist.REGISTERED,
    "noisy_quadratic": NoisyQuadratic,
}


def load_workload(name: str, data_dir: Path | None = None) -> Workload:
    """Makes the workload called `name`, with the options that are written behind the name."""
    base, _, query = name.partition("?")
    factory = (
        import_own("workload", base) if ":" in base else REGISTRY.get(base) or mnist.named(base)
    )
    if factory is None and base.endswith(".py"):
        raise wrong_value("A workload of your own", "named FILE.py:CLASS", base)
    if factory is None:
        raise unknown("workload", base, REGISTRY)
    if "data_dir" in options_of(factory):
        raise BadInput(
            f"An option of {base!r} must not be called 'data_dir', as --data-dir is. Rename it.",
            code="given-twice",
        )
    options = _options(base, factory, query)
    train_examples = options.pop("train_examples", None)
    try:
        workload = factory(**options)
    except TypeError as error:
        raise BadInput(f"{base!r} can't be made: {error}.", code="not-callable") from error
    if not isinstance(workload, Workload):
        raise BadInput(f"{base!r} must be a subclass of orchestrator.Workload.", code="wrong-class")
    if not isinstance(getattr(workload, "goal", None), str):
        raise BadInput(f"{base!r} needs a goal, such as 'val/error < 0.1'.", code="missing-goal")
    # The workload may be a frozen dataclass.
    object.__setattr__(workload, "data_dir", data_dir)
    if train_examples is not None:
        object.__setattr__(workload, "train_examples", train_examples)
    for setting, default in metaparameters_of(workload).items():
        if not isinstance(default, (bool, int, float, str)):
            raise wrong_value(
                f"{base!r}: the default of {setting!r}", "a number, text, true or false", default
            )
    return workload


def splits_of(workload: Workload, data_dir: Path | None) -> Mapping[str, Split]:
    """Returns the splits of the workload's data. Refuses other data, and empty splits."""
    try:
        data: object = workload.data(data_dir)
    except TypeError as error:
        if error.__traceback__ and not error.__traceback__.tb_next:  # of this call
            raise BadInput(f"{error}. It takes (self, data_dir).", code="not-callable") from None
        if data_dir is None:  # which is the usual reason
            error.add_note("No folder of data was given: --data-dir FOLDER, or $ORCHESTRATE_DATA.")
        raise
    splits = dict(data) if isinstance(data, Mapping) else {}
    kinds = {split: type(data).__name__ for split, data in splits.items()}
    if "train" not in kinds or not all(isinstance(data, Split) for data in splits.values()):
        raise BadInput(
            f"The data of {type(workload).__name__} must be a dict of splits, 'train' among them, "
            f"of Tensors(inputs, targets) or Loaded(data_set), not {kinds or type(data).__name__}.",
            code="wrong-data",
        )
    if empty := [split for split, data in splits.items() if data.size == 0]:
        raise BadInput(
            f"Each split must have an example, but {empty[0]!r} of {type(workload).__name__} has "
            "none. Leave the split out of `data`, or check what `data` reads.",
            code="empty",
        )
    if endless := [n for n, data in splits.items() if data.size is None and n != "train"]:
        raise BadInput(
            f"Only 'train' may be endless, but {endless[0]!r} of {type(workload).__name__} is, and "
            "would be evaluated for ever. Take its first examples as `Tensors` or `Loaded`.",
            code="endless-data",
        )
    if workload.train_examples:
        splits["train"] = _subset(splits["train"], workload.train_examples)
    return splits


def prepare(
    name: str, data_dir: Path | None, device: torch.device
) -> tuple[Workload, dict[str, Split]]:
    """Returns the workload and its splits on the device, cached for the trials of a process."""
    base = name.partition("?")[0]
    # A notebook may have defined the class anew.
    return _prepared(name, import_own("workload", base) if ":" in base else None, data_dir, device)


@lru_cache(maxsize=4)
def _prepared(
    name: str, own: object, data_dir: Path | None, device: torch.device
) -> tuple[Workload, dict[str, Split]]:
    workload = load_workload(name, data_dir)
    splits = splits_of(workload, data_dir)
    return workload, {split: data.to(device) for split, data in splits.items()}


def _subset(train: Split, count: int) -> Split:
    """Draws `count` training examples. Equal counts always give the same examples."""
    if not 1 <= count <= (train.size or 0):
        most = f"from 0 (all) to {train.size:,}" if train.size else "0 for an endless training set"
        raise wrong_value("`train_examples`", most, count)
    chosen = np.random.default_rng(0).permutation(train.size or 0)[:count]
    return Subset(train, torch.from_numpy(np.sort(chosen)))


def options_of(factory: Callable[..., Any]) -> dict[str, Any]:
    """Returns the options that may be written behind a workload's name, with their defaults."""
    fields: dict[str, Any] = {}
    if isinstance(factory, type) and dataclasses.is_dataclass(factory):
        fields = {field.name: field.default for field in dataclasses.fields(factory)}
    return {**fields, "train_examples": Workload.train_examples}


def metaparameters_of(workload: Workload | type[Workload]) -> dict[str, Any]:
    """Returns the metaparameters that the workload's loss takes, with their defaults."""
    parameters = inspect.signature(workload.loss).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def _options(base: str, factory: Callable[..., Any], query: str) -> dict[str, Any]:
    defaults = options_of(factory)
    options: dict[str, Any] = {}
    for key, text in parse_qsl(query, keep_blank_values=True):
        if key in options:
            raise BadInput(f"Option {key!r} of {base!r} is given twice.", code="given-twice")
        if key not in defaults:
            raise unknown(f"option of workload {base!r}:", key, defaults)
        kind = type(defaults[key])
        if kind not in (bool, int, float, str):
            raise wrong_value(
                f"{base!r}: the default of {key!r}", "a number, text, true or false", defaults[key]
            )
        try:
            options[key] = BOOLEANS[text.lower()] if kind is bool else kind(text)
        except (KeyError, ValueError):
            raise wrong_value(f"{key!r} of {base!r}", f"of type {kind.__name__}", text) from None
    return options
