"""Segmentation: scenes, and metrics that are not means over examples."""

from collections.abc import Callable
from pathlib import Path

import models
import numpy as np
import pytest
import torch
from conftest import make_trial, refused, run_trial
from sklearn.metrics import jaccard_score
from torch import Tensor, nn

from orchestrator.training import evaluation
from orchestrator.workloads import Tensors, load_workload
from orchestrator.workloads.scenes import SIDE, VISIBLE, Scenes, paste

CLASSES = 5


class Copied(Scenes):
    """Images that hold the logits, which the model passes on. Class 4 is not in `val`."""

    def data(self, data_dir: Path | None) -> dict[str, Tensors]:
        generator = torch.Generator().manual_seed(0)
        logits = torch.randn(21, CLASSES, 8, 8, generator=generator)
        logits[7:, 4] = -9
        masks = torch.randint(4, (21, 8, 8), generator=generator, dtype=torch.uint8)
        return {"train": Tensors(logits[:7], masks[:7]), "val": Tensors(logits[7:], masks[7:])}

    def model(self) -> nn.Module:
        return _Scaled()


class _Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, logits: Tensor) -> Tensor:
        return self.scale * logits


class Unmade(Copied):
    def summary(self, means: dict[str, Tensor]) -> dict[str, Tensor]:
        return means


@pytest.mark.dear
@pytest.mark.parametrize("at_once", [512, 5])
def test_metrics_are_those_of_the_whole_split(
    at_once: int, train_on_pair: Callable[..., tuple], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(evaluation.EXAMPLES_AT_ONCE, "cpu", at_once)
    logits, masks = Copied().data(None)["val"].tensors
    true, predicted = masks.numpy().ravel(), logits.argmax(dim=1).numpy().ravel()
    expected = {
        "val/mean_iou": jaccard_score(true, predicted, labels=range(4), average="macro"),
        "val/pixel_error": (true != predicted).mean(),
        "val/loss": float(nn.functional.cross_entropy(logits, masks.long())),
    }
    trial = make_trial(models.name(Copied), batch_size=4, budget_steps=1)
    for run in (run_trial, train_on_pair):
        metrics = run(trial)[0][0].metrics
        assert {key: metrics[key] for key in expected} == pytest.approx(expected, abs=1e-6)


def test_no_number_is_a_wrong_answer() -> None:
    masks = torch.randint(3, (4, 8, 8), dtype=torch.uint8)
    logits = torch.full((4, CLASSES, 8, 8), torch.nan)
    values = Scenes().metrics(nn.Identity(), (logits, masks))
    broken = Scenes().summary({name: value.double().mean(dim=0) for name, value in values.items()})
    assert (broken["pixel_error"], broken["mean_iou"]) == (1, 0)


def test_values_that_nothing_makes_a_number_of_are_refused() -> None:
    with refused("wrong-result", "'intersection'", "Unmade", "(5,)"):
        run_trial(make_trial(models.name(Unmade), batch_size=4, budget_steps=1))


def test_what_was_pasted_is_in_picture_and_mask() -> None:
    rng = np.random.default_rng(1)
    pictures = rng.integers(256, size=(6, 20, 24), dtype=np.uint8)
    masks = rng.integers(3, size=pictures.shape, dtype=np.uint8)
    garments = rng.integers(256, size=(6, SIDE, SIDE), dtype=np.uint8)
    kinds = np.arange(6, dtype=np.uint8)
    corners = np.stack([rng.integers(7, size=6), rng.integers(11, size=6)])
    expected = pictures.copy(), masks.copy()
    for scene, (row, column) in enumerate(corners.T):
        for y, x in np.argwhere(garments[scene] > VISIBLE):
            expected[0][scene, row + y, column + x] = garments[scene, y, x]
            expected[1][scene, row + y, column + x] = kinds[scene]
    paste(pictures, masks, garments, kinds, corners)
    assert np.array_equal(pictures, expected[0])
    assert np.array_equal(masks, expected[1])


def test_scenes_are_as_asked_for(small_data: Path) -> None:
    workload = load_workload("scenes/unet?classes=2&canvas=24&scenes=60")
    splits = workload.data(small_data)
    assert [(split, data.size) for split, data in splits.items()] == [
        ("train", 60),
        ("val", 3),
        ("test", 3),
    ]
    images, masks = splits["train"].batch(torch.arange(60))
    assert images.shape == (60, 1, 24, 24)
    assert set(masks.unique().tolist()) == {0, 1, 2}
    assert float(images[masks[:, None] > 0].min()) > VISIBLE / 255
    # More scenes change nothing about those of other splits.
    others = load_workload("scenes/unet?classes=2&canvas=24&scenes=69").data(small_data)
    assert all(map(torch.equal, others["test"].tensors, splits["test"].tensors))


@pytest.mark.parametrize(
    ("option", "value"),
    [("canvas", 12), ("canvas", 33), ("classes", 0), ("classes", 11), ("scenes", 19)],
)
def test_impossible_scenes_are_refused(option: str, value: int) -> None:
    with refused("wrong-value", f"`{option}`", value):
        load_workload(f"scenes/unet?{option}={value}")
