"""Photographs in folders and shards, including broken ones, and the workloads that train on
them."""

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import refused
from PIL import Image

from orchestrator.workloads import load_workload
from orchestrator.workloads.data.image_folders import ImageFiles, class_folders, read_classes

SEEDS = torch.tensor([3, 1, 4, 1, 5])


def picture(seed: int, size: tuple[int, int] = (50, 40), kind: str = "JPEG") -> bytes:
    pixels = np.random.default_rng(seed).integers(256, size=(*size[::-1], 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def tar(members: dict[str, bytes], **options: object) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", **options) as shard:
        for name, content in members.items():
            header = tarfile.TarInfo(name)
            header.size, header.mtime = len(content), 0.5  # which takes a header of its own
            shard.addfile(header, io.BytesIO(content))
    return file.getvalue()


GOOD = {"a.jpg": picture(0), "a.cls": b"3\n", "b.png": picture(1, kind="PNG"), "b.cls": b"0"}


def shards(folder: Path, *contents: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    for number, content in enumerate(contents):
        (folder / f"{number}.tar").write_bytes(content)
    return folder


def test_shards_and_folders_hold_the_same(small_data: Path, tmp_path: Path) -> None:
    imagenet = small_data / "imagenet"
    names = class_folders(imagenet / "train")
    files = sorted((imagenet / "train").glob("*/*"))
    members: dict[str, bytes] = {}
    for path in files:
        members[f"{path.stem}.jpg"] = path.read_bytes()
        members[f"{path.stem}.cls"] = str(names.index(path.parent.name)).encode()
    packed = list(members.items())
    folder = shards(tmp_path / "shards", tar(dict(packed[:40])), tar(dict(packed[40:])))
    one = read_classes(imagenet / "train", names, 1000)
    other = read_classes(folder, [], 1000)
    assert len(one) == len(other) == 70
    assert one.classes.tolist() == other.classes.tolist()
    index = torch.tensor([0, 69, 19, 20, 33])
    for seeds in (None, SEEDS):
        assert torch.equal(*(images.pixels(index, 32, seeds, 2) for images in (one, other)))


@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_long_names_keep_their_ends(tmp_path: Path, kind: int) -> None:
    long = "é" * 120
    names = {f"{long}{key}{end}": content for key in "xy" for end, content in (
        (".jpg", picture(0)), (".cls", b"1"))}  # fmt: skip
    images = read_classes(shards(tmp_path / "s", tar(names, format=kind)), [], 10)
    assert images.classes.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", ("corrupt", "empty file")),
        (picture(0), ("corrupt",)),
        (tar(GOOD)[:2600], ("corrupt", "unexpected end of data")),
        (
            tar({**GOOD, "c": b"x" * 512}).rstrip(b"\0") + b"x" * 512,
            ("corrupt", "no part of a tar"),
        ),
        (tar(GOOD).replace(b"a.cls", b"b.cls", 1), ("corrupt",)),
        (tar({"b7.jpg": b"x"}), ("corrupt", "b7", ".cls")),
        (tar({**GOOD, "a.png": b"x"}), ("corrupt", "a.png")),
        (tar({**GOOD, "a.cls": b"10"}), ("wrong-value", "a.cls", 9, "'10'")),
        (tar({**GOOD, "a.cls": b"9" * 5000}), ("wrong-value", "a.cls", 9)),
        (tar({**GOOD, "a.cls": b"1 2"}), ("wrong-value", "a.cls", "one", "'1 2'")),
        (tar({}), ("empty",)),
    ],
)
def test_broken_shards_are_refused_by_name(tmp_path: Path, content: bytes, said: Any) -> None:
    with refused(*said, tmp_path / "train"):
        read_classes(shards(tmp_path / "train", content), [], 10)


def test_an_image_that_cannot_be_decoded_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "a class" / "an image.JPEG"
    path.parent.mkdir()
    path.write_bytes(picture(0))
    images = read_classes(tmp_path, class_folders(tmp_path), 10)
    for content in (picture(0)[:-500], b"junk", b""):
        path.write_bytes(content)
        with refused("unreadable", path):
            images.pixels(torch.tensor([0]), 32, None, 1)
    path.unlink()
    with refused("unreadable", path, "No such file"):
        images.pixels(torch.tensor([0]), 32, None, 1)


def test_impossible_folders_are_refused(small_data: Path, tmp_path: Path) -> None:
    imagenet = small_data / "imagenet"
    names = class_folders(imagenet / "train")
    with refused("too-many", imagenet / "train", 9, 10):
        read_classes(imagenet / "train", names, 9)
    with refused("unknown-name", imagenet / "val" / "n00000009"):
        read_classes(imagenet / "val", names[:9], 1000)
    (tmp_path / "empty").mkdir()
    with refused("empty", tmp_path / "empty"):
        read_classes(tmp_path / "empty", [], 1000)
    file = imagenet / "train" / names[0] / "train_0.JPEG"
    with refused("unreadable", file, "Not a directory"):
        class_folders(file)


def pixels_of(
    content: bytes, tmp_path: Path, seeds: torch.Tensor | None, side: int
) -> torch.Tensor:
    (tmp_path / "one.png").write_bytes(content)
    images = ImageFiles.at(tmp_path, [("one.png", 0, -1)], [0])
    index = torch.zeros(1 if seeds is None else len(seeds), dtype=torch.int64)
    return images.pixels(index, side, seeds, 1)


def test_random_parts_depend_on_seeds_alone(tmp_path: Path) -> None:
    content = picture(0, kind="PNG")
    pixels = pixels_of(content, tmp_path, SEEDS, 32)
    torch.manual_seed(9)
    assert torch.equal(pixels[[2, 0]], pixels_of(content, tmp_path, SEEDS[[2, 0]], 32))
    assert torch.equal(pixels[1], pixels[3])
    assert not torch.equal(pixels[0], pixels[1])


def test_random_parts_cover_what_they_should(tmp_path: Path) -> None:
    across, down = np.meshgrid(np.arange(200), np.arange(160))
    file = io.BytesIO()
    ramps = np.stack([across, down, 0 * down], axis=2).astype(np.uint8)
    Image.fromarray(ramps).save(file, "PNG")
    parts = pixels_of(file.getvalue(), tmp_path, torch.arange(500), 16).float()
    rise = parts[:, 0, 0, -1] - parts[:, 0, 0, 0]
    width, height = rise.abs() * 16 / 15, (parts[:, 1, -1, 0] - parts[:, 1, 0, 0]) * 16 / 15
    area = width * height / (200 * 160)
    assert float((rise < 0).float().mean()) == pytest.approx(0.5, abs=0.1)
    assert 0.06 < float(area.min()) < 0.14
    assert 0.8 < float(area.max()) < 1.05
    assert 0.7 < float((width / height).min()) < float((width / height).max()) < 1.42
    assert float(width.log().sub(height.log()).mean()) == pytest.approx(0, abs=0.05)


def test_evaluation_looks_at_the_middle(tmp_path: Path) -> None:
    pixels = pixels_of(picture(0, (512, 256), "PNG"), tmp_path, None, 224)
    whole = np.array(Image.open(tmp_path / "one.png"))[16:240, 144:368]
    assert torch.equal(pixels[0], torch.from_numpy(whole).permute(2, 0, 1))


def test_no_image_is_trained_on_and_validated(small_data: Path) -> None:
    splits = load_workload("imagenet/resnet_50?image_size=32").data(small_data)
    seen = [
        row.numpy().tobytes()
        for name in ("train", "val")
        for row in splits[name].batch(torch.arange(splits[name].size))[0]
    ]
    assert len(set(seen)) == len(seen) == 70


def test_cifar10_is_standardised_and_augmented_if_asked_for(small_data: Path) -> None:
    train = load_workload("cifar10/resnet_8").data(small_data)["train"]
    inputs, _ = train.batch(torch.arange(270))
    torch.testing.assert_close(inputs.mean(dim=(0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(inputs.std(dim=(0, 2, 3)), torch.ones(3))
    assert not train.seeded
    for name in ("resnet_32", "resnet_50", "resnet_8?augment=true"):
        assert load_workload(f"cifar10/{name}").data(small_data)["train"].seeded
