"""The GPT: its data, its losses and its network."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import refused
from torch import nn

from orchestrator.workloads import gpt, load_workload, next_token, splits_of


def test_a_text_that_is_too_short_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "sympy" / "sympy.txt"
    path.parent.mkdir()
    path.write_bytes(b"too short")
    with refused("too-few", 64, path):
        load_workload("sympy/gpt").data(tmp_path)


def test_a_text_is_split_by_position_into_windows(tmp_path: Path) -> None:
    (tmp_path / "sympy").mkdir()
    text = bytes(i % 251 for i in range(100_000))
    (tmp_path / "sympy" / "sympy.txt").write_bytes(text)
    splits = splits_of(load_workload("sympy/gpt?length=8"), tmp_path)
    assert {name: split.size for name, split in splits.items()} == {
        "train": 89_999 // 8, "val": 512, "test": 512,
    }  # fmt: skip
    (first,) = splits["train"].batch(torch.arange(2))
    assert [bytes(row.tolist()) for row in first] == [text[:9], text[8:17]]
    (last,) = splits["val"].batch(torch.tensor([511]))
    start = 90_000 + 511 * 624 // 512 * 8
    assert bytes(last[0].tolist()) == text[start : start + 9]


def test_evaluating_in_parts_is_evaluating(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = workload_of()
    model = workload.model()
    nn.init.normal_(model.get_parameter("head.weight"))
    batch = (torch.randint(256, (7, 65)),)
    whole = workload.metrics(model, batch)
    assert torch.equal(whole["loss"], workload.loss(model, batch))
    monkeypatch.setattr(next_token, "TOKENS_AT_ONCE", 128)
    parts = workload.metrics(model, batch)
    for metric, values in whole.items():
        torch.testing.assert_close(parts[metric], values)
    assert workload.metrics(model, (batch[0][:0],))["error"].shape == (0,)


def test_what_is_not_a_number_is_wrong() -> None:
    metrics = workload_of().metrics(
        lambda tokens: torch.full((*tokens.shape, 256), torch.nan), (torch.zeros(2, 65).long(),)
    )
    assert metrics["error"].tolist() == [1, 1]


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
