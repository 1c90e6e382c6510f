"""The same bits for the same numbers, wherever in memory they lie."""

from __future__ import annotations

import os
from itertools import product

import torch


def ask_for_alike() -> None:
    """Asks Intel's MKL for matrix products that don't depend on where a matrix lies in a batch of
    them. It looks at this once in a process, when it computes for the first time."""
    os.environ.setdefault("MKL_CBWR", "AUTO")


def products_are_alike(device: torch.device) -> bool:
    """Whether this process computes products of equal matrices alike, wherever they lie in a batch
    of matrices, and in batches of two and of more."""
    for rows, inner, columns in product((1, 2, 7, 33), (10, 23, 64), (10, 11, 70)):
        # Of many digits each, without a generator: these are no random numbers of anybody's.
        left = torch.linspace(0.1, 1.3, rows * inner, device=device).view(1, rows, inner).sqrt()
        right = torch.linspace(-1, 1, inner * columns, device=device).view(1, inner, columns).exp()
        many = torch.bmm(left.expand(5, -1, -1).contiguous(), right.expand(5, -1, -1).contiguous())
        two = torch.bmm(left.expand(2, -1, -1).contiguous(), right.expand(2, -1, -1).contiguous())
        if not all(torch.equal(each, many[0]) for each in [*many, *two]):
            return False
    return True
