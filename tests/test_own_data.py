"""Data sets, collate functions and models as users have them."""

import random
from collections import UserDict, namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import models
import numpy as np
import pytest
import torch
from conftest import make_trial, refused, run_trial
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import IterableDataset, default_collate

from orchestrator import Classification, Loaded, NextToken, Tensors, with_ghosts
from orchestrator.workloads import Subset, example_seeds, load_workload, splits_of
from orchestrator.workloads.base import logits_of
from orchestrator.workloads.trees import divided, leaves, mapped

Pair = namedtuple("Pair", ["image", "label"])

SEVERAL = torch.arange(3)


def batch_of(rows: list[Any], **options: Any) -> Any:
    return Loaded(rows, workers=0, **options).batch(torch.arange(len(rows)))


@pytest.mark.parametrize(
    "make",
    [
        lambda i: (torch.full((2, 3), i), i),
        lambda i: {"x": torch.full((4,), i), "more": {"y": np.full(2, i), "z": i > 1}},
        lambda i: Pair(torch.tensor(i), (i, {"deep": np.float32(i)})),
        lambda i: torch.full((5,), i),
    ],
)
def test_rows_are_stacked_as_a_data_loader_does(make: Callable[[int], Any]) -> None:
    rows = [make(i) for i in range(3)]
    ours, theirs = batch_of(rows), default_collate(rows)
    for (place, leaf), (there, expected) in zip(leaves(ours), leaves(theirs), strict=True):
        assert place == there
        assert torch.equal(leaf, expected), place
        assert leaf.dtype == expected.dtype, place


def test_lists_of_numbers_are_arrays_and_floats_are_single() -> None:
    batch = batch_of([{"grid": [[0.5, i], [i, i]], "score": 0.5 * i} for i in range(3)])
    assert batch["grid"].shape == (3, 2, 2)
    assert {leaf.dtype for _, leaf in leaves(batch)} == {torch.float32}


def test_a_data_set_that_fetches_many_rows_at_once_is_asked_to() -> None:
    class Quick(models.DictRows):
        def __getitems__(self, numbers: list[int]) -> list[Any]:
            return [{"label": number} for number in numbers]

    rows = Quick(models.MLP().data(None)["val"])
    assert Loaded(rows, workers=0).batch(SEVERAL)["label"].tolist() == [0, 1, 2]


def test_trees_are_divided_and_put_together_again() -> None:
    tree = {
        "a": (torch.arange(5), [torch.arange(10).view(5, 2)]),
        "b": Pair(torch.ones(5), SEVERAL),
    }
    tree["b"] = tree["b"]._replace(label=torch.zeros(5))
    parts = [*divided(tree, [2, 0, 3])]
    assert [len(part["a"][0]) for part in parts] == [2, 0, 3]
    assert isinstance(parts[0]["b"], Pair)
    for (place, whole), *pieces in zip(leaves(tree), *map(leaves, parts), strict=True):
        assert torch.equal(torch.cat([piece for _, piece in pieces]), whole), place
    assert mapped(len, UserDict(a=SEVERAL)) == {"a": 3}


def padded(rows: list[list[int]]) -> torch.Tensor:
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True)


@pytest.mark.parametrize("workers", [0, 1])
def test_what_is_collated_depends_on_nothing_else_in_flight(workers: int) -> None:
    split = Loaded([[1], [1, 2], [1, 2, 3]], collate=padded, workers=workers)
    draws = [(torch.tensor(rows, dtype=torch.int64),) for rows in ([0], [1, 0], [], [2])]
    assert [batch.tolist() for batch in split.batches(draws)] == [
        [[1]], [[1, 2], [1, 0]], [], [[1, 2, 3]],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([[1, 2], [3]], ("unlike-rows", "shape (2,) in row 0", "shape (1,) in row 1")),
        (
            [{"x": torch.ones(2)}, {"x": torch.ones(3)}],
            ("unlike-rows", "row['x']", "(3,) in row 1"),
        ),
        ([{"x": 1}, {"x": 1, "y": 2}], ("unlike-rows", "dict of ['x']", "['x', 'y'] in row 1")),
        ([{"x": 1}, (1,)], ("unlike-rows", "dict of ['x'] in row 0", "tuple of 1 in row 1")),
        ([{"text": "good"}, {"text": "bad"}], ("wrong-data", "row['text']", "str in row 0")),
        ([(1, 2), (1, None)], ("unlike-rows", "row[1]", "int in row 0", "NoneType in row 1")),
    ],
)
def test_rows_that_do_not_stack_are_refused(rows: list[Any], said: Any) -> None:
    with refused(*said, "`collate=`"):
        batch_of(rows)


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[int]:
        yield 1


