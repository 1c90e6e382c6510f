"""The folder in which the command was started, and the code that other machines need from it."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
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


def _files(folder: Path, place: str) -> list[Path]:
    """The Python files below `folder` that belong to FILE.py or to the package of a module. Empty
    for code that is installed or lies elsewhere, which each machine must have. A virtual
    environment may lie in the folder; its files count as installed."""
    if place == MAIN:
        return []
    if place.endswith(".py") or (folder / place).is_file():
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
