"""Token files: one-dimensional `.npy` files of uint16 or uint32, mapped rather than read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from orchestrator.records import BadInput

CHECKED = 2**16
"""So many tokens at the beginning of a file are compared with the vocabulary when it is opened."""

Tokens = NDArray[Any]


def read_tokens(path: Path, *, vocabulary: int) -> Tokens:
    """The tokens in the file at `path`. Whoever fetches some of them checks those again."""
    try:
        tokens = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # a broken header makes NumPy raise nearly anything
        raise BadInput(f"{path} can't be read as a .npy file of tokens: {error}") from None
    if tokens.ndim != 1 or tokens.dtype not in (np.uint16, np.uint32):
        raise BadInput(
            f"{path} must hold one dimension of uint16 or uint32, but holds {tokens.ndim} of "
            f"{tokens.dtype}."
        )
    announced, found = tokens.offset + tokens.nbytes, path.stat().st_size
    if announced != found:
        raise BadInput(
            f"{path} is corrupt: its header announces {announced:,} bytes, not {found:,}."
        )
    check_tokens(tokens[:CHECKED], vocabulary, path)
    return tokens


def check_tokens(tokens: Tokens, vocabulary: int, path: Path) -> None:
    largest = tokens.max(initial=0)
    if largest >= vocabulary:
        raise BadInput(
            f"The tokens of {path} must be below {vocabulary:,}, but one is {largest:,}: say how "
            f"many there are with the option `vocabulary`."
        )


def windows(tokens: Tokens, length: int, path: Path) -> Tokens:
    """A view of `tokens` as rows of `length + 1`: the last of a row is the first of the next, so
    that each token is to be predicted once."""
    if len(tokens) <= length:
        raise BadInput(
            f"{path} must hold more than a window of {length} tokens for each split, but one has "
            f"{len(tokens)}."
        )
    return sliding_window_view(tokens, length + 1)[::length]