class Counted(Stream):
    def __len__(self) -> int:
        return 1


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Loaded(Stream()), ("wrong-data", "__len__", "__getitem__", "Stream")),
        (lambda: Loaded(Counted()), ("wrong-data", "__getitem__", "Counted")),
        (lambda: Loaded([1, 2], 2), ("wrong-data", "Loaded", "list", 2)),
        (lambda: batch_of([[1], [2]], collate=len), ("wrong-result", "`collate`", "int")),
        (
            lambda: batch_of([1, 2], collate=lambda rows: {"x": SEVERAL}),
            ("wrong-result", "`collate`", "2 examples", "batch['x']", "Tensor of shape (3,)"),
        ),
        (
            lambda: Tensors(SEVERAL, augment=lambda batch, _: (batch[0].repeat(2),)).batch(
                SEVERAL, SEVERAL
            ),
            ("wrong-result", "`augment`", "3 examples", "Tensor of shape (6,)"),
        ),
        (lambda: Loaded(lambda index: (), 2).batch(SEVERAL), ("empty", "()")),
        (lambda: Tensors({"x": SEVERAL, "y": [1]}), ("wrong-data", "['y'][0]", "int")),
        (lambda: Tensors(Stream()), ("wrong-data", "Loaded", "Stream")),
        (lambda: Tensors(torch.zeros(2), SEVERAL), ("wrong-data", "(2,)", "(3,)")),
        (lambda: Subset(Counted(), [0]), ("wrong-value", "Loaded(data_set)", "Counted")),
        (lambda: Subset(Tensors(SEVERAL), [0, 3]), ("wrong-value", "below 3", "got 3")),
        (lambda: logits_of({"out": SEVERAL}), ("wrong-value", "`logits`", "'out'")),
    ],
)
def test_what_is_no_data_set_or_batch_is_refused(make: Callable[[], Any], said: Any) -> None:
    with refused(*said):
        make()


def test_an_empty_data_set_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models.MLP, "data", lambda *_: {"train": Loaded([1]), "val": Loaded([])})
    with refused("empty", "'val'", "MLP"):
        splits_of(models.MLP(), None)


