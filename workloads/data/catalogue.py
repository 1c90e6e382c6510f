"""The data sets that workloads here train on: where they are looked for and how to get them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.records import BadInput, unknown

FOLDER_VARIABLE = "ORCHESTRATE_DATA"


@dataclass(frozen=True, kw_only=True)
class DataSet:
    name: str
    """Also that of its folder."""
    about: str
    size: str
    licence: str
    files: tuple[str, ...]
    """All that a complete copy has: files, each with or without `.gz` behind its name, or folders."""
    sha256: Mapping[str, str] = field(default_factory=dict)
    """File -> digest of what is in it, not packed, where one copy is as good as another."""
    installed_at: tuple[Path, ...] = ()
    """Where packages of operating systems put it."""
    debian_package: str | None = None
    """One that has it, to be fetched from where apt looks."""
    make: Callable[[Path, Path], None] | None = None
    """Writes `files` into the second folder from what is in the first: an unpacked package or, if
    there is none, the data set's own folder. None: they are in the package."""
    by_hand: str
    """How to get it without that."""

    @property
    def get(self) -> str:
        """What to do for it, in one line."""
        command = f"`orchestrate data get {self.name}`"
        if self.debian_package:
            return f"{command}, or {self.by_hand}"
        return f"{self.by_hand}, then {command}" if self.make else self.by_hand

    def places(self, data_dir: Path | None) -> list[Path]:
        """Where it is looked for, in this order."""
        # Never the folder itself: MNIST and its relatives have files of the same names.
        given = [] if data_dir is None else [data_dir / self.name]
        named = os.environ.get(FOLDER_VARIABLE)
        from_environment = [Path(named) / self.name] if named else []
        return [*given, *from_environment, *self.installed_at]

    def find(self, data_dir: Path | None) -> dict[str, Path] | None:
        """File -> where it is, in the first place that has them all; None if there is none."""
        for place in self.places(data_dir):
            found = {name: _either(place / name) for name in self.files}
            if all(path is not None for path in found.values()):
                return {name: path for name, path in found.items() if path is not None}
        return None

    def need(self, data_dir: Path | None) -> dict[str, Path]:
        """`find`, or one message that says what to do."""
        found = self.find(data_dir)
        if found is None:
            places = "\n  ".join(map(str, self.places(data_dir))) or f"${FOLDER_VARIABLE} (not set)"
            raise BadInput(
                f"The data set {self.name} ({', '.join(self.files)}) is in none of\n  {places}\n"
                f"Get it: {self.get}\nName its folder with --data-dir or ${FOLDER_VARIABLE}."
            )
        return found


def _either(path: Path) -> Path | None:
    """The file, plain or gzipped, or the folder."""
    packed = path.with_name(f"{path.name}.gz")
    return path if path.exists() else packed if packed.is_file() else None


_MNIST_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)

CATALOGUE: dict[str, DataSet] = {
    entry.name: entry
    for entry in (
        DataSet(
            name="mnist",
            about="70,000 handwritten digits of 28x28 pixels, in IDX files",
            size="12 MB",
            licence="CC BY-SA 3.0",
            files=_MNIST_FILES,
            by_hand="put its four IDX files, gzipped or not, into a folder `mnist`",
        ),
        DataSet(
            name="fashion_mnist",
            about="70,000 garments of 28x28 pixels in 10 classes, in IDX files",
            size="31 MB",
            licence="MIT",
            files=_MNIST_FILES,
            sha256={
                _MNIST_FILES[0]: "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                _MNIST_FILES[1]: "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
                _MNIST_FILES[2]: "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                _MNIST_FILES[3]: "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            },
            installed_at=(Path("/usr/share/datasets/fashion-mnist"),),
            debian_package="dataset-fashion-mnist",
            by_hand="put its four IDX files, gzipped or not, into a folder `fashion_mnist`",
        ),
    )
}


def data_set(name: str) -> DataSet:
    if name not in CATALOGUE:
        raise unknown("data set", name, CATALOGUE)
    return CATALOGUE[name]
