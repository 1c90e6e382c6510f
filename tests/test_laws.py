"""Which law a curve follows. How often the choice goes wrong is measured by benchmarks/laws.py."""

import json
import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from orchestrator.analysis import LawChoice, choose_law, law_in_words, measured_of, scaling_of
from orchestrator.analysis.law_fits import Measured, best_bend, fit_bend
from orchestrator.analysis.law_sizes import candidate_sizes
from orchestrator.analysis.law_useful import SmallestUseful

Curve = Callable[[NDArray[np.float64]], NDArray[np.float64]]
SIZES = 8.0 * 2.0 ** np.arange(9)


def bend(exponent: float, at: float = 128) -> Curve:
    if exponent == math.inf:
        return lambda size: 1e6 * np.maximum(1, at / size)
    return lambda size: 1e6 * (1 + (at / size) ** exponent) ** (1 / exponent)


def smallest_useful(size: NDArray[np.float64]) -> NDArray[np.float64]:
    """Nothing works at 6, and 12 takes the fewest examples."""
    return 1e6 / (1 - 6 / size)


def measured(curve: Curve, sizes: NDArray[np.float64] = SIZES, off: float = 0.0) -> Measured:
    chance = np.random.default_rng(0)
    steps = curve(sizes) * 2 ** (off * chance.normal(size=len(sizes)))
    return measured_of(sizes, steps, np.zeros_like(sizes))


def choice(curve: Curve, sizes: NDArray[np.float64] = SIZES, off: float = 0.0) -> LawChoice:
    return choose_law(measured(curve, sizes, off))


@pytest.mark.parametrize(
    ("exponent", "law"),
    [
        (1, "hyperbola"),
        (2, "between"),
        (math.inf, "straight then flat"),
        (0.5, "softer"),
    ],
)
def test_a_bend_without_scatter_is_recovered(exponent: float, law: str) -> None:
    found = choice(bend(exponent), 2.0 ** np.arange(0, 16))
    assert found.law == law
    assert found.exponent is not None
    assert found.exponent.value == pytest.approx(exponent, rel=0.02) or found.exponent.value > 50
    assert found.steps([128.0]) == pytest.approx(bend(exponent)(np.array([128.0])), rel=0.005)
    assert found.deciding_size is None
    assert found.hyperbola_refused == (exponent != 1)


def test_a_smallest_useful_batch_size_is_recovered() -> None:
    found = choice(smallest_useful)
    assert found.law == "smallest useful batch"
    assert isinstance(found.curve, SmallestUseful)
    assert 2**found.curve.log_smallest == pytest.approx(6, rel=0.01)
    assert 2**found.curve.log_fewest == pytest.approx(12, rel=0.01)
    assert found.steps([5.9, 12.0]) == pytest.approx([math.inf, 2e6], rel=0.01)
    assert "6 is too small for any number of steps, and 12 takes" in law_in_words(found)
    assert choice(smallest_useful, SIZES[:6]).law in {"none", "undecided"}, "of six sizes"


def test_steps_that_rise_again_follow_no_law() -> None:
    found = choice(lambda size: bend(1)(size) * (1 + size / 512), off=0.03)
    assert (found.law, found.rises, found.curve, found.exponent) == ("none", True, None, None)
    assert "No law that was tried fits" in law_in_words(found)
    assert not choice(bend(1), off=0.1).rises


def test_the_fit_is_the_best_of_all() -> None:
    for seed in range(5):
        chance = np.random.default_rng(seed)
        points = measured(lambda size, chance=chance: size**0 * 2 ** (3 * chance.random(len(size))))
        every = [best_bend(points, softness).squares for softness in np.linspace(0, 4, 401)]
        assert fit_bend(points, 0.9).best.squares <= min(every) + 1e-3


def test_four_sizes_leave_it_undecided() -> None:
    found = choice(bend(1), SIZES[:4] * 4, off=0.05)
    assert found.law == "undecided"
    assert "hyperbola" in found.between
    assert f"batch size {found.deciding_size:,} would tell most" in law_in_words(found)


@pytest.mark.parametrize("curve", [lambda size: 1e6 + 0 * size, lambda size: 1e8 / size])
def test_a_line_without_a_bend_leaves_it_undecided(curve: Curve) -> None:
    found = choice(curve, off=0.02)
    assert found.law == "undecided"
    assert not found.hyperbola_refused


def test_the_interval_of_the_exponent_covers() -> None:
    chance, covered = np.random.default_rng(1), 0
    for _ in range(300):
        steps = bend(2)(SIZES) * 2 ** (0.06 * chance.normal(size=len(SIZES)))
        fit = fit_bend(measured_of(SIZES, steps, np.zeros_like(SIZES)), 0.9)
        covered += fit.softness.min() <= 0.5 <= fit.softness.max()
    assert 0.9 - 3 * math.sqrt(0.09 / 300) <= covered / 300 <= 0.97