class Jittered:
    """A data set that draws from the generators of torch, numpy and Python."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[float, ...]:
        return index, float(torch.rand(())), float(np.random.rand()), random.random()


def test_random_rows_depend_on_their_seeds_alone() -> None:
    index, seeds = torch.tensor([4, 2, 7]), example_seeds(1, SEVERAL)
    split = Loaded(Jittered(), random_rows=True, workers=1)
    assert split.seeded
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    drawn = split.batch(index, seeds)
    after = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]
    backwards = next(split.batches([(index.flip(0), seeds.flip(0))]))
    assert all(torch.equal(a, b.flip(0)) for a, b in zip(drawn, backwards, strict=True))
    assert len({float(part) for part in torch.cat(drawn[1:])}) == 9
    other = split.batch(index, example_seeds(2, SEVERAL))
    assert all(not torch.equal(a, b) for a, b in zip(drawn[1:], other[1:], strict=True))
    # What is measured is the same every time.
    assert all(map(torch.equal, split.batch(index), split.batch(index)))
    plus_one = Loaded(Jittered(), random_rows=True, augment=lambda batch, _: (batch[1] + 1,))
    assert torch.equal(plus_one.batch(index, seeds)[0], drawn[1] + 1)


def test_a_dict_without_classes_is_refused() -> None:
    with refused("wrong-data", "'labels'", ["x", "y"]):
        Classification.loss(models.MLP(), nn.Identity(), {"x": SEVERAL, "y": SEVERAL})


@pytest.mark.parametrize(
    ("labels", "said"),
    [([0, 3, 1], 3), ([-1, 2, 1], -1), ([[0], [1], [2]], "(3, 1)"), ([0.0, 1, 2], "float32")],
)
def test_labels_that_are_no_classes_are_named(labels: list[Any], said: object) -> None:
    batch = torch.eye(3), torch.tensor(labels)
    for method in (models.MLP().loss, models.MLP().metrics):
        with refused("wrong-data", "0 to 2", said):
            method(nn.Identity(), batch)


def test_logits_may_be_in_a_dict() -> None:
    assert logits_of({"logits": SEVERAL}) is SEVERAL


def test_classes_and_tokens_may_be_bytes() -> None:
    """156 is no class that is ignored, though -100 equals it as a byte."""
    numbers = torch.tensor([[156, 156, 3, 156]])
    logits = functional.one_hot(numbers[0], 200).float()
    found = []
    for given in (numbers, numbers.byte()):
        metrics = models.MLP().metrics(nn.Identity(), (logits, given[0]))
        tokens = Tokens().metrics(lambda windows: logits[None, : windows.shape[1]], given)
        found.append([*metrics.values(), *tokens.values()])
    assert all(map(torch.equal, *found))


def test_a_class_that_is_ignored_is_no_error() -> None:
    logits, labels = torch.eye(6), torch.tensor([0, -100, 3, 3, 4, -100])
    metrics = models.MLP().metrics(nn.Identity(), (logits, labels))
    assert metrics["error"].tolist() == [False, False, True, False, False, False]
    assert metrics["loss"][[1, 5]].tolist() == [0, 0]
    assert not metrics[f"top{models.MLP.top}_error"][[1, 5]].any()


class Tokens(NextToken):
    goal = "val/loss < 1"

    def data(self, data_dir: Path | None) -> dict[str, Any]:
        return {}

    def model(self) -> nn.Module:
        return nn.Embedding(5, 5)


class LikeNanoGPT(Tokens):
    def logits(self, model: Any, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return model(inputs, targets)[0]


def test_next_token_models_are_called_as_they_say() -> None:
    windows = torch.tensor([[0, 1, 2], [3, 4, 0]])
    table = Tokens().model()
    plain = Tokens().loss(table, (windows,))
    assert torch.equal(Tokens().loss(table, windows), plain)

    def with_view(idx: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return table(idx), targets.view(-1)  # which only what is contiguous allows

    assert torch.equal(LikeNanoGPT().loss(with_view, windows), plain)

    def gpt(idx: torch.Tensor, targets: Any = None) -> tuple[torch.Tensor, Any]:
        return (table(idx)[:, [-1]], None) if targets is None else (table(idx), targets)

    assert torch.equal(LikeNanoGPT().loss(gpt, windows), plain)
    with refused("wrong-result", "(2, 2, 'tokens')", (2, 1, 5), "`NextToken.logits`"):
        Tokens().loss(gpt, windows)


class OfHuggingFace(nn.Module):
    """Takes what a collator gives, and returns an object with logits."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(5, 5)

    def forward(self, input_ids: torch.Tensor, attention_mask: Any = None) -> Any:
        seen = 1 if attention_mask is None else attention_mask[..., None]
        return SimpleNamespace(logits=(self.table(input_ids) * seen).cumsum(1))


def test_next_token_takes_the_dicts_of_hugging_face() -> None:
    model, ids = OfHuggingFace(), torch.tensor([[1, 2, 3, 4], [3, 0, 1, 2], [4, 4, 2, 1]])
    plain = Tokens().loss(model, (ids,))
    assert torch.equal(Tokens().loss(model, {"input_ids": ids}), plain)
    same, counts = Tokens().loss(model, {"input_ids": ids, "labels": ids})
    assert torch.equal(same, plain)
    assert counts.tolist() == [3, 3, 3]
    labels = ids.clone()
    labels[0, :2] = labels[1] = -100  # only the last two targets of row 0 count, none of row 1
    batch = {"input_ids": ids, "labels": labels, "attention_mask": torch.ones_like(ids)}
    (losses, counts), metrics = Tokens().loss(model, batch), Tokens().metrics(model, batch)
    assert counts.tolist() == [2, 0, 3]
    logits = model(ids[:, :-1]).logits
    first = nn.functional.cross_entropy(logits[0, 1:], ids[0, 2:])
    assert losses.tolist() == pytest.approx([first.item(), 0, plain[2].item()])
    assert torch.equal(metrics["loss"], losses)
    wrong = (logits[0, 1:].argmax(1) != ids[0, 2:]).float().mean().item()
    assert metrics["error"][:2].tolist() == pytest.approx([wrong, 0])
    assert torch.equal(Tokens().loss(model, (ids[:, :-1], labels[:, 1:])), losses)
    with refused("wrong-data", "'input_ids'", ["labels"]):
        Tokens().loss(model, {"labels": ids})


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_no_target(side: str) -> None:
    """A padded row has the loss that it has without its padding."""
    model, ids = OfHuggingFace(), torch.tensor([[1, 2, 3]])
    padding = (2, 0) if side == "left" else (0, 2)
    padded = nn.functional.pad(ids, padding)
    mask = nn.functional.pad(torch.ones_like(ids), padding)
    batch = {"input_ids": padded, "attention_mask": mask}
    losses, counts = Tokens().loss(model, batch)
    assert torch.allclose(losses, Tokens().loss(model, (ids,)))
    assert counts.tolist() == [2]


