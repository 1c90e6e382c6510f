"""Readers of data sets, on small files in exactly their formats, and on broken files."""

import gzip
import hashlib
import struct
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import refused
from make_data import idx
from sklearn.datasets import load_digits

from orchestrator.workloads import cifar10, load_workload
from orchestrator.workloads.data.catalogue import data_set
from orchestrator.workloads.data.fetch import check, fetch
from orchestrator.workloads.mnist import read_idx

IMAGES = np.arange(5 * 4 * 3, dtype=np.uint8).reshape(5, 4, 3)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_idx_plain_and_gzipped(tmp_path: Path, pack: type) -> None:
    path = tmp_path / "images"
    path.write_bytes(pack(idx(IMAGES)))
    assert np.array_equal(read_idx(path, shape=(None, 4, 3)), IMAGES)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", ("corrupt", "nothing")),
        (b"\x89PNG", ("corrupt", "89 50 4e 47")),
        (idx(IMAGES)[:-1], ("corrupt", "60 bytes", 59)),
        (idx(IMAGES) + b"x", ("corrupt", "60 bytes", 61)),
        (idx(IMAGES)[:9], ("corrupt", "00 00 08 03 00", "3 dimensions")),
        (struct.pack(">BBBB3i", 0, 0, 8, 3, 2**31 - 1, 4, 3), ("corrupt", "25,769,803,764 bytes")),
        (struct.pack(">BBBB3i", 0, 0, 8, 3, -1, 4, 3), ("corrupt", "-1x4x3")),
        (struct.pack(">BBBB", 0, 0, 8, 255), ("corrupt", "00 00 08 ff")),
        (idx(IMAGES.reshape(5, 3, 4)), ("corrupt", "5x3x4", "Nx4x3")),
        (idx(IMAGES, 0x07), ("corrupt", "00 00 07 03")),
        (gzip.compress(idx(IMAGES), mtime=0)[:-9], ("unreadable",)),
        (gzip.compress(idx(IMAGES), mtime=0)[:20] + b"junk", ("unreadable",)),
    ],
)
def test_broken_idx_is_refused_by_name(tmp_path: Path, content: bytes, said: Any) -> None:
    path = tmp_path / "train-images"
    path.write_bytes(content)
    with refused(*said, path):
        read_idx(path, shape=(None, 4, 3))


def test_cifar10(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(256, size=(6, 3, 32, 32), dtype=np.uint8)
    labels = rng.integers(10, size=6, dtype=np.uint8)
    paths = [tmp_path / "data_batch_1.bin", tmp_path / "data_batch_2.bin"]
    for path, part in zip(paths, (slice(4), slice(4, 6)), strict=True):
        records = np.concatenate([labels[part, None], images[part].reshape(-1, 3072)], axis=1)
        path.write_bytes(records.tobytes())
    found_images, found_labels = cifar10.read_images(paths)
    assert np.array_equal(found_images, images)
    assert np.array_equal(found_labels, labels)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", ("corrupt", "0 bytes")),
        (bytes(3072), ("corrupt", "3,072 bytes", "3,073 bytes")),
        (b"\x0a" + bytes(3072), ("corrupt", "label", 9, 10)),
        (None, ("unreadable", "No such file")),
    ],
)
def test_broken_cifar10_is_refused_by_name(
    tmp_path: Path, content: bytes | None, said: Any
) -> None:
    path = tmp_path / "data_batch_1.bin"
    if content is not None:
        path.write_bytes(content)
    with refused(*said, path):
        cifar10.read_images([path])


def test_contents_are_checked_packed_or_not(tmp_path: Path) -> None:
    entry = replace(
        data_set("mnist"), sha256={"train-labels-idx1-ubyte": hashlib.sha256(b"right").hexdigest()}
    )
    for name, content in (("a", b"right"), ("a.gz", gzip.compress(b"right"))):
        (tmp_path / name).write_bytes(content)
        check(entry, "train-labels-idx1-ubyte", tmp_path / name)
    (tmp_path / "b.gz").write_bytes(gzip.compress(b"wrong"))
    with refused("corrupt", "b.gz", "mnist", *entry.sha256.values()):
        check(entry, "train-labels-idx1-ubyte", tmp_path / "b.gz")


