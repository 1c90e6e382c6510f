import subprocess
import sys
from pathlib import Path

import make_data
import pytest
import torch
from conftest import make_trial, run_trial

from orchestrator.records import BadInput
from orchestrator.sweep import single_trial
from orchestrator.workloads import REGISTRY, load_workload, splits_of
from orchestrator.workloads.data import data_set

OWN = """
import torch
from torch import nn
from orchestrator.workloads import Classification, Tensors

class Blobs(Classification):
    goal = "val/error < 0.1"

    def data(self, data_dir):
        inputs = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
        labels = (inputs[:, 0] > 0).long()
        return {"train": Tensors(inputs[:150], labels[:150]),
                "val": Tensors(inputs[150:], labels[150:])}

    def model(self):
        return nn.Linear(2, 2)
"""


@pytest.fixture(scope="session")
def small_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small copy of every data set, in its real format."""
    folder = tmp_path_factory.mktemp("data")
    make_data.main(folder)
    return folder


@pytest.mark.parametrize("name", REGISTRY)
def test_data_and_models_are_deterministic(name: str, small_data: Path) -> None:
    first, second = load_workload(name), load_workload(name)
    index = torch.tensor([0, 5, 3])
    for one, other in zip(
        first.data(small_data)["train"].batch(index),
        second.data(small_data)["train"].batch(index),
        strict=True,
    ):
        assert torch.equal(one, other)
    torch.manual_seed(0)
    weights = [p.clone() for p in first.model().parameters()]
    torch.manual_seed(0)
    assert all(map(torch.equal, weights, second.model().parameters()))


@pytest.mark.parametrize("name", REGISTRY)
def test_one_step_lowers_the_loss_on_its_batch(name: str, small_data: Path) -> None:
    workload = load_workload(name)
    model = workload.model()
    batch = workload.data(small_data)["train"].batch(torch.arange(64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    before = workload.loss(model, batch)
    assert before.shape == (64,)
    before.mean().backward()
    optimizer.step()
    with torch.no_grad():
        assert float(workload.loss(model, batch).mean()) < float(before.detach().mean())


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("goal = 'val/error < 1'\n    def metrics(self, model, batch): return {}", "at least one"),
        ("goal = 'val/e < 1'\n    def metrics(self, model, batch): return {'e': 1.0}", "is float"),
        ("goal = 'val/error < 1'\n    def loss(self, m, b): return m(b[0]).mean()", r"is \(\)"),
        ("goal = 'val/error < 1'\n    def loss(self, m, b, *, momentum=1.0): pass", "another name"),
        ("goal = 'val/error < 1'\n    def loss(self, m, b, *, focus): pass", "as the default of"),
        ("pass", "must have a goal"),
        ("goal = 'val/error < 1'\n    def data(self, d): return {'train': (1, 2)}", "of splits"),
        ("goal = 'val/error < 1'\n    def model(self): return BatchNorm1d(2)", "with_ghosts"),
    ],
)
def test_half_written_workloads_are_refused(tmp_path: Path, body: str, message: str) -> None:
    (tmp_path / "mine.py").write_text(
        f"{OWN}\nfrom torch.nn import BatchNorm1d\nclass Broken(Blobs):\n    {body}\n"
        "if 'goal' not in vars(Broken): del Blobs.goal\n"
    )
    with pytest.raises(BadInput, match=message):
        single_trial(
            f"{tmp_path}/mine.py:Broken", "momentum", 8, params={"momentum": 0.9}, steps=1, seed=0
        )


def test_digits_are_split_as_stated() -> None:
    splits = load_workload("digits/mlp").data(None)
    assert {name: split.size for name, split in splits.items()} == {"train": 1400, "val": 397}
    inputs, labels = splits["train"].batch(torch.arange(1400))
    assert (float(inputs.min()), float(inputs.max())) == (0, 1)
    assert set(labels.tolist()) == set(range(10))


def test_own_workload_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    trial = make_trial(f"{tmp_path}/mine.py:Blobs", goals=["val/error < 0.1"], budget_steps=500)
    _, outcome = run_trial(trial)
    assert outcome.status == "reached"
    with pytest.raises(BadInput, match="Did you mean 'Blobs'"):
        load_workload(f"{tmp_path}/mine.py:Blob")
    (tmp_path / "half.py").write_text(OWN.replace("def model", "def modle"))
    with pytest.raises(BadInput, match="model"):
        load_workload(f"{tmp_path}/half.py:Blobs")


def test_a_users_folder_named_workloads_lives_beside_ours(tmp_path: Path) -> None:
    folder = tmp_path / "workloads"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "mine.py").write_text(OWN)
    code = (
        "from orchestrator.workloads import load_workload;"
        "print(load_workload('workloads.mine:Blobs').goal, load_workload('digits/mlp').goal)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "val/error < 0.1 val/error < 0.04"


def test_options_are_typed() -> None:
    assert load_workload("noisy_quadratic?d=7&precondition=0.5").model().weight.shape == (1, 7)
    with pytest.raises(BadInput, match="type int"):
        load_workload("noisy_quadratic?d=seven")


def test_mnist_is_split_as_published(small_data: Path) -> None:
    def sizes(name: str) -> dict[str, int]:
        return {k: v.size for k, v in splits_of(load_workload(name), small_data).items()}

    assert sizes("mnist/lenet") == {"train": 220, "val": 20, "test": 60}
    assert sizes("mnist/lenet?split=60000") == {"train": 240, "test": 60}
    assert sizes("mnist/lenet?train_examples=50") == {"train": 50, "val": 20, "test": 60}
    assert sizes("mnist/lenet?classes=5") == {"train": 110, "val": 10, "test": 30}


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("mnist/fc_64_32", 784 * 64 + 64 + 64 * 32 + 32 + 32 * 10 + 10),
        ("mnist/simple_cnn", 832 + 51_264 + 3136 * 1024 + 1024 + 10_250),
        ("fashion_mnist/lenet", 156 + 2416 + 48_120 + 10_164 + 850),
    ],
)
def test_models_have_the_published_sizes(name: str, parameters: int) -> None:
    assert sum(p.numel() for p in load_workload(name).model().parameters()) == parameters


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mnist/simple_cn", "Did you mean 'mnist/simple_cnn'"),
        ("mnist/fc_0", "Unknown workload"),
        ("mnist/fc_64?classes=1", "`classes` must be from 2 to 10"),
        ("mnist/lenet?train_examples=1.5", "must be of type int"),
    ],
)
def test_impossible_workloads_are_refused(name: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        load_workload(name)


def test_any_training_set_may_be_cut_down(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    for name in ("digits/mlp", f"{tmp_path}/mine.py:Blobs"):
        all_of = splits_of(load_workload(name), None)["train"]
        some, again = (
            splits_of(load_workload(f"{name}?train_examples=40"), None)["train"] for _ in range(2)
        )
        inputs, labels = some.batch(torch.arange(40))
        assert torch.equal(inputs, again.batch(torch.arange(40))[0])
        everything = all_of.batch(torch.arange(all_of.size or 0))
        rows = [row.tolist() for row in torch.cat([everything[0], everything[1][:, None]], dim=1)]
        taken = [rows.index(r.tolist()) for r in torch.cat([inputs, labels[:, None]], dim=1)]
        assert taken == sorted(set(taken))
        assert taken[-1] - taken[0] > 40
        with pytest.raises(BadInput, match=r"from 0 \(all\) to"):
            splits_of(load_workload(f"{name}?train_examples=9999"), None)
    with pytest.raises(BadInput, match="without end"):
        splits_of(load_workload("noisy_quadratic?train_examples=9"), None)


def test_missing_data_is_said_with_the_command_that_gets_it(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"(?s)data set mnist.*is in none of.*Get it: put its four"):
        data_set("mnist").need(tmp_path)
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "train-images-idx3-ubyte").touch()
    assert data_set("mnist").find(tmp_path) is None
