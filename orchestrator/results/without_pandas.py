"""Keeps Arrow from importing pandas.

Before Arrow converts a list or compares a column with a number, it imports pandas if that is
installed, only to see whether it was given an object of pandas. This takes half as long as
importing torch, and nothing here gives it such objects.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder

import pyarrow as pa


def import_no_pandas() -> None:
    """Lets Arrow look for pandas once, in vain. When other code imports pandas later, Arrow is made
    to look for it again, and treats its objects as ever."""
    if "pandas" in sys.modules:
        return
    finder = _NotYet()
    sys.meta_path.insert(0, finder)
    pa.scalar(0)
    finder.is_hidden = False


class _NotYet(MetaPathFinder):
    """Hides pandas at first, then waits for the import of it."""

    is_hidden = True

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "pandas" and self.is_hidden:
            raise ModuleNotFoundError(name)
        if name == "pandas" and self in sys.meta_path:
            sys.meta_path.remove(self)
            pa.lib._pandas_api.__init__()  # it forgets that it has looked
