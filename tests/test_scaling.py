import csv
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from orchestrator.analysis import scaling_of, sentence
from orchestrator.analysis.enough import BestOf
from orchestrator.analysis.estimates import Estimate
from orchestrator.analysis.hyperbola import fit_hyperbola
from orchestrator.analysis.words import headline

SIZES = [2**k for k in range(0, 13)]


def answer(
    points: list[tuple[int, int]], tested: int | None = None, resolution: float = 0, **options: Any
) -> Any:
    """What points say that were measured at a distance of so much of their steps."""
    measured = [(size, steps, round(resolution * steps)) for size, steps in points]
    names = ("w", "r", "val/error < 0.1")
    return scaling_of(*names, measured, tested=tested or len(points), **options)


def test_a_planted_hyperbola_is_recovered() -> None:
    found = answer([(size, round(1000 * (1 + 128 / size))) for size in SIZES])
    assert found.critical_batch_size.value == pytest.approx(128, rel=0.02)
    assert found.steps_min.value == pytest.approx(1000, rel=0.02)
    assert found.fit_residual_log2 < 0.01
    # B + 128 is 1.3 (1 + 128) at 39.7 and 1.2 (1 + 128) at 26.8; 1 + 128 / B is 1.1 at 1280.
    assert found.perfect_scaling_until.value == pytest.approx(39.7, rel=0.02)
    assert found.critical_by_examples.value == pytest.approx(26.8, rel=0.02)
    assert found.max_useful_batch_size.value == pytest.approx(1280, rel=0.02)


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
    assert "training takes more examples" in found.verdict


