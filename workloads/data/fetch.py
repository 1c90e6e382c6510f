"""Gets a data set from a package: all of its files, checked, or none."""

from __future__ import annotations

import gzip
import hashlib
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from orchestrator.records import BadInput, corrupt
from orchestrator.workloads.data.catalogue import DataSet


def fetch(entry: DataSet, data_dir: Path) -> Path:
    """Puts the data set into its folder below `data_dir` and returns this folder."""
    if entry.package is None:
        raise BadInput(f"{entry.name} is in no package. Instead, {entry.get}.", code="no-package")
    folder = data_dir / entry.name
    data_dir.mkdir(parents=True, exist_ok=True)
    # The scratch folder is beside the final one, so that complete files can be moved, and they are
    # moved only if all of them are right.
    with tempfile.TemporaryDirectory(prefix=f".{entry.name}.", dir=data_dir) as scratch:
        source = _unpacked(entry.package, Path(scratch))
        made = Path(scratch) / "made"
        made.mkdir()
        (entry.make or partial(_pick, entry))(source, made)
        for name in entry.files:
            check(entry, name, found_in(made, name))
        folder.mkdir(exist_ok=True)
        for path in made.iterdir():
            # A plain file, which may be a broken one, would be found before a packed one.
            (folder / path.name.removesuffix(".gz")).unlink(missing_ok=True)
            path.replace(folder / path.name)
    return folder


def _pick(entry: DataSet, source: Path, target: Path) -> None:
    for name in entry.files:
        path = found_in(source, name)
        shutil.copy2(path, target / path.name)


def found_in(folder: Path, name: str) -> Path:
    """Returns the file of that name, packed or not, at any depth below the folder."""
    found = min(folder.rglob(f"{name}*"), default=None)
    if found is None:
        raise BadInput(f"The package has no {name}.", code="no-such-file")
    return found


def check(entry: DataSet, name: str, path: Path) -> None:
    """Refuses a file that does not have the SHA-256 digest of the catalogue, if there is one."""
    if name not in entry.sha256:
        return
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != entry.sha256[name]:
        raise corrupt(
            f"{path.name} of {entry.name}",
            f"its SHA-256 must be {entry.sha256[name]}, but is {digest}",
        )


def _unpacked(package: str, scratch: Path) -> Path:
    """Downloads the package and returns the folder with its contents. Nothing of it, and none of
    its dependencies, is installed or run."""
    unpacked = scratch / "unpacked"
    if "==" in package:
        options = ["--no-deps", "--only-binary=:all:", "--dest", "."]
        _run([sys.executable, "-m", "pip", "download", *options, package], scratch)
        shutil.unpack_archive(next(scratch.glob("*.whl")), unpacked, "zip")
    else:
        _run(["apt-get", "download", package], scratch)
        _run(["dpkg-deb", "-x", next(scratch.glob("*.deb")).name, unpacked.name], scratch)
    return unpacked


def _run(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise BadInput(f"This needs the program {command[0]}.", code="not-installed") from None
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise BadInput(f"`{' '.join(command)}` failed: {reason[0]}", code="fetch-failed")
