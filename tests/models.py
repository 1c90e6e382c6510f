"""Small workloads of several kinds. Sweeps name them as tests/models.py:NAME."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from orchestrator.workloads import (
    Batch,
    Classification,
    GhostBatchNorm2d,
    Loaded,
    Split,
    Tensors,
    Workload,
    random_flip,
    random_shift,
    uniforms,
    with_ghosts,
)

EXAMPLES, CLASSES = 150, 4


def name(workload: type) -> str:
    """By which a sweep names a workload of this module, or of a test's."""
    return f"{inspect.getfile(workload)}:{workload.__name__}"


def labelled(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Makes labels that can be learned: the quartile of a random projection."""
    flat = inputs.flatten(1).to(torch.float32)
    direction = torch.randn(flat.shape[1], generator=torch.Generator().manual_seed(7))
    projected = flat @ direction
    edges = projected.quantile(torch.tensor([0.25, 0.5, 0.75]))
    return inputs, torch.bucketize(projected, edges)


class Small(Classification):
    """150 images of 6x6 pixels in 4 classes; 100 of them are trained on."""

    goal = "val/error < 0.01"
    top = 2

    def inputs(self) -> Tensor:
        return torch.randn(EXAMPLES, 1, 6, 6, generator=torch.Generator().manual_seed(1))

    def data(self, data_dir: Path | None) -> Mapping[str, Split]:
        inputs, labels = labelled(self.inputs())
        return {
            "train": Tensors(inputs[:100], labels[:100]),
            "val": Tensors(inputs[100:130], labels[100:130]),
            "test": Tensors(inputs[130:], labels[130:]),
        }


class MLP(Small):
    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Flatten(), nn.Linear(36, 24), nn.Tanh(), nn.Dropout(0.0), nn.Linear(24, CLASSES)
        )


class Idle(MLP):
    """A model with a parameter that the loss does not depend on."""

    def model(self) -> nn.Module:
        model = super().model()
        model.register_parameter("idle", nn.Parameter(torch.ones(3)))
        return model


class Seldom(Idle):
    """Its loss depends on this parameter where there are two examples."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:  # type: ignore[override]
        losses = super().loss(model, batch)
        return losses + model.idle.sum() if len(losses) > 1 else losses  # type: ignore[operator]


class Smooth(Small):
    """A model with functions for which a CPU computes the last elements of a tensor in another
    way."""

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(36, 23),
            nn.GELU(),
            nn.Linear(23, 11),
            nn.SiLU(inplace=True),
            nn.Linear(11, CLASSES),
            nn.Softplus(),
        )


class GhostCNN(Small):
    """A CNN with ghost batch norm of 8 examples per ghost."""

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            GhostBatchNorm2d(4, ghost_size=8),
            nn.ReLU(),
            nn.Conv2d(4, 4, 3, stride=2),
            GhostBatchNorm2d(4, ghost_size=8),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(16, CLASSES),
        )


class Frozen(Small):
    """A model with a batch norm that is not trained, as in a pretrained model, and one that is."""

    def model(self) -> nn.Module:
        norms = with_ghosts(nn.Sequential(nn.BatchNorm1d(36), nn.BatchNorm1d(36)), 8)
        norms[0].eval().running_var *= 2
        return nn.Sequential(nn.Flatten(), *norms, nn.Linear(36, CLASSES))


class Following(Small):
    """A model with statistics of its own, which each forward pass moves."""

    def model(self) -> nn.Module:
        norm = nn.InstanceNorm1d(6, track_running_stats=True)
        return nn.Sequential(nn.Flatten(1, 2), norm, nn.Flatten(), nn.Linear(36, CLASSES))


class Augmented(MLP):
    """The images, moved and mirrored at random."""

    def data(self, data_dir: Path | None) -> Mapping[str, Split]:
        splits = dict(super().data(data_dir))
        train = splits["train"]
        assert isinstance(train, Tensors)
        return {**splits, "train": Tensors(*train.tensors, augment=shift_and_flip)}


class FromFiles(Augmented):
    """The same images, fetched by worker processes."""

    def data(self, data_dir: Path | None) -> Mapping[str, Split]:
        splits = dict(super().data(data_dir))
        tensors = Tensors(*splits["train"].tensors)  # type: ignore[attr-defined]
        return {**splits, "train": Loaded(tensors.batch, 100, augment=shift_and_flip)}


def shift_and_flip(batch: Batch, seeds: Tensor) -> Batch:
    images, labels = batch
    random = uniforms(seeds, 3)
    return random_flip(random_shift(images, random[:, :2], 1), random[:, 2]), labels


