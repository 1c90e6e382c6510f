"""The folder in which the command was started, and the code that workers on other machines need
from it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.files.own_code import BY_VALUE, MAIN, files_with, handed


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
        places = [name.partition("?")[0].rpartition(":")[0] for name in names]
        files = {file for place in places if place for file in _files(path, place)}
        code = {str(file.relative_to(path)): file.read_bytes() for file in sorted(files)}
        return cls(path=path, code=code, by_value=handed())

    def enter(self) -> None:
        """Makes it the current folder. On a machine where it is missing, or its code differs, makes
        a folder with a copy of the code the current one."""
        if self.path.is_dir() and all(_same(self.path / n, c) for n, c in self.code.items()):
            os.chdir(self.path)
        elif self.code:
            copy = Path(tempfile.mkdtemp(prefix="orchestrate-code-"))
            for name, content in self.code.items():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                (copy / name).write_bytes(content)
            os.chdir(copy)
        if self.by_value is not None and BY_VALUE not in os.environ:
            file = Path(tempfile.mkdtemp(prefix="orchestrate-code-")) / "workloads.pickle"
            file.write_bytes(self.by_value)
            os.environ[BY_VALUE] = str(file)


def _files(folder: Path, place: str) -> list[Path]:
    """The Python files below `folder` that belong to FILE.py or to the package of a module. Empty
    for code that is installed or lies elsewhere, which each machine must have. A virtual
    environment may lie in the folder; its files count as installed."""
    if place == MAIN:
        return []
    if place.endswith(".py"):
        found = files_with((folder / place).resolve())
    else:
        top = folder / place.partition(".")[0]
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
