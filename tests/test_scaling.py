"""What is said of a curve, held against curves that are planted."""

import csv
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT, refused
from test_report import ROWS, UNREACHED

import orchestrator
from orchestrator.analysis import Scaling, scalings, sentence
from orchestrator.analysis.errors import Errors
from orchestrator.analysis.pairs import curve_pair
from orchestrator.analysis.scaling import BENDS, SCALES, compared_with, rises_after, scaling_of
from orchestrator.analysis.words import (
    bend_cells,
    exponent_in_words,
    fifth_in_words,
    growing_sentence,
    headline,
)

SIZES = [2**k for k in range(0, 13)]
NAMES = ("w", "r", "val/error < 0.1")
EXACT = 0.01
"""Standard deviation of points, in doublings, that are as good as exact."""


def answer(
    points: Sequence[tuple[int, float]],
    tested: int | None = None,
    *,
    error: float = EXACT,
    **options: Any,
) -> Scaling:
    """What points say whose errors have this standard deviation."""
    count = len(points)
    errors = Errors(resolution=np.full(count, error**2), few_trials=np.zeros((count, count)))
    return scaling_of(NAMES, points, errors, tested=tested or len(points), **options)


def bend(critical: float, exponent: float) -> Callable[[float], float]:
    if math.isinf(exponent):
        return lambda size: max(1, critical / size)
    return lambda size: (1 + (critical / size) ** exponent) ** (1 / exponent)


def planted(curve: Callable[[float], float], sizes: Sequence[int]) -> list[tuple[int, float]]:
    return [(size, 1000 * curve(size)) for size in sizes]


def test_a_planted_hyperbola_is_recovered() -> None:
    found = answer(planted(bend(128, 1), SIZES))
    assert found.critical_batch_size.value == pytest.approx(128, rel=0.03)
    assert found.steps_min.value == pytest.approx(1000, rel=0.03)
    assert found.exponent.value == pytest.approx(1, rel=0.05)
    # B + 128 is 1.3 (1 + 128) at 39.7 and 1.2 (1 + 128) at 26.8. At the largest, steps are 1031,
    # and 1.1 times that at 955.
    assert found.perfect_scaling_until.value == pytest.approx(39.7, rel=0.04)
    assert found.critical_by_examples.value == pytest.approx(26.8, rel=0.04)
    assert found.max_useful_batch_size.value == pytest.approx(955, rel=0.04)
    said = (
        "batch size 27 .* takes a fifth more examples than the fewest; beyond 9.+ larger batches "
    )
    assert found.critical_by_examples_is == ""
    assert re.search(said, headline(found)), headline(found)


@pytest.mark.parametrize("exponent", [0.7, 1.0, 1.5, 2.0, 4.0, math.inf])
@pytest.mark.parametrize("place", [0.3, 0.9])
def test_intervals_hold_the_truth_of_any_bend(exponent: float, place: float) -> None:
    """The more so as no single one of 30 studies says which exponent it is."""
    chance, sizes = np.random.default_rng(0), [8 * 2**k for k in range(8)]
    curve = bend(8 * 128**place, exponent)
    fine = np.geomspace(sizes[0], sizes[-1], 5001)
    examples = fine * [curve(size) for size in fine]
    true = fine[np.flatnonzero(examples <= 1.2 * examples.min())[-1]]
    held = []
    for _ in range(30):
        off = 2 ** (0.1 * chance.standard_normal(len(sizes)))
        exact = zip(planted(curve, sizes), off, strict=True)
        points = [(size, steps * by) for (size, steps), by in exact]
        fifth = answer(points, error=0.1).critical_by_examples
        held.append(fifth.low <= 1.001 * true <= 1.002 * fifth.high)
    assert np.mean(held) >= 0.8


