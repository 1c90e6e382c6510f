"""Token files, how they are made from text, and the workloads that use them."""

import gzip
import math
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import refused
from torch import nn

from orchestrator.workloads import gpt, load_workload, next_token, splits_of
from orchestrator.workloads.data.catalogue import data_set
from orchestrator.workloads.data.fetch import fetch
from orchestrator.workloads.data.texts import ALPHABET, extract_austen, read_austen
from orchestrator.workloads.data.tokens import read_tokens, windows

LINES = ["Emma Woodhouse, handsome,  clever, and rich,", " with a comfortable home \u00a3 5"]


def npy(path: Path, array: np.ndarray, cut: int | None = None, behind: bytes = b"") -> Path:
    np.save(path, array, allow_pickle=True)
    path.write_bytes(path.read_bytes()[:cut] + behind)
    return path


def test_windows_predict_each_token_once(tmp_path: Path) -> None:
    path = npy(tmp_path / "train.npy", np.arange(10, dtype=np.uint16))
    rows = windows(read_tokens(path, vocabulary=10), 4, path)
    assert rows.tolist() == [[0, 1, 2, 3, 4], [4, 5, 6, 7, 8]]


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (lambda path: path.write_bytes(b""), ("unreadable",)),
        (lambda path: npy(path, np.array([{}, 1], dtype=object)), ("unreadable",)),
        (lambda path: npy(path, np.arange(9, dtype=np.uint16), cut=90), ("unreadable",)),
        # Of which Python's tokenizer raises an error of its own.
        (
            lambda path: path.write_bytes(npy(path, np.zeros(9)).read_bytes().replace(b"}", b"(")),
            ("unreadable",),
        ),
        (lambda path: npy(path, np.arange(9, dtype="u2"), behind=b"x"), ("corrupt", 146, 147)),
        (lambda path: npy(path, np.arange(9)), ("corrupt", 1, "int64")),
        (lambda path: npy(path, np.zeros((3, 3), np.uint16)), ("corrupt", 2, "uint16")),
        (lambda path: npy(path, np.arange(9, dtype=np.uint16) + 92), ("wrong-value", 100)),
        (lambda path: npy(path, np.zeros(0, np.uint16)), ("too-few", 8, 0)),
        (lambda path: npy(path, np.zeros(8, np.uint32)), ("too-few", 8)),
    ],
)
def test_broken_token_files_are_refused_by_name(
    tmp_path: Path, write: Callable[[Path], Any], said: Any
) -> None:
    path = tmp_path / "train.npy"
    write(path)
    with refused(*said, path):
        windows(read_tokens(path, vocabulary=100), 8, path)


def test_tokens_beyond_the_vocabulary_are_refused_wherever_they_are(data_dir: Path) -> None:
    tokens = np.zeros(100_000, np.uint16)
    tokens[-100:] = 32_000
    for part in ("train", "val"):
        npy(data_dir / "lm1b" / f"{part}.npy", tokens)
    train = load_workload("lm1b/transformer").data(data_dir)["train"]
    train.batch(torch.tensor([0, 1]))
    with refused("wrong-value", data_dir / "lm1b" / "train.npy", "32,000"):
        train.batch(torch.tensor([0, 1561]))
    load_workload("lm1b/lstm?vocabulary=32001").data(data_dir)["train"].batch(torch.tensor([1561]))


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    (tmp_path / "lm1b").mkdir()
    return tmp_path


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Writes text for all of LM1B's splits, in plain and in packed files."""
    folder = tmp_path / "lm1b" / "text"
    for split in ("train", "val", "test"):
        (folder / split).mkdir(parents=True)
        (folder / split / "a.txt").write_text(f"{LINES[0]}\n\n")
        (folder / split / "b.gz").write_bytes(gzip.compress(LINES[1].encode()))
    return folder


def test_tokens_are_the_text(tmp_path: Path, text: Path) -> None:
    from sentencepiece import SentencePieceProcessor

    folder = fetch(data_set("lm1b"), tmp_path)
    assert sorted(p.name for p in folder.iterdir()) == [
        "test.npy", "text", "tokenizer.model", "train.npy", "val.npy",
    ]  # fmt: skip
    tokenizer = SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    for split in ("train", "val", "test"):
        tokens = read_tokens(folder / f"{split}.npy", vocabulary=tokenizer.get_piece_size())
        ends = np.flatnonzero(tokens == tokenizer.eos_id())
        lines = [part.tolist() for part in np.split(tokens, ends + 1)]
        assert [tokenizer.decode(line) for line in lines] == [*LINES, ""]

    before = (folder / "tokenizer.model").read_bytes()
    (text / "train" / "a.txt").write_text("Something else altogether\n")
    fetch(data_set("lm1b"), tmp_path)
    assert (folder / "tokenizer.model").read_bytes() == before


