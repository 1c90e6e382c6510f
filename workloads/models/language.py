"""Models that predict each next token of a window: [batch, length] -> logits [batch, length,
vocabulary]. Embedding and softmax have separate weights: with shared weights, SGD took longer on
the novels."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


class Transformer(nn.Module):
    """A decoder (Vaswani et al. 2017) with norms in front of attention and feed-forward layers, and
    learned positions. Its dropout rate is 0 unless the recipe sets another one."""

    def __init__(self, vocabulary: int, length: int, layers: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.Sequential(
            nn.Dropout(0.0),
            *(Block(width) for _ in range(layers)),
            nn.LayerNorm(width),
        )
        self.logits = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        inputs = self.embedding(tokens) + self.positions.weight
        return self.logits(self.blocks(inputs))  # type: ignore[no-any-return]


class Block(nn.Module):
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