@pytest.mark.parametrize("exponent", [1.0, 2.0])
def test_the_smallest_batch_size_tested_does_not_move_the_answer(exponent: float) -> None:
    """Or the answer is no more than a bound."""
    found = [answer(planted(bend(200, exponent), SIZES[k:])) for k in (0, 3, 6)]
    first = found[0].critical_by_examples
    for one in found:
        fifth = one.critical_by_examples
        if one.critical_by_examples_is == "":
            assert fifth.value == pytest.approx(first.value, rel=0.25)
        elif one.critical_by_examples_is == "at most":
            assert first.value <= fifth.high
            assert "or less takes a fifth more examples" in headline(one)
    late = answer(planted(bend(50, exponent), [64, 128, 256, 512, 1024]))
    assert late.critical_by_examples_is == "below the smallest tested"
    assert "the smallest batch size tested already takes a fifth more" in headline(late)


@pytest.mark.parametrize("seed", range(40))
def test_no_sentence_is_contradicted_by_the_points(seed: int) -> None:
    """Whatever the points: a batch size that is said to take a fifth more examples does not take
    fewer than one before it that is half as large, and so on."""
    chance = np.random.default_rng(seed)
    curve = bend(2 ** chance.uniform(0, 10), 2 ** chance.uniform(-0.5, 3))
    sizes = SIZES[chance.integers(0, 6) :]
    points = [
        (size, steps * 2 ** (0.05 * chance.standard_normal()))
        for size, steps in planted(curve, sizes)
    ]
    found, steps = answer(points, error=0.05), dict(points)
    fifth, useful = found.critical_by_examples, found.max_useful_batch_size
    if fifth is None or useful is None:
        assert found.verdict.startswith("flat")
        return
    fewest = min(size * of_size for size, of_size in points)
    near = min(sizes, key=lambda size: abs(math.log(size / fifth.value)))
    if "no batch size" not in headline(found) and not found.critical_by_examples_is:
        assert 0.75 < near * steps[near] / fewest / 1.2 < 1.6
    beyond = [of_size for size, of_size in points if size >= useful.value]
    assert max(beyond, default=0) < 1.35 * min(steps.values())


@pytest.mark.parametrize("largest", [100, 1500, 4096, 60_000])
def test_the_end_of_the_range_is_met_whatever_its_logarithm_rounds_to(largest: int) -> None:
    found = answer([(size, 2**20 / size) for size in (1, 4, 16, 64, largest)])
    assert found.critical_by_examples.value == largest
    assert f"no batch size up to {largest:,} takes a fifth more" in headline(found)
    assert f"steps still fall at {largest:,}, the largest tested" in sentence(found)
    assert found.verdict == SCALES
    critical = found.critical_batch_size
    assert critical is None or critical.high == math.inf


def test_what_the_largest_batch_size_cuts_off_is_no_end_of_an_interval() -> None:
    """The bend of 300 takes a fifth more examples at 66, of which sizes up to 32 say nothing."""
    chance, sizes = np.random.default_rng(1), SIZES[:6]
    off = 2 ** (0.1 * chance.standard_normal(len(sizes)))
    exact = zip(planted(bend(300, 1), sizes), off, strict=True)
    found = answer([(size, steps * by) for (size, steps), by in exact], error=0.1)
    assert found.critical_by_examples.high == 32
    assert found.fifth_more.high == math.inf
    assert re.search(r"batch size \d+ (\(\d+ )?or more\)? takes a fifth more", headline(found))
    assert "or more" in fifth_in_words(found)
    perfect = answer([(size, 2**20 / size) for size in SIZES[:6]])
    assert fifth_in_words(perfect) == "over 32"
    late = replace(found, critical_by_examples_is="at most")
    assert "do not tell which batch size takes a fifth more" in headline(late)
    assert fifth_in_words(late) == "not bounded"


