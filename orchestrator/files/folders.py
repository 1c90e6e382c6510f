"""Folders that are there whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.records import BadInput


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yields a folder of another name, which is called `target` once the `with` block has filled
    it. Raises `BadInput` if `target` exists or can't be written."""
    if os.path.lexists(target):
        raise BadInput(f"{target} exists already. Name a new folder.", code="exists")
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        yield unfinished
        unfinished.rename(target)
    except OSError as error:
        raise BadInput(f"{target} can't be written: {error}.", code="unwritable") from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
