"""Puts all weights of a model into one row of numbers, so that a step of an optimizer takes only a
few kernels, however many parameters the model has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

import torch
from torch import Tensor

ALIGNED = 32
"""The length of a row is a multiple of this many numbers. Then every row of a matrix of rows begins
at a multiple of 128 bytes, and kernels whose choices depend on addresses treat all rows alike."""


class Layout:
    """The position of each parameter in a row. Tensors of two or more dimensions come first, since
    weight decay shrinks only these. Vectors and single numbers follow, and zeros fill the row."""

    def __init__(
        self, shapes: Sequence[torch.Size | tuple[int, ...]], device: torch.device | None = None
    ) -> None:
        order = sorted(range(len(shapes)), key=lambda number: len(shapes[number]) <= 1)
        self.shapes = [tuple(shape) for shape in shapes]
        self._places = [(0, 0)] * len(shapes)
        self.shrunk = 0
        """Number of weights in tensors of two or more dimensions, which are the first in a row."""
        stop = 0
        for number in order:
            start, stop = stop, stop + prod(shapes[number])
            self._places[number] = (start, stop)
            if len(shapes[number]) > 1:
                self.shrunk = stop
        self.used = stop
        """Number of weights in all parameters."""
        self.width = -(-stop // ALIGNED) * ALIGNED
        """Length of a row, with the zeros at its end."""
        self._matrices = [place for place in sorted(self._places) if place[0] < self.shrunk]
        sizes = torch.tensor([stop - start for start, stop in self._matrices], dtype=torch.int64)
        self._owners = torch.arange(len(sizes)).repeat_interleave(sizes).to(device)

    @torch.no_grad()
    def row(self, parameters: Sequence[Tensor]) -> Tensor:
        """Returns the parameters of one model as a row."""
        row = parameters[0].new_zeros(self.width)
        for part, parameter in zip(self.views(row), parameters, strict=True):
            part.copy_(parameter)
        return row

    def views(self, rows: Tensor) -> list[Tensor]:
        """Returns each parameter as a view of a row, or of rows, whose dimensions come first."""
        return [self.view(rows, number) for number in range(len(self.shapes))]

    def view(self, rows: Tensor, number: int) -> Tensor:
        """Returns the parameter of this number as such a view."""
        start, stop = self._places[number]
        return rows[..., start:stop].view((*rows.shape[:-1], *self.shapes[number]))

    def runs(self, numbers: Iterable[int]) -> list[slice]:
        """Returns where these parameters lie in a row, in as few pieces as possible."""
        found: list[slice] = []
        for start, stop in sorted(self._places[number] for number in numbers):
            joins = bool(found) and found[-1].stop == start
            found.append(slice(found.pop().start if joins else start, stop))
        return found

    def norm(self, rows: Tensor) -> Tensor:
        """Returns the Euclidean norm of each row: (..., 1)."""
        norm: Tensor = torch.linalg.vector_norm(rows[..., : self.used], dim=-1, keepdim=True)
        return norm

    def norms(self, rows: Tensor) -> Tensor:
        """Returns the Euclidean norm of each parameter of two or more dimensions, in the order in
        which they lie in a row: (..., matrices)."""
        parts = [rows[..., start:stop] for start, stop in self._matrices]
        return torch.stack([torch.linalg.vector_norm(part, dim=-1) for part in parts], dim=-1)

    def spread(self, numbers: Tensor) -> Tensor:
        """Repeats a number for each of these parameters (..., matrices) for each of its weights:
        (..., shrunk)."""
        return numbers.index_select(-1, self._owners)