def test_a_recipe_that_was_tested_less_far_does_not_scale_less_far() -> None:
    short = answer([(size, 2**20 / size) for size in SIZES[:6]])
    far = answer(planted(bend(2000, 1), SIZES))
    fifths, _ = compared_with(short, far)
    assert fifths.low < 1 < fifths.high == math.inf
    fifths, _ = compared_with(far, short)
    assert 0 == fifths.low < 1 < fifths.high
    assert curve_pair(short, far, same=False).verdict == "agree"
    assert curve_pair(far, short, same=False).verdict == "agree"
    near = answer(planted(bend(20, 1), SIZES))
    assert curve_pair(short, near, same=False).verdict == "differ"


@pytest.mark.parametrize("error", [0.01, 0.1])
def test_nothing_is_said_of_a_bend_that_lies_far_beyond_all_batch_sizes(error: float) -> None:
    """Where B_c is looked for ends before it, so its exponent and S_min would come out wrong."""
    found = answer(planted(bend(1e6, 1), SIZES), error=error)
    assert found.verdict == SCALES
    assert (found.exponent, found.steps_min) == (None, None)
    critical = found.critical_batch_size
    assert critical is None or critical.high == math.inf
    assert critical is None or "critical batch size at least" in headline(found)


def test_the_softest_bend_that_is_tried_is_no_end_of_an_interval() -> None:
    found = answer(planted(lambda size: size**-0.5, SIZES)).exponent
    assert re.search(r"^0\.\d+ \([\d.]+ or less\)$", exponent_in_words(found))


def test_a_flat_curve_is_called_flat() -> None:
    found = answer([(size, 500) for size in SIZES])
    assert found.verdict.startswith("flat")
    assert found.critical_by_examples is None
    # With measurements far apart, equal steps may hide any curve.
    unknown = answer([(size, 500) for size in SIZES], error=2.0)
    assert not unknown.verdict.startswith("flat")
    # Each goal was passed between 250 and 500, so the largest may have saved half of the steps.
    assert orchestrator.scaling(SIZES, [500] * 13, resolution=50).verdict.startswith("flat")
    assert not orchestrator.scaling(SIZES, [500] * 13, resolution=250).verdict.startswith("flat")


def test_a_flat_curve_is_not_said_of_batch_sizes_that_are_left_out() -> None:
    """Here 128 saves three quarters of the steps of 1,024."""
    flat = zip(SIZES[5:11], [500, 490, 480, 470, 480, 2000], strict=True)
    (found,) = scalings([replace(ROWS[0], batch_size=size, steps=steps) for size, steps in flat])
    said = "flat: of the batch sizes used, none saves a fifth .* Left out: .*1,024 "
    assert re.search(said, sentence(found)), sentence(found)


@pytest.mark.parametrize(("critical", "count"), [(2000, 11), (128, 13)])
def test_a_bend_is_not_said_of_batch_sizes_that_were_not_tested(critical: int, count: int) -> None:
    said = headline(answer(planted(bend(critical, 1), SIZES[:count])))
    largest = f"{SIZES[count - 1]:,}"
    assert re.search(rf"beyond \d+ \(.*\) larger batches up to {largest} save less", said), said


def test_a_bend_where_the_best_points_are_at_an_end_may_be_that_of_the_range() -> None:
    end = ("momentum 0.9 is near the lower end, 0.9, of its range",
           "lr 0.2 is near the upper end, 0.2, of those tried here")  # fmt: skip
    for which, expected in ((range(7, 13), True), (range(7), False), (range(10, 13), False)):
        rows = [
            replace(ROWS[0], batch_size=2**k, steps=round(1000 * (1 + 128 / 2**k)),
                    warnings=end[k % 2 :] if k in which else ())
            for k in range(13)
        ]  # fmt: skip
        (found,) = scalings(rows)
        said = "past the bend, lr is near the upper end of its range, which may have made the bend"
        assert (said in sentence(found)) == expected, sentence(found)


def test_a_batch_size_that_did_not_reach_the_goal_was_tested() -> None:
    (found,) = scalings([*ROWS, UNREACHED])
    assert "steps still fall at 32, the largest left" in sentence(found)
    assert "Left out: 64 (goal not reached)" in sentence(found)


