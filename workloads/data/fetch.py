"""Getting a data set from where a package has it, checked, whole or not at all."""

from __future__ import annotations

import gzip
import hashlib
import shutil
import subprocess
import tempfile
from functools import partial
from pathlib import Path

from orchestrator.records import BadInput
from orchestrator.workloads.data.catalogue import DataSet

CHUNK = 2**20


def fetch(entry: DataSet, data_dir: Path) -> Path:
    """Puts the data set into its folder below `data_dir`, and returns that."""
    if entry.debian_package is None and entry.make is None:
        raise BadInput(f"{entry.name} is in no package that could be fetched: {entry.get}.")
    folder = data_dir / entry.name
    data_dir.mkdir(parents=True, exist_ok=True)
    # Beside its place, so that files are moved there whole, and only if all of them are right.
    with tempfile.TemporaryDirectory(prefix=f".{entry.name}.", dir=data_dir) as scratch:
        source, made = folder, Path(scratch) / "made"
        made.mkdir()
        if entry.debian_package:
            source = _unpack_debian(entry.debian_package, Path(scratch))
        (entry.make or partial(_pick, entry))(source, made)
        for name in entry.files:
            check(entry, name, found_in(made, name))
        folder.mkdir(exist_ok=True)
        for path in made.iterdir():
            path.replace(folder / path.name)
    return folder


def _pick(entry: DataSet, source: Path, target: Path) -> None:
    for name in entry.files:
        path = found_in(source, name)
        shutil.copy2(path, target / path.name)


def found_in(folder: Path, name: str) -> Path:
    """The file of that name, packed or not, wherever it is below the folder."""
    found = next(iter(sorted(folder.rglob(f"{name}*"))), None)
    if found is None:
        raise BadInput(f"There is no {name} in what was fetched.")
    return found


def check(entry: DataSet, name: str, path: Path) -> None:
    """Refuses a file that isn't the one it should be, where that is known."""
    if name not in entry.sha256:
        return
    digest = hashlib.sha256()
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    if digest.hexdigest() != entry.sha256[name]:
        raise BadInput(
            f"{path.name} of {entry.name} is not what it should be: its content has SHA-256 "
            f"{digest.hexdigest()}, not {entry.sha256[name]}."
        )


def _unpack_debian(package: str, scratch: Path) -> Path:
    """What is in a Debian package, without installing it or what it depends on."""
    try:
        _run(["apt-get", "download", package], scratch)
        (archive,) = scratch.glob("*.deb")
        _run(["dpkg-deb", "-x", archive.name, "unpacked"], scratch)
    except FileNotFoundError as error:
        raise BadInput(
            f"There is no {error.filename} here, which fetching the Debian package {package} takes."
        ) from None
    return scratch / "unpacked"


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise BadInput(f"`{' '.join(command)}` failed: {reason[0]}")