class DictRows:
    """A data set like Hugging Face's: rows are dicts, and arrays are lists."""

    def __init__(self, split: Split) -> None:
        assert isinstance(split, Tensors)
        self.inputs, self.labels = split.tensors

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, object]:
        return {"input": self.inputs[index].tolist(), "label": int(self.labels[index])}


class FromDicts(MLP):
    def data(self, data_dir: Path | None) -> Mapping[str, Split]:
        return {name: Loaded(DictRows(split)) for name, split in super().data(data_dir).items()}


class FromDataset(MLP):
    def data(self, data_dir: Path | None) -> Mapping[str, Split]:
        return {
            name: Loaded(TensorDataset(*split.tensors))  # type: ignore[attr-defined]
            for name, split in super().data(data_dir).items()
        }


class Nested(MLP):
    """A workload whose batches are dicts of tuples, with a part that the loss does not use."""

    def data(self, data_dir: Path | None) -> Mapping[str, Split]:
        return {name: self._nested(split) for name, split in super().data(data_dir).items()}

    def _nested(self, split: Split) -> Tensors:
        assert isinstance(split, Tensors)
        images, labels = split.tensors
        return Tensors({"pair": (images, labels), "rest": [torch.arange(len(labels))]})

    def loss(self, model: nn.Module, batch: Batch, *, label_smoothing: float = 0.0) -> Tensor:  # type: ignore[override]
        return super().loss(model, batch["pair"], label_smoothing=label_smoothing)

    def metrics(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        return super().metrics(model, batch["pair"])


class Scenes(Workload):
    """Images of 6x6 pixels, with one of three classes for each pixel. The mean IoU of the classes
    over a split is the mean of no images' values."""

    goal = "val/mean_iou > 0.9"
    classes = 3

    def data(self, data_dir: Path | None) -> Mapping[str, Split]:
        images = torch.randn(EXAMPLES, 1, 6, 6, generator=torch.Generator().manual_seed(1))
        masks = torch.bucketize(images[:, 0], torch.tensor([-0.5, 0.5]))
        return {
            "train": Tensors(images[:100], masks[:100]),
            "val": Tensors(images[100:], masks[100:]),
        }

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, self.classes, 1)
        )

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        images, masks = batch
        losses = functional.cross_entropy(model(images), masks, reduction="none")
        return losses.mean(dim=(1, 2))

    def metrics(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        images, masks = batch
        predicted = model(images).argmax(dim=1)
        classes = torch.arange(self.classes).view(-1, 1, 1)
        found, true = predicted[:, None] == classes, masks[:, None] == classes
        return {
            "loss": self.loss(model, batch),
            "intersection": (found & true).sum(dim=(2, 3)),
            "union": (found | true).sum(dim=(2, 3)),
        }

    def summary(self, means: Mapping[str, Tensor]) -> Mapping[str, Tensor | float]:
        """A class that is neither there nor predicted has IoU 0 / 0 and is left out."""
        overlap = means["intersection"] / means["union"]
        return {"loss": means["loss"], "mean_iou": float(overlap.nanmean())}


class Greedy(MLP):
    """Runs out of memory with more than 10 examples at once."""

    most = 10

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:  # type: ignore[override]
        if len(batch[0]) > self.most:
            raise torch.OutOfMemoryError("out of memory, says the test")
        return super().loss(model, batch)


class Insatiable(Greedy):
    most = 0


class Words(Small):
    """Sequences of 7 tokens out of 11."""

    def inputs(self) -> Tensor:
        return torch.randint(11, (EXAMPLES, 7), generator=torch.Generator().manual_seed(1))


class LSTM(Words):
    """Its loss takes more of the model than the output."""

    def model(self) -> nn.Module:
        return _LSTM()

    def loss(self, model: nn.Module, batch: Batch, *, label_smoothing: float = 0.0) -> Tensor:  # type: ignore[override]
        losses = super().loss(model, batch, label_smoothing=label_smoothing)
        return losses + 0.01 * model.head.weight.square().sum()


class _LSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.lstm = nn.LSTM(8, 12, num_layers=2, batch_first=True)
        self.head = nn.Linear(12, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(tokens))[0][:, -1])


class Transformer(Words):
    def model(self) -> nn.Module:
        return _Transformer()


class _Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layer(self.embedding(tokens)).mean(dim=1))


class TrainMode(torch.optim.SGD):
    """Steps in its mode of training only, and begins in another, as those of `schedulefree` do."""

    trains = False

    def train(self) -> None:
        self.trains = True

    def eval(self) -> None:
        self.trains = False

    def step(self, closure: Any = None) -> None:
        assert self.trains
        super().step()


class Counting(torch.optim.Optimizer):
    """Counts its steps in an attribute, as many do that people write."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})
        self.steps = 0

    def step(self, closure: None = None) -> None:
        self.steps += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.sub_(parameter.grad, alpha=group["lr"] / self.steps**0.5)
