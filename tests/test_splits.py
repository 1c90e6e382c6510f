import ctypes
import multiprocessing
import signal
import sys
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any, ClassVar

import models
import pytest
import torch
from conftest import make_trial, refused, run_trial
from torch import Tensor

from orchestrator.records import BadInput
from orchestrator.training import Ranks
from orchestrator.training.engine import Single
from orchestrator.training.noise_scale import NoiseMeter
from orchestrator.workloads import (
    Batch,
    Loaded,
    Split,
    Streamed,
    Subset,
    example_seeds,
    first,
    random_flip,
    random_shift,
    splits_of,
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


def test_loaded_trains_like_resident_and_leaves_no_process() -> None:
    before = multiprocessing.active_children()
    resident, _ = run_trial(make_trial(models.name(models.Augmented), batch_size=13))
    loaded, _ = run_trial(make_trial(models.name(models.FromFiles), batch_size=13))
    assert [m.metrics for m in loaded] == [m.metrics for m in resident]
    assert multiprocessing.active_children() == before


@pytest.mark.parametrize("split", [models.Augmented, models.FromFiles])
def test_a_subset_draws_what_its_split_would(split: type[models.Small]) -> None:
    whole = split().data(None)["train"]
    some = Subset(Subset(whole, [90, 5, 70, 2]), torch.tensor([False, True, True, True]))
    some = Subset(some, [2, 0, 1])
    seeds = example_seeds(1, torch.arange(2))
    assert (some.size, some.seeded) == (3, True)
    for drawn in ((), (seeds,)):
        expected = whole.batch(torch.tensor([70, 2]), *drawn)
        draw = (torch.tensor([2, 0]), *drawn)
        assert all(map(torch.equal, some.batch(*draw), expected))
        (batch,) = some.to(torch.device("cpu")).batches([draw])
        assert all(map(torch.equal, batch, expected))


def test_what_is_wrong_with_data_is_said_without_a_workers_traceback() -> None:
    def fetch(index: torch.Tensor) -> Batch:
        raise BadInput("a.jpg is no image.", code="corrupt")

    with refused("corrupt", "a.jpg"):
        next(Loaded(fetch, 5, workers=1).batches([(torch.arange(2),)]))


def test_a_large_batch_is_fetched_in_parts_and_joined_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A batch of thousands of images would fill the memory that processes share."""
    monkeypatch.setattr("orchestrator.workloads.splits.MOST_AT_ONCE", 5)
    asked: list[int] = []

    def fetch(index: Tensor, seeds: Tensor | None = None) -> Batch:
        asked.append(len(index))
        return {"index": index, "seeds": index if seeds is None else seeds}

    split = Loaded(fetch, 100, fetch_drawn=fetch, workers=0)
    draws = [torch.arange(start, start + size) for start, size in ((0, 12), (20, 0), (30, 3))]
    batches = [*split.batches((draw, draw + 1) for draw in draws)]
    assert max(asked) == 5
    for draw, batch in zip(draws, batches, strict=True):
        assert torch.equal(batch["index"], draw)
        assert torch.equal(batch["seeds"], draw + 1)


def test_a_batch_that_is_padded_is_fetched_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.workloads.splits.MOST_AT_ONCE", 2)
    rows = [torch.arange(length) for length in (1, 4, 2, 3)]

    def collate(chosen: list[Tensor]) -> Tensor:
        return torch.nn.utils.rnn.pad_sequence(chosen, batch_first=True)

    (batch,) = Loaded(rows, collate=collate, workers=0).batches([(torch.arange(4),)])
    assert batch.shape == (4, 4)


class Read(models.MLP):
    """The validation examples are read from files."""

    reads: ClassVar[list[int]] = []

    def data(self, data_dir: Path | None) -> dict[str, Split]:
        splits = dict(super().data(data_dir))
        val = splits["val"]

        def fetch(index: Tensor) -> Batch:
            self.reads.append(len(index))
            return val.batch(index)

        read = Loaded(fetch, val.size, workers=0)
        return {**splits, "val": Subset(read, torch.arange(20)), "few": first(read, 2)}


@pytest.mark.parametrize(("room", "reads"), [(2**20, 22), (1000, 62), (100, 66)])
def test_what_is_evaluated_is_read_once_if_it_fits(
    room: int, reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.training.evaluation.KEPT_BYTES", {"cpu": room})
    monkeypatch.setattr("orchestrator.training.evaluation.EXAMPLES_AT_ONCE", {"cpu": 8})
    trial, workload = make_trial(models.name(models.MLP)), Read()
    Read.reads.clear()
    engine = Single(trial, Ranks(), prepared=(workload, workload.data(None)))
    engine.put(0, trial)
    try:
        found = [engine.evaluated([0], test=False) for _ in range(3)]
    finally:
        engine.clear(0)
    assert found[0] == found[1] == found[2]
    assert sum(Read.reads) == reads


def row(number: int) -> tuple[torch.Tensor, int]:
    inputs, labels = models.MLP().data(None)["train"].batch(torch.tensor([number * 7 % 100]))
    return inputs[0], int(labels[0])


class InOrder(models.MLP):
    def data(self, data_dir: Path | None) -> dict[str, Split]:
        return {**super().data(data_dir), "train": Streamed(lambda at: map(row, count(at)))}


class AtRandom(Split):
    """The same examples by their numbers."""

    size = None

    def batch(self, index: torch.Tensor, seeds: torch.Tensor | None = None) -> Batch:
        rows = [row(number) for number in index.tolist()]
        return torch.stack([x for x, _ in rows]), torch.tensor([label for _, label in rows])


class ByNumber(models.MLP):
    def data(self, data_dir: Path | None) -> dict[str, Split]:
        return {**super().data(data_dir), "train": AtRandom()}


def test_a_stream_trains_like_its_rows_by_number() -> None:
    expected, _ = run_trial(make_trial(f"{__file__}:ByNumber", batch_size=13))
    for _ in range(2):
        found, _ = run_trial(make_trial(f"{__file__}:InOrder", batch_size=13))
        assert [m.metrics for m in found] == [m.metrics for m in expected]


def numbers(folder: Path) -> Streamed:
    """A stream of numbers from two shards, which notes what it opens."""
    shards = [range(0, 500), range(500, 1000)]

    def rows_from(position: int) -> Iterator[Any]:
        first, inside = divmod(position, 500)
        for shard in count(first):
            with (folder / "opened").open("a") as file:
                file.write(f"{shard % 2}:{inside} ")
            yield from islice(shards[shard % 2], inside, None)
            inside = 0

    return Streamed(rows_from)


def test_reading_begins_where_training_goes_on(tmp_path: Path) -> None:
    split = numbers(tmp_path)
    assert split.batch(torch.tensor([3, 4])).tolist() == [3, 4]  # as a rehearsal does
    # What rank 1 of two trains from step 2 on, with a batch size of 400; in between, nothing.
    draws = [(torch.arange(400 * k + 200, 400 * k + 400),) for k in range(2, 4)]
    draws[1:1] = [(torch.arange(0),)] * 130
    found = [batch.tolist() for batch in split.batches(draws)]
    assert found == [[number % 1000 for number in index.tolist()] for (index,) in draws]
    # Batches without examples are made of the first row, which is read beside the others.
    assert (tmp_path / "opened").read_text().split() == ["0:3", "0:0", "0:0", "1:0"]


def test_a_stream_must_not_end() -> None:
    split = Streamed(lambda at: range(at, 7))
    assert split.batch(torch.tensor([5, 6])).tolist() == [5, 6]
    with refused("too-few", 7, "`rows_from`"):
        next(split.batches([(torch.tensor([6, 7]),)]))


class Endless(models.MLP):
    def data(self, data_dir: Path | None) -> dict[str, Split]:
        return {**super().data(data_dir), "val": AtRandom()}


def test_only_a_training_split_may_be_endless() -> None:
    with refused("endless-data", "'val'", "Endless"):
        splits_of(Endless(), None)


def test_the_noise_scale_is_measured_on_the_first_rows() -> None:
    meter = NoiseMeter(
        workload=InOrder(), train=InOrder().data(None)["train"], device=torch.device("cpu")
    )
    inputs, _ = meter._drawn(3)
    assert torch.equal(inputs, AtRandom().batch(torch.arange(512))[0])
