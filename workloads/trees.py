"""Batches: trees of tensors whose first dimension is the examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from orchestrator.records import BadInput

Batch = Any
"""A tensor with one row per example, or a dict, list or tuple of batches, nested to any depth. Any
other mapping, such as the output of a tokenizer, becomes a dict."""


def mapped(change: Callable[[Any], Any], batch: Batch) -> Batch:
    """The same tree, with `change` applied to each of its leaves."""
    if isinstance(batch, Tensor):  # first, since small steps wait for this
        return change(batch)
    if isinstance(batch, (list, tuple)):
        return like(batch, [mapped(change, part) for part in batch])
    if isinstance(batch, Mapping):
        return {name: mapped(change, part) for name, part in batch.items()}
    return change(batch)


def like(batch: Sequence[Any], parts: list[Any]) -> Sequence[Any]:
    """The `parts` in a list or tuple of the same kind as `batch`."""
    if isinstance(batch, list):
        return parts
    return type(batch)(*parts) if hasattr(batch, "_fields") else tuple(parts)


def leaves(batch: Batch, place: str = "") -> Iterator[tuple[str, Any]]:
    """The place of each leaf, written as in Python, such as `['inputs'][0]`; and the leaf."""
    if isinstance(batch, Mapping):
        for name, part in batch.items():
            yield from leaves(part, f"{place}[{name!r}]")
    elif isinstance(batch, list | tuple):
        for number, part in enumerate(batch):
            yield from leaves(part, f"{place}[{number}]")
    else:
        yield place, batch


def divided(batch: Batch, sizes: int | list[int]) -> Iterator[Batch]:
    """The batch in parts of these sizes, or of at most one size."""
    pieces = [torch.split(leaf, sizes) for _, leaf in leaves(batch)]
    for part in zip(*pieces, strict=True):
        yield _rebuilt(batch, iter(part))


def _rebuilt(batch: Batch, tensors: Iterator[Tensor]) -> Batch:
    """The same tree with other leaves."""
    return mapped(lambda _: next(tensors), batch)


def checked(batch: Batch, examples: int, maker: str) -> Batch:
    """Refuses a batch of so many examples that has other leaves than tensors with a row for each;
    `maker` says where it comes from."""
    found = [*leaves(batch)]
    for place, leaf in found:
        if not isinstance(leaf, Tensor) or leaf.shape[:1] != (examples,):
            raise BadInput(
                f"{maker} must return a tensor, or a dict, list or tuple of tensors, with one row "
                f"per example, but for {examples} examples batch{place} is {described(leaf)}."
            )
    if not found:
        raise BadInput(f"{maker} must return at least one tensor, but returned {batch!r}.")
    return batch


def described(leaf: Any) -> str:
    kind = type(leaf).__name__
    shape = getattr(leaf, "shape", None)
    return f"a {kind}" if shape is None else f"a {kind} of shape {tuple(shape)}"
