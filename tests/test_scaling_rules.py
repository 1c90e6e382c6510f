"""Each scaling rule against what it keeps, and what is refused."""

import math
from collections.abc import Mapping
from typing import Any

import pytest
from conftest import TINY, refused

from orchestrator.planning import studies
from orchestrator.planning.studies import plan
from orchestrator.planning.sweep_file import validated
from orchestrator.records import ScalingRule
from orchestrator.search import space_from

SIZES = (16, 64, 256)


def at(size: float, **entry: Any) -> float:
    (rule,) = space_from({"x": entry}, "here").values()
    assert isinstance(rule, ScalingRule)
    return rule.at(size)


def spaces(space: Mapping[str, Any], optimizer: str = "adamw") -> dict[int, Mapping[str, Any]]:
    """Batch size -> the metaparameters there, for trainings of 8,192 examples."""
    recipe = {"name": "r", "optimizer": optimizer, "space": {"only": space}}
    document = {**TINY, "recipes": [recipe], "batch_sizes": [*SIZES], "budget": {"examples": 8192}}
    return {s.batch_size: s.space for s in plan(validated(document, "f")).studies}


@pytest.fixture(autouse=True)
def without_rehearsal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(studies, "rehearse_all", lambda *_: ())


NAMED = {"constant": 0, "linear": 1, "sqrt": 0.5}


@pytest.mark.parametrize("named", [-0.5, 0, 0.75, 2, *NAMED])
def test_a_power_multiplies_by_the_same_factor_with_every_doubling(named: Any) -> None:
    exponent = NAMED.get(named, named)
    entry = {"rule": named} if named in NAMED else {"rule": "power", "exponent": exponent}
    entry |= {"base": 0.1, "at_batch_size": 48}
    assert at(48, **entry) == pytest.approx(0.1)
    for size in SIZES:
        assert at(2 * size, **entry) / at(size, **entry) == pytest.approx(2**exponent)


def test_bounds_hold_whatever_the_rule_says() -> None:
    """The rule of a public training script: beta2 = clip(0.999^(B / 32), 0.95, 0.9999)."""
    entry = {"rule": "half_life", "base": 0.999, "at_batch_size": 32, "low": 0.95, "high": 0.9999}
    assert [at(size, **entry) for size in (1, 32, 4096)] == [0.9999, 0.999, 0.95]


def test_half_of_an_average_is_gone_after_its_half_life() -> None:
    for size in SIZES:
        decay = at(size, rule="half_life", tokens=2**20, tokens_per_example=128)
        assert decay ** (8192 / size) == pytest.approx(0.5)


def test_the_sde_of_adam_stays_the_same() -> None:
    """A step of the equation is eta^2 long (Malladi et al. 2022). So B / eta^2, (1 - beta) / B and
    epsilon sqrt(B) stay the same."""
    tuned = {"learning_rate": 1e-3, "beta1": 0.99, "beta2": 0.999, "epsilon": 1e-8}
    rules: dict[str, dict[str, Any]] = {
        "learning_rate": {"rule": "sqrt"},
        "beta1": {"rule": "one_minus_linear"},
        "beta2": {"rule": "one_minus_linear"},
        "epsilon": {"rule": "power", "exponent": -0.5},
    }
    at_64 = {name: {**rules[name], "base": tuned[name], "at_batch_size": 64} for name in tuned}
    found = spaces(at_64)
    assert found[64] == pytest.approx(tuned)
    for size, space in found.items():
        assert space["learning_rate"] ** 2 / size == pytest.approx(1e-6 / 64)
        assert (1 - space["beta1"]) / size == pytest.approx(0.01 / 64)
        assert (1 - space["beta2"]) / size == pytest.approx(0.001 / 64)
        assert space["epsilon"] * math.sqrt(size) == pytest.approx(8e-8)
    assert at(4096, rule="one_minus_linear", base=0.9, at_batch_size=64) == 0


def timescale(size: int, space: Mapping[str, Any], examples: float) -> float:
    return size / (float(space["learning_rate"]) * float(space["weight_decay"]) * examples)


@pytest.mark.parametrize(
    "rate", [0.01, {"rule": "sqrt", "base": 0.01, "at_batch_size": 32}], ids=["fixed", "sqrt"]
)
@pytest.mark.parametrize(
    ("entry", "tau"),
    [({"base": 0.5, "at_batch_size": 64}, None), ({"tau": 0.3}, 0.3)],
    ids=["tuned", "given"],
)
def test_the_timescale_of_weight_decay_stays_the_same(rate: Any, entry: Any, tau: Any) -> None:
    found = spaces({"learning_rate": rate, "weight_decay": {"rule": "timescale", **entry}})
    taus = [timescale(size, space, 8192) for size, space in found.items()]
    assert taus == pytest.approx([tau or taus[1]] * 3)
    assert tau or found[64]["weight_decay"] == pytest.approx(0.5)


def test_each_weight_decay_of_muon_follows_its_own_rate() -> None:
    rates = {"learning_rate": 0.02, "adamw_lr": {"rule": "sqrt", "base": 0.01, "at_batch_size": 16}}
    tau = {"rule": "timescale", "tau": 0.3}
    space = {**rates, "momentum": 0.9, "weight_decay": tau, "adamw_wd": tau}
    for size, found in spaces(space, "muon").items():
        for rate, decay in (("learning_rate", "weight_decay"), ("adamw_lr", "adamw_wd")):
            assert size / (found[rate] * found[decay] * 8192) == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("code", "entry", "said"),
    [
        ("missing-key", {"rule": "power", "base": 1, "at_batch_size": 8}, "exponent"),
        ("missing-key", {"rule": "half_life", "tokens": 9}, "tokens_per_example"),
        ("no-effect", {"rule": "linear", "base": 1, "at_batch_size": 8, "exponent": 2}, "exponent"),
        ("no-effect", {"rule": "timescale", "tau": 1, "base": 9}, "tau"),
        ("wrong-value", {"rule": "timescale", "tau": 0}, "tau"),
        ("wrong-value", {"rule": "sqrt", "base": math.nan, "at_batch_size": 8}, "nan"),
        ("wrong-value", {"rule": "one_minus_linear", "base": 1, "at_batch_size": 8}, "base"),
        ("wrong-value", {"rule": "power", "exponent": 99, "base": 1, "at_batch_size": 8}, 99),
        ("range-order", {"rule": "sqrt", "base": 1, "at_batch_size": 8, "low": 2, "high": 1}, 2),
    ],
)
def test_numbers_that_say_nothing_are_refused(code: str, entry: Any, said: object) -> None:
    with refused(code, said):
        at(16, **entry)


@pytest.mark.parametrize(
    "rate", [{"low": 0.01, "high": 1, "scale": "log"}, 0, {"rule": "timescale", "tau": 1}]
)
def test_a_timescale_needs_the_learning_rate_of_each_batch_size(rate: Any) -> None:
    with refused("wrong-value", "learning_rate", "recipe"):
        spaces({"learning_rate": rate, "weight_decay": {"rule": "timescale", "tau": 1}})