@pytest.mark.parametrize("name", ["sympy/gpt?length=8", "cifar10/resnet_8", "mnist/lenet"])
def test_files_may_be_gzipped(name: str, small_data: Path, tmp_path: Path) -> None:
    workload, folder = load_workload(name), name.partition("/")[0]
    (tmp_path / folder).mkdir()
    for file in (small_data / folder).iterdir():
        content = file.read_bytes()
        packed = gzip.compress(gzip.decompress(content) if file.suffix == ".gz" else content)
        (tmp_path / folder / f"{file.name.removesuffix('.gz')}.gz").write_bytes(packed)
    for mine, plain in zip(
        workload.data(tmp_path).values(), workload.data(small_data).values(), strict=True
    ):
        index = torch.arange(plain.size or 0)
        for one, other in zip(mine.batch(index), plain.batch(index), strict=True):
            assert torch.equal(one, other)


def program(path: Path, line: str) -> Path:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
    return path


def test_what_cannot_be_fetched_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with refused("no-package", "mnist"):
        fetch(data_set("mnist"), tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with refused("not-installed", "apt-get"):
        fetch(data_set("fashion_mnist"), tmp_path)
    failing = program(tmp_path / "apt-get", "echo E: no such package >&2; exit 100")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with refused("fetch-failed", "E: no such package"):
        fetch(data_set("fashion_mnist"), tmp_path)
    assert list(tmp_path.iterdir()) == [failing]


def test_packages_are_fetched_into_folders_of_any_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This includes a folder that is relative to the current one, and one that holds a broken
    file."""
    unpack = 'test -f "$2" && mkdir "$3" && echo It is a truth | gzip > "$3/a.txt.gz"'
    program(tmp_path / "apt-get", "touch a.deb")
    program(tmp_path / "dpkg-deb", unpack)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.chdir(tmp_path)
    entry = replace(data_set("fashion_mnist"), name="a", files=("a.txt",), sha256={})
    for folder in (Path("data"), tmp_path / "other"):
        (folder / "a").mkdir(parents=True)
        (folder / "a" / "a.txt").write_text("It is a tr")
        fetch(entry, folder)
        (path,) = entry.need(folder).values()
        assert gzip.decompress(path.read_bytes()) == b"It is a truth\n"


def test_source_code_is_the_files_of_a_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
        for name in ("sympy/a.py", "sympy/b.py", "sympy/tests/test_a.py", "sympy/c.txt"):
            wheel.writestr(name, f"# {name}\n")
    pip = program(tmp_path / "python", f'echo "$@" > {tmp_path}/asked; cp {tmp_path}/a.whl .')
    monkeypatch.setattr(sys, "executable", str(pip))
    with refused("corrupt", "sympy.txt"):
        fetch(data_set("sympy"), tmp_path / "data")
    assert not any((tmp_path / "data").iterdir())
    folder = fetch(replace(data_set("sympy"), sha256={}), tmp_path / "data")
    found = (folder / "sympy.txt").read_text()
    assert sorted(found.splitlines()) == ["# sympy/a.py", "# sympy/b.py"]
    assert (tmp_path / "asked").read_text().split()[-1] == "sympy==1.14.0"
    program(pip, "echo No module named pip >&2; exit 1")
    with refused("fetch-failed", "No module named pip"):
        fetch(data_set("sympy"), tmp_path / "other")


def test_digits_are_those_of_scikit_learn() -> None:
    splits = load_workload("digits/cnn").data(None)
    images, labels = load_digits(return_X_y=True)
    read = np.concatenate([split.tensors[0].numpy() for split in splits.values()])  # type: ignore[attr-defined]
    order = np.random.default_rng(0).permutation(len(labels))
    assert np.array_equal(read * 16, images[order])
