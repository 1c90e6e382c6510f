"""Makes matrix products give the same bits for equal matrices, wherever these lie in memory."""

from __future__ import annotations

import os
from itertools import product

import torch


def ask_for_alike() -> None:
    """Asks Intel's MKL for matrix products whose bits don't depend on the position of a matrix in a
    batch of matrices. MKL reads this setting once per process, when it computes for the first
    time."""
    os.environ.setdefault("MKL_CBWR", "AUTO")


def products_are_alike(device: torch.device) -> bool:
    """Tells whether this process computes products of equal matrices with equal bits, at every
    position in a batch of matrices, and in batches of two and of more matrices."""
    for rows, inner, columns in product((1, 2, 7, 33), (10, 23, 64), (10, 11, 70)):
        # These numbers have many digits. They need no generator, whose random numbers a trial might
        # use.
        left = torch.linspace(0.1, 1.3, rows * inner, device=device).view(1, rows, inner).sqrt()
        right = torch.linspace(-1, 1, inner * columns, device=device).view(1, inner, columns).exp()
        many = torch.bmm(left.expand(5, -1, -1).contiguous(), right.expand(5, -1, -1).contiguous())
        two = torch.bmm(left.expand(2, -1, -1).contiguous(), right.expand(2, -1, -1).contiguous())
        if not all(torch.equal(each, many[0]) for each in [*many, *two]):
            return False
    return True
