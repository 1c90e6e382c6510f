"""Imports users' own code, which is named `package.module:Class` or `path/to/file.py:Class`, and
takes it to machines that lack it.

A class that is defined in a notebook or a script is named `__main__:Class`. Other processes can't
import it, so they get its definition by value (pickled).
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import pickle
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

from orchestrator.records import BadInput, shown, unknown, wrong_value

BY_VALUE = "ORCHESTRATE_BY_VALUE"
"""Environment variable: the file with the classes of `__main__` for a process, pickled by value."""

MAIN = "__main__"


def name_of(own: str | type | FunctionType) -> str:
    """Returns the name of a class or a function as it is written in a sweep file."""
    if isinstance(own, str):
        return own
    if "<" in own.__qualname__:  # <locals> or <lambda>
        raise BadInput(
            f"{own.__qualname__} is defined within a function, or without a name, so it can't be "
            f"found again. Define it at the top level of a notebook, a script or a module.",
            code="not-importable",
        )
    return f"{own.__module__}:{own.__qualname__}"


def hand_over(names: Iterable[str], file: Path) -> dict[str, str]:
    """Writes the classes and functions among `names` that this process's script defines to `file`.
    Returns the variable by which another process finds them; empty if there are none."""
    own = {name.partition("?")[0] for name in names}
    found = {name: import_own("class", name) for name in own if name.startswith(f"{MAIN}:")}
    if not found:
        return {}
    import cloudpickle

    file.write_bytes(cloudpickle.dumps(found))
    return {BY_VALUE: str(file)}


def handed() -> bytes | None:
    """Returns the pickled classes that were handed to this process by value; None without any."""
    file = os.environ.get(BY_VALUE)
    return Path(file).read_bytes() if file else None


@cache
def unpacked(content: bytes) -> Mapping[str, Any]:
    """Unpickles the classes in `content`. This is safe: a process of the same user wrote them."""
    found: Mapping[str, Any] = pickle.loads(content)  # noqa: S301 - see above
    return found


def _of_main(name: str, attribute: str) -> Callable[..., Any]:
    content = handed()
    given = unpacked(content).get(name) if content else None
    found: Callable[..., Any] | None = given or getattr(sys.modules[MAIN], attribute, None)
    if found is None:
        raise BadInput(
            f"{name} was defined in a notebook or a script, and is not defined in this process. "
            f"There, define it and then call orchestrator.open_run(...).resume(). Or put it into a "
            f"file and name it FILE.py:{attribute} in a new sweep.",
            code="not-importable",
        )
    return found


def import_own(kind: str, name: str) -> Callable[..., Any]:
    """Imports the class or function called `name`. Errors call it a `kind`, such as a workload."""
    module_name, _, attribute = name.rpartition(":")
    is_file = module_name.endswith(".py") and "\0" not in module_name
    if not attribute or not (is_file or all(map(str.isidentifier, module_name.split(".")))):
        raise wrong_value(f"A {kind} of your own", "named MODULE:CLASS or FILE.py:CLASS", name)
    if module_name == MAIN:
        return _of_main(name, attribute)
    try:
        if is_file:
            module = _import_file(Path(module_name).resolve())
        else:
            _find_in_current_folder()
            module = importlib.import_module(module_name)
    except (ImportError, OSError) as error:
        raise BadInput(
            f"The {kind} {shown(name)} can't be imported: {error}. Write package.module:Class "
            f"(importable from {Path.cwd()}) or path/to/file.py:Class.",
            code="not-importable",
        ) from error
    try:
        found: Callable[..., Any] = getattr(module, attribute)
    except AttributeError:
        names = [n for n, v in vars(module).items() if isinstance(v, type | FunctionType)]
        raise unknown(f"attribute of {module_name}:", attribute, names) from None
    return found


def _import_file(path: Path) -> Any:
    # The name contains the whole path, since two files of equal names must not share a module.
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
"""Module -> folder, for modules that were imported from the folder of a user's file."""


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Makes the modules in `folder` importable within the context, as they are for a script in that
    folder. Modules of equal names from other folders are dropped first: files in two folders may
    each have a module `model` beside them."""
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


def _files_with(file: Path) -> list[Path]:
    """Returns a file and all files that it may need: Python files in its folder, and all modules
    that were imported, except those of this project."""
    loaded = [
        getattr(module, "__file__", None)
        for name, module in [*sys.modules.items()]
        if name.partition(".")[0] != "orchestrator"
    ]
    imported = [Path(path) for path in loaded if path and path.endswith(".py")]
    return [file, *sorted(file.parent.glob("*.py")), *sorted(imported)]


@dataclass(frozen=True, kw_only=True)
class UserFolder:
    path: Path
    """The folder to which relative paths in a sweep file refer."""
    code: Mapping[str, bytes]
    """Path below the folder -> content of the file, for the user's code."""
    by_value: bytes | None = None
    """The pickled classes of a notebook or a script."""

    @classmethod
    def here(cls, names: Iterable[str]) -> UserFolder:
        path = Path.cwd()
        modules = [name.partition("?")[0].rpartition(":")[0] for name in names]
        files = {file for module in modules if module for file in _files(path, module)}
        code = {str(file.relative_to(path)): file.read_bytes() for file in sorted(files)}
        return cls(path=path, code=code, by_value=handed())

    def enter(self) -> None:
        """Makes it the current folder. On a machine where it is missing, or its code differs, makes
        a folder with a copy of the code the current one."""
        if self.path.is_dir() and all(_same(self.path / n, c) for n, c in self.code.items()):
            os.chdir(self.path)
        elif self.code:
            os.chdir(_written(self.code))
        if self.by_value is not None and BY_VALUE not in os.environ:
            folder = _written({"workloads.pickle": self.by_value})
            os.environ[BY_VALUE] = str(folder / "workloads.pickle")


def _written(files: Mapping[str, bytes]) -> Path:
    """A folder with these files, for all processes of this user on this machine: one for each
    process would be left behind when a process is killed."""
    digest = hashlib.blake2b(repr(sorted(files.items())).encode(), digest_size=16).hexdigest()
    kept = Path(tempfile.gettempdir()) / f"orchestrate-code-{os.getuid()}-{digest}"
    made = Path(tempfile.mkdtemp(prefix="orchestrate-code-"))
    for name, content in files.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_bytes(content)
    try:
        return made.rename(kept)
    except OSError:  # another process was first
        status = kept.lstat()
        own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
        if own and all(_same(kept / name, content) for name, content in files.items()):
            shutil.rmtree(made)
            return kept
        return made


def _files(folder: Path, module: str) -> list[Path]:
    """The Python files below `folder` that belong to FILE.py or to the package of a module. Empty
    for code that is installed or lies elsewhere, which each machine must have. A virtual
    environment may lie in the folder; its files count as installed."""
    if module == MAIN:
        return []
    if module.endswith(".py") or (folder / module).is_file():
        found = _files_with((folder / module).resolve())
    else:
        top = folder / module.partition(".")[0]
        found = [*top.rglob("*.py")] if top.is_dir() else [top.with_suffix(".py")]
    return [
        file
        for file in dict.fromkeys(found)
        if file.is_file()
        and file.is_relative_to(folder)
        and "site-packages" not in file.relative_to(folder).parts
    ]


def _same(file: Path, content: bytes) -> bool:
    return file.is_file() and file.read_bytes() == content
