"""Groups of parameters: those that Muon orthogonalises, and those that a workload names."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import models
import pytest
import pytorch_optimizer
import torch
from conftest import make_trial, refused
from torch import Tensor, nn
from torch.nn import functional

from orchestrator.records import Trial, derive_seed
from orchestrator.records.lr_schedules import make_schedule
from orchestrator.training.batches import BatchOrder
from orchestrator.training.engine import Single
from orchestrator.training.library_optimizers import LIBRARY
from orchestrator.training.optimizers import OPTIMIZERS
from orchestrator.training.pack import train_in_stack
from orchestrator.training.ranks import Ranks
from orchestrator.training.trainer import Trainer, fresh_model
from orchestrator.workloads import Group, NextToken, Split, Tensors, load_workload


def started(trial: Trial) -> Trainer:
    engine = Single(trial, Ranks())
    engine.put(0, trial)
    return engine.at()


class Backwards(nn.Module):
    """A decoder whose attributes come in the reverse order. Without a head, the embedding is the
    head, too, and no module says so."""

    def __init__(self, *, head: bool) -> None:
        super().__init__()
        self.last = nn.Linear(10, 10) if head else None
        self.hidden = nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 10))
        self.positions = nn.Parameter(torch.randn(5, 10))
        self.embedding = nn.Embedding(10, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.hidden(self.embedding(tokens) + self.positions)
        return self.last(hidden) if self.last else functional.linear(hidden, self.embedding.weight)


def of_hugging_face(config: str, model: str, **settings: Any) -> nn.Module:
    import transformers  # takes seconds, which other processes that collect tests need not spend

    return getattr(transformers, model)(getattr(transformers, config)(**settings))


GPT2 = {"vocab_size": 10, "n_positions": 8, "n_embd": 8, "n_layer": 2, "n_head": 2}
LLAMA = {"vocab_size": 10, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2,
         "num_attention_heads": 2}  # fmt: skip

DECODERS: dict[str, tuple[Callable[[], nn.Module], set[str]]] = {
    "gpt2": (
        lambda: of_hugging_face("GPT2Config", "GPT2LMHeadModel", **GPT2),
        {"transformer.wte.weight", "transformer.wpe.weight"},
    ),
    "llama": (
        lambda: of_hugging_face("LlamaConfig", "LlamaForCausalLM", **LLAMA),
        {"model.embed_tokens.weight", "lm_head.weight"},
    ),
    "backwards": (lambda: Backwards(head=True), {"embedding.weight", "positions", "last.weight"}),
    "without_a_head": (lambda: Backwards(head=False), {"embedding.weight", "positions"}),
}  # fmt: skip


@dataclass(frozen=True)
class Decoder(NextToken):
    name: str = "backwards"
    goal = "val/loss < 1"

    def data(self, data_dir: Path | None) -> Mapping[str, Split]:
        tokens = torch.arange(240).view(40, 6) % 10
        return {"train": Tensors(tokens), "val": Tensors(tokens)}

    def model(self) -> nn.Module:
        return DECODERS[self.name][0]()


@pytest.mark.parametrize("name", DECODERS)
def test_muon_takes_the_hidden_matrices_by_kind_of_module(name: str) -> None:
    trial = make_trial(f"{__file__}:Decoder?name={name}", optimizer="muon", params={})
    trainer, hidden = started(trial), set()
    for group in trainer.optimizer.param_groups:
        hidden |= {id(p) for p in group["params"] if group["use_muon"]}
    matrices = {n: id(p) for n, p in trainer.model.named_parameters() if p.ndim > 1}
    assert {n for n, number in matrices.items() if number not in hidden} == DECODERS[name][1]
    assert hidden < {*matrices.values()}
    assert all(module.training for module in trainer.model.modules())


class Grouped(models.MLP):
    named: Sequence[Group] = (
        Group(parameters=["1.weight"], learning_rate=0.5, weight_decay=0),
        Group(parameters=["4.weight", "4.bias"], learning_rate=2, weight_decay=3),
    )

    def groups(self, model: nn.Module) -> Sequence[Group]:
        return self.named


class Hidden(Grouped):
    named = (
        Group(parameters=["1.weight"], hidden=False),
        Group(parameters=["4.weight"], hidden=True, learning_rate=0.5),
    )


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("adamw", torch.optim.AdamW),
        ("momentum", lambda groups, **given: torch.optim.SGD(groups, momentum=0.9, **given)),
        ("lion", pytorch_optimizer.Lion),
    ],
)
def test_factors_act_on_every_optimizer_and_under_a_schedule(name: str, kind: Any) -> None:
    """The reference is a loop by hand with torch's groups."""
    params = {"learning_rate": 0.02, "weight_decay": 0.1, "decay": "cosine", "warmup_steps": 3}
    params |= {"momentum": 0.9} if name == "momentum" else {}
    trial = make_trial(f"{__file__}:Grouped", optimizer=name, params=params, budget_steps=20)
    trainer = started(trial)
    trainer.advance(20)

    workload = Grouped()
    model: Any = fresh_model(workload, derive_seed(trial.seed, "init"), torch.device("cpu"))
    groups = [
        {"params": [model[1].weight], "lr": 0.01, "weight_decay": 0.0},
        {"params": [model[1].bias], "lr": 0.02, "weight_decay": 0.0},
        {"params": [model[4].weight], "lr": 0.04, "weight_decay": 0.3},
        {"params": [model[4].bias], "lr": 0.04, "weight_decay": 0.0},
    ]
    optimizer = kind(groups, lr=0.02)
    factor = make_schedule({"decay": "cosine", "warmup_steps": 3}, horizon=20, steps_per_epoch=None)
    train = workload.data(None)["train"]
    order = BatchOrder(size=train.size, stage=trial.study.batches.stages[0], seed=trial.seed)
    for step, index in enumerate(order.tables(range(20), seeded=False)[0]):
        for group, rate in zip(optimizer.param_groups, (0.01, 0.02, 0.04, 0.04), strict=True):
            group["lr"] = rate * factor(step)
        optimizer.zero_grad()
        workload.loss(model, train.batch(index)).mean().backward()
        optimizer.step()
    for ours, theirs in zip(trainer.parameters, model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


class Still(Grouped):
    named = (Group(parameters=["1.weight"], learning_rate=0),)


@pytest.mark.parametrize("name", [*sorted({*LIBRARY} - {"rprop"}), "lars", "lamb"])
def test_a_factor_of_zero_keeps_parameters_where_they_are(name: str) -> None:
    """Of Rprop, a rate is the length of the first step only."""
    params = {"learning_rate": 0.1} if name in OPTIMIZERS else {}
    trial = make_trial(f"{__file__}:Still", optimizer=name, params=params)
    if name in ("a2grad", "dadaptadam", "prodigy"):
        with refused("no-effect", "learning_rate"):
            started(trial)
        return
    trainer = started(trial)
    before = [p.detach().clone() for p in trainer.parameters]
    trainer.advance(12)
    moved = [not torch.equal(*pair) for pair in zip(before, trainer.parameters, strict=True)]
    assert moved == [False, True, True, True]


def test_a_group_may_say_what_muon_takes() -> None:
    trainer = started(make_trial(f"{__file__}:Hidden", optimizer="muon", params={"adamw_lr": 0.1}))
    hidden = [group for group in trainer.optimizer.param_groups if group["use_muon"]]
    assert [(len(g["params"]), g["params"][0].shape[0], g["lr"]) for g in hidden] == [(1, 4, 0.01)]


@pytest.mark.parametrize(
    ("groups", "code", "value"),
    [
        ([Group(parameters=["1.weigth"])], "unknown-name", "'1.weigth'"),
        (
            [Group(parameters=["1.weight"]), Group(parameters=["4.bias", "1.weight"])],
            "wrong-value",
            "'1.weight'",
        ),
        ([Group(parameters=["4.bias"], hidden=True)], "wrong-value", "'4.bias'"),
        (["1.weight"], "wrong-result", "1.weight"),
    ],
)
def test_groups_that_cant_be(
    groups: Any, code: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = make_trial(f"{__file__}:Grouped")
    kind = type(load_workload(trial.study.workload))
    monkeypatch.setattr(kind, "groups", lambda self, model: groups)
    with refused(code, value):
        started(trial)
    with refused("wrong-value", "learning_rate", -1):
        Group(parameters=[], learning_rate=-1)


def test_groups_are_trained_alone() -> None:
    trial = make_trial(f"{__file__}:Grouped", params={"learning_rate": 0.1}, budget_steps=5)
    with refused("not-stackable", "Grouped"):
        next(train_in_stack(trial, 4))
