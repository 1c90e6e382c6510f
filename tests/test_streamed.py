"""Splits that are read in order."""

from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

import models
import torch
from conftest import make_trial, refused, run_trial

from orchestrator.training.noise_scale import NoiseMeter
from orchestrator.workloads import Batch, Split, Streamed, splits_of


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
