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
from orchestrator.workloads.language import Text

TIED_DEVIATION = 0.02
"""Standard deviation of new embeddings that are the head, too. It makes the first logits small."""


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
    """Adam's best learning rate at this width is meant to be the best one at every width: see
    `groups`. 0: a learning rate is what it is."""

    goal: ClassVar[str]
    budget: ClassVar[dict[str, float]] = {"epochs": 1, "at_least_steps": 2000}

    def __post_init__(self) -> None:
        super().__post_init__()
        most = 2**16
        check_range(self, width=(2, most), layers=(1, 1000), head_width=(2, most))
        check_range(self, base_width=(0, most))
        if self.width % self.head_width or self.head_width % 2:
            raise BadInput(
                f"`width` must be a multiple of `head_width`, which must be even, but they are "
                f"{self.width} and {self.head_width}.",
                code="wrong-value",
            )

    @property
    def growth(self) -> float:
        """The width in units of the base width."""
        return self.width / (self.base_width or self.width)

    def model(self) -> nn.Module:
        network = Network(
            self.vocabulary, self.length, self.layers, self.width, self.head_width, self.growth
        )
        if self.tied:
            network.head.weight = network.embedding.weight
            nn.init.normal_(network.embedding.weight, std=TIED_DEVIATION)
        return network

    def groups(self, model: nn.Module) -> Sequence[Group]:
        """The factors of Yang et al. (2022, table 8) for Adam. Weight decay is multiplied by the
        learning rate, so its factor is the inverse."""
        if not self.base_width:
            return ()
        hidden = [n for n, p in model.named_parameters() if n.startswith("blocks.") and p.ndim > 1]
        factor = self.growth
        return [Group(parameters=hidden, learning_rate=1 / factor, weight_decay=factor)]


class Network(nn.Module):
    def __init__(
        self,
        vocabulary: int,
        length: int,
        layers: int,
        width: int,
        head_width: int,
        growth: float,
    ) -> None:
        super().__init__()
        self.width, self.growth = width, growth
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, head_width) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        nn.init.zeros_(self.head.weight)
        rates = 10_000 ** -(torch.arange(0, head_width, 2) / head_width)
        angles = torch.arange(length)[:, None] * rates
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = functional.rms_norm(self.embedding(tokens), (self.width,))
        length = tokens.shape[1]
        for block in self.blocks:
            x = block(x, self.cos[:length], self.sin[:length])  # type: ignore[index]
        return self.head(self.norm(x) / self.growth)  # type: ignore[no-any-return]


class Block(nn.Module):
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


SIZES = {
    # width, layers, head_width, length, goal
    "gpt": (64, 2, 32, 64, 1.5),
    "gpt_1m": (128, 5, 32, 128, 1.2),
    "gpt_10m": (384, 6, 64, 256, 1.0),
    "gpt_100m": (768, 14, 64, 1024, 0.8),
}
"""Networks by name, of 0.1, 1, 10 and 100 million weights. All numbers are our choice."""


def _named(dataset: str, size: str) -> type[Workload]:
    width, layers, head_width, length, goal = SIZES[size]
    defaults = {"width": width, "layers": layers, "head_width": head_width, "length": length}
    return make_dataclass(
        "GPT",
        [(name, int, default) for name, default in defaults.items()],
        bases=(GPT,),
        namespace={"dataset": dataset, "goal": f"val/loss < {goal}", "__doc__": GPT.__doc__},
        frozen=True,
    )


REGISTERED: dict[str, type[Workload]] = {
    **{f"sympy/{size}": _named("sympy", size) for size in SIZES},
    "austen/gpt": _named("austen", "gpt"),
}