def test_steps_that_fall_beside_every_bend_still_fall() -> None:
    chance = np.random.default_rng(1)
    steps = [2**20 / size * 2 ** (0.5 * chance.standard_normal()) for size in SIZES]
    found = answer([*zip(SIZES, steps, strict=True)])
    assert found.verdict == BENDS
    assert "steps still fall at 4,096, the largest tested" in headline(found)
    assert not bend_cells(found)["Useful until"]


def test_a_staircase_is_no_bend() -> None:
    found = answer([(size, 10_000 if size < 64 else 100) for size in SIZES])
    assert "no bend fits the curve" in found.verdict


def test_points_from_where_steps_rise_again_are_left_out() -> None:
    points = planted(bend(32, 2), SIZES[:9])
    rows = [(size, steps * (2 if size > 128 else 1)) for size, steps in points]
    logs = np.log2([steps for _, steps in rows])
    known, unsure = (
        Errors(resolution=np.full(9, e**2), few_trials=np.zeros((9, 9))) for e in (0, 0.5)
    )
    assert rises_after(logs, known) == 8
    assert rises_after(logs, unsure) == 9, "it may be chance"


def test_a_rise_among_minima_that_scatter_may_be_chance() -> None:
    logs = np.array([10, 9, 8, 7, 6.9, 7.1, 6.8, 7, 7.2])
    minima = Errors(resolution=np.zeros(9))
    assert rises_after(logs, minima) == 9
    assert rises_after(logs, replace(minima, few_trials=np.zeros((9, 9)))) == 7
    logs[-1] = 7.8
    assert rises_after(logs, minima) == 7


def test_too_little_to_go_on_is_said() -> None:
    found = answer([(1, 90), (2, 50), (4, 30)], tested=5)
    assert "3 of 5 can be used, 4 are" in found.verdict
    said = (found.critical_batch_size, found.critical_by_examples, found.max_useful_batch_size)
    assert said == (None, None, None)


def test_what_was_ended_too_early_is_not_said_to_be_out_of_reach() -> None:
    assert "never" in scalings([UNREACHED])[0].verdict
    assert "too early" in scalings([replace(UNREACHED, censored=True)])[0].verdict
    growing = replace(ROWS[0], examples=1024, censored=True)
    assert growing_sentence(growing) == "sgd, batch size 1: censored."


PUBLISHED = {
    "mnist/simple_cnn_base": 428, "fashion_mnist/simple_cnn_base": 302,
    "imagenet/resnet_50": 19_600, "open_images_v4/resnet_50": 13_100,
    "lm1b/transformer_base": 832, "lm1b/lstm": 70, "common_crawl/transformer_base": 526,
}  # fmt: skip
"""B_crit as others fitted it to the same points, which were read off the first figure of Shallue et
al., where a hyperbola fits."""


def published_curves() -> dict[str, list[tuple[int, int]]]:
    """Workload -> (batch size, steps)."""
    curves: dict[str, list[tuple[int, int]]] = {}
    with Path(__file__).with_name("published_steps.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            curves.setdefault(row["workload"], []).append(
                (int(row["batch_size"]), int(row["steps"]))
            )
    return curves


@pytest.mark.parametrize("workload", PUBLISHED)
def test_published_curves_are_fitted_as_others_fitted_them(workload: str) -> None:
    found = answer(published_curves()[workload], error=0.1).critical_batch_size
    assert found.value == pytest.approx(PUBLISHED[workload], rel=0.15)


def test_which_of_two_recipes_scales_further_is_said_with_its_interval() -> None:
    far = answer(planted(bend(256, 2), SIZES), error=0.05)
    near = answer(planted(bend(32, 2), SIZES), error=0.05)
    fifths, steps = compared_with(far, near)
    assert fifths.value == pytest.approx(8, rel=0.15)
    assert fifths.low > 4
    assert steps.low < 1 < steps.high
    same, _ = compared_with(far, replace(far, recipe="other"))
    assert same.low < 1 < same.high


