"""Costs and metaparameters: planted powers, and a second way to count."""

import math
from dataclasses import replace

import numpy as np
import pytest
from test_report import ROW, UNREACHED

from orchestrator.analysis import Estimate, advice, costs, in_words, sparkline, tuned
from orchestrator.analysis.metaparameters import EFFECTIVE
from orchestrator.results import FrontierRow

SIZES = [2**k for k in range(11)]


def hyperbola(recipe: str, steps_min: int, critical: int) -> list[FrontierRow]:
    return [
        replace(ROW, recipe=recipe, batch_size=b, steps=round(steps_min * (1 + critical / b)))
        for b in SIZES
    ]


def test_advice_is_what_the_curve_has_it() -> None:
    (found,) = advice([*hyperbola("sgd", 1000, 32), UNREACHED])
    # 1 + 32 / B is within a tenth of 1 + 32 / 1024 from 256 on, B + 32 of 33 up to 4.
    assert found.fastest.batch_size == 256
    assert found.cheapest.batch_size == 4
    assert found.balanced.batch_size == 32
    assert found.fastest.examples == 256 * 1125
    assert advice([UNREACHED]) == []


def test_what_is_beaten_in_both_is_not_on_the_front() -> None:
    rows = [*hyperbola("sgd", 1000, 32), *hyperbola("momentum", 900, 64), UNREACHED]
    amounts = [(row.steps, row.steps * row.batch_size) for row in rows if row.steps]
    for cost, (steps, examples) in zip(costs(rows), amounts, strict=True):
        assert (cost.steps, cost.examples) == (steps, examples)
        beaten = any(
            s <= steps and e <= examples and (s, e) != (steps, examples) for s, e in amounts
        )
        assert cost.pareto != beaten
    assert {cost.pareto for cost in costs(rows)} == {True, False}


def at(batch_size: int, **params: float) -> FrontierRow:
    return replace(ROW, batch_size=batch_size, params=params)


def test_a_planted_power_is_found() -> None:
    rows = [at(b, learning_rate=0.01 * b**0.5, momentum=1 - 0.1 / b**0.25, fixed=3) for b in SIZES]
    found = {curve.name: curve for curve in tuned([*reversed(rows), UNREACHED])}
    assert list(found) == [EFFECTIVE, "learning_rate", "1 - momentum"]
    assert found["learning_rate"].exponent == pytest.approx(0.5)
    assert found["1 - momentum"].exponent == pytest.approx(-0.25)
    assert found[EFFECTIVE].exponent == pytest.approx(0.75)
    assert found["learning_rate"].points[-1] == (1024, pytest.approx(0.32))
    assert found["learning_rate"].rule(1.0)[-1] == (1024, pytest.approx(10.24))
    assert [curve.is_rate for curve in found.values()] == [True, True, False]


def test_the_interval_of_a_power_covers_it() -> None:
    chance, covered = np.random.default_rng(0), 0
    for _ in range(300):
        values = 0.01 * np.sqrt(SIZES) * np.exp(chance.normal(0, 0.5, len(SIZES)))
        (curve,) = tuned([at(b, learning_rate=v) for b, v in zip(SIZES, values, strict=True)])
        low, high = curve.exponent_interval
        covered += low <= 0.5 <= high
    assert 0.86 < covered / 300 < 0.94


def test_too_little_to_tell_a_power_is_said() -> None:
    assert tuned([at(8, learning_rate=0.1)]) == []
    (two,) = tuned([at(8, learning_rate=0.1), at(16, learning_rate=0.2)])
    assert (two.exponent, two.exponent_interval) == (pytest.approx(1), None)
    assert tuned([at(8, kind="a"), at(16, kind="b"), at(32, rate=-1)]) == []


def test_a_curve_in_a_few_characters() -> None:
    assert sparkline([8, 4, 2, 1, None]) == "█▆▃▁ "
    assert sparkline([5, 5]) == "▁▁"
    assert sparkline([None, 0]) == ""


@pytest.mark.parametrize(
    ("estimate", "words"),
    [
        (Estimate(value=1024.0), "1,024"),
        (Estimate(value=13.2, low=9.4, high=17.0), "13 (9 to 17)"),
        (Estimate(value=4282.3, low=3753.9, high=4886.5), "4,280 (3,750 to 4,890)"),
        (Estimate(value=65536.0, low=65536.0, high=65536.0), "65,536"),
        (Estimate(value=2e6, low=512.0, high=math.inf), "2,000,000 (512 or more)"),
        (Estimate(value=0.25, low=0.0, high=2.0), "0.25 (0 to 2)"),
    ],
)
def test_estimates_as_people_read_them(estimate: Estimate, words: str) -> None:
    assert in_words(estimate) == words
