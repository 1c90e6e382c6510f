import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import models
import pytest
import torch
from conftest import make_trial, refused, run_trial
from sklearn.metrics import jaccard_score
from torch import nn
from torch.nn import functional

import orchestrator
from orchestrator.planning.single import single_trial
from orchestrator.records import derive_seed
from orchestrator.training import evaluation
from orchestrator.workloads import (
    REGISTRY,
    Batch,
    Classification,
    Workload,
    load_workload,
    prepare,
    splits_of,
)
from orchestrator.workloads.data.catalogue import data_set
from orchestrator.workloads.gpt import GPT, VOCABULARY

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


DEAR = re.compile(r"imagenet/|cifar10/resnet_50|gpt_10|simple_cnn_wide|fc_(1024|2048)")
"""What takes a second or more per step on a CPU."""

SMALLER = {"imagenet/": "?image_size=32&train_examples=16", "cifar10/": "?train_examples=32"}
"""Options that make it less, by how a name begins."""


def test_a_class_that_a_notebook_defines_anew_is_trained_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for kind in (models.MLP, models.GhostCNN):
        monkeypatch.setattr(sys.modules["__main__"], "Mine", kind, raising=False)
        workload, _ = prepare("__main__:Mine", None, torch.device("cpu"))
        assert type(workload) is kind


def _each(names: Iterable[str]) -> pytest.MarkDecorator:
    """Tests these workloads, made smaller; the dear ones in the slow tests."""
    return pytest.mark.parametrize(
        "name",
        [
            pytest.param(
                name + next((o for start, o in SMALLER.items() if name.startswith(start)), ""),
                marks=[pytest.mark.slow] if DEAR.search(name) else [],
            )
            for name in names
        ],
    )


every_model = _each(
    name
    for name in REGISTRY
    # Not those whose code is that of others here.
    if not re.search("fashion_mnist/.*(wide|fc_)|gpt_10", name)
)
every_kind = _each(
    ["cifar10/resnet_8", "cifar10/resnet_32", "digits/cnn", "digits/mlp", "imagenet/resnet_50",
     "sympy/gpt?tied=true", "mnist/simple_cnn_tiny", "mnist/lenet", "fashion_mnist/fc_64_64_64",
     "noisy_quadratic"]
)  # fmt: skip
"""Of all that a trial meets: kinds of splits, batches, losses, metrics and modules."""


@pytest.mark.parametrize("name", REGISTRY)
def test_a_model_of_full_size_takes_what_its_data_gives(name: str, small_data: Path) -> None:
    """By shapes alone, which take no time."""
    workload = load_workload(name)
    (*batch,) = splits_of(workload, small_data)["train"].batch(torch.arange(2))
    with torch.device("meta"):
        assert workload.loss(workload.model(), tuple(t.to("meta") for t in batch)).shape == (2,)


@every_model
def test_data_and_models_are_deterministic(name: str, small_data: Path) -> None:
    first, second = load_workload(name), load_workload(name)
    index = torch.tensor([0, 5, 3])
    seeds = torch.tensor([7, 8, 9])
    train, again = (splits_of(each, small_data)["train"] for each in (first, second))
    for drawn in ([index], [index, seeds]):
        assert all(map(torch.equal, train.batch(*drawn), again.batch(*drawn)))
    torch.manual_seed(0)
    weights = [p.clone() for p in first.model().parameters()]
    torch.manual_seed(0)
    assert all(map(torch.equal, weights, second.model().parameters()))