def test_a_recipe_that_was_tested_from_a_larger_batch_size_on_does_not_scale_further() -> None:
    """Its number is relative to the fewest examples of fewer batch sizes, so it is too high."""
    late, whole = (answer(planted(bend(100, 1), sizes), error=0.05) for sizes in (SIZES[6:], SIZES))
    fifths, _ = compared_with(late, whole)
    assert 0 == fifths.low < 1 < fifths.high
    fifths, _ = compared_with(whole, late)
    assert fifths.low < 1 < fifths.high == math.inf
    for pair in (curve_pair(late, whole, same=False), curve_pair(whole, late, same=False)):
        assert pair.verdict == "agree"
    near = answer(planted(bend(10_000, 1), SIZES), error=0.05)
    assert compared_with(late, near)[0].high < 1, "it scales even less far"


TESTED = np.array([8, 16, 32, 64, 128, 256, 512, 1024])
SEEDS = [
    (300 * (1 + 100 / size) * 2 ** np.random.default_rng(size).normal(0, 0.1, 5)).round()
    for size in TESTED
]


def test_a_planted_critical_batch_size_is_found_whatever_holds_the_numbers() -> None:
    steps = 300 * (1 + 100 / TESTED)
    for given in (steps, steps.tolist(), pd.Series(steps, index=range(5, 13))):
        found = orchestrator.scaling(TESTED, given, resolution=5).critical_batch_size
        assert found is not None
        assert found.value == pytest.approx(100, rel=0.02)


def test_seeds_are_a_list_for_each_batch_size_or_rows_of_a_table() -> None:
    nested = orchestrator.scaling(TESTED.tolist(), SEEDS, resolution=[5] * 8)
    assert nested.of_medians
    assert nested.contributions is not None
    assert nested.contributions.seeds is not None
    low, high = nested.critical_batch_size.ends  # type: ignore[union-attr]
    assert low < 100 < high
    table = pd.DataFrame({"batch": np.repeat(TESTED, 5), "steps": np.concatenate(SEEDS)})
    shuffled = table.sample(frac=1, random_state=0)
    rows = orchestrator.scaling(shuffled["batch"], shuffled["steps"], resolution=5)
    assert rows.to_json() == nested.to_json()


@pytest.mark.parametrize("missing", [None, float("nan"), float("inf")])
def test_what_never_reached_the_goal_is_no_point(missing: Any) -> None:
    steps = [*SEEDS[:-1], [missing, missing, missing, 400, 410]]
    assert orchestrator.scaling(TESTED, steps).largest == 512
    assert "never reached" in orchestrator.scaling([8, 16], [missing, missing]).verdict


@pytest.mark.parametrize(
    ("sizes", "steps", "resolution"),
    [
        ([], [], 0), ([8], [1, 2], 0), (8, [1], 0), ([8], 1, 0), ("8", [1], 0), ([8], "1", 0),
        ([8.5], [1], 0), ([0], [1], 0), ([float("nan")], [1], 0), (["a"], [1], 0),
        ([8], [[]], 0), ([8], [0], 0), ([8], [-1], 0), ([8], ["x"], 0), ([8], [[1, "x"]], 0),
        ([8], [1], -1), ([8], [1], float("inf")), ([8], [1], [1, 2]), ([8], [1], "x"),
    ],
)  # fmt: skip
def test_numbers_that_are_none_are_refused(sizes: Any, steps: Any, resolution: Any) -> None:
    with refused("wrong-value"):
        orchestrator.scaling(sizes, steps, resolution=resolution)


def test_the_example_of_the_page_runs() -> None:
    page = Path(ROOT / "docs" / "api.md").read_text()
    names: dict[str, Any] = {}
    exec(page.split("```python\n")[1].split("```")[0], names)
    assert names["answer"].to_json() == names["same"].to_json()
    assert names["answer"].critical_by_examples.low > 8
