import pytest

from orchestrator.analysis import scaling_of

SIZES = [2**k for k in range(0, 13)]


def answer(points: list[tuple[int, int]], tested: int | None = None):  # type: ignore[no-untyped-def]
    return scaling_of("w", "r", "val/error < 0.1", points, tested=tested or len(points))


def test_a_planted_hyperbola_is_recovered() -> None:
    found = answer([(size, round(1000 * (1 + 128 / size))) for size in SIZES])
    assert found.critical_batch_size.value == pytest.approx(128, rel=0.02)
    assert found.steps_min.value == pytest.approx(1000, rel=0.02)
    assert found.fit_residual_log2 < 0.01
    # 1 + B / 128 stays below 1.3 (1 + 1 / 128) up to 32; 1 + 128 / B below 1.1 min from 1024 on.
    assert found.perfect_scaling_until.value == 32
    assert found.max_useful_batch_size.value == 1024


def test_perfect_scaling_to_the_end_is_said() -> None:
    found = answer([(size, 2**20 // size) for size in SIZES])
    assert found.perfect_scaling_until.value == found.max_useful_batch_size.value == SIZES[-1]
    assert found.verdict.startswith("still scaling")


def test_a_flat_curve_is_called_flat() -> None:
    found = answer([(size, 500) for size in SIZES])
    assert found.max_useful_batch_size.value == 1
    assert found.verdict.startswith("flat")


def test_a_staircase_is_no_hyperbola() -> None:
    found = answer([(size, 10_000 if size < 64 else 100) for size in SIZES])
    assert "not as" in found.verdict


@pytest.mark.parametrize(
    ("points", "verdict"),
    [([], "never reached"), ([(8, 9)], "too few"), ([(1, 9), (2, 5)], "too few")],
)
def test_too_little_to_go_on_is_said(points: list[tuple[int, int]], verdict: str) -> None:
    found = answer(points, tested=5)
    assert verdict in found.verdict
    assert found.critical_batch_size is None
