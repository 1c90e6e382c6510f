"""How large the batch may be at one point: known curves, refusals, and the noisy quadratic."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from conftest import refused
from numpy.typing import NDArray
from quadratic import expected_risks

from orchestrator.analysis import Estimate
from orchestrator.analysis.branches import Branch, Verdict, chosen_rates, settled, verdict_of
from orchestrator.analysis.schedules import ScheduleStep, megatron, schedule_of, steps_saved
from orchestrator.analysis.words import verdict_in_words
from orchestrator.planning.branch_parts import Rates
from orchestrator.search.branching import beside

LENGTH = 1024


def falling(examples: NDArray[np.float64]) -> NDArray[np.float64]:
    return 0.1 + 1 / (1 + examples / LENGTH)


def branch(factor: int, cost: float, seed: int = 0, rate: float = 1.0) -> Branch:
    """Falls as factor 1 does, but takes `cost` times the examples."""
    examples = np.linspace(0, LENGTH, 33)
    return Branch(
        factor=factor, rate=rate, seed=seed, examples=examples, loss=falling(examples / cost)
    )


def judged(branches: Sequence[Branch], choosing: int = 0) -> Verdict:
    return verdict_of(branches, choosing=choosing, length=LENGTH, batch_size=16, at_examples=12_000)


def by_law(critical: float, factors: Sequence[int] = (1, 2, 4, 8, 16)) -> Verdict:
    costs = {k: (1 + 16 * k / critical) / (1 + 16 / critical) for k in factors}
    return judged([branch(k, cost, seed) for k, cost in costs.items() for seed in (0, 1)])


@pytest.mark.parametrize("critical", [8.0, 64.0, 300.0])
def test_the_law_is_found(critical: float) -> None:
    verdict = by_law(critical)
    assert verdict.critical is not None
    assert verdict.critical.value == pytest.approx(critical, rel=0.02)
    for cost in verdict.costs:
        expected = (1 + 16 * cost.factor / critical) / (1 + 16 / critical)
        assert cost.examples_ratio.value == pytest.approx(expected, rel=0.005)


def test_a_fifth_more_lies_between_factors() -> None:
    found = by_law(64).fifth_more_batch_size.value
    assert found == pytest.approx(1.2 * 16 + 0.2 * 64, rel=0.02)
    exact = judged([branch(k, k**0.25, seed) for k in (1, 2, 4) for seed in (0, 1)]).fifth_more
    assert exact.value == pytest.approx(1.2**4, rel=0.03)


def test_factors_that_keep_up_and_factors_that_diverge() -> None:
    free = by_law(math.inf, (1, 4))
    assert free.critical is not None
    assert free.fifth_more.value == free.critical.value == math.inf
    curves = [branch(k, 1, seed) for k in (1, 2) for seed in (0, 1)]
    broken = [replace(branch(4, 1, s), loss=np.full(33, np.nan)) for s in (0, 1)]
    verdict = judged(curves + broken)
    assert verdict.costs[-1].examples_ratio.low == math.inf
    assert verdict.fifth_more.value == 2  # up to where something was measured
    rising = judged(curves + [branch(4, -9, seed) for seed in (0, 1)])
    assert rising.costs[-1].examples_ratio.value == math.inf
    huge = [replace(branch(4, 1, s), loss=np.geomspace(1, 1e300, 33)) for s in (0, 1)]
    assert judged(curves + huge).costs[-1].examples_ratio.value == math.inf
    only_broken = judged([each for each in curves if each.factor == 1] + broken)
    assert only_broken.critical is None


def test_a_larger_batch_that_does_better_follows_no_law() -> None:
    better = judged(
        [branch(k, cost, s) for k, cost in ((1, 1), (2, 0.9), (4, 0.1)) for s in (0, 1)]
    )
    assert better.costs[1].examples_ratio.value == pytest.approx(0.9, rel=0.01)
    assert better.costs[2].examples_ratio.value == 0.5  # all that can be told
    assert better.critical is None
    assert "factors 2 and 4 take fewer examples than factor 1" in verdict_in_words(better)


def test_where_the_best_rate_is_an_end_others_may_cost_less() -> None:
    def among(rates: dict[int, list[float]]) -> Verdict:
        """Of these rates, each factor is best at the middle one of five."""
        return judged(
            [
                branch(k, 1 + 0.1 * k + abs(math.log2(rate)), seed, rate)
                for k, tried in rates.items()
                for rate in tried
                for seed in range(6)
            ],
            choosing=3,
        )

    whole = among({1: [0.5, 1, 2], 2: [0.5, 1, 2], 4: [0.5, 1, 2]})
    assert whole.is_known
    assert {cost.not_tried for cost in whole.costs} == {""}
    above = among({1: [0.5, 1, 2], 2: [0.5, 1, 2], 4: [2, 4]})
    assert above.costs[2].not_tried == "lower"
    assert above.costs[2].examples_ratio.low == 1
    assert "no lower rate was tried at factor 4" in verdict_in_words(above)
    assert above.critical is not None
    single = among({1: [1], 2: [0.5, 1, 2]})
    assert "no other rate was tried at factor 1" in verdict_in_words(single)
    unknown = among({1: [2, 4], 2: [0.5, 1, 2]})
    assert not unknown.is_known
    assert "factor 1 is best at the lowest rate, and no lower one was tried" in verdict_in_words(
        unknown
    )


def test_intervals_are_of_paired_differences() -> None:
    """What all branches of a seed have in common doesn't count."""
    rng = np.random.default_rng(0)
    shifts, scatter = rng.normal(size=5), 0.01 * rng.normal(size=5)
    branches = [
        replace(each, loss=each.loss + shifts[each.seed] + (each.factor == 2) * scatter[each.seed])
        for each in (branch(k, cost, s) for k, cost in ((1, 1.0), (2, 1.3)) for s in range(5))
    ]
    cost = judged(branches).costs[1].examples_ratio
    assert cost.low is not None
    assert cost.high is not None
    assert 1.2 < cost.low < 1.3 < cost.high < 1.4