@pytest.mark.parametrize(
    ("until", "said"),
    [
        (16, "batch size 16 takes the fewest examples; "),
        (64, "doubling the batch halves the steps from batch size 16 to 64"),
    ],
)
def test_smaller_batches_that_need_more_examples_do_not_scale(until: int, said: str) -> None:
    """Where the small ones starve, examples fall at first."""
    examples = {4: 8000, 8: 4000, 16: 1600, 32: 1600, 64: 1600, 128: 4000, 256: 8000, 512: 16000}
    few = {
        size: 1600 if 16 <= size <= until else max(needed, 4000)
        for size, needed in examples.items()
    }
    found = answer([(size, needed // size) for size, needed in few.items()])
    assert found.perfect_scaling_from == 16
    assert said in sentence(found)
    assert "Below batch size 16, training takes more examples" in sentence(found)


@pytest.mark.parametrize(
    ("points", "verdict"),
    [
        ([], "never reached"),
        ([(8, 90)], "too few batch sizes to tell where the curve bends: 1 of 5 can be used, 4 are"),
        ([(1, 90), (2, 50), (4, 30)], "too few batch sizes to tell"),
    ],
)
def test_too_little_to_go_on_is_said(points: list[tuple[int, int]], verdict: str) -> None:
    found = answer(points, tested=5)
    assert verdict in found.verdict
    said = (found.critical_batch_size, found.perfect_scaling_until, found.max_useful_batch_size)
    assert said == (None, None, None)


LAWS: dict[str, Callable[[np.random.Generator, int], NDArray[np.float64]]] = {
    "half-normal logarithm": lambda chance, count: np.exp(np.abs(chance.normal(size=count))),
    "one and an exponential": lambda chance, count: 1 + chance.exponential(size=count),
    "one and a Weibull of shape 2": lambda chance, count: 1 + chance.weibull(2, size=count),
}
"""By how much more steps than the fewest possible a trial needs."""

REPETITIONS = 200


@pytest.mark.parametrize(("law", "trials"), [*zip(LAWS, (20, 100, 20), strict=True)])
def test_intervals_cover_the_planted_truth(law: str, trials: int) -> None:
    """The truth: the median over infinitely many repetitions of the same searches."""
    chance = np.random.default_rng(0)
    steps_min, critical, sizes = 10_000, 200, 2 ** np.arange(14)
    fewest = np.median([LAWS[law](chance, trials).min() for _ in range(5000)])
    truth = {
        "steps_min": steps_min * fewest,
        "critical_batch_size": critical,
        "perfect_scaling_until": 0.3 * critical + 1.3,
        "max_useful_batch_size": 10 * critical,
        "critical_by_examples": 0.2 * critical + 1.2,
    }
    covered, off = Counter(), []
    for _ in range(REPETITIONS):
        factors = [LAWS[law](chance, trials).min() for _ in sizes]
        steps = np.rint(steps_min * (1 + critical / sizes) * factors).astype(int)
        found = answer(list(zip(sizes.tolist(), steps.tolist(), strict=True)))
        if found.critical_batch_size is None:  # The hyperbola is refused now and then, by chance.
            continue
        for name, value in truth.items():
            estimate = getattr(found, name)
            covered[name] += estimate.low <= value <= estimate.high
            # Within one of the batch sizes tested.
            assert value / 2 < estimate.value < 2 * value
        off.append(abs(found.critical_batch_size.value / critical - 1))
    for name, count in covered.items():
        assert 0.85 <= count / REPETITIONS <= 0.95, name
    assert np.median(off) < 0.1


def test_intervals_of_medians_cover_the_planted_truth() -> None:
    """Of five repeats, whose steps scatter about their median by a fifth."""
    chance, sizes = np.random.default_rng(0), 2 ** np.arange(14)
    covered: Counter[str] = Counter()
    for _ in range(REPETITIONS):
        factors = np.median(np.exp(0.2 * chance.normal(size=(5, len(sizes)))), axis=0)
        steps = np.rint(10_000 * (1 + 200 / sizes) * factors).astype(int)
        found = answer(list(zip(sizes.tolist(), steps.tolist(), strict=True)), of_medians=True)
        for name, value in {"steps_min": 10_000, "critical_batch_size": 200}.items():
            estimate = getattr(found, name)
            covered[name] += estimate is not None and estimate.low <= value <= estimate.high
    for name, count in covered.items():
        assert 0.84 <= count / REPETITIONS <= 0.96, name


@pytest.mark.parametrize("spacing", [0.025, 0.2])
def test_intervals_are_no_narrower_than_what_was_measured(spacing: float) -> None:
    """Whatever scatter few points seem to have."""
    chance, sizes, covered = np.random.default_rng(0), 4.0 ** np.arange(4), 0
    for _ in range(REPETITIONS):
        critical = 4 * 2 ** chance.uniform(-1, 1)
        exact = 10_000 * (1 + critical / sizes) * 2 ** chance.uniform()
        rungs = np.ceil(np.log(exact) / np.log1p(spacing) + chance.uniform(size=4))
        steps = np.rint(np.exp((rungs - 1) * np.log1p(spacing))).astype(int)
        points = list(zip(sizes.astype(int).tolist(), steps.tolist(), strict=True))
        estimate = answer(points, resolution=spacing / (1 + spacing)).critical_batch_size
        assert estimate.high > estimate.low * (1 + spacing) ** 0.5
        covered += estimate.low <= critical <= estimate.high
    assert covered / REPETITIONS >= 0.9


PUBLISHED = {
    "mnist/simple_cnn_base": 428, "fashion_mnist/simple_cnn_base": 302, "cifar_10/resnet_8": 294,
    "imagenet/resnet_50": 19_600, "imagenet/vgg_11": 3_200, "open_images_v4/resnet_50": 13_100,
    "lm1b/transformer_base": 832, "lm1b/lstm": 70, "common_crawl/transformer_base": 526,
}  # fmt: skip
"""B_crit as others fitted it to the same points, which were read off the first figure of Shallue et
al."""


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
    points = published_curves()[workload]
    sizes, steps = np.array(points, dtype=np.float64).T
    fit = fit_hyperbola(sizes, steps, np.zeros_like(steps))
    assert fit.critical == pytest.approx(PUBLISHED[workload], rel=0.02)
    fits_worst = workload in ("cifar_10/resnet_8", "imagenet/vgg_11")
    assert (fit.residual_log2 > 0.2) == fits_worst
    found = answer(points).critical_batch_size
    refused = workload == "cifar_10/resnet_8"
    assert found is None if refused else found.value == pytest.approx(fit.critical)


def test_what_was_ended_too_early_is_not_said_to_be_out_of_reach() -> None:
    names = ("w", "r", "val/error < 0.1")
    assert "never" in scaling_of(*names, [], tested=3).verdict
    assert "too early" in scaling_of(*names, [], tested=3, censored=True).verdict


def test_what_nothing_bounds_is_said_to_be_unbounded() -> None:
    found = answer([(size, 2**20 // size) for size in SIZES])
    assert found.critical_batch_size.high == math.inf
    assert found.steps_min.low == 0
    found = answer([(size, 500 + size % 3) for size in SIZES])
    assert found.critical_batch_size.low == 0


def test_perfect_scaling_that_ends_at_the_smallest_batch_size_is_said_to() -> None:
    found = answer([(size, round(1e5 * (1 + 2 / size))) for size in SIZES])
    smallest = BestOf(batch_size=1, trials=1, steps=300_000, medians=())
    until = Estimate(value=1)
    said = headline(replace(found, best_of=(smallest,), perfect_scaling_until=until))
    assert "perfect scaling ends at the smallest batch size, 1, or below; beyond" in said
