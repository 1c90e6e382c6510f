"""What batch norm over ghosts costs beside torch's, in a whole training step of a small CNN.

Three convolutions with a batch norm each, on one thread: forward, loss, backward and a step of
`torch.optim.SGD`, on the same batch of 256 images. Compared: `nn.BatchNorm2d` against
`with_ghosts` in ghosts of 64 examples. The two take turns, in the other order every other time, and
the figure is the median over pairs of steps of ghosts divided by torch's. Seconds are those of the
CPU, of which one thread that never waits loses fewer to a busy machine than by the clock.

Bound: the median ratio is at most 1.15.
"""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import dataclass
from itertools import pairwise

import torch
from command_line import parser_of, print_result
from tables import Table, bounded
from torch import Tensor, nn
from torch.nn import functional

from orchestrator.workloads.ghost_batch_norm import with_ghosts

WIDTHS = (3, 16, 32, 32)
IMAGE_SIZE = 28
WARM_UP_PAIRS = 3

MAX_RATIO = 1.15


@dataclass(frozen=True, kw_only=True)
class Sizes:
    batch_size: int
    ghost_size: int
    pairs: int


FULL = Sizes(batch_size=256, ghost_size=64, pairs=41)
SMOKE = Sizes(batch_size=32, ghost_size=8, pairs=2)


def make_cnn() -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(WIDTHS):
        convolution = nn.Conv2d(inputs, outputs, kernel_size=3, padding=1, bias=False)
        layers += [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTHS[-1], 10)]
    return nn.Sequential(*layers, *head)


class Training:
    """Steps of one model on one batch."""

    def __init__(self, model: nn.Module, images: Tensor, labels: Tensor) -> None:
        self._model, self._images, self._labels = model, images, labels
        self._optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def step(self) -> float:
        """Takes a step and returns its CPU seconds."""
        began = time.process_time()
        self._optimizer.zero_grad()
        loss = functional.cross_entropy(self._model(self._images), self._labels)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return time.process_time() - began


def main() -> int:
    options = parser_of(__doc__).parse_args()
    sizes = SMOKE if options.smoke else FULL
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(sizes.batch_size, WIDTHS[0], IMAGE_SIZE, IMAGE_SIZE, generator=generator)
    labels = torch.randint(10, (sizes.batch_size,), generator=generator)
    plain = Training(make_cnn(), images, labels)
    ghost = Training(with_ghosts(make_cnn(), sizes.ghost_size), images, labels)
    ours, theirs = [], []
    for pair in range(WARM_UP_PAIRS + sizes.pairs):
        if pair % 2:
            theirs.append(plain.step())
            ours.append(ghost.step())
        else:
            ours.append(ghost.step())
            theirs.append(plain.step())
    ours, theirs = ours[WARM_UP_PAIRS:], theirs[WARM_UP_PAIRS:]

    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    ratio = statistics.median(ratios)
    ok = ratio <= MAX_RATIO
    milliseconds = {
        name: statistics.median(seconds) * 1e3
        for name, seconds in (("torch", theirs), ("ghosts", ours))
    }
    row = [
        *(f"{milliseconds[name]:.1f}" for name in ("torch", "ghosts")),
        bounded(f"{ratio:.2f}", ok),
        f"{min(ratios):.2f} to {max(ratios):.2f}",
    ]
    table = Table(["torch, ms", "with ghosts, ms", "ratio", f"of {sizes.pairs} pairs"], [row])
    figures = {
        "ghosts_ms_per_step": round(milliseconds["ghosts"], 2),
        "torch_ms_per_step": round(milliseconds["torch"], 2),
        "ratio": round(ratio, 4),
        "ratios": [round(value, 4) for value in ratios],
        "max_ratio": MAX_RATIO,
    }
    return print_result("ghost_batch_norm", {"": table}, figures, options, ok=ok)


if __name__ == "__main__":
    sys.exit(main())