def test_rates_are_chosen_on_seeds_that_do_not_judge() -> None:
    def loss_at(rate: float, seed: int) -> float:
        # The seeds that judge would choose the other rate.
        return 1.0 if (rate == 2.0) == (seed < 2) else 2.0

    branches = [
        branch(k, loss_at(rate, seed), seed, rate)
        for k in (1, 2)
        for rate in (1.0, 2.0)
        for seed in range(4)
    ]
    found = judged(branches, choosing=2)
    assert [cost.rate for cost in found.costs] == [2.0, 2.0]
    assert found.seeds == 2
    chosen = chosen_rates([each for each in branches if each.seed < 2], LENGTH)
    enough = [each for each in branches if each.seed < 2 or each.rate == chosen[each.factor]]
    assert repr(judged(enough, choosing=2)) == repr(found)  # nan is not nan
    broken = [
        replace(each, loss=each.loss * math.nan) if each.rate == 2 and not each.seed else each
        for each in branches
    ]
    assert chosen_rates(broken, LENGTH) == {1: 1.0, 2: 1.0}


def test_branches_that_all_diverge_are_refused() -> None:
    with refused("branch-count", "diverged"):
        judged([replace(branch(k, 1), loss=np.full(33, math.nan)) for k in (1, 2)])


def verdict(
    fifth_more: float,
    *,
    low: float | None = None,
    high: float | None = None,
    at: int = 0,
    length: int = 64,
    rate: float = 2.0,
) -> Verdict:
    factor, size = (
        Estimate(
            value=times * fifth_more,
            low=times * (low or fifth_more),
            high=times * (high or fifth_more),
        )
        for times in (1, 8)
    )
    known = by_law(64)
    return replace(
        known, batch_size=8, at_examples=at, length=length, fifth_more=factor,
        fifth_more_batch_size=size, costs=tuple(replace(cost, rate=rate) for cost in known.costs),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("answers", "stands"),
    [
        ([4, 5, 5], True),
        ([4, 6, 6], False),
        ([5, 5], False),
        ([9, 4, 5, 5], True),
        ([math.inf] * 3, True),
        ([8, math.inf, math.inf], False),
    ],
)
def test_settled(answers: Sequence[float], stands: bool) -> None:
    lengths = [64 * 2**place for place in range(len(answers))]
    found = [verdict(answer, length=n) for answer, n in zip(answers, lengths, strict=True)]
    assert settled(found[::-1]) is stands


def test_what_is_within_intervals_is_unchanged() -> None:
    wide = [verdict(x, low=3, high=math.inf, length=n) for x, n in ((4, 1), (7, 2), (math.inf, 4))]
    assert settled(wide)
    assert not settled([*wide[:2], verdict(2, low=1, high=9, length=4)])


