"""CIFAR-10 in its authors' binary format: files of 10,000 records. A record is a label and 32x32
pixels of three colour planes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from orchestrator.records import corrupt, unreadable

CLASSES = 10
PIXELS = 3 * 32 * 32
RECORD = 1 + PIXELS


def read_cifar10(paths: Sequence[Path]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Returns the images [N, 3, 32, 32] and the labels of the files at `paths`, in their order."""
    records = np.concatenate([_records(path) for path in paths])
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0]


def _records(path: Path) -> NDArray[np.uint8]:
    try:
        content = np.fromfile(path, dtype=np.uint8)
    except OSError as error:
        raise unreadable(path, error) from None
    if not len(content) or len(content) % RECORD:
        raise corrupt(
            path, f"{len(content):,} bytes are no whole number of records of {RECORD:,} bytes"
        )
    records = content.reshape(-1, RECORD)
    if records[:, 0].max() >= CLASSES:
        raise corrupt(path, f"a label is {records[:, 0].max()}, not from 0 to {CLASSES - 1}")
    return records
