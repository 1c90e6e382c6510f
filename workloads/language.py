"""Language modelling: LM1B and Common Crawl in pieces of words, Jane Austen's novels in characters,
source code in bytes.

An example is a window of a stream of tokens. Sentences begin and end anywhere in a window. Shallue
et al. instead train on single sentences of LM1B, of about 30 words each.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from orchestrator.workloads.base import Workload, check_range
from orchestrator.workloads.data.catalogue import data_set
from orchestrator.workloads.data.texts import ALPHABET, read_austen, read_bytes
from orchestrator.workloads.data.tokens import (
    VOCABULARY,
    Tokens,
    check_tokens,
    read_tokens,
    windows,
)
from orchestrator.workloads.next_token import NextToken
from orchestrator.workloads.splits import Loaded, Split, Subset, Tensors
from orchestrator.workloads.trees import Batch


@dataclass(frozen=True)
class LanguageModel(NextToken):
    """Predicts each next token of a window. Subclasses define the tokens."""

    length: int = 64
    """Number of tokens to predict per example."""
    evaluated: int = 4096
    """Largest number of windows of a split that are evaluated; 0: all."""

    dataset: ClassVar[str]
    network: ClassVar[tuple[str, int, int]]
    """Kind, number of layers and width."""
    evaluation_spacing: ClassVar[float] = 0.05

    def __post_init__(self) -> None:
        check_range(self, length=(1, 2**20), evaluated=(0, 2**40))

    @property
    @abstractmethod
    def vocabulary(self) -> int:
        """The number of different tokens: every token is a number from 0 to this, exclusive."""

    def model(self) -> nn.Module:
        kind, layers, width = self.network
        if kind == "lstm":
            return LSTM(self.vocabulary, layers, width)
        return Transformer(self.vocabulary, self.length, layers, width)

    def _evaluated(self, split: Split) -> Split:
        """Returns the windows of the split that are evaluated, spread evenly over the split."""
        assert split.size is not None
        count = min(split.size, self.evaluated or split.size)
        return Subset(split, torch.arange(count) * split.size // count)


@dataclass(frozen=True)
class TokenFiles(LanguageModel):
    vocabulary: int = VOCABULARY

    # Evaluating 4,096 windows takes as long as training on 1,365, a quarter of this number.
    evaluation_min_examples: ClassVar[int] = 5461

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, vocabulary=(2, 2**20))

    def data(self, data_dir: Path | None) -> Mapping[str, Split]:
        files = data_set(self.dataset).need(data_dir)
        splits: dict[str, Split] = {"train": self._loaded(files["train.npy"])}
        splits["val"] = self._evaluated(self._loaded(files["val.npy"]))
        test = files["val.npy"].with_name("test.npy")
        if test.exists():
            splits["test"] = self._evaluated(self._loaded(test))
        return splits

    def _loaded(self, path: Path) -> Loaded:
        rows = windows(read_tokens(path, vocabulary=self.vocabulary), self.length, path)

        def fetch(index: Tensor) -> Batch:
            tokens = rows[index.numpy()]
            check_tokens(tokens, self.vocabulary, path)
            return (torch.from_numpy(tokens.astype(np.int64)),)

        return Loaded(fetch, len(rows))


TEXTS = {"austen": (read_austen, len(ALPHABET)), "sympy": (read_bytes, 256)}
"""Data set of one text -> how it is read as tokens, and their number."""


@dataclass(frozen=True)
class Text(LanguageModel):
    """A model of a text that stays in memory."""

    evaluated: int = 512
    # Evaluating 512 windows takes as long as training on 171, a sixth of this number.
    evaluation_min_examples: ClassVar[int] = 1024

    @property
    def vocabulary(self) -> int:
        return TEXTS[self.dataset][1]

    def data(self, data_dir: Path | None) -> Mapping[str, Split]:
        (path,) = data_set(self.dataset).need(data_dir).values()
        tokens = TEXTS[self.dataset][0](path)
        # Our choice: the end of the text is held out, so that no sentence is in two splits.
        train, val, test = np.split(tokens, [len(tokens) * 90 // 100, len(tokens) * 95 // 100])
        return {
            "train": self._resident(train, path),
            "val": self._evaluated(self._resident(val, path)),
            "test": self._evaluated(self._resident(test, path)),
        }

    def _resident(self, tokens: Tokens, path: Path) -> Tensors:
        return Tensors(torch.from_numpy(windows(tokens, self.length, path).astype(np.int64)))


# The models map windows [batch, length] to logits [batch, length, vocabulary]. Embedding and
# softmax have separate weights: with shared weights, SGD took longer on the novels.


class Transformer(nn.Module):
    """A decoder (Vaswani et al. 2017) with norms in front of attention and feed-forward layers, and
    learned positions. Its dropout rate is 0 unless the recipe sets another one."""

    def __init__(self, vocabulary: int, length: int, layers: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.Sequential(
            nn.Dropout(0.0), *(TransformerBlock(width) for _ in range(layers)), nn.LayerNorm(width)
        )
        self.logits = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        inputs = self.embedding(tokens) + self.positions.weight
        return self.logits(self.blocks(inputs))  # type: ignore[no-any-return]


class TransformerBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(4, width // 64)
        self.norm = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.attended = nn.Linear(width, width)
        self.dropout = nn.Dropout(0.0)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.ReLU(),
            nn.Linear(4 * width, width),
            nn.Dropout(0.0),
        )

    def forward(self, x: Tensor) -> Tensor:
        parts = self.queries_keys_values(self.norm(x)).chunk(3, dim=2)
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        mixed = x + self.dropout(self.attended(mixed.transpose(1, 2).flatten(2)))
        return mixed + self.feed_forward(mixed)  # type: ignore[no-any-return]


class LSTM(nn.Module):
    """An LSTM whose state starts at zero in each window."""

    def __init__(self, vocabulary: int, layers: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)
        self.logits = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.embedding(tokens))
        return self.logits(hidden)  # type: ignore[no-any-return]


NETWORKS = {
    # layers, width, goal, steps
    "lm1b/transformer": (6, 512, 3.9, 30_000),
    "lm1b/transformer_shallow": (2, 512, 4.2, 30_000),
    "lm1b/transformer_narrow_and_shallow": (2, 256, 4.2, 30_000),
    "lm1b/transformer_wide": (6, 1024, 4.2, 30_000),
    "lm1b/lstm": (2, 512, 3.9, 300_000),
    "common_crawl/transformer": (6, 512, 3.9, 100_000),
    "austen/transformer": (2, 128, 1.7, 2000),
    "austen/lstm": (1, 128, 1.5, 2000),
}
"""Networks by name, with the fewest steps of the budget at any batch size. The sizes of
Transformers are Shallue et al.'s as far as we recall; the other sizes are our choice. Goals are
Shallue et al.'s (3.9, and 4.2 where they compare sizes), except on the novels. The steps are well
above those that Shallue et al. needed at their largest batch sizes."""


TITLES = {"lm1b": "LM1B", "common_crawl": "Common Crawl", "austen": "Jane Austen's novels"}


def _named(name: str) -> type[Workload]:
    dataset, _, network = name.partition("/")
    layers, width, goal, steps = NETWORKS[name]
    kind = "An LSTM" if network == "lstm" else "A Transformer"
    settings: dict[str, Any] = {
        "dataset": dataset,
        "network": (network, layers, width),
        "goal": f"val/loss < {goal}",
        "budget": {"epochs": 2, "at_least_steps": steps},
        "__doc__": f"{kind} of depth {layers} and width {width}, on {TITLES[dataset]}.",
    }
    return type("LanguageModel", (Text if dataset in TEXTS else TokenFiles,), settings)


REGISTERED: dict[str, type[Workload]] = {name: _named(name) for name in NETWORKS}
