"""Optimizers of other libraries, against the class of the library used directly."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import models
import pytest
import pytorch_optimizer
import torch
from conftest import make_trial, refused, run_trial
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from orchestrator.training.library_optimizers import LIBRARY, LibraryOptimizer, find
from orchestrator.training.optimizers import accepted_by, make_optimizer
from orchestrator.training.settings import check_metaparameters
from orchestrator.workloads import load_workload

DIRECTLY: list[tuple[str, type[Optimizer], Mapping[str, Any], Mapping[str, Any]]] = [
    ("nadam", torch.optim.NAdam, {"beta1": 0.8}, {"betas": (0.8, 0.999)}),
    ("radam", torch.optim.RAdam, {"epsilon": 1e-3}, {"eps": 1e-3}),
    ("adamax", torch.optim.Adamax, {}, {}),
    ("shampoo", pytorch_optimizer.Shampoo, {"momentum": 0.9}, {"momentum": 0.9}),
    ("soap", pytorch_optimizer.SOAP, {"beta2": 0.9}, {"betas": (0.95, 0.9), "weight_decay": 0.0}),
    ("schedule_free_sgd", pytorch_optimizer.ScheduleFreeSGD, {}, {}),
]


def mlp() -> nn.Sequential:
    """Returns a network of four matrices and four biases, the same in every call."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        widths = (5, 6, 6, 6, 3)
        layers = [nn.Linear(*sizes) for sizes in itertools.pairwise(widths)]
        return nn.Sequential(*layers[:1], nn.Tanh(), *layers[1:])


def cnn() -> nn.Sequential:
    convolution = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    return nn.Sequential(*convolution, nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(4, 3))


def weights_after(optimizer: Optimizer, model: nn.Module, *shape: int, steps: int = 6) -> Tensor:
    """Returns the weights for evaluation after training on random examples of `shape`."""
    random = torch.Generator().manual_seed(1)
    for _ in range(steps):
        inputs = torch.randn(8, *shape, generator=random)
        labels = torch.randint(3, (8,), generator=random)
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    if hasattr(optimizer, "eval"):
        optimizer.eval()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def found(name: str) -> LibraryOptimizer:
    optimizer = find(name)
    assert optimizer is not None, name
    return optimizer


@pytest.mark.parametrize(("name", "kind", "ours", "theirs"), DIRECTLY)
def test_steps_equal_those_of_the_class(
    name: str, kind: type[Optimizer], ours: Mapping[str, Any], theirs: Mapping[str, Any]
) -> None:
    here, there = mlp(), mlp()
    by_name: Any = found(name).build(here, {"learning_rate": 0.02, **ours})
    directly: Any = kind(there.parameters(), lr=0.02, **theirs)
    assert torch.equal(weights_after(by_name, here, 5), weights_after(directly, there, 5))
    if name == "schedule_free_sgd":
        averaged = nn.utils.parameters_to_vector(here.parameters())
        by_name.train()
        assert not torch.equal(averaged, nn.utils.parameters_to_vector(here.parameters()))


def test_muon_takes_the_hidden_matrices_and_adamw_the_rest() -> None:
    here, there = mlp(), mlp()
    tensors = list(there.parameters())
    rest = [tensor for tensor in tensors if tensor.ndim == 1 or tensor is tensors[6]]
    directly = pytorch_optimizer.Muon(
        [
            {"params": tensors[0:6:2], "use_muon": True, "lr": 0.01, "weight_decay": 0.1},
            {"params": rest, "use_muon": False, "lr": 3e-4},
        ],
        adamw_betas=(0.7, 0.95),
    )
    params = {"learning_rate": 0.01, "weight_decay": 0.1, "adamw_beta1": 0.7}
    by_name = found("muon").build(here, params, losses=lambda: here(torch.ones(1, 5)).sum(dim=1))
    assert torch.equal(weights_after(by_name, here, 5), weights_after(directly, there, 5))


@pytest.mark.parametrize("name", ["schedule_free_sgd", "ScheduleFreeSGD", "schedulefreesgd"])
def test_a_name_has_many_spellings(name: str) -> None:
    assert found(name).name == "schedulefreesgd"