def test_the_interval_is_no_narrower_than_what_was_measured() -> None:
    steps = bend(1)(SIZES)
    exact, coarse = (
        choose_law(measured_of(SIZES, steps, share * steps)).exponent for share in (0, 0.2)
    )
    assert exact is not None
    assert coarse is not None
    assert coarse.high - coarse.low > 5 * (exact.high - exact.low)
    known = choose_law(measured_of(SIZES, steps, 0 * steps, known_variance=0.1**2)).exponent
    assert known is not None
    assert known.high - known.low > 5 * (exact.high - exact.low)


def test_few_are_called_wrongly() -> None:
    """benchmarks/laws.py has more of them, and more kinds."""
    planted = {"hyperbola": bend(1), "between": bend(2), "straight then flat": bend(math.inf)}
    for law, curve in planted.items():
        chance, laws = np.random.default_rng(3), Counter[str]()
        for _ in range(40):
            steps = curve(SIZES) * 2 ** (0.05 * chance.normal(size=len(SIZES)))
            points = measured_of(SIZES, steps, np.zeros_like(SIZES))
            laws[choose_law(points, recommend=False).law] += 1
        assert laws[law] > 20, law
        assert laws[law] + laws["undecided"] >= 38, law


def test_the_deciding_size_is_where_the_curves_differ() -> None:
    """Far from the bend all of them are alike."""
    sizes = 4.0 ** np.arange(6)
    found = choice(bend(2, at=32), sizes, off=0.2)
    assert found.law == "undecided"
    assert found.deciding_size in (8, 32, 128)
    # At most the number of training examples, and nothing that was measured already.
    points = measured(bend(1, at=2000), sizes, off=0.05)
    assert candidate_sizes(points) == [2, 8, 32, 128, 512, 4096, 16384]
    at_most = choose_law(points, largest=600)
    assert at_most.deciding_size is None or at_most.deciding_size <= 600
    assert choose_law(points).deciding_size in (512, 4096, 16384)


def test_the_deciding_size_also_tells_whether_a_smallest_useful_batch_hides_between_two() -> None:
    """Batch sizes 8 and 32 take as many examples. 16 takes more than that by the bends in question,
    and fewer by the law with a smallest useful batch size, which the points allow too."""
    steps = np.array([8756, 2434, 1918, 1902, 1835, 1979, 1881], dtype=np.float64)
    sizes = 8 * 4.0 ** np.arange(7)
    found = choose_law(measured_of(sizes, steps, np.zeros(7)))
    assert set(found.between) == {"straight then flat", "between"}
    assert found.deciding_size == 16


def test_errors_that_are_known_do_not_refuse_the_hyperbola() -> None:
    off = 0.35 * np.resize([1.0, -1.0], len(SIZES))
    steps = bend(1)(SIZES) * 2**off
    rough = measured_of(SIZES, steps, np.zeros_like(SIZES))
    assert choose_law(rough).law == "none"
    known = measured_of(SIZES, steps, np.zeros_like(SIZES), known_variance=0.35**2)
    found = choose_law(known)
    assert (found.law, found.hyperbola_refused) == ("undecided", False)


def scaling(curve: Curve, sizes: NDArray[np.float64] = SIZES) -> object:
    points = [(int(size), float(curve(np.array([size]))[0]), 0) for size in sizes]
    return scaling_of("w", "r", "g", points, tested=len(points), of_medians=True)


def test_transitions_come_from_the_curve_of_the_law() -> None:
    found = scaling(bend(math.inf))
    assert found.critical_batch_size is None
    assert found.steps_min.value == pytest.approx(1e6, rel=0.01)
    # Examples grow like B from 128 on, and steps are 1.1 of the fewest at 128 / 1.1.
    assert found.perfect_scaling_until.value == pytest.approx(1.3 * 128, rel=0.02)
    assert found.critical_by_examples.value == pytest.approx(1.2 * 128, rel=0.02)
    assert found.max_useful_batch_size.value == pytest.approx(128 / 1.1, rel=0.02)
    assert found.perfect_scaling_until.low <= 1.3 * 128 <= found.perfect_scaling_until.high * 1.01
    assert "there is no B_crit" in found.verdict
    json.dumps(found.to_json())


def test_transitions_of_a_smallest_useful_batch_size() -> None:
    found = scaling(lambda size: 1e6 / (1 - 7 / size))
    # Examples are B^2 / (B - 7), 28 at the least: 1.3 of that at 26.9 (and at 9.5).
    assert found.perfect_scaling_until.value == pytest.approx(26.9, rel=0.02)
    assert found.max_useful_batch_size.value == pytest.approx(77, rel=0.02)
    assert found.perfect_scaling_from == 16
    assert found.critical_batch_size is None
    assert "below batch size 16, training takes more examples" in found.verdict
