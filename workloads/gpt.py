"""A GPT of today, on source code in bytes: RMSNorm in front of each layer, rotary positions, no
biases, squared ReLU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from orchestrator.records import BadInput
from orchestrator.workloads.base import Group, Workload, check_range
from orchestrator.workloads.data.catalogue import data_set
from orchestrator.workloads.data.sources import read_bytes
from orchestrator.workloads.next_token import NextToken
from orchestrator.workloads.splits import Split, Subset, Tensors

VOCABULARY = 256
"""Number of tokens: a token is a byte."""


@dataclass(frozen=True)
class GPT(NextToken):
    """A GPT on a text, which it reads byte by byte. An example is a window of the text."""

    length: int = 64
    """Number of tokens to predict per example."""
    evaluated: int = 512
    """Largest number of windows of a split that are evaluated; 0: all."""
    width: int = 64
    """Must be a multiple of `head_width`."""
    layers: int = 2
    head_width: int = 32
    """Width of each head of attention."""
    tied: bool = False
    """Whether the head has the weights of the embedding."""
    base_width: int = 0
    """Width whose best learning rate for Adam is meant to be the best at every width; 0: none."""

    goal: ClassVar[str]
    budget: ClassVar[dict[str, float]] = {"epochs": 2, "at_least_steps": 2000}
    evaluation_spacing: ClassVar[float] = 0.05
    # Evaluating 512 windows takes as long as training on 171, a sixth of this number.
    evaluation_min_examples: ClassVar[int] = 1024

    def __post_init__(self) -> None:
        sizes = dict.fromkeys(("width", "head_width"), (2, 2**16))
        check_range(self, length=(1, 2**20), evaluated=(0, 2**40), layers=(1, 1000))
        check_range(self, base_width=(0, 2**16), **sizes)
        if self.width % self.head_width or self.head_width % 2:
            raise BadInput(
                "`width` must be a multiple of `head_width`, which must be even, but they are "
                f"{self.width} and {self.head_width}.",
                code="wrong-value",
            )

    def data(self, data_dir: Path | None) -> Mapping[str, Split]:
        (path,) = data_set("sympy").need(data_dir).values()
        tokens = read_bytes(path)
        # Our choice: the end of the text is held out.
        train, val, test = np.split(tokens, [len(tokens) * 90 // 100, len(tokens) * 95 // 100])
        return {
            "train": self._windows(train, path),
            "val": self._evaluated(self._windows(val, path)),
            "test": self._evaluated(self._windows(test, path)),
        }

    def _windows(self, tokens: NDArray[np.uint8], path: Path) -> Tensors:
        """Returns rows of `length + 1` tokens. The last token of a row is the first of the next
        row, so each token is predicted once."""
        if len(tokens) <= self.length:
            raise BadInput(
                f"{path} must hold more than a window of {self.length} tokens for each split, but "
                f"one has {len(tokens)}.",
                code="too-few",
            )
        rows = sliding_window_view(tokens, self.length + 1)[:: self.length]
        return Tensors(torch.from_numpy(rows.astype(np.int64)))

    def _evaluated(self, split: Split) -> Split:
        """Returns the windows of the split that are evaluated, spread evenly over the split."""
        assert split.size is not None
        count = min(split.size, self.evaluated or split.size)
        return Subset(split, torch.arange(count) * split.size // count)

    @property
    def widening(self) -> float:
        """The width in units of the base width."""
        return self.width / (self.base_width or self.width)

    def model(self) -> nn.Module:
        return Network(self)

    def groups(self, model: nn.Module) -> Sequence[Group]:
        """The factors of Yang et al. (2022, table 8) for Adam, whose decay the rate multiplies."""
        hidden = [n for n, p in model.named_parameters() if n.startswith("blocks.") and p.ndim > 1]
        group = Group(
            parameters=hidden, learning_rate=1 / self.widening, weight_decay=self.widening
        )
        return [group] if self.widening != 1 else []


class Network(nn.Module):
    def __init__(self, of: GPT) -> None:
        super().__init__()
        self.width, self.widening = of.width, of.widening
        self.embedding = nn.Embedding(VOCABULARY, of.width)
        self.blocks = nn.ModuleList(GPTBlock(of.width, of.head_width) for _ in range(of.layers))
        self.norm = nn.RMSNorm(of.width)
        self.head = nn.Linear(of.width, VOCABULARY, bias=False)
        if of.tied:
            self.head.weight = self.embedding.weight
        nn.init.normal_(self.head.weight, std=0.02 if of.tied else 0.0)  # for small first logits
        rates = 10_000 ** -(torch.arange(0, of.head_width, 2) / of.head_width)
        angles = torch.arange(of.length)[:, None] * rates
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = functional.rms_norm(self.embedding(tokens), (self.width,))
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.head(self.norm(x) / self.widening)  # type: ignore[no-any-return]


class GPTBlock(nn.Module):
    def __init__(self, width: int, head_width: int) -> None:
        super().__init__()
        self.head_width = head_width
        self.norm, self.second_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query, self.key, self.value, self.attended = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        inputs = self.norm(x)
        q, k, v = (
            layer(inputs).unflatten(2, (-1, self.head_width)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        q, k = _turned(q, cos, sin), _turned(k, cos, sin)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attended(mixed.transpose(1, 2).flatten(2))
        return x + self.down(self.up(self.second_norm(x)).relu().square())  # type: ignore[no-any-return]


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns pairs of numbers by angles that grow with the position (Su et al. 2021)."""
    first, second = x.chunk(2, dim=-1)
    turned = (first * cos - second * sin, first * sin + second * cos)
    return torch.cat(turned, dim=-1).type_as(x)


OPTIONS = ("width", "layers", "head_width", "length")
SIZES = {
    # these, and the goal
    "gpt": (64, 2, 32, 64, 1.9),
    "gpt_1m": (128, 5, 32, 128, 1.2),
    "gpt_10m": (384, 6, 64, 256, 0.9),
    "gpt_100m": (768, 14, 64, 1024, 0.9),
}
"""Networks by name, of 0.1, 1, 10 and 100 million weights. All numbers are our choice."""

REGISTERED: dict[str, type[Workload]] = {
    f"sympy/{name}": make_dataclass(
        "GPT",
        [(option, int, size) for option, size in zip(OPTIONS, sizes, strict=True)],
        bases=(GPT,),
        namespace={"goal": f"val/loss < {goal}", "__doc__": GPT.__doc__},
        frozen=True,
    )
    for name, (*sizes, goal) in SIZES.items()
}