@every_model
def test_one_step_lowers_the_loss_on_its_batch(name: str, small_data: Path) -> None:
    workload = load_workload(name)
    torch.manual_seed(0)
    model = workload.model()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    batch = splits_of(workload, small_data)["train"].batch(torch.arange(8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    before = workload.loss(model, batch)
    assert before.shape == (8,)
    assert before.isfinite().all()
    before.mean().backward()
    assert all(p.grad is not None for p in model.parameters()), "DDP wants all of them used"
    optimizer.step()
    with torch.no_grad():
        assert float(workload.loss(model, batch).mean()) < float(before.detach().mean())


@pytest.mark.dear
@every_kind
def test_a_trial_evaluates_every_example_once_on_any_number_of_ranks(
    name: str, small_data: Path, train_on_pair: Callable[..., Any]
) -> None:
    trial = make_trial(name, batch_size=3, budget_steps=2, params={"learning_rate": 1e-4})
    alone, _ = run_trial(trial, data_dir=small_data)
    together, _ = train_on_pair(trial, data_dir=small_data)
    for one, other in zip(alone, together, strict=True):
        assert other.metrics == pytest.approx(one.metrics, rel=1e-3, abs=1e-6)

    workload = load_workload(name)
    torch.manual_seed(derive_seed(trial.seed, "init"))
    model = workload.model().eval()
    val = splits_of(workload, small_data).get("val")
    assert val is not None
    assert val.size is not None
    with torch.no_grad():
        means = workload.metrics(model, val.batch(torch.arange(val.size)))
        by_hand = workload.summary({m: v.double().mean(dim=0) for m, v in means.items()})
    measured = {f"val/{metric}": float(value) for metric, value in by_hand.items()}
    assert {m: alone[0].metrics[m] for m in measured} == pytest.approx(measured, rel=1e-3, abs=1e-6)


@pytest.mark.dear
@pytest.mark.parametrize("at_once", [512, 7])
def test_metrics_that_are_no_means_are_those_of_the_whole_split(
    at_once: int, train_on_pair: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(evaluation.EXAMPLES_AT_ONCE, "cpu", at_once)
    trial = make_trial(models.name(models.Scenes), batch_size=4, budget_steps=1)
    workload = models.Scenes()
    torch.manual_seed(derive_seed(trial.seed, "init"))
    images, masks = workload.data(None)["val"].batch(torch.arange(50))
    predicted = workload.model()(images).argmax(dim=1)
    expected = jaccard_score(masks.flatten(), predicted.flatten(), average="macro")
    for run in (run_trial, train_on_pair):
        assert run(trial)[0][0].metrics["val/mean_iou"] == pytest.approx(expected, abs=1e-6)


class Unmade(models.Scenes):
    def summary(self, means: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        return means


def test_values_that_nothing_makes_a_number_of_are_refused() -> None:
    with refused("wrong-result", "'intersection'", "Unmade", "(3,)"):
        run_trial(make_trial(models.name(Unmade), batch_size=4, budget_steps=1))


@pytest.mark.parametrize(
    "name", [n for n in REGISTRY if issubclass(REGISTRY[n], Classification | GPT)]
)
def test_metrics_of_a_planted_predictor(name: str, small_data: Path) -> None:
    # Longer windows would be evaluated in parts, which the predictor does not know.
    workload = load_workload(f"{name}?length=64" if "/gpt" in name else name)
    batch = splits_of(workload, small_data)["train"].batch(torch.arange(6))

    def measured(wrong: int) -> dict[str, float]:
        """Returns the metrics of a predictor that is sure of its answers, and wrong on the first
        few examples."""
        logits = answers(workload, batch)
        logits[:wrong] = -logits[:wrong]
        values = workload.metrics(lambda inputs: logits, batch)
        summary = workload.summary({m: v.double().mean(dim=0) for m, v in values.items()})
        return {metric: float(value) for metric, value in summary.items()}

    for metric, value in measured(wrong=0).items():
        assert value == pytest.approx(0, abs=1e-3), metric
    for metric, value in measured(wrong=3).items():
        if metric.endswith("error"):
            assert value == pytest.approx(0.5)
        else:
            assert value > 5


def answers(workload: Workload, batch: Batch) -> torch.Tensor:
    """Returns the outputs of a perfect model in the shape of the workload's: 20 for yes, -20 for
    no."""
    if isinstance(workload, GPT):
        targets, classes = batch[0][:, 1:].long(), VOCABULARY
    else:
        with torch.device("meta"):
            classes = workload.model()(batch[0].to("meta")).shape[1]
        targets = batch[1].long()
    return functional.one_hot(targets, classes).float() * 40 - 20


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("def metrics(self, model, batch): return {}", ("empty", "Broken")),
        ("def metrics(self, model, batch): pass", ("wrong-value", "`metrics`", "None")),
        ("def summary(self, means): pass", ("wrong-value", "`summary`", "None")),
        ("def model(self): Linear(2, 2)", ("wrong-value", "`model`", "None")),
        ("def metrics(self, model, batch): return {'e': 1.0}", ("wrong-result", "'e'", "float")),
        ("def loss(self, m, b): return m(b[0]).mean()", ("wrong-result", "loss", "()")),
        ("def loss(self, m, b, *, momentum=1.0): pass", ("given-twice", "Broken", "'momentum'")),
        ("def loss(self, m, b, *, focus): pass", ("wrong-value", "'focus'")),
        ("del Blobs.goal", ("missing-goal", "Broken'")),
        ("goal = 0.1", ("missing-goal", "Broken'")),
        ("def data(self, d): return {'train': (1, 2)}", ("wrong-data", "{'train': 'tuple'}")),
        ("def data(self, d): return 3", ("wrong-data", "Loaded(data_set)", "int")),
        ("def model(self): return BatchNorm1d(2)", ("needs-ghosts", "with_ghosts")),
        ("def data(self): return {}", ("not-callable", "Broken.data", "(self, data_dir)")),
        ("def loss(self, m, x, y): pass", ("not-callable", "Broken.loss", "(self, model, batch)")),
        (
            "def data(self, d): return {'train': Tensors(torch.ones(9), augment=lambda x: x)}",
            ("not-callable", "lambda", "(batch, seeds)"),
        ),
        ("def model(self): return LazyLinear(2)", ("wrong-value", "LazyLinear of Broken", "seed")),
    ],
)
def test_half_written_workloads_are_refused(tmp_path: Path, body: str, said: Any) -> None:
    (tmp_path / "mine.py").write_text(
        f"{OWN}\nfrom torch.nn import *\nclass Broken(Blobs):\n    {body}\n"
    )
    with refused(*said):
        single_trial(
            f"{tmp_path}/mine.py:Broken", "momentum", 8, params={"momentum": 0.9}, steps=1, seed=0
        )


@pytest.mark.parametrize("model", ["NET", "nn.Sequential(NET, nn.Linear(2, 2))"])
def test_a_model_that_has_been_trained_before_is_refused(tmp_path: Path, model: str) -> None:
    """The second training would go on with the weights of the first, or of what tried it out."""
    (tmp_path / "mine.py").write_text(OWN.replace("return nn.Lin", f"return {model}\nNET = nn.Lin"))
    with refused("wrong-value", "`model` of Blobs", "a Linear", "each time"):
        orchestrator.train(f"{tmp_path}/mine.py:Blobs", optimizer="sgd", batch_size=8, steps=1)


def test_a_class_without_a_model_and_one_that_is_not_there_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    with refused("unknown-name", "'Blob'", "'Blobs'"):
        load_workload(f"{tmp_path}/mine.py:Blob")
    (tmp_path / "half.py").write_text(OWN.replace("def model", "def modle"))
    with refused("not-callable", f"{tmp_path}/half.py:Blobs", "model"):
        load_workload(f"{tmp_path}/half.py:Blobs")


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("mnist/lenet", {"train": 220, "val": 20, "test": 60}),
        ("mnist/lenet?split=60000", {"train": 240, "test": 60}),
        ("mnist/lenet?train_examples=50", {"train": 50, "val": 20, "test": 60}),
        ("mnist/lenet?classes=5", {"train": 110, "val": 10, "test": 30}),
        ("cifar10/resnet_8", {"train": 270, "val": 30, "test": 60}),
        ("cifar10/resnet_8?split=50000&classes=5", {"train": 150, "test": 30}),
        ("imagenet/resnet_50", {"train": 67, "val": 3, "test": 16}),
        ("imagenet/resnet_50?classes=5", {"train": 34, "val": 1, "test": 10}),
    ],
)
def test_data_are_split_as_published(name: str, sizes: dict[str, int], small_data: Path) -> None:
    workload = load_workload(name)
    assert {k: v.size for k, v in splits_of(workload, small_data).items()} == sizes
    assert workload.goal.startswith("val" if "val" in sizes else "test")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mnist/simple_cn", ("unknown-name", "'mnist/simple_cn'", "'mnist/simple_cnn'")),
        ("mnist/fc_0", ("unknown-name", "'mnist/fc_0'")),
        ("mnist/fc_64?classes=1", ("wrong-value", "`classes`", 2, 10, 1)),
        ("cifar10/resnet_8?split=0", ("wrong-value", "`split`", 0, "50,000")),
        ("imagenet/resnet_50?classes=1001", ("wrong-value", "`classes`", 1001, "1,000")),
        ("imagenet/resnet_50?image_size=31", ("wrong-value", "`image_size`", 31, 32)),
        ("imagenet/resnet_50?workers=-1", ("wrong-value", "`workers`", -1, 0)),
        ("mnist/lenet?train_examples=1.5", ("wrong-value", "'train_examples'", "int", "'1.5'")),
    ],
)
def test_impossible_workloads_are_refused(name: str, said: Any) -> None:
    with refused(*said):
        load_workload(name)