def test_sampled_lines_come_from_everywhere(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from orchestrator.workloads.data import tokens as module

    (text / "train" / "a.txt").write_text("".join(f"{i}\n" for i in range(1000)))
    monkeypatch.setattr(module, "SAMPLE", 100)
    sample = module._sample([text / "train" / "a.txt"])
    assert len(set(sample)) == 100
    assert 400 < np.mean([int(line) for line in sample]) < 600


@pytest.mark.parametrize(
    ("spoil", "code", "file"),
    [
        (lambda text: (text / "val/a.txt").write_bytes(b"\xff\xfe"), "unreadable", "val/a.txt"),
        (lambda text: (text / "val/b.gz").write_bytes(b"\x1f\x8b no"), "unreadable", "val/b.gz"),
        (lambda text: (text / "val").rename(text / "other"), "empty", "val"),
        (lambda text: (text / "train").rename(text / "other"), "empty", "train"),
        (lambda text: (text.parent / "tokenizer.model").write_bytes(b"junk"), "corrupt",
            "../tokenizer.model"),
        (lambda text: [f.write_bytes(b"") for f in (text / "train").glob("*.txt")]
            + [f.unlink() for f in (text / "train").glob("*.gz")], "corrupt", "train"),
    ],
)  # fmt: skip
def test_text_that_cannot_be_used_leaves_nothing_behind(
    tmp_path: Path, text: Path, spoil: Callable[[Path], Any], code: str, file: str
) -> None:
    spoil(text)
    before = sorted(tmp_path.rglob("*"))
    with refused(code, (text / file).resolve()):
        fetch(data_set("lm1b"), tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


def r_strings(lines: list[str], kind: int = 16) -> bytes:
    """Returns a vector of strings in R's serialisation format, version 3, big-endian."""
    stream = b"X\n" + struct.pack(">4i", 3, 0x40201, 0x30500, 5) + b"UTF-8"
    stream += struct.pack(">ii", kind, len(lines))
    for line in lines:
        stream += struct.pack(">ii", 0x40009, len(line.encode())) + line.encode()
    return stream


def rdb(*streams: bytes) -> bytes:
    return b"".join(struct.pack(">I", len(s)) + zlib.compress(s) for s in streams)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    (tmp_path / "R" / "janeaustenr" / "data").mkdir(parents=True)
    return tmp_path


def test_novels_are_joined(package: Path) -> None:
    path = package / "R" / "janeaustenr" / "data" / "Rdata.rdb"
    path.write_bytes(rdb(r_strings(["EMMA", "", "By Jane Austen"]), r_strings(["\u00a3 5"])))
    extract_austen(package, package)
    assert (package / "austen.txt").read_text() == "EMMA\n\nBy Jane Austen\n\u00a3 5\n"
    places = read_austen(package / "austen.txt")
    assert "".join(ALPHABET[place] for place in places) == "EMMA\n\nBy Jane Austen\n\u00a3 5\n"


GOOD = r_strings(["EMMA", "By Jane Austen"])


@pytest.mark.parametrize(
    ("content", "values"),
    [
        (b"\0\0", ("buffer",)),
        (struct.pack(">I", 2**32 - 1) + zlib.compress(GOOD), ("4,294,967,295 bytes",)),
        (struct.pack(">I", len(GOOD) - 1) + zlib.compress(GOOD), ("64 bytes", 65)),
        (rdb(GOOD)[:-6], ("65 bytes",)),
        (rdb(GOOD + b"x"), ("1 bytes",)),
        (rdb(GOOD[:33]), ("buffer",)),
        (rdb(r_strings(["EMMA"], kind=19)), ("type 19",)),
        (rdb(b"A\n" + GOOD[2:]), ("R object",)),
        (rdb(GOOD.replace(b"\4\0\x09", b"\4\0\x08", 1)), ("4 bytes", "type 8")),
        (rdb(GOOD[:14] + struct.pack(">i", -14) + GOOD[18:]), ("R object",)),
        (rdb(GOOD.replace(b"EMMA", b"EM\xff\xff")), ("0xff",)),
    ],
)
def test_broken_packages_are_refused_by_name(package: Path, content: bytes, values: Any) -> None:
    path = package / "R" / "janeaustenr" / "data" / "Rdata.rdb"
    with refused("no-such-file", "janeaustenr/data/Rdata.rdb"):
        extract_austen(package, package)
    path.write_bytes(content)
    with refused("corrupt", path, *values):
        extract_austen(package, package)
    assert not (package / "austen.txt").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff", ("unreadable", "0xff")),
        ("na\u00efve".encode(), ("corrupt", "'\u00ef'")),
        (b"too short", ("too-few", 64)),
    ],
)
def test_broken_novels_are_refused_by_name(tmp_path: Path, content: bytes, said: Any) -> None:
    path = tmp_path / "austen" / "austen.txt"
    path.parent.mkdir()
    path.write_bytes(content)
    with refused(*said, path):
        load_workload("austen/lstm").data(tmp_path)


