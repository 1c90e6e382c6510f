"""Makes batches from the rows of map-style data sets, such as torch's and Hugging Face's."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import UnionType
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from orchestrator.records import BadInput
from orchestrator.workloads.augmentation import example_seeds
from orchestrator.workloads.trees import Batch, checked, described, like, mapped

Collate = Callable[[list[Any]], Batch]
"""A function that makes one batch from a list of rows."""


class MapStyle(Protocol):
    """A data set that returns any of its rows by number."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


def examples_of(dataset: MapStyle, collate: Collate | None = None) -> Callable[[Tensor], Batch]:
    """Returns a function that takes indices and returns the batch of these rows. The rows are
    stacked, or combined by `collate`.

    `Loaded` uses this. A small data set is faster if it stays on the device. For that, call the
    function once: `Tensors(examples_of(dataset)(torch.arange(len(dataset))))`.
    """
    # Of torch's Dataset, an IterableDataset has a __getitem__ that only raises.
    gets = getattr(type(dataset), "__getitem__", Dataset.__getitem__)
    if not hasattr(dataset, "__len__") or gets is Dataset.__getitem__:
        raise BadInput(
            f"A data set must have __len__ and __getitem__, but {type(dataset).__name__} does not "
            "have both. Streamed takes what can only be read in order.",
            code="wrong-data",
        )
    rows_at: Callable[[list[int]], list[Any]] = getattr(
        dataset, "__getitems__", lambda numbers: [dataset[number] for number in numbers]
    )
    return lambda index: _batch_of(rows_at, index, collate)


def random_examples_of(dataset: MapStyle, collate: Collate | None = None) -> Callable[..., Batch]:
    """Does the same as `examples_of` for a data set whose rows draw random numbers. The numbers
    that torch, numpy and Python draw for a row depend on the row's seed alone."""

    def fetch(index: Tensor, seeds: Tensor | None = None) -> Batch:
        row_seeds = iter((example_seeds(0, index) if seeds is None else seeds).tolist() or [0])

        def seeded(number: int) -> Any:
            seed = next(row_seeds)
            torch.default_generator.manual_seed(seed)
            np.random.seed(seed % 2**32)
            random.seed(seed)
            return dataset[number]

        states = torch.get_rng_state(), np.random.get_state(), random.getstate()
        try:
            return _batch_of(lambda numbers: [*map(seeded, numbers)], index, collate)
        finally:
            torch.set_rng_state(states[0])
            np.random.set_state(states[1])
            random.setstate(states[2])

    return fetch


def _batch_of(
    rows_at: Callable[[list[int]], list[Any]], index: Tensor, collate: Collate | None
) -> Batch:
    # An empty batch must have the structure of any other batch, so one row is read and dropped.
    numbers = index.tolist() or [0]
    rows = rows_at(numbers)
    if collate is None:
        batch = _stacked(rows, numbers, "")
    else:
        batch = checked(collate(rows), len(numbers), "`collate`")
    return batch if len(index) else mapped(lambda tensor: tensor[:0], batch)


def _stacked(values: Sequence[Any], numbers: Sequence[int], path: str) -> Batch:
    """Stacks `values`, which the rows `numbers` have at `path`, to a batch."""
    first = values[0]
    if isinstance(first, Mapping):
        if not all(isinstance(v, Mapping) and v.keys() == first.keys() for v in values):
            raise _refusal(values, numbers, path)
        return {
            name: _stacked([value[name] for value in values], numbers, f"{path}[{name!r}]")
            for name in first
        }
    if isinstance(first, tuple) or (isinstance(first, list) and not _is_array(first)):
        if not all(isinstance(v, type(first)) and len(v) == len(first) for v in values):
            raise _refusal(values, numbers, path)
        columns = enumerate(zip(*values, strict=True))
        return like(first, [_stacked(c, numbers, f"{path}[{n}]") for n, c in columns])
    return _tensor(values, numbers, path)


def _is_array(value: list[Any]) -> bool:
    """Tells whether a list holds nothing but numbers, directly or in nested lists. Hugging Face's
    data sets return arrays as lists. A pair of a feature and a label is a tuple."""
    if value and all(isinstance(part, list) for part in value):
        return all(map(_is_array, value))
    return _are(value, int | float | np.generic)


def _are(values: Sequence[Any], kinds: type | UnionType) -> bool:
    return all(issubclass(kind, kinds) for kind in {*map(type, values)})


def _tensor(values: Sequence[Any], numbers: Sequence[int], path: str) -> Tensor:
    with suppress(TypeError, ValueError, RuntimeError):
        if _are(values, Tensor):
            return torch.stack(list(values))
        if _are(values, np.ndarray | np.generic):
            return torch.from_numpy(np.stack(values))
        if _are(values, int | float | list):
            array = np.asarray(values)
            tensor = torch.from_numpy(array)
            return tensor.to(torch.get_default_dtype()) if array.dtype == np.float64 else tensor
    raise _refusal(values, numbers, path)


def _look(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"a dict of {sorted(map(str, value))}"
    if isinstance(value, list) and _is_array(value):
        return f"a list of shape {np.array(value, dtype=object).shape}"
    kind = described(value)
    return f"{kind} of {len(value)}" if isinstance(value, list | tuple) else kind


def _refusal(values: Sequence[Any], numbers: Sequence[int], path: str) -> BadInput:
    """Makes the error for rows that can't be stacked. It names the first row that looks other than
    the first row; if all look alike, it says what the first row holds."""
    expected = _look(values[0])
    for number, value in zip(numbers, values, strict=True):
        if (found := _look(value)) != expected:
            return BadInput(
                f"The rows of a data set must be alike, but row{path} is {expected} in row "
                f"{numbers[0]} and {found} in row {number}. Make them alike in the data set (pad "
                "them to one length, for example), or give Loaded a `collate=` that does.",
                code="unlike-rows",
            )
    return BadInput(
        "The rows of a data set must be made of tensors, arrays and numbers, but "
        f"row{path} is {described(values[0])} in row {numbers[0]}. Convert it in the data set, "
        "leave it out, or give Loaded a `collate=` that does.",
        code="wrong-data",
    )
