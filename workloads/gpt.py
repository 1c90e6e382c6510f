"""A GPT of today: RMSNorm in front of each layer, rotary positions, no biases, squared ReLU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, make_dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from orchestrator.records import BadInput
from orchestrator.workloads.base import Group, Workload, check_range
from orchestrator.workloads.language import TEXTS, Text


@dataclass(frozen=True)
class GPT(Text):
    """A GPT on a text, which it reads byte by byte (Jane Austen's novels: by character)."""

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

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = dict.fromkeys(("width", "head_width"), (2, 2**16))
        check_range(self, layers=(1, 1000), base_width=(0, 2**16), **sizes)
        if self.width % self.head_width or self.head_width % 2:
            raise BadInput(
                "`width` must be a multiple of `head_width`, which must be even, but they are "
                f"{self.width} and {self.head_width}.",
                code="wrong-value",
            )

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
        self.embedding = nn.Embedding(of.vocabulary, of.width)
        self.blocks = nn.ModuleList(GPTBlock(of.width, of.head_width) for _ in range(of.layers))
        self.norm = nn.RMSNorm(of.width)
        self.head = nn.Linear(of.width, of.vocabulary, bias=False)
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
    f"{dataset}/{name}": make_dataclass(
        "GPT",
        [(option, int, size) for option, size in zip(OPTIONS, sizes, strict=True)],
        bases=(GPT,),
        namespace={"dataset": dataset, "goal": f"val/loss < {goal}", "__doc__": GPT.__doc__},
        frozen=True,
    )
    for name, (*sizes, goal) in SIZES.items()
    for dataset in (TEXTS if name == "gpt" else ["sympy"])
}