def test_novels_are_split_by_position(tmp_path: Path) -> None:
    (tmp_path / "austen").mkdir()
    text = "".join(ALPHABET[i % 80] for i in range(100_000))
    (tmp_path / "austen" / "austen.txt").write_text(text)
    splits = splits_of(load_workload("austen/lstm?length=8"), tmp_path)
    assert {name: split.size for name, split in splits.items()} == {
        "train": 89_999 // 8, "val": 512, "test": 512,
    }  # fmt: skip
    (last,) = splits["val"].batch(torch.tensor([511]))
    start = 90_000 + 511 * 624 // 512 * 8
    assert "".join(ALPHABET[token] for token in last[0]) == text[start : start + 9]


@pytest.mark.parametrize("name", ["austen/transformer", "austen/lstm", "austen/gpt"])
def test_no_prediction_sees_what_it_predicts(name: str) -> None:
    model = load_workload(name).model().eval()
    nn.init.normal_(model.get_parameter("head.weight" if "gpt" in name else "logits.weight"))
    tokens = torch.randint(81, (2, 64))
    changed = tokens.clone()
    changed[:, 40:] = (changed[:, 40:] + 1) % 81
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :40], after[:, :40])
    assert not torch.isclose(before[:, 40], after[:, 40]).all()


def test_evaluating_in_parts_is_evaluating(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = load_workload("austen/lstm")
    model = workload.model()
    batch = (torch.randint(81, (7, 65)),)
    whole = workload.metrics(model, batch)
    assert torch.equal(whole["loss"], workload.loss(model, batch))
    monkeypatch.setattr(next_token, "TOKENS_AT_ONCE", 128)
    parts = workload.metrics(model, batch)
    for metric, values in whole.items():
        torch.testing.assert_close(parts[metric], values)
    assert workload.metrics(model, (batch[0][:0],))["error"].shape == (0,)


def test_what_is_not_a_number_is_wrong() -> None:
    workload = load_workload("austen/lstm")
    metrics = workload.metrics(
        lambda tokens: torch.full((*tokens.shape, 81), torch.nan), (torch.zeros(2, 65).long(),)
    )
    assert metrics["error"].tolist() == [1, 1]


@pytest.mark.parametrize(("option", "value", "bound"), [("length", 0, 1), ("vocabulary", 1, 2)])
def test_impossible_options_are_refused(option: str, value: int, bound: int) -> None:
    with refused("wrong-value", f"`{option}`", value, bound):
        load_workload(f"lm1b/transformer?{option}={value}")


WINDOWS = torch.arange(2 * 65).view(2, 65) ** 2 * 7 % 251
TOKENS = WINDOWS[:, :-1]


def workload_of(**options: Any) -> gpt.GPT:
    written = "&".join(f"{name}={value}" for name, value in options.items())
    workload = load_workload(f"sympy/gpt?{written}")
    assert isinstance(workload, gpt.GPT)
    return workload


def normed(x: torch.Tensor, scale: Any = 1.0) -> torch.Tensor:
    return x / (x.square().mean(-1, keepdim=True) + torch.finfo(x.dtype).eps).sqrt() * scale


def turned(x: torch.Tensor) -> torch.Tensor:
    """Rotary positions by complex numbers: number i and number i + half are one."""
    half = x.shape[-1] // 2
    rates = torch.tensor([10_000 ** (-i / half) for i in range(half)], dtype=x.dtype)
    angles = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] * rates
    numbers = torch.complex(x[..., :half], x[..., half:]) * torch.polar(angles * 0 + 1, angles)
    return torch.cat((numbers.real, numbers.imag), -1)


