import math
from typing import Any

import pytest
from conftest import refused
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.records import (
    EvaluationGrid,
    Goal,
    Range,
    derive_seed,
    shown,
    unknown,
)

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
    ("low", "high", "scale", "said"),
    [
        (3, 1, "linear", ("range-order", 3, 1)),
        (0, 1, "log", ("wrong-value", "`low`", "log", 0)),
        (0, 1, "reverse_log", ("wrong-value", "`high`", "reverse_log", 1)),
        (0, math.inf, "linear", ("wrong-value", "`high`", math.inf)),
        (0, math.nan, "linear", ("wrong-value", "`high`", math.nan)),
        (0, 1e101, "linear", ("wrong-value", "`high`", "1e+100", 1e101)),
        (1e-101, 1, "log", ("wrong-value", "`low`", "1e-100", 1e-101)),
        (0, 10**400, "linear", ("wrong-value", "`high`", "1e+100")),
    ],
)
def test_impossible_ranges_are_refused(low: float, high: float, scale: str, said: Any) -> None:
    with refused(*said):
        Range(low=low, high=high, scale=scale)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("low", "high", "scale"),
    [
        (-1e100, 1e100, "linear"),
        (1e-100, 1e100, "log"),
        (-1e100, 1 - 1e-16, "reverse_log"),
        (0, 5e-324, "linear"),
    ],
)
def test_the_widest_ranges_hold_their_points(low: float, high: float, scale: Any) -> None:
    entry = Range(low=low, high=high, scale=scale)
    assert all(low <= entry.at(place / 8) <= high for place in range(9))


def test_integers_lie_within_their_range() -> None:
    entry = Range(low=0.4, high=64, scale="log", integer=True)
    assert [entry.at(fraction) for fraction in (0.0, 0.05, 1.0)] == [1, 1, 64]
    assert Range(low=0.6, high=3.5, integer=True).at(1) == 3
    with refused("wrong-value", 0.6, 0.9):
        Range(low=0.6, high=0.9, integer=True)


@given(st.floats(0, 1), st.integers(1, 50), st.integers(1, 10**5))
def test_evaluations_are_no_more_than_foretold(spacing: float, gap: int, steps: int) -> None:
    grid, step, count = EvaluationGrid(spacing=spacing, min_gap=gap), 0, 1
    while step < steps and count < 1000:
        step, count = min(grid.after(step), steps), count + 1
    assert count <= grid.most_until(steps) + 1


def test_a_value_is_shown_in_a_few_characters_however_large_it_is() -> None:
    value: Any = ["x"]
    for _ in range(40):
        value = [value] * 9
    assert shown(value).startswith("[[[...")
    assert shown("x" * 10**7) == "'" + "x" * 27 + "..." + "x" * 28 + "'"
    assert shown({"a": 1.5}) == "{'a': 1.5}"
    assert max(len(shown(v)) for v in (value, "x" * 99, 10**400, [1.5] * 999)) <= 60
    error = unknown("key", "x" * 10**6, ["y" * 999] * 3 + [str(n) for n in range(9999)])
    assert len(str(error)) < 2200


@pytest.mark.parametrize(
    ("entry", "value", "fraction"),
    [
        (Range(low=1e-100, high=1, scale="log"), 0, -math.inf),
        (Range(low=1, high=1e100, scale="log"), 1e100, 1),
        (Range(low=0, high=1 - 1e-16, scale="reverse_log"), 1, math.inf),
        (Range(low=-1e100, high=0), -1e100, 0),
    ],
)
def test_a_range_ends_where_numbers_do(entry: Range, value: float, fraction: float) -> None:
    assert entry.fraction(value) == fraction


def test_goals_are_strict_and_compared_in_float64() -> None:
    goal = Goal.parse("val/error<0.03")
    assert not goal.passed(0.03)
    assert goal.passed(0.03 - 1e-16)
    assert not goal.passed(math.nan)
    assert Goal.parse("val/average_precision > 0.31").passed(0.32)
    assert not goal.passed(-math.inf)
    assert not Goal.parse("val/average_precision > 0.31").passed(math.inf)
    for each in (goal, Goal.parse(" Valid Loss (mean) <0.5 for 3 measurements")):
        assert Goal.parse(str(each)) == each
    assert each.metric == "Valid Loss (mean)"


@pytest.mark.parametrize("text", ["val/error", "/error < 0.1", "val/error < x", "val/e < nan", ""])
def test_malformed_goals_say_how_one_is_written(text: str) -> None:
    with refused("wrong-value", "goal", repr(text)):
        Goal.parse(text)


@given(st.floats(0, 0.5), st.integers(1, 50), st.integers(0, 10**6))
def test_the_grid_moves_on_by_the_larger_of_gap_and_spacing(s: float, gap: int, e: int) -> None:
    upcoming = EvaluationGrid(spacing=s, min_gap=gap).after(e)
    assert upcoming == max(e + 1, math.ceil(e * (1 + s)), e + gap)


def test_seeds_are_the_same_everywhere() -> None:
    assert derive_seed(0, "trial", 3) == 227461578356882679
    assert derive_seed(0, "trial", 3) != derive_seed(0, "trial", 4)
