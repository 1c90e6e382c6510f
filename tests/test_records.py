import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.records import BadInput, EvaluationGrid, Goal, Range, ScalingRule, derive_seed

fractions = st.floats(0, 1)


@given(fractions)
def test_log_range_is_uniform_in_the_logarithm(u: float) -> None:
    value = Range(low=1e-3, high=10, scale="log").at(u)
    assert math.log(value) == pytest.approx(math.log(1e-3) + u * math.log(1e4), abs=1e-9)


@given(fractions)
def test_reverse_log_range_is_uniform_in_the_distance_to_one(u: float) -> None:
    value = Range(low=0, high=0.999, scale="reverse_log").at(u)
    assert 0 <= value <= 0.999
    assert math.log(1 - value) == pytest.approx(u * math.log(1e-3), abs=1e-9)


@pytest.mark.parametrize(
    ("low", "high", "scale"),
    [(3, 1, "linear"), (0, 1, "log"), (0, 1, "reverse_log"), (0, math.inf, "linear")],
)
def test_impossible_ranges_are_refused(low: float, high: float, scale: str) -> None:
    with pytest.raises(BadInput, match=r"must|needs"):
        Range(low=low, high=high, scale=scale)  # type: ignore[arg-type]


def test_goals_are_strict_and_compared_in_float64() -> None:
    goal = Goal.parse("val/error<0.03")
    assert not goal.passed(0.03)
    assert goal.passed(0.03 - 1e-16)
    assert not goal.passed(math.nan)
    assert Goal.parse("val/average_precision > 0.31").passed(0.32)
    assert Goal.parse(str(goal)) == goal


@pytest.mark.parametrize("text", ["val/error", "error < 0.1", "val/error < x", "val/e < nan", ""])
def test_malformed_goals_say_how_one_is_written(text: str) -> None:
    with pytest.raises(BadInput, match="goal"):
        Goal.parse(text)


@given(st.floats(0, 0.5), st.integers(1, 50), st.integers(0, 10**6))
def test_the_grid_moves_on_by_the_larger_of_gap_and_spacing(s: float, gap: int, e: int) -> None:
    upcoming = EvaluationGrid(spacing=s, min_gap=gap).after(e)
    assert upcoming == max(e + 1, math.ceil(e * (1 + s)), e + gap)


def test_seeds_are_the_same_everywhere() -> None:
    assert derive_seed(0, "trial", 3) == 227461578356882679
    assert derive_seed(0, "trial", 3) != derive_seed(0, "trial", 4)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [("constant", 0.1), ("linear", 0.4), ("sqrt", 0.2)],
)
def test_scaling_rules(rule: Any, expected: float) -> None:
    assert ScalingRule(rule=rule, base=0.1, at_batch_size=64).at(256) == pytest.approx(expected)


def test_half_life_in_examples_stays_the_same() -> None:
    def half_life_in_examples(decay: float, batch_size: int) -> float:
        return batch_size * math.log(0.5) / math.log(decay)

    rule = ScalingRule(rule="half_life", base=0.999, at_batch_size=256)
    for batch_size in (1, 256, 4096):
        found = half_life_in_examples(rule.at(batch_size), batch_size)
        assert found == pytest.approx(half_life_in_examples(0.999, 256))