def test_the_schedule_doubles_and_never_shrinks() -> None:
    along = [
        verdict(1.9, at=100),
        verdict(5, low=2.5, at=200),
        verdict(3, low=2, at=300),
        verdict(math.inf, low=15.9, at=400),
        verdict(math.inf, at=500),
    ]
    steps = schedule_of(along[::-1], end="value")
    assert [(step.examples, step.batch_size) for step in steps] == [(0, 8), (200, 32), (400, 128)]
    careful = schedule_of(along, end="low")
    assert megatron(careful) == "0:8 200:16 400:64 500:128"
    assert steps_saved(steps, batch_size=8, total_examples=800) == pytest.approx(
        1 - (200 / 8 + 200 / 32 + 400 / 128) / 100
    )
    assert steps_saved(steps, batch_size=8, total_examples=100) == 0
    assert [step.rate for step in steps] == [1, 2, 2]
    again = schedule_of([verdict(4), verdict(4, at=9, rate=1)], end="low")
    assert again == [
        ScheduleStep(examples=0, batch_size=32, rate=2.0),
        ScheduleStep(examples=9, batch_size=32, rate=1),
    ]
    assert megatron(again) == "0:32"


BATCH_SIZE = 4
STEPS = 256
FACTORS = (1, 2, 4, 8, 16)
FINE = tuple(2.0 ** (power / 8) for power in range(-48, 65))
SEEDS = 8
REPETITIONS = 50
REPLICAS = 4
CURVATURE = 1 / np.arange(1, 65)