@pytest.mark.parametrize(
    ("name", "decay"),
    [
        # Without a gradient, w becomes (1 - rate decay) w where the paper decouples.
        *((name, 0.9**2) for name in (
            "adabelief", "adopt", "came", "grams", "laprop", "lion", "mars", "radam",
            "stableadamw", "tiger", "yogi",
        )),
        ("soap", 0.9),  # it begins with the second step
        ("adan", 1.1**-2),  # its decay is proximal
    ],
)  # fmt: skip
def test_weight_decay_is_that_of_the_paper(name: str, decay: float) -> None:
    model = nn.Linear(3, 2)
    before, bias = (nn.init.ones_(w).detach().clone() for w in (model.weight, model.bias))
    optimizer = found(name).build(model, {"learning_rate": 0.2, "weight_decay": 0.5})
    for tensor in model.parameters():
        tensor.grad = torch.zeros_like(tensor)
    optimizer.step()
    optimizer.step()
    torch.testing.assert_close(model.weight, before * decay, rtol=2e-3, atol=0)
    torch.testing.assert_close(model.bias, bias, rtol=2e-3, atol=0)


def test_what_a_library_computes_or_holds_in_a_tuple_can_be_set() -> None:
    """Without `shampoo_beta`, SOAP takes beta2 in its place."""
    group = found("qhadam").build(mlp(), {"nu2": 0.9}).param_groups[0]
    assert (group["betas"], group["nus"]) == ((0.995, 0.999), (0.7, 0.9))
    soap = found("soap").build(mlp(), {"shampoo_beta": 0.5}).param_groups[0]
    assert (soap["shampoo_beta"], found("soap").settings["shampoo_beta"]) == (0.5, None)
    with refused("wrong-value", "'shampoo_beta'", "a finite number"):
        found("soap").build(mlp(), {"shampoo_beta": "high"})


def test_unknown_names_and_bad_values() -> None:
    assert find("no_such_optimizer") is None
    assert find("optimizer") is None
    with refused("unknown-name", "'soap': 'beta3'", "'beta2'"):
        found("soap").build(mlp(), {"beta3": 0.5})
    with refused("wrong-value", "soap", -1):
        found("soap").build(mlp(), {"learning_rate": -1.0})


@pytest.mark.parametrize("name", LIBRARY)
def test_every_optimizer_of_the_table_trains_a_cnn(name: str) -> None:
    network, shape = cnn(), (2, 5, 5)
    losses = lambda: network(torch.zeros(2, *shape)).sum(dim=1)  # noqa: E731
    optimizer = found(name).build(network, {}, losses=losses)
    assert weights_after(optimizer, network, *shape, steps=3).isfinite().all()


OWN = """
import torch
from torch.optim import Adafactor

class Own(torch.optim.SGD):
    def __init__(self, params, lr, *more, pull=0.0):
        super().__init__(params, lr, *more, weight_decay=pull)

class Clipping(Own):
    def __init__(self, params, lr, gradient_clip=1.0):
        super().__init__(params, lr)

class Greedy(torch.optim.Optimizer):
    def step(self, closure):
        raise AssertionError

class Other:
    pass
"""


def test_a_class_of_ones_own_trains_as_it_does_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    assert accepted_by("mine.py:Own") == (("learning_rate",), ("pull",))
    assert {"epsilon1", "epsilon2"} <= {*accepted_by("mine.py:Adafactor")[1]}
    ours, theirs = mlp(), mlp()
    own = make_optimizer("mine.py:Own", ours, {"learning_rate": 0.1, "pull": 0.01})
    direct = torch.optim.SGD(theirs.parameters(), lr=0.1, weight_decay=0.01)
    assert torch.equal(weights_after(own, ours, 5), weights_after(direct, theirs, 5))
    for place, code, value in (
        ("mine.py:Greedy", "unusable", "closure"),
        ("mine.py:Other", "wrong-class", "torch.optim.Optimizer"),
        ("mine.py:Missing", "unknown-name", "Own"),
    ):
        with refused(code, value):
            accepted_by(place)
    with refused("given-twice", "mine.py:Clipping", "'gradient_clip'"):
        check_metaparameters("mine.py:Clipping", {"gradient_clip"}, load_workload("digits/mlp"))


def test_an_optimizer_is_told_to_train_before_its_first_step() -> None:
    trial = make_trial(optimizer=f"{models.__file__}:TrainMode", budget_steps=2)
    assert run_trial(trial)[1].status == "exhausted"