def test_any_training_set_may_be_cut_down(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    for name in ("digits/mlp", f"{tmp_path}/mine.py:Blobs"):
        taken, again = (
            splits_of(load_workload(f"{name}?train_examples=40"), None)["train"].index.tolist()  # type: ignore[attr-defined]
            for _ in range(2)
        )
        assert taken == again == sorted(set(taken))
        assert taken[-1] - taken[0] > 40
        with refused("wrong-value", "`train_examples`", 0):
            splits_of(load_workload(f"{name}?train_examples=9999"), None)
    with refused("wrong-value", "`train_examples`", 0):
        splits_of(load_workload("noisy_quadratic?train_examples=9"), None)


def test_a_class_may_cut_its_training_set_down_itself(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"{OWN}\nclass Few(Blobs):\n    train_examples = 30\n")
    for option, size in (("", 30), ("?train_examples=40", 40)):
        workload = load_workload(f"{tmp_path}/mine.py:Few{option}")
        assert splits_of(workload, None)["train"].size == size


def test_missing_data_is_said_with_the_command_that_gets_it(tmp_path: Path) -> None:
    with refused("missing-data", "mnist", tmp_path, "--data-dir"):
        data_set("mnist").need(tmp_path)
    with refused("missing-data", "`orchestrate data get sympy --data-dir FOLDER`"):
        data_set("sympy").need(tmp_path)
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "train-images-idx3-ubyte").touch()
    assert data_set("mnist").find(tmp_path) is None
