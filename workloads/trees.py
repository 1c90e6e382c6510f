"""Batches: trees of tensors whose first dimension is the examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from orchestrator.records import BadInput

Batch = Any
"""A tensor with one row per example, or a dict, list or tuple of batches, nested to any depth. Any
other mapping, such as the output of a tokenizer, becomes a dict."""


def mapped(change: Callable[[Any], Any], batch: Batch) -> Batch:
    """Returns the same tree with `change` applied to each of its leaves."""
    if isinstance(batch, Tensor):  # checked first, since this takes time in small steps
        return change(batch)
    if isinstance(batch, (list, tuple)):
        return like(batch, [mapped(change, part) for part in batch])
    if isinstance(batch, Mapping):
        return {name: mapped(change, part) for name, part in batch.items()}
    return change(batch)


def like(batch: Sequence[Any], parts: list[Any]) -> Sequence[Any]:
    """Returns `parts` as a list or tuple of the same type as `batch`."""
    if isinstance(batch, list):
        return parts
    return type(batch)(*parts) if hasattr(batch, "_fields") else tuple(parts)


def leaves(batch: Batch, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields each leaf with its place, written as in Python, such as `['inputs'][0]`."""
    if isinstance(batch, Mapping):
        for name, part in batch.items():
            yield from leaves(part, f"{path}[{name!r}]")
    elif isinstance(batch, list | tuple):
        for number, part in enumerate(batch):
            yield from leaves(part, f"{path}[{number}]")
    else:
        yield path, batch


def divided(batch: Batch, sizes: int | list[int]) -> Iterator[Batch]:
    """Divides the batch into parts. `sizes` is the size of each part, or the largest of all."""
    pieces = [torch.split(leaf, sizes) for _, leaf in leaves(batch)]
    tensors = chain(*zip(*pieces, strict=True))
    return (mapped(lambda _: next(tensors), batch) for _ in pieces[0])


def joined(parts: Sequence[Batch]) -> Batch:
    """Joins the parts of a batch."""
    if len(parts) == 1:
        return parts[0]
    rows = zip(*([leaf for _, leaf in leaves(part)] for part in parts), strict=True)
    return mapped(lambda _: torch.cat(next(rows)), parts[0])


def checked(batch: Batch, examples: int, maker: str) -> Batch:
    """Returns the batch, or refuses it if a leaf is not a tensor with one row for each of the
    `examples`. `maker` is the function that made the batch, for the error message."""
    found = [*leaves(batch)]
    for path, leaf in found:
        if not isinstance(leaf, Tensor) or leaf.shape[:1] != (examples,):
            raise BadInput(
                f"{maker} must return a tensor, or a dict, list or tuple of tensors, with one row "
                f"per example, but for {examples} examples batch{path} is {described(leaf)}.",
                code="wrong-result",
            )
    if not found:
        raise BadInput(f"{maker} must return a tensor, but returned {batch!r}.", code="empty")
    return batch


def described(leaf: Any) -> str:
    kind = type(leaf).__name__
    shape = getattr(leaf, "shape", None)
    return f"a {kind}" if shape is None else f"a {kind} of shape {tuple(shape)}"