def by_hand(weights: Any, tokens: torch.Tensor, head_width: int, growth: float) -> torch.Tensor:
    x = normed(weights["embedding.weight"][tokens])
    for layer in range(sum(name.endswith("up.weight") for name in weights)):
        w = {name: weights[f"blocks.{layer}.{name}.weight"] for name in (
            "norm", "query", "key", "value", "attended", "second_norm", "up", "down")}  # fmt: skip
        inputs = normed(x, w["norm"])
        heads = []
        for start in range(0, x.shape[2], head_width):
            rows = slice(start, start + head_width)
            q, k, v = (inputs @ w[part][rows].T for part in ("query", "key", "value"))
            scores = turned(q) @ turned(k).transpose(1, 2) / math.sqrt(head_width)
            future = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
            heads.append(scores.masked_fill(future, -math.inf).softmax(2) @ v)
        x = x + torch.cat(heads, 2) @ w["attended"].T
        x = x + (normed(x, w["second_norm"]) @ w["up"].T).clamp(min=0) ** 2 @ w["down"].T
    return normed(x, weights["norm.weight"]) @ weights["head.weight"].T / growth


@pytest.mark.parametrize("options", [{}, {"tied": "true", "base_width": 32, "width": 96}])
def test_the_network_is_the_one_written_by_hand(options: Any) -> None:
    workload = workload_of(**options)
    model = workload.model().double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    weights = {**model.state_dict()}
    growth = 3 if options else 1
    assert torch.allclose(model(TOKENS), by_hand(weights, TOKENS, 32, growth), rtol=1e-5, atol=1e-5)
    assert (model.head.weight is model.embedding.weight) == bool(options)


def test_it_begins_with_equal_chances() -> None:
    workload = workload_of()
    losses = workload.loss(workload.model(), WINDOWS)
    assert losses.tolist() == pytest.approx([math.log(256)] * 2)
    tied = workload_of(tied="true")
    assert tied.loss(tied.model(), WINDOWS).tolist() == pytest.approx([math.log(256)] * 2, rel=0.05)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"width": 48}, ("wrong-value", "`head_width`", 48, 32)),
        ({"width": 35, "head_width": 5}, ("wrong-value", "`head_width`", 35, 5)),
        ({"layers": 0}, ("wrong-value", "`layers`", 1, 0)),
        ({"base_width": -1}, ("wrong-value", "`base_width`", 0, -1)),
        ({"width": 0}, ("wrong-value", "`width`", 2, 0)),
    ],
)
def test_impossible_sizes_are_refused(options: Any, said: Any) -> None:
    with refused(*said):
        workload_of(**options)


def moved(width: int, **options: Any) -> float:
    """Returns how far a few steps of Adam move the logits, as a root mean square."""
    torch.manual_seed(0)
    workload = workload_of(width=width, head_width=16, **options)
    model = workload.model()
    named = dict(model.named_parameters())
    groups = []
    for group in workload.groups(model):
        members = [named.pop(name) for name in group.parameters]
        groups.append({"params": members, "lr": 0.01 * group.learning_rate})
    optimizer = torch.optim.Adam([*groups, {"params": [*named.values()]}], lr=0.01)
    before = model(TOKENS).detach()
    for _ in range(4):
        optimizer.zero_grad()
        workload.loss(model, WINDOWS).sum().backward()
        optimizer.step()
    return (model(TOKENS) - before).square().mean().sqrt().item()


WIDTHS = (32, 64, 128, 256)


def test_with_a_base_width_activations_move_alike_at_every_width() -> None:
    """The coordinate check of Yang et al. (2022)."""
    scaled = [moved(width, base_width=32) for width in WIDTHS]
    plain = [moved(width) for width in WIDTHS]
    assert scaled[0] == plain[0]
    assert max(scaled) < 1.5 * min(scaled)
    assert plain[-1] > 3 * plain[0]


def test_groups_are_the_matrices_of_blocks() -> None:
    workload = workload_of(width=128, base_width=32, layers=3)
    (group,) = workload.groups(workload.model())
    assert (group.learning_rate, group.weight_decay) == (1 / 4, 4)
    assert len({*group.parameters}) == 3 * 6
    assert workload_of(width=128).groups(workload.model()) == []
