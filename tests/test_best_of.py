"""What the best trials say of fewer and of more trials, and what intervals are made from."""

import itertools
import math
from dataclasses import replace
from statistics import median_low
from typing import Any

import numpy as np
import pytest
from test_report import ROW

from orchestrator.analysis import (
    contributions_in_words,
    enough_in_words,
    scaling_of,
    scalings,
)
from orchestrator.analysis.best_of import Tried, median_best_of, medians_up_to_all
from orchestrator.analysis.enough import Errors, variance_of_median
from orchestrator.analysis.hyperbola import fit_hyperbola
from orchestrator.analysis.tails import Tails, tails_of
from orchestrator.results import FrontierRow
from orchestrator.results.frontier import Leader
from orchestrator.results.repeats import Repeats
from orchestrator.search import DESIGNS

SIZES = 2 ** np.arange(8)
CURVE = 5000 * (1 + 16 / SIZES)


def tried(steps: list[int], competed: int, size: int = 1, apart: float = 0.01) -> Tried:
    return Tried(
        batch_size=size,
        trials=tuple(range(len(steps))),
        steps=tuple(steps),
        resolutions=tuple(max(round(apart * one), 1) for one in steps),
        competed=competed,
    )


@pytest.mark.parametrize("known", [1, 3, 7])
def test_best_of_n_is_the_median_over_all_choices(known: int) -> None:
    steps = [3, 5, 5, 8, 13, 21, 34]
    one = tried(steps[:known], len(steps))
    for count in range(1, len(steps) + 1):
        every = [min(some) for some in itertools.combinations(steps, count)]
        found = median_best_of(one, count)
        if found is not None:
            assert found == median_low(sorted(every))
        else:
            assert sum(best > steps[known - 1] for best in every) > len(every) / 2
    assert dict(medians_up_to_all(one))[7] == 3
    assert median_best_of(one, 8) is None


def test_five_of_twenty_determine_the_best_of_three_and_more() -> None:
    assert medians_up_to_all(tried([1, 2, 3, 4, 5], 20))[0][0] == 3


def planted(chance: np.random.Generator, exponent: float, trials: int = 20) -> list[Tried]:
    """Independent trials of the law, a = CURVE, b twice that."""
    return [
        tried(
            sorted(np.ceil(curve * (1 + chance.random(trials) ** (2 / exponent))).astype(int))[
                : trials // 4
            ],
            trials,
            int(size),
            0.001,
        )
        for size, curve in zip(SIZES, CURVE, strict=True)
    ]


def tails(curve: list[Tried], searched: int) -> Tails:
    found = tails_of(curve, searched)
    assert isinstance(found, Tails)
    return found


@pytest.mark.parametrize("exponent", [2, 4])
def test_the_tail_of_many_trials_finds_the_planted_law(exponent: int) -> None:
    found = tails(planted(np.random.default_rng(0), exponent, 400), 3)
    weights = found.sizes[0].weights.sum(axis=1)
    assert (found.exponents * weights).sum() == pytest.approx(exponent, rel=0.15)
    for place, curve in enumerate(CURVE):
        best = found.sizes[place].best
        assert found.ratio(place, None).value * best == pytest.approx(curve, rel=0.1)
        # b, from where F reaches one.
        size = found.sizes[place]
        reach = (size.last - curve) * (100 / 400) ** (-2 / exponent)
        assert reach == pytest.approx(curve, rel=0.25)


def test_intervals_of_the_best_of_more_hold_it_for_independent_trials() -> None:
    chance, held = np.random.default_rng(1), []
    for _ in range(60):
        found = tails(planted(chance, 3), 3)
        for place, curve in enumerate(CURVE):
            ratio = found.ratio(place, 100)
            truth = curve * (1 + (1 - 0.5**0.01) ** (2 / 3)) / found.sizes[place].best
            assert ratio.low is not None
            assert ratio.high is not None
            held.append(ratio.low <= truth <= ratio.high)
    assert 0.85 <= np.mean(held) <= 0.97


