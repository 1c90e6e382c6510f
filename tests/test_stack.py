"""A trial in a stack against the same trial alone, and against itself with other trials in the
stack."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import models
import pytest
import torch
from conftest import make_trial, refused, run_trial
from stacking import train_stacked, variants
from test_stackable import reason
from torch import Tensor
from torch.func import vmap
from torch.nn import functional

from orchestrator.records import EvaluationGrid, Extras, Measurement, Trial
from orchestrator.training import Ranks
from orchestrator.training.optimizers import OPTIMIZERS
from orchestrator.training.same_bits import InWholeVectors
from orchestrator.training.stack import Stack
from orchestrator.training.stacked_model import Computation, as_vmap_can
from orchestrator.training.tape import Taped, Unrepeatable, record
from orchestrator.training.trainer import Trainer
from orchestrator.workloads import Batch, Split, Tensors, prepare
from orchestrator.workloads.trees import leaves

STACKED = [*OPTIMIZERS, "muon"]
EXTRAS = Extras(train_examples=20)
GRID = EvaluationGrid(spacing=0, min_gap=4)

EVERYTHING: dict[str, Any] = {
    "label_smoothing": 0.1,
    "smoothing_over": "others",
    "weight_decay": 0.01,
    "gradient_clip": 0.5,
    "ema_decay": 0.9,
    "decay": "cosine",
    "warmup_steps": 5,
}
OWN: dict[str, dict[str, Any]] = {
    "sgd": {"learning_rate": 0.1},
    "momentum": {"learning_rate": 0.05, "momentum": 0.9},
    "nesterov": {"learning_rate": 0.05, "momentum": 0.9, "layerwise_ratio": "gradient"},
    "adagrad": {"learning_rate": 0.03, "epsilon": 1e-4},
    "rmsprop": {"learning_rate": 1e-3, "epsilon": 1e-4, "momentum": 0.5},
    "adam": {"learning_rate": 1e-3, "epsilon": 1e-4, "layerwise_ratio": "update"},
    "adamw": {"learning_rate": 1e-3, "epsilon": 1e-4, "beta1": 0.8},
    "lars": {"learning_rate": 1.0, "trust": 0.01},
    "lamb": {"learning_rate": 0.01, "epsilon": 1e-4},
    "muon": {"learning_rate": 0.02, "momentum": 0.9, "adamw_lr": 0.01, "adamw_wd": 0.1},
}


def close(stacked: list[Measurement], alone: list[Measurement], until: int, rel: float) -> None:
    assert [m.step for m in stacked] == [m.step for m in alone]
    for mine, theirs in zip(stacked, alone, strict=True):
        if mine.step <= until:
            assert mine.metrics == pytest.approx(theirs.metrics, rel=rel, abs=1e-15), mine.step


def in_double(trial: Trial) -> Trial:
    return replace(trial, params={**trial.params, "precision": "float64"})


def check_against_alone(trial: Trial, data_dir: Path | None = None, **changes: Any) -> None:
    """Trains three trials. The third gets the slot of the trial that ends first."""
    trials = variants(in_double(trial), 3, **changes)
    found = train_stacked(trials, 2, data_dir=data_dir)
    for one, stacked in zip(trials, found, strict=True):
        alone, _ = run_trial(one, data_dir=data_dir)
        close(stacked, alone, 20, 1e-9)
        close(stacked, alone, 60, 1e-7)


@pytest.mark.dear
@pytest.mark.parametrize("optimizer", ["nesterov", "adam", "muon"])
def test_what_is_measured_with_everything_set_is_as_alone(optimizer: str) -> None:
    """That the states of every optimizer are as alone is told where trials move."""
    params = {**EVERYTHING, **OWN[optimizer]}
    trial = trial_of(NETWORKS["mlp"], optimizer=optimizer, params=params, budget_steps=60)
    check_against_alone(trial, label_smoothing=[0.0, 0.1, 0.3], ema_decay=[0.5, 0.9, 0.99])


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "nesterov"])
def test_digits_train_alone_to_the_same_bits(optimizer: str) -> None:
    """The quickstart measures the same, stacked or not."""
    momentum = {} if optimizer == "sgd" else {"momentum": 0.9}
    params = {"learning_rate": 0.05, **momentum}
    trial = trial_of(
        "digits/mlp", optimizer=optimizer, params=params, batch_size=16, extras=Extras()
    )
    (stacked,) = train_stacked([trial], 2)
    alone, _ = run_trial(trial)
    assert [each.metrics for each in alone] == [each.metrics for each in stacked]


FUNCTIONS = [
    *(torch.atanh, torch.cosh, torch.exp2, torch.sinh, functional.celu, functional.mish),
    lambda numbers: torch.atan2(numbers, numbers + 0.3),
    lambda numbers: functional.celu(numbers.clone(), inplace=True),
]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_numbers_at_the_end_of_a_tensor_get_the_bits_of_others(function: Any) -> None:
    numbers = torch.linspace(-0.9, 0.9, 500)
    with InWholeVectors():
        assert torch.equal(function(numbers), torch.cat([*map(function, numbers.split(1))]))


def test_slots_that_alternate_in_memory_have_sums_of_the_same_bits() -> None:
    numbers = torch.randn(13, 36, generator=torch.Generator().manual_seed(0))
    slots = numbers.expand(3, -1, -1).transpose(0, 1).contiguous().transpose(0, 1)
    with InWholeVectors():
        for sums in (slots.sum(1), slots.mean(1)):
            assert torch.equal(sums, sums[:1].expand(3, -1))


NETWORKS = {
    "mlp": models.name(models.MLP),
    "smooth": models.name(models.Smooth),
    "ghosts": models.name(models.GhostCNN),
    "frozen": models.name(models.Frozen),
    "augmented": models.name(models.Augmented),
    "nested": models.name(models.Nested),
    "scenes": models.name(models.Scenes),
    "transformer": models.name(models.Transformer),
    "quadratic": "noisy_quadratic?d=20&replicas=3",
    "cnn": "digits/cnn",
    "digits": "digits/mlp",
}


def trial_of(network: str, **changes: Any) -> Trial:
    settings = {"batch_size": 13, "budget_steps": 24, "grid": GRID, "extras": EXTRAS, **changes}
    params = {"learning_rate": 0.05, "momentum": 0.8}
    return make_trial(network, **{"optimizer": "nesterov", "params": params, **settings})


REGISTERED = {
    "cifar10/resnet_8?augment=true": 3,
    "mnist/simple_cnn_tiny": 5,
    "sympy/gpt?length=8&evaluated=9": 5,
    "sympy/gpt?length=8&evaluated=9&tied=true": 5,
}
"""With their batch sizes; in float64, convolutions are slow."""


@pytest.mark.dear
@pytest.mark.parametrize("name", [*NETWORKS.values(), *REGISTERED])
def test_every_kind_of_network_trains_as_alone(name: str, small_data: Path) -> None:
    changes: dict[str, Any] = {}
    if name in REGISTERED:
        changes = {"budget_steps": 2, "extras": Extras()}
    trial = trial_of(name, batch_size=REGISTERED.get(name, 13), **changes)
    # In float32, on some processors, rounding carries a value to the other side of a ReLU.
    assert reason(in_double(trial), small_data) is None
    check_against_alone(trial, data_dir=small_data)


@pytest.mark.dear
@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_bits_depend_on_the_trial_alone(network: str) -> None:
    """The bits do not depend on the slot, on trials that diverge, on the width, or on trials that
    were in the slot before."""
    trials = variants(trial_of(network, budget_steps=12), 5)
    wild = replace(trials[1], params={**trials[1].params, "learning_rate": 1e38})
    first, *_, last = train_stacked(trials, 5)
    assert train_stacked([trials[4], trials[0]], 2)[::-1] == [first, last]
    assert train_stacked([trials[1], trials[2], trials[0]], 3)[2] == first
    refilled = train_stacked([wild, trials[4], trials[0], wild, trials[0]], 2)
    assert not all(map(math.isfinite, refilled[0][-1].metrics.values()))
    assert refilled[1] == last
    assert refilled[2] == refilled[4] == first


@pytest.mark.parametrize("network", ["mlp", "frozen", "nested", "transformer", "quadratic", "cnn"])
def test_the_last_trials_go_on_in_fewer_slots(
    network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come to the same bits, and with convolutions, which do not, in as many as before."""
    trial = trial_of(NETWORKS[network])
    trials = variants(trial, 5, ema_decay=[0.5, 0.9, 0.99, 0.8, 0.7])
    for number in (0, 1, 3):
        wild = {**trials[number].params, "learning_rate": 1e38}
        trials[number] = replace(trials[number], params=wild)
    as_many = train_stacked(trials, 5)
    widths, narrow = {5}, Stack.narrow

    def narrowing(self: Stack) -> list[int] | None:
        kept = narrow(self)
        widths.add(self.width)
        return kept

    monkeypatch.setattr(Stack, "narrow", narrowing)
    monkeypatch.setattr(Computation, "recording_seconds", -1)
    assert repr(train_stacked(trials, 5)) == repr(as_many)
    assert widths == ({5} if network == "cnn" else {5, 2})


