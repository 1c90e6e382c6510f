"""Users' own code, named `package.module:Class` or `path/to/file.py:Class`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestrator.records import BadInput, shown, unknown


def import_own(kind: str, place: str) -> Callable[..., Any]:
    """The class or function at `place`; `kind` (a workload, say) goes into the error message."""
    module_name, _, attribute = place.rpartition(":")
    is_file = module_name.endswith(".py") and "\0" not in module_name
    if not attribute or not (is_file or all(map(str.isidentifier, module_name.split(".")))):
        raise BadInput(
            f"A {kind} of one's own is written MODULE:CLASS or FILE.py:CLASS, not {shown(place)}."
        )
    try:
        if is_file:
            module = _import_file(Path(module_name).resolve())
        else:
            if "" not in sys.path and str(Path.cwd()) not in sys.path:
                sys.path.append(str(Path.cwd()))
            module = importlib.import_module(module_name)
    except (ImportError, OSError) as error:
        raise BadInput(
            f"The {kind} {shown(place)} can't be imported: {error}. Write package.module:Class "
            f"(importable from {Path.cwd()}) or path/to/file.py:Class."
        ) from error
    try:
        found: Callable[..., Any] = getattr(module, attribute)
    except AttributeError:
        names = [n for n, v in vars(module).items() if isinstance(v, type)]
        raise unknown(f"attribute of {module_name}:", attribute, names) from None
    return found


def _import_file(path: Path) -> Any:
    # The name holds the whole path: two files of one name must not share a module.
    name = f"orchestrator_user_code_{path}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None or not path.is_file():
            raise OSError(f"there is no Python file {path}")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]