def test_a_tail_that_does_not_fit_is_refused() -> None:
    """One good trial, then many that are all alike: no law of good regions has that."""
    curve = [tried([1000, 1900, 1990, 1995, 1998, 2000, 2000, 2000], 40, int(s)) for s in SIZES]
    assert "do not lie as" in str(tails_of(curve, 2))
    assert "not chosen by a design" in str(tails_of(planted(np.random.default_rng(0), 3), None))


def test_three_trials_that_are_all_there_are_do_not_break_it() -> None:
    curve = [tried([1000, 1100, 1300], 3, int(size)) for size in SIZES]
    assert tails(curve, 2).ratio(0, None).value < 1


def rows(searched: int | None = 2, known: int = 5, repeats: bool = True) -> list[FrontierRow]:
    """Good points become rarer as the batch grows."""
    chance, found = np.random.default_rng(3), []
    points = np.sort(chance.random(20))
    for place, (size, curve) in enumerate(zip(SIZES.tolist(), CURVE, strict=True)):
        steps = np.ceil(curve * (1 + (1 + place) * points**0.8 / 2)).astype(int).tolist()
        leaders = tuple(
            Leader(trial=k, steps=one, resolution=max(one // 100, 1))
            for k, one in enumerate(steps[:known])
        )
        again = tuple(sorted(np.rint(steps[0] * np.exp(0.05 * chance.normal(size=5))).astype(int)))
        found.append(
            replace(
                ROW, batch_size=size, steps=steps[0], resolution=leaders[0].resolution,
                trials_used=20, leaders=leaders, searched=searched,
                repeats=Repeats(
                    count=5, reached=5, median=again[2], low=again[0], high=again[4],
                    confidence=0.94, resolution=10, steps=again,
                ) if repeats else None,
            )
        )  # fmt: skip
    return found


def test_equal_quality_moves_the_curve_and_says_so() -> None:
    (found,) = scalings(rows())
    equal, critical = found.equal_quality, found.critical_batch_size
    assert equal is not None
    assert critical is not None
    assert found.steps_min is not None
    assert equal.critical_batch_size.value > critical.value
    assert equal.steps_min.value < found.steps_min.value
    said = enough_in_words(found)
    assert said.startswith("With 100 trials instead of 20, batch size 128 would need about ")
    assert "At equal quality of tuning, B_crit is " in said
    first = found.best_of[0]
    assert [count for count, _ in first.beyond] == [40, 100]
    assert first.hundred is not None
    assert first.limit is not None
    assert first.limit.value < first.hundred.value < 1
    assert first.limit.low is None
    assert found.contributions is not None
    assert "few trials" in contributions_in_words(found.contributions)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"known": 1}, "the best 3 trials of 4 batch sizes, and they are known of none"),
        ({"searched": None}, "not chosen by a design"),
    ],
)
def test_what_cannot_be_known_is_said(options: dict[str, Any], reason: str) -> None:
    (found,) = scalings(rows(**options))
    assert found.equal_quality is None
    assert found.critical_batch_size is not None
    assert reason in enough_in_words(found)
    assert reason in found.quality_unknown
    assert dict(found.best_of[0].medians)[20] == found.best_of[0].steps


def searched_study(seed: int) -> list[FrontierRow]:
    """Bowls in two metaparameters that become narrower and move as the batch grows, searched with
    the same 20 points at every batch size."""
    points, chance, found = DESIGNS["halton"](seed, 2, 20), np.random.default_rng(seed), []
    places = np.linspace(0, 1, len(SIZES))
    for size, curve, place in zip(SIZES.tolist(), CURVE, places, strict=True):
        off = (points - [0.35 + 0.25 * place, 0.5]) / (0.28 - 0.15 * place)
        steps = curve * (1 + 0.5 * (off**2).sum(axis=1)) * np.exp(0.03 * chance.normal(size=20))
        best = np.argsort(steps)[:5]
        leaders = tuple(
            Leader(trial=int(trial), steps=int(steps[trial]), resolution=max(int(curve / 100), 1))
            for trial in best
        )
        row = replace(ROW, batch_size=size, steps=leaders[0].steps, resolution=int(curve / 100))
        found.append(replace(row, trials_used=20, leaders=leaders, searched=2))
    return found


