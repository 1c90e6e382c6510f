"""Readers of data sets, on small files in exactly their formats, and on broken files."""

import gzip
import hashlib
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from orchestrator.records import BadInput
from orchestrator.workloads import load_workload
from orchestrator.workloads.data import data_set, fetch, read_cifar10, read_idx
from orchestrator.workloads.data.fetch import check

IMAGES = np.arange(5 * 4 * 3, dtype=np.uint8).reshape(5, 4, 3)


def idx(array: np.ndarray, kind: int = 8) -> bytes:
    return (
        struct.pack(f">BBBB{array.ndim}i", 0, 0, kind, array.ndim, *array.shape) + array.tobytes()
    )


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_idx_plain_and_gzipped(tmp_path: Path, pack: type) -> None:
    path = tmp_path / "images"
    path.write_bytes(pack(idx(IMAGES)))
    assert np.array_equal(read_idx(path, shape=(None, 4, 3)), IMAGES)


def test_idx_of_other_types(tmp_path: Path) -> None:
    numbers = np.array([1.5, -2.25, 1e30], dtype=">f8")
    (tmp_path / "numbers").write_bytes(idx(numbers, 0x0E))
    assert np.array_equal(read_idx(tmp_path / "numbers", shape=(3,)), numbers)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "begins with nothing"),
        (b"\x89PNG", "begins with 89 50 4e 47"),
        (idx(IMAGES)[:-1], "announces 60 bytes, it has 59"),
        (idx(IMAGES) + b"x", "announces 60 bytes, it has more"),
        (idx(IMAGES)[:9], "announces 3 dimensions"),
        (struct.pack(">BBBB3i", 0, 0, 8, 3, 2**31 - 1, 4, 3), "announces 25,769,803,764 bytes"),
        (struct.pack(">BBBB3i", 0, 0, 8, 3, -1, 4, 3), "holds -1x4x3"),
        (struct.pack(">BBBB", 0, 0, 8, 255), "announces 255 dimensions"),
        (idx(IMAGES.reshape(5, 3, 4)), "holds 5x3x4 elements, not Nx4x3"),
        (idx(IMAGES, 0x07), "is no IDX file"),
        (gzip.compress(idx(IMAGES), mtime=0)[:-9], "can't be read"),
        (gzip.compress(idx(IMAGES), mtime=0)[:20] + b"junk", "can't be read"),
    ],
)
def test_broken_idx_is_refused_by_name(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "train-images"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=message) as refusal:
        read_idx(path, shape=(None, 4, 3))
    assert str(path) in str(refusal.value)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=80))
def test_no_bytes_crash_the_reader(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(BadInput):
        read_idx(tmp_path / "x", shape=(None, 28, 28))


def test_cifar10(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(256, size=(6, 3, 32, 32), dtype=np.uint8)
    labels = rng.integers(10, size=6, dtype=np.uint8)
    paths = [tmp_path / "data_batch_1.bin", tmp_path / "data_batch_2.bin"]
    for path, part in zip(paths, (slice(4), slice(4, 6)), strict=True):
        records = np.concatenate([labels[part, None], images[part].reshape(-1, 3072)], axis=1)
        path.write_bytes(records.tobytes())
    read_images, read_labels = read_cifar10(paths)
    assert np.array_equal(read_images, images)
    assert np.array_equal(read_labels, labels)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "0 bytes"),
        (bytes(3072), "3,072 bytes are not a whole number"),
        (b"\x0a" + bytes(3072), "labels must be from 0 to 9, but one is 10"),
        (None, "can't be read: No such file"),
    ],
)
def test_broken_cifar10_is_refused_by_name(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "data_batch_1.bin"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadInput, match=message) as refusal:
        read_cifar10([path])
    assert str(path) in str(refusal.value)


def test_contents_are_checked_packed_or_not(tmp_path: Path) -> None:
    entry = replace(
        data_set("mnist"), sha256={"train-labels-idx1-ubyte": hashlib.sha256(b"right").hexdigest()}
    )
    for name, content in (("a", b"right"), ("a.gz", gzip.compress(b"right"))):
        (tmp_path / name).write_bytes(content)
        check(entry, "train-labels-idx1-ubyte", tmp_path / name)
    (tmp_path / "b.gz").write_bytes(gzip.compress(b"wrong"))
    with pytest.raises(BadInput, match="is corrupt or another version"):
        check(entry, "train-labels-idx1-ubyte", tmp_path / "b.gz")


def test_what_cannot_be_fetched_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BadInput, match="No package of mnist"):
        fetch(data_set("mnist"), tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadInput, match="needs the program apt-get"):
        fetch(data_set("fashion_mnist"), tmp_path)
    failing = tmp_path / "apt-get"
    failing.write_text("#!/bin/sh\necho E: no such package >&2; exit 100\n")
    failing.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(BadInput, match="failed: E: no such package"):
        fetch(data_set("fashion_mnist"), tmp_path)
    assert list(tmp_path.iterdir()) == [failing]


def test_packages_are_fetched_into_folders_of_any_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This includes a folder that is relative to the current one."""
    commands = {
        "apt-get": "touch a.deb",
        "dpkg-deb": 'test -f "$2" && mkdir "$3" && echo It is a truth > "$3/austen.txt"',
    }
    for name, line in commands.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.chdir(tmp_path)
    entry = replace(data_set("austen"), make=None, sha256={})
    for folder in (Path("data"), tmp_path / "other"):
        assert (fetch(entry, folder) / "austen.txt").read_text() == "It is a truth\n"


def test_digits_are_those_of_scikit_learn_unless_refused(tmp_path: Path) -> None:
    splits = load_workload("digits/cnn").data(tmp_path)
    images, labels = load_digits(return_X_y=True)
    read = np.concatenate([split.tensors[0].numpy() for split in splits.values()])  # type: ignore[attr-defined]
    order = np.random.default_rng(0).permutation(len(labels))
    assert np.array_equal(read * 16, images[order])
    (tmp_path / "digits").mkdir()
    for content in ("1,2\n3,4\n", "one,two\n"):
        (tmp_path / "digits" / "digits.csv").write_text(content)
        with pytest.raises(BadInput, match=r"digits\.csv (can't be read|is not scikit-learn's)"):
            load_workload("digits/mlp").data(tmp_path)
