"""Token files: one-dimensional `.npy` files of uint16 or uint32. They are memory-mapped, not
read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from orchestrator.records import BadInput, corrupt, unreadable

CHECKED = 2**16
"""Number of tokens at the beginning of a file that are compared with the vocabulary when the file
is opened."""

Tokens = NDArray[Any]


def read_tokens(path: Path, *, vocabulary: int) -> Tokens:
    """Returns the tokens in the file at `path`. Only the first `CHECKED` of them are compared with
    the vocabulary, so callers must check the tokens that they use."""
    try:
        tokens = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # a broken header makes NumPy raise nearly anything
        raise unreadable(path, error) from None
    if tokens.ndim != 1 or tokens.dtype not in (np.uint16, np.uint32):
        raise corrupt(
            path, f"it holds {tokens.ndim} dimensions of {tokens.dtype}, not 1 of uint16 or uint32"
        )
    announced, found = tokens.offset + tokens.nbytes, path.stat().st_size
    if announced != found:
        raise corrupt(path, f"its header announces {announced:,} bytes, not {found:,}")
    check_tokens(tokens[:CHECKED], vocabulary, path)
    return tokens


def check_tokens(tokens: Tokens, vocabulary: int, path: Path) -> None:
    largest = tokens.max(initial=0)
    if largest >= vocabulary:
        raise BadInput(
            f"A token of {path} is {largest:,}, not below {vocabulary:,}: set `vocabulary` higher.",
            code="wrong-value",
        )


def windows(tokens: Tokens, length: int, path: Path) -> Tokens:
    """Returns a view of `tokens` as rows of `length + 1` tokens. The last token of a row is the
    first of the next row, so each token is predicted once."""
    if len(tokens) <= length:
        raise BadInput(
            f"{path} must hold more than a window of {length} tokens for each split, but one has "
            f"{len(tokens)}.",
            code="too-few",
        )
    return sliding_window_view(tokens, length + 1)[::length]
