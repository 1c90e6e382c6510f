"""Users' own code, named `package.module:Class` or `path/to/file.py:Class`.

What a notebook or a script defines itself is `__main__:Class`. It goes to other processes by value.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from orchestrator.records import BadInput, shown, unknown

BY_VALUE = "ORCHESTRATE_BY_VALUE"
"""The variable with the file in which `__main__:Class` and so on are handed to a process."""

MAIN = "__main__"


def name_of(own: str | type) -> str:
    """What a class is called in a sweep file."""
    return own if isinstance(own, str) else f"{own.__module__}:{own.__qualname__}"


def of_main(names: Iterable[str]) -> dict[str, Any]:
    """Those of this process's own script or notebook, by name."""
    places = {name.partition("?")[0] for name in names}
    return {place: import_own("class", place) for place in places if place.startswith(f"{MAIN}:")}


def handed() -> bytes | None:
    """What was handed to this process by value."""
    file = os.environ.get(BY_VALUE)
    return Path(file).read_bytes() if file else None


@cache
def unpacked(content: bytes) -> Mapping[str, Any]:
    """Made by our own user's process, and by nobody else."""
    found: Mapping[str, Any] = pickle.loads(content)  # noqa: S301 - see above
    return found


def _of_main(place: str, attribute: str) -> Callable[..., Any]:
    content = handed()
    given = unpacked(content).get(place) if content else None
    found: Callable[..., Any] | None = given or getattr(sys.modules[MAIN], attribute, None)
    if found is None:
        raise BadInput(
            f"{place} was defined in a notebook or a script, and is not here. Go on there, with "
            f"orchestrator.open_run(...).resume() after defining it; or put it into a file, and "
            f"name it FILE.py:{attribute} in a new sweep."
        )
    return found


def import_own(kind: str, place: str) -> Callable[..., Any]:
    """The class or function at `place`; `kind` (a workload, say) goes into the error message."""
    module_name, _, attribute = place.rpartition(":")
    is_file = module_name.endswith(".py") and "\0" not in module_name
    if not attribute or not (is_file or all(map(str.isidentifier, module_name.split(".")))):
        raise BadInput(
            f"A {kind} of one's own is written MODULE:CLASS or FILE.py:CLASS, not {shown(place)}."
        )
    if module_name == MAIN:
        return _of_main(place, attribute)
    try:
        if is_file:
            module = _import_file(Path(module_name).resolve())
        else:
            _find_in_current_folder()
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
            with _importable(path.parent):
                spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


_beside: dict[str, Path] = {}
"""Modules that were imported from the folder of a file: name -> that folder."""


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Within, what lies in the folder can be imported, as it can where the file is a script. Files
    in two folders may each have a `model` beside them."""
    for name, other in [*_beside.items()]:
        if other != folder and any((folder / f"{name}{end}").exists() for end in ("", ".py")):
            for module in [m for m in sys.modules if m == name or m.startswith(f"{name}.")]:
                del sys.modules[module]
            del _beside[name]
    before = {*sys.modules}
    sys.path.insert(0, str(folder))
    try:
        _find_in_current_folder()
        yield
    finally:
        sys.path.remove(str(folder))
        for name in sys.modules.keys() - before:
            file = getattr(sys.modules[name], "__file__", None)
            if file and Path(file).is_relative_to(folder) and "." not in name:
                _beside[name] = folder


def _find_in_current_folder() -> None:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))


def files_with(file: Path) -> list[Path]:
    """A file, and others that it may need: those beside it, and all that has been imported but
    this project."""
    loaded = [
        getattr(module, "__file__", None)
        for name, module in [*sys.modules.items()]
        if name.partition(".")[0] != "orchestrator"
    ]
    imported = [Path(path) for path in loaded if path and path.endswith(".py")]
    return [file, *sorted(file.parent.glob("*.py")), *sorted(imported)]