def spacing(factor: int) -> int:
    """Evaluations are every eighth step of the trunk, or every step of the branch if it takes
    larger ones."""
    return max(8 // factor, 1)


@dataclass(frozen=True)
class Place:
    """A checkpoint of a training of the noisy quadratic."""

    learning_rate: float
    momentum: float
    step: int
    x: NDArray[np.float64]
    v: NDArray[np.float64]

    def judged(self, losses: dict[tuple[int, float], NDArray[np.float64]]) -> Verdict:
        return verdict_of(
            self.branches(losses, SEEDS),
            choosing=SEEDS // 2,
            length=STEPS * BATCH_SIZE,
            batch_size=BATCH_SIZE,
            at_examples=self.step * BATCH_SIZE,
        )

    def branches(
        self, losses: dict[tuple[int, float], NDArray[np.float64]], seeds: int
    ) -> list[Branch]:
        return [
            Branch(
                factor=factor,
                rate=rate,
                seed=seed,
                examples=np.arange(0.0, STEPS + 1, factor * spacing(factor)) * BATCH_SIZE,
                loss=loss,
            )
            for (factor, rate), of_seeds in losses.items()
            for seed, loss in enumerate(of_seeds[:seeds])
        ]

    def true(self) -> Verdict:
        """The rule applied to expected losses, which are the same for all seeds, at rates so close
        to each other that the best of all is among them."""
        with np.errstate(over="ignore", invalid="ignore"):
            return self.judged(
                {
                    (factor, rate): np.tile(
                        expected_risks(
                            x=self.x,
                            v=self.v,
                            learning_rate=rate * self.learning_rate,
                            batch_size=factor * BATCH_SIZE,
                            momentum=self.momentum,
                            steps=STEPS // factor,
                        )[:: spacing(factor)],
                        (SEEDS, 1),
                    )
                    for factor in FACTORS
                    for rate in FINE
                }
            )

    def measured(self, rng: np.random.Generator) -> Verdict:
        """At the rates that `orchestrate branch` tries by default."""
        noise = rng.standard_normal((STEPS, SEEDS, *self.x.shape), dtype=np.float32)
        noise *= np.sqrt(CURVATURE / BATCH_SIZE, dtype=np.float32)
        losses: dict[tuple[int, float], NDArray[np.float64]] = {}
        for factor in FACTORS:
            of_batches = noise.reshape(-1, factor, *noise.shape[1:]).mean(axis=1)
            asked = Rates().at(factor)
            rates = [*asked, *Rates().beside(factor)]
            found = self.risks(of_batches, spacing(factor), rates)
            tried: set[int] = set()
            new = {*range(len(asked))}
            while new:
                tried |= new
                known = {(factor, rates[number]): found[number] for number in tried}
                chosen = chosen_rates(self.branches(known, SEEDS // 2), STEPS * BATCH_SIZE)
                new = beside(rates, tried, rates.index(chosen[factor]))
            losses |= known
        return self.judged(losses)

    def risks(
        self, noise: NDArray[np.float32], every: int, of_rates: Sequence[float]
    ) -> NDArray[np.float64]:
        """By rate, seed and evaluation: all rates meet the same noise."""
        shape = (len(of_rates), *noise.shape[1:])
        x, v = (torch.tensor(each).float().expand(shape).clone() for each in (self.x, self.v))
        h, of_all = (torch.tensor(CURVATURE).float().expand(to).clone() for to in (64, shape))
        rates = self.learning_rate * torch.tensor(of_rates)[:, None, None, None].expand(shape)
        risks = [0.5 * (x * x @ h).mean(dim=-1)]
        for step, of_batch in enumerate(torch.from_numpy(noise), start=1):
            v.mul_(self.momentum).addcmul_(of_all, x).add_(of_batch)
            x.addcmul_(rates, v, value=-1)
            if step % every == 0:
                risks.append(0.5 * (x * x @ h).mean(dim=-1))
        return torch.stack(risks, dim=-1).double().numpy()


def places(learning_rate: float, momentum: float) -> list[Place]:
    """After 96, 384 and 1,536 steps."""
    rng = np.random.default_rng(1)
    found = []
    x = np.ones((REPLICAS, len(CURVATURE)))
    v = np.zeros_like(x)
    for step in range(1, 1537):
        noise = rng.standard_normal(x.shape) * np.sqrt(CURVATURE / BATCH_SIZE)
        v = momentum * v + CURVATURE * x + noise
        x = x - learning_rate * v
        if step in {96, 384, 1536}:
            found.append(Place(learning_rate, momentum, step, x.copy(), v.copy()))
    return found


@pytest.mark.slow
def test_intervals_cover_the_truth_and_schedules_save_what_the_true_one_saves() -> None:
    costs, critical, limits = [], [], []
    for learning_rate, momentum in ((0.4, 0.0), (0.02, 0.9)):
        truths, measured = [], []
        for place in places(learning_rate, momentum):
            rng = np.random.default_rng(place.step)
            truth, found = place.true(), [place.measured(rng) for _ in range(REPETITIONS)]
            costs += [
                share(
                    (each.costs[k].examples_ratio for each in found), truth.costs[k].examples_ratio
                )
                for k in range(1, len(FACTORS))
            ]
            if truth.critical is not None:  # with momentum, larger batches may take fewer examples
                critical.append(share((each.critical for each in found), truth.critical))
            limits.append(share((each.fifth_more for each in found), truth.fifth_more))
            truths.append(truth)
            measured.append(found)
        saved, *others = (
            steps_saved(schedule_of(each, end="value"), batch_size=BATCH_SIZE, total_examples=8192)
            for each in (truths, *zip(*measured, strict=True))
        )
        assert np.mean(others) == pytest.approx(saved, abs=0.05)
    # Ends of the factor that costs a fifth more are where those of two costs meet it, so it is
    # covered more often.
    for shares, most in ((costs, 0.95), (critical, 0.95), (limits, 1.0)):
        assert min(shares) >= 0.9 - 3 * math.sqrt(0.09 / REPETITIONS)
        assert 0.87 <= np.mean(shares) <= most


def share(found: Iterable[Estimate | None], truth: Estimate | None) -> float:
    """Of the intervals of those that are given a number, that hold the truth."""
    assert truth is not None
    known = [each for each in found if each is not None and not math.isnan(each.value)]
    assert len(known) > REPETITIONS / 2
    held = [(each.low or 0) <= truth.value <= (each.high or math.inf) for each in known]
    return float(np.mean(held))


def test_a_loss_that_does_not_fall_tells_nothing() -> None:
    rng = np.random.default_rng(0)
    branches = [
        replace(branch(factor, 1, seed), loss=1 + 0.1 * rng.normal(size=33))
        for factor in (1, 2, 4)
        for seed in range(5)
    ]
    verdict = judged(branches)
    assert not verdict.is_known
    assert verdict.critical is None
    assert schedule_of([verdict], end="value") == schedule_of([verdict], end="low")
    assert "not known" in verdict_in_words(verdict)
    assert not settled([replace(verdict, length=length) for length in (1000, 2000, 4000)])