class Pretrained(models.MLP):
    """A workload that starts from weights in the data folder."""

    def model(self) -> nn.Module:
        model = super().model()
        model.load_state_dict(torch.load(self.data_dir / "weights.pt", weights_only=True))
        return model


class InEvaluationMode(Pretrained):
    """A model in evaluation mode, as from_pretrained returns it. Half of its activations are
    dropped in training."""

    def model(self) -> nn.Module:
        model = super().model()
        model[3].p = 0.5
        return model.eval()


class InTrainingMode(InEvaluationMode):
    def model(self) -> nn.Module:
        return super().model().train()


class FrozenBody(Pretrained):
    """Of its vectors, which are not shrunk and so a group of their own, none is trained."""

    def model(self) -> nn.Module:
        model = super().model()
        for frozen in (model[1], model[4].bias):
            frozen.requires_grad_(False)
        return model

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, torch.Tensor]:
        sums = {f"sum_{n}": model[n].weight.sum().expand(len(batch[1])) for n in (1, 4)}
        return {**super().metrics(model, batch), **sums}


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """Writes the weights after 100 steps to a folder of data."""
    model = models.MLP().model()
    images, labels = models.MLP().data(None)["train"].tensors
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    return tmp_path


def curve(workload: type, data_dir: Path, run: Any = run_trial, **changes: Any) -> list[Any]:
    trial = make_trial(models.name(workload), budget_steps=20, **changes)
    return [m.metrics for m in run(trial, data_dir=data_dir)[0]]


def test_training_starts_from_the_weights_in_the_data_folder(weights: Path) -> None:
    model = models.MLP().model().eval().requires_grad_(False)
    model.load_state_dict(torch.load(weights / "weights.pt", weights_only=True))
    images, labels = models.MLP().data(None)["val"].tensors
    loss = float(nn.functional.cross_entropy(model(images), labels))
    measured = curve(Pretrained, weights)
    assert measured[0]["val/loss"] == pytest.approx(loss, rel=1e-5)
    assert measured[0]["val/loss"] == curve(Pretrained, weights, seed=2)[0]["val/loss"]
    assert measured[-1]["val/loss"] != measured[0]["val/loss"]


def test_a_model_in_evaluation_mode_is_trained_like_any_other(weights: Path) -> None:
    expected = curve(InTrainingMode, weights)
    assert curve(InEvaluationMode, weights) == expected
    assert curve(Pretrained, weights) != expected


@pytest.mark.dear
@pytest.mark.parametrize("optimizer", ["momentum", "adam", "lars"])
def test_a_frozen_part_stays_as_it_is_on_any_number_of_ranks(
    optimizer: str, weights: Path, train_on_pair: Callable[..., Any]
) -> None:
    params = {"learning_rate": 0.01, "ema_decay": 0.9, "gradient_clip": 1.0, "weight_decay": 0.1}
    params |= {"momentum": 0.9} if optimizer != "adam" else {}
    trial = make_trial(models.name(FrozenBody), optimizer=optimizer, params=params, budget_steps=20)
    alone = run_trial(trial, data_dir=weights)[0]
    assert len({measurement.metrics["val/sum_1"] for measurement in alone}) == 1
    assert len({measurement.metrics["val/sum_4"] for measurement in alone}) > len(alone) / 2
    together = train_on_pair(trial, data_dir=weights)[0]
    for one, other in zip(alone, together, strict=True):
        assert other.metrics == pytest.approx(one.metrics, rel=1e-4)


def test_ghosts_keep_pretrained_weights_and_statistics() -> None:
    norm = nn.BatchNorm1d(3)
    for tensor in norm.state_dict().values():
        tensor.copy_(torch.arange(1, 4) if tensor.dim() else torch.tensor(7))
    before = {name: tensor.clone() for name, tensor in norm.state_dict().items()}
    after = with_ghosts(norm, 8).state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_an_option_cannot_hide_the_data_folder(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\nfrom orchestrator import Classification\n"
        "@dataclass\nclass Mine(Classification):\n    goal = 'val/e < 1'\n    data_dir: str = ''\n"
        "    def data(self, data_dir): ...\n    def model(self): ...\n"
    )
    with refused("given-twice", f"{tmp_path}/mine.py:Mine", "'data_dir'"):
        load_workload(f"{tmp_path}/mine.py:Mine")
