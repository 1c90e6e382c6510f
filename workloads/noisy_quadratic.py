"""The noisy quadratic model of Zhang et al. (arXiv 1907.04164): a workload with a known answer.

The risk is 1/2 sum_i h_i x_i^2 with h_i = 1/i. The gradient of one example is the gradient of the
risk plus Gaussian noise of variance h_i in coordinate i. The expected risk after any number of
steps follows from a short recursion, so the results of a sweep can be compared with the truth.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from orchestrator.records import BadInput, wrong_value
from orchestrator.workloads.augmentation import example_seeds
from orchestrator.workloads.base import Workload, check_range
from orchestrator.workloads.splits import Split, Tensors
from orchestrator.workloads.trees import Batch

LARGEST = 10_000_000
"""Largest number of weights. Each example is a vector of that many numbers."""


@dataclass(frozen=True)
class NoisyQuadratic(Workload):
    """The noisy quadratic model. `replicas` independent copies are trained as one parameter. Their
    mean risk follows the recursion closely, whereas the risk of a single copy passes the goal
    early."""

    d: int = 1000
    """Number of coordinates of one replica."""
    replicas: int = 1
    """Number of independent copies of the model."""
    precondition: float = 0.0
    """Exponent p of the preconditioner: gradients are multiplied by h^-p."""

    goal: ClassVar[str] = "val/loss < 0.01"
    budget: ClassVar[Mapping[str, float]] = {"steps": 20_000}
    evaluation_spacing: ClassVar[float] = 0.01
    evaluation_min_examples: ClassVar[int | None] = 1

    def __post_init__(self) -> None:
        check_range(self, d=(1, LARGEST), replicas=(1, LARGEST))
        if not math.isfinite(self.precondition):
            raise wrong_value("`precondition`", "a finite number", self.precondition)
        if self.d * self.replicas > LARGEST:
            raise BadInput(
                f"`d * replicas` must be at most {LARGEST:,}, but got {self.d} * {self.replicas}.",
                code="too-many",
            )

    def data(self, data_dir: Path | None) -> Mapping[str, Split]:
        return {"train": GaussianStream(self.replicas * self.d), "val": Tensors(torch.zeros(1, 1))}

    def model(self) -> nn.Module:
        return _Quadratic(self.d, self.replicas, self.precondition)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        losses: Tensor = model(batch[0])
        return losses

    def metrics(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        return {"loss": model(None).expand(len(batch[0]))}


class _Quadratic(nn.Module):
    curvature: Tensor
    scale: Tensor

    def __init__(self, d: int, replicas: int, precondition: float) -> None:
        super().__init__()
        curvature = 1 / torch.arange(1, d + 1)
        self.register_buffer("curvature", curvature)
        # x = scale * weight, so a step on `weight` changes x by scale^2 times the gradient in x.
        # The factor sqrt(replicas) of the scale, applied twice, makes up for the mean over
        # replicas, which divides each replica's gradient by their number. The factor h^(-p/2),
        # applied twice, is the preconditioner. So a step on `weight` is the model's step on each x.
        self.register_buffer("scale", math.sqrt(replicas) * curvature ** (-precondition / 2))
        self.weight = nn.Parameter((1 / self.scale).expand(replicas, d).clone())

    def forward(self, noise: Tensor | None) -> Tensor:
        x = self.scale * self.weight
        risk = 0.5 * (self.curvature * x * x).sum(dim=1).mean()
        if noise is None:
            return risk
        pull = (self.curvature.sqrt() * x).flatten() / len(x)
        return risk + noise @ pull


class GaussianStream(Split):
    """An endless stream of standard normal vectors. Each vector is a function of its seed alone."""

    size = None
    seeded = True

    def __init__(self, width: int, device: torch.device | None = None) -> None:
        self.width = width
        self.device = device or torch.device("cpu")

    def batch(self, index: Tensor, seeds: Tensor | None = None) -> Batch:
        if seeds is None:
            seeds = example_seeds(0, index)
        noise = torch.empty(len(index), self.width)
        generator = torch.Generator()
        for row, seed in zip(noise, seeds.tolist(), strict=True):
            row.normal_(generator=generator.manual_seed(seed % 2**63))
        return (noise.to(self.device),)

    def to(self, device: torch.device) -> GaussianStream:
        return GaussianStream(self.width, device)