class ByKind(models.MLP):
    """Batches of another form in the test split, with the metrics in another order."""

    def data(self, data_dir: Path | None) -> Mapping[str, Split]:
        splits = super().data(data_dir)
        inputs, labels = splits["test"].batch(torch.arange(20))
        return {**splits, "test": Tensors({"input": inputs, "labels": labels})}

    def metrics(self, model: torch.nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        found = [*super().metrics(model, batch).items()]
        return dict(found[::-1] if isinstance(batch, Mapping) else found)


def test_each_form_of_batch_has_names_of_its_own() -> None:
    check_against_alone(trial_of(models.name(ByKind), budget_steps=4))


def test_some_slots_measure_as_all_do() -> None:
    trials = variants(trial_of(NETWORKS["cnn"]), 7)
    stack = Stack(trials[0], Ranks(), 7)
    for slot, trial in enumerate(trials):
        stack.put(slot, trial)
    stack.advance(3)
    everyone = stack.evaluated(range(7), test=False)
    for some in ([6], [2, 3], [5, 4, 3, 2, 1, 0]):
        assert stack.evaluated(some, test=False) == [everyone[slot] for slot in some]


@pytest.mark.parametrize(
    ("params", "values"),
    [
        ({"label_smoothing": 0.9, "smoothing_over": "others"}, ("'label_smoothing'", 0.9)),
        ({"layerwise_ratio": "update", "layerwise_trust": 0.0}, ("'layerwise_trust'", 0.0)),
        ({"warmup_fraction": 2.0}, ("'warmup_fraction'", 1, 2.0)),
    ],
)
def test_impossible_settings_are_refused_as_alone(params: dict[str, Any], values: Any) -> None:
    trial = trial_of(NETWORKS["mlp"])
    good = {name: 0.1 if isinstance(value, float) else value for name, value in params.items()}
    stack = Stack(replace(trial, params={**trial.params, **good}), Ranks(), 2)
    with refused("wrong-value", *values):
        stack.put(0, replace(trial, params={**trial.params, **params}))
    stack.put(0, replace(trial, params={**trial.params, **good}))


@pytest.mark.dear
@pytest.mark.parametrize("optimizer", STACKED)
def test_a_trial_moves_between_engines(optimizer: str) -> None:
    """A trial moves from a trainer to a stack, from stack to stack, and back. In float64 the
    results agree up to rounding, and from one stack to another bit by bit."""
    params = {**EVERYTHING, **OWN[optimizer], "precision": "float64"}
    if optimizer == "sgd":
        # Without weight decay the optimizers of torch have one group of parameters.
        params = {**params, "weight_decay": 0.0}
    # Biases in front of norms have gradients of nothing but rounding, which others make much of.
    network = models.GhostCNN if optimizer in ("sgd", "momentum") else models.MLP
    trial = trial_of(models.name(network), optimizer=optimizer, params=params)
    workload, splits = prepare(trial.study.workload, None, torch.device("cpu"))
    alone = Trainer(trial, workload, splits["train"], Ranks())
    alone.advance(5)
    first = Stack(trial, Ranks(), 2)
    first.put(1, trial, alone.state())
    first.advance(3)
    second = Stack(trial, Ranks(), 3)
    second.put(0, trial, first.state(1))
    again = Trainer(trial, workload, splits["train"], Ranks())
    again.load(first.state(1))
    first.advance(8)
    second.advance(8)
    assert_states(first.state(1), second.state(0), rel=0)
    for trainer in (alone, again):
        trainer.advance(16)
    for state in (first.state(1), second.state(0), again.state()):
        assert_states(state, alone.state(), rel=1e-9)


def assert_states(one: Any, other: Any, rel: float) -> None:
    """Checks that states hold the same numbers, except for times."""
    ours, theirs = dict(leaves(one)), dict(leaves(other))
    assert ours.keys() == theirs.keys()
    for place, mine in ours.items():
        if isinstance(mine, str):
            assert mine == theirs[place]
        elif "seconds" not in place:
            close = {"rtol": rel, "atol": 1e-12 * bool(rel), "equal_nan": True}
            torch.testing.assert_close(mine, theirs[place], **close)


Function = Callable[[list[Tensor]], list[Tensor]]


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def layer(inputs: list[Tensor]) -> list[Tensor]:
    """Returns losses and the gradients of weights, computed with functions of every kind."""
    examples, given = inputs
    weights = given.detach().requires_grad_()
    hidden = functional.gelu(torch.bmm(examples, weights)).sigmoid() * torch.ones(3).cumsum(0)[2]
    total = torch.zeros_like(hidden)
    total.add_(hidden)
    losses = functional.silu(total.tanh() * 2, inplace=True).sum((1, 2))
    (gradient,) = torch.autograd.grad(losses, [weights], torch.ones_like(losses))
    return [losses.detach(), gradient]


def classified(inputs: list[Tensor]) -> list[Tensor]:
    """Returns losses of few classes, their logarithms and the gradients of weights."""
    examples, given = inputs
    weights = given.detach().requires_grad_()
    found = torch.bmm(examples, weights.transpose(1, 2)).log_softmax(2)
    losses = found[..., 1] - found.mean(2)
    (gradient,) = torch.autograd.grad(losses, [weights], torch.ones_like(losses))
    return [losses.detach(), found.detach(), gradient]


EXAMPLES = pytest.mark.parametrize(
    ("function", "examples"), [(layer, 5), (classified, 1), (classified, 9), (classified, 16)]
)


@EXAMPLES
def test_a_tape_gives_what_the_function_gives(function: Function, examples: int) -> None:
    tape = record(function, [numbers(3, examples, 7), numbers(3, 7, 7)])
    others = [numbers(3, examples, 7, seed=1), numbers(3, 7, 7, seed=2)]
    for repeated, expected in zip(tape(others), function(others), strict=True):
        torch.testing.assert_close(repeated, expected)


@EXAMPLES
@pytest.mark.parametrize("some", [[0, 1], [2, 0], [1, 2]])
def test_bits_do_not_depend_on_the_place(
    some: list[int], function: Function, examples: int
) -> None:
    """An odd number of elements leaves some over at the end of whole vectors."""
    everything = [numbers(3, examples, 7), numbers(3, 7, 7)]
    part = [whole[some] for whole in everything]
    few = record(function, part)(part)
    for whole, of_some in zip(record(function, everything)(everything), few, strict=True):
        assert torch.equal(whole[some], of_some)


STATE = torch.zeros(3)

UNREPEATABLE: dict[str, tuple[Function, str]] = {
    "random": (lambda inputs: [inputs[0] + torch.rand(3)], "draws random numbers"),
    "a look": (lambda inputs: [inputs[0] * float(inputs[0].sum())], "reads the value"),
    "a memory": (lambda inputs: [STATE.add_(inputs[0])], "may change a constant"),
    "a change": (lambda inputs: [inputs[0].add_(1)], "changes its inputs"),
    "numbers by way of Python": (
        lambda inputs: [inputs[0] + torch.tensor(inputs[0].tolist())],
        "give other bits",
    ),
}


@pytest.mark.parametrize(("function", "reason"), UNREPEATABLE.values(), ids=UNREPEATABLE)
def test_what_would_not_be_the_same_again_is_refused(function: Function, reason: str) -> None:
    with pytest.raises(Unrepeatable, match=reason):
        record(function, [numbers(3)])


def test_padding_is_trained_in_no_slot() -> None:
    """The examples with which a stack is tried may have no padding, so that cannot tell."""
    tokens, tables = torch.tensor([[4, 1]] * 3), torch.ones(3, 5, 2, requires_grad=True)
    with as_vmap_can():
        found = vmap(lambda *of_slot: functional.embedding(*of_slot, padding_idx=-1))(
            tokens, tables
        )
    (gradients,) = torch.autograd.grad(found.sum(), tables)
    assert gradients[:, :, 0].tolist() == [[0, 1, 0, 0, 0]] * 3


def test_a_recording_that_fails_tells_no_operations() -> None:
    """What a stack may do depends on them, and stacks share what they have recorded."""
    few = True

    def function(inputs: list[Tensor]) -> list[Tensor]:
        doubled = inputs[0] * 2
        if few:
            raise RuntimeError("not enough memory")
        return [doubled.exp()]

    taped = Taped(function)
    with pytest.raises(RuntimeError, match="memory"):
        taped([numbers(3)])
    assert not taped.operations
    few = False
    assert torch.equal(taped([numbers(3)])[0], (numbers(3) * 2).exp())
    assert torch.ops.aten.exp.default in taped.operations