@pytest.mark.slow
def test_intervals_at_equal_quality_hold_what_was_planted() -> None:
    """B_crit at equal N is too low each time."""
    held, ratios = [], []
    for seed in range(80):
        (found,) = scalings(searched_study(seed))
        critical, equal = found.critical_batch_size, found.equal_quality
        if critical is None or equal is None:
            continue
        of_equal = equal.critical_batch_size
        assert of_equal.low is not None
        assert of_equal.high is not None
        held.append(of_equal.low <= 16 <= of_equal.high)
        ratios.append((critical.value / 16, of_equal.value / 16))
    assert len(held) > 70
    assert np.mean(held) >= 0.9 - 3 * math.sqrt(0.09 / len(held))
    before, after = np.median(ratios, axis=0)
    assert before < 0.9
    assert before < after < 1.15


def test_contributions_add_up_to_the_scatter_that_is_there() -> None:
    """Known errors take their part of the scatter; what is left is called scatter."""
    chance, count, parts = np.random.default_rng(0), len(SIZES), []
    for _ in range(100):
        steps = CURVE * 2 ** (0.1 * chance.normal(size=count))
        errors = Errors(seeds=np.full(count, 0.06**2), luck=0.08**2 * np.eye(count))
        fit = fit_hyperbola(SIZES * 1.0, steps, 0 * steps, known=errors.known)
        parts.append(errors.contributions(steps, 0 * steps, fit.scatter_log2))
    assert parts[0].seeds == pytest.approx(0.06)
    assert parts[0].few_trials == pytest.approx(0.08)
    assert parts[0].total == pytest.approx(math.hypot(0.1, parts[0].scatter))
    # All of the scatter is explained, so that hardly any is left.
    assert np.median([one.scatter for one in parts]) < 0.05


def test_errors_that_go_together_move_the_level_and_not_the_bend() -> None:
    errors = np.full((len(SIZES), len(SIZES)), 0.2**2) + 1e-6 * np.eye(len(SIZES))
    fit = fit_hyperbola(SIZES * 1.0, CURVE, 0 * CURVE, known=errors)
    apart = fit_hyperbola(SIZES * 1.0, CURVE, 0 * CURVE, known=0.2**2 * np.eye(len(SIZES)))
    assert math.log2(fit.critical_interval[1] / fit.critical_interval[0]) < 0.1
    assert math.log2(apart.critical_interval[1] / apart.critical_interval[0]) > 0.5
    assert math.log2(fit.steps_min_interval[1] / fit.steps_min_interval[0]) > 0.3


def test_resolution_alone_widens_as_before() -> None:
    """A curve that happens to go through coarsely measured points is no surer than these are."""
    points = [
        (int(size), steps, round(0.1 * steps)) for size, steps in zip(SIZES, CURVE, strict=True)
    ]
    found = scaling_of("w", "r", "g", points, tested=len(points))
    assert found.contributions is not None
    assert found.contributions.resolution == pytest.approx(math.log2(1 / 0.9) / 12**0.5, rel=0.01)
    assert found.contributions.scatter == 0


@pytest.mark.parametrize("count", [1, 3, 5, 9])
def test_the_variance_of_a_median_of_normal_draws(count: int) -> None:
    draws = np.random.default_rng(0).normal(size=(200_000, count))
    assert np.median(draws, axis=1).var() == pytest.approx(variance_of_median(count), rel=0.03)
