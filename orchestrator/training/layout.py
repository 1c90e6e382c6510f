"""All weights of a model as one row of numbers, so that a step of an optimizer takes a few kernels
however many parameters there are."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

ALIGNED = 32
"""Rows are a multiple of so many numbers long. Then every row of a matrix of rows begins at a
multiple of 128 bytes, and kernels that look at addresses treat all of them alike."""


class Layout:
    """Where each parameter lies in a row. Matrices and more come first, since weight decay shrinks
    these only; vectors and single numbers follow, then zeros up to the row's end."""

    def __init__(self, shapes: Sequence[torch.Size | tuple[int, ...]]) -> None:
        order = sorted(range(len(shapes)), key=lambda number: len(shapes[number]) <= 1)
        self._shapes = [tuple(shape) for shape in shapes]
        self._places = [(0, 0)] * len(shapes)
        self.shrunk = 0
        """So many numbers, from the first on, are those of matrices and more."""
        stop = 0
        for number in order:
            start, stop = stop, stop + prod(shapes[number])
            self._places[number] = (start, stop)
            if len(shapes[number]) > 1:
                self.shrunk = stop
        self.used = stop
        """So many are those of parameters."""
        self.width = -(-stop // ALIGNED) * ALIGNED
        """Numbers in a row."""
        owners = torch.zeros(self.width, dtype=torch.int64)
        for number, (start, stop) in enumerate(self._places):
            owners[start:stop] = number
        self._owners = owners
        self._is_shrunk = torch.tensor([float(len(shape) > 1) for shape in shapes])

    def to(self, device: torch.device, dtype: torch.dtype) -> Layout:
        """The same layout, for rows on `device`."""
        self._owners = self._owners.to(device)
        self._is_shrunk = self._is_shrunk.to(device, dtype)
        return self

    @torch.no_grad()
    def row(self, parameters: Sequence[Tensor]) -> Tensor:
        """The parameters of one model in a row."""
        row = parameters[0].new_zeros(self.width)
        for part, parameter in zip(self.views(row), parameters, strict=True):
            part.copy_(parameter)
        return row

    def views(self, rows: Tensor) -> list[Tensor]:
        """Each parameter as a view of one row, or of several with these in front."""
        before = rows.shape[:-1]
        return [
            rows[..., start:stop].view((*before, *shape))
            for (start, stop), shape in zip(self._places, self._shapes, strict=True)
        ]

    def norm(self, rows: Tensor) -> Tensor:
        """The Euclidean norm of each row: (..., 1)."""
        norm: Tensor = torch.linalg.vector_norm(rows[..., : self.used], dim=-1, keepdim=True)
        return norm

    def norms(self, rows: Tensor) -> Tensor:
        """The Euclidean norm of each parameter: (..., parameters)."""
        parts = [rows[..., start:stop] for start, stop in self._places]
        return torch.stack([torch.linalg.vector_norm(part, dim=-1) for part in parts], dim=-1)

    def spread(self, numbers: Tensor) -> Tensor:
        """A number for each parameter (..., parameters) as one for each of its weights."""
        return numbers.index_select(-1, self._owners)

    def where_shrunk(self, decay: Tensor) -> Tensor:
        """A weight decay as one number for each parameter, 0 for those that it leaves alone."""
        return decay * self._is_shrunk
