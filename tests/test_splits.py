import ctypes
import multiprocessing
import signal
import sys
from pathlib import Path

import models
import pytest
import torch
from conftest import make_trial, refused, run_trial
from torch import Tensor

from orchestrator.records import BadInput
from orchestrator.workloads import (
    Batch,
    Loaded,
    Split,
    Subset,
    Tensors,
    example_seeds,
    examples_of,
    random_flip,
    random_shift,
    uniforms,
)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has that")
def test_the_system_ends_workers_with_their_parent() -> None:
    """Without that, workers may wait for the rest of a message whose sender was killed."""

    def fetch(index: Tensor) -> Batch:
        number = ctypes.c_int()
        ctypes.CDLL(None).prctl(2, ctypes.byref(number))  # PR_GET_PDEATHSIG
        return (torch.full((len(index),), number.value),)

    (batch,) = Loaded(fetch, 5, workers=1).batches([(torch.arange(2),)])
    assert batch[0].tolist() == [signal.SIGKILL] * 2


def test_uniforms_are_uniform_independent_and_functions_of_the_seed() -> None:
    seeds = example_seeds(3, torch.arange(20_000))
    table = uniforms(seeds, 3)
    assert float(table.min()) >= 0
    assert float(table.max()) < 1
    assert torch.allclose(table.mean(dim=0), torch.tensor(0.5), atol=0.01)
    assert torch.allclose(table.var(dim=0), torch.tensor(1 / 12), atol=0.003)
    related = torch.corrcoef(torch.cat([table[:-1], table[1:]], dim=1).T) - torch.eye(6)
    assert float(related.abs().max()) < 0.03
    assert torch.equal(uniforms(seeds[[5, 2]], 3), table[[5, 2]])
    assert not torch.equal(uniforms(example_seeds(4, torch.arange(5)), 3), table[:5])
    assert len(torch.unique(seeds)) == len(seeds)


def test_flip_and_shift_do_what_the_numbers_say() -> None:
    images = torch.arange(2 * 1 * 3 * 3.0).view(2, 1, 3, 3)
    flipped = random_flip(images, torch.tensor([0.1, 0.9]))
    assert torch.equal(flipped[0], images[0].flip(2))
    assert torch.equal(flipped[1], images[1])
    still = random_shift(images, torch.full((2, 2), 0.5), 1)
    assert torch.equal(still, images)
    moved = random_shift(images, torch.tensor([[0.0, 0.5], [0.99, 0.99]]), 1)
    assert torch.equal(moved[0, 0], torch.tensor([[0.0, 0, 0], [0, 1, 2], [3, 4, 5]]))
    assert torch.equal(moved[1, 0], torch.tensor([[13.0, 14, 0], [16, 17, 0], [0, 0, 0]]))


def test_examples_look_different_in_every_epoch_and_as_they_are_when_measured() -> None:
    train = models.Augmented().data(None)["train"]
    index = torch.arange(100)
    plain = train.batch(index)
    epochs = [train.batch(index, example_seeds(1, epoch * 100 + index))[0] for epoch in (0, 1)]
    assert not torch.equal(epochs[0], epochs[1])
    assert torch.equal(plain[0], models.MLP().data(None)["train"].batch(index)[0])


def test_loaded_trains_like_resident_and_leaves_no_process() -> None:
    before = multiprocessing.active_children()
    resident, _ = run_trial(make_trial(models.name(models.Augmented), batch_size=13))
    loaded, _ = run_trial(make_trial(models.name(models.FromFiles), batch_size=13))
    assert [m.metrics for m in loaded] == [m.metrics for m in resident]
    assert multiprocessing.active_children() == before


class FetchedForTraining(models.Augmented):
    """The same examples again, made by the function that fetches them."""

    def data(self, data_dir: Path | None) -> dict[str, Split]:
        splits = dict(super().data(data_dir))
        plain = Tensors(*splits["train"].tensors)  # type: ignore[attr-defined]

        def fetch_drawn(index: torch.Tensor, seeds: torch.Tensor) -> models.Batch:
            return models.shift_and_flip(plain.batch(index), seeds)

        return {**splits, "train": Loaded(plain.batch, 100, fetch_drawn=fetch_drawn)}


@pytest.mark.parametrize("split", [models.Augmented, models.FromFiles, FetchedForTraining])
def test_a_subset_draws_what_its_split_would(split: type[models.Small]) -> None:
    whole = split().data(None)["train"]
    some = Subset(Subset(whole, torch.tensor([90, 5, 70, 2])), torch.tensor([3, 1, 2]))
    seeds = example_seeds(1, torch.arange(2))
    assert (some.size, some.seeded) == (3, True)
    for drawn in ((), (seeds,)):
        expected = whole.batch(torch.tensor([70, 2]), *drawn)
        draw = (torch.tensor([2, 0]), *drawn)
        assert all(map(torch.equal, some.batch(*draw), expected))
        (batch,) = some.to(torch.device("cpu")).batches([draw])
        assert all(map(torch.equal, batch, expected))


def test_a_torch_data_set_can_be_loaded() -> None:
    inputs, labels = torch.randn(10, 3), torch.arange(10)
    dataset = torch.utils.data.TensorDataset(inputs, labels)
    split = Loaded(examples_of(dataset), len(dataset), workers=0)
    index = torch.tensor([7, 1])
    for batch in (split.batch(index), next(split.batches([(index,)]))):
        assert torch.equal(batch[0], inputs[index])
        assert batch[1].tolist() == [7, 1]


def test_tensors_of_different_length_are_refused() -> None:
    with refused("wrong-data", "(2,)", "(3,)"):
        Tensors(torch.zeros(2), torch.zeros(3))


def test_what_is_wrong_with_data_is_said_without_a_workers_traceback() -> None:
    def fetch(index: torch.Tensor) -> Batch:
        raise BadInput("a.jpg is no image.", code="corrupt")

    with refused("corrupt", "a.jpg"):
        next(Loaded(fetch, 5, workers=1).batches([(torch.arange(2),)]))
