"""Gaps, large and huge batches: planted, and read off again."""

from dataclasses import replace
from typing import Any

import pytest
from conftest import refused

from orchestrator.analysis.quality import gaps, largeness
from orchestrator.records import Baseline, Goal
from orchestrator.results import BestRow

GOAL = Goal.parse("test/error < 0.1")
BASE = BestRow(
    workload="w", recipe="rule", optimizer="sgd", batch_size=256, metric="test/error", value=0.02,
    within="examples=1800000", trained_enough=True, censored=False, step=9, trial=1, seed=1,
    params=None, metrics={"test/error": 0.02, "test/loss": 0.1}, trials_used=2,
)  # fmt: skip


def best(recipe: str, batch_size: int, error: float | None, loss: float = 0.1) -> BestRow:
    metrics = {} if error is None else {"test/error": error, "test/loss": loss}
    return replace(BASE, recipe=recipe, batch_size=batch_size, value=error, metrics=metrics)


ROWS = [
    BASE,
    best("rule", 512, 0.02),
    best("rule", 1024, 0.024, loss=0.13),  # accurate, but its loss is 1.3 times the baseline's
    best("rule", 2048, 0.05),
    best("rule", 4096, None),
    best("warmup", 1024, 0.02),
    best("warmup", 2048, 0.0249),  # 0.9751 of 0.98 is 99.5 %
    best("warmup", 4096, 0.0252),
    replace(best("warmup", 8192, 0.01), trained_enough=False),
]


def test_large_huge_and_full_by_their_definitions() -> None:
    found = largeness(ROWS, ("rule", 256), GOAL, 4096)
    assert (found.large_from, found.huge_from, found.full) == (1024, 4096, 4096)
    assert (found.accuracy, found.examples) == (pytest.approx(0.98), 1_800_000)
    shares = {(one.recipe, one.batch_size): one.accuracy_share for one in found.held}
    assert shares["rule", 2048] == pytest.approx(0.95 / 0.98)
    assert ("warmup", 8192) not in shares


def test_an_accuracy_counts_as_it_is() -> None:
    goal = Goal.parse("test/accuracy > 0.9")
    rows = [replace(row, metric="test/accuracy", value=row.value and 1 - row.value) for row in ROWS]
    found = largeness(rows, ("rule", 256), goal, None)
    assert (found.large_from, found.huge_from, found.full) == (1024, 4096, None)


def test_only_what_was_trained_is_large_or_huge() -> None:
    others = [best("lars", 1024, 0.02), replace(best("rule", 2048, None), trials_used=0)]
    found = largeness([*ROWS[:2], *others], ("rule", 256), GOAL, None)
    assert (found.large_from, found.huge_from) == (None, None)
    failing = [best("rule", 1024, None), best("lars", 1024, None)]
    found = largeness([*ROWS[:2], *failing], ("rule", 256), GOAL, None)
    assert (found.large_from, found.huge_from) == (1024, 1024)


@pytest.mark.parametrize(
    ("rows", "goal", "said"),
    [
        ([replace(BASE, censored=True)], str(GOAL), ("cut-short", "at_goal: false")),
        ([BASE], "test/loss < 2", ("no-share", "test/loss")),
        ([BASE], "test/mean_squared_error < 2", ("no-share", "test/mean_squared_error")),
        ([replace(BASE, value=-3.0)], "test/log_likelihood > -4", ("no-share", "log_likelihood")),
        ([replace(BASE, value=0.0)], "test/mean_iou > 0.5", ("no-share", "test/mean_iou")),
        (ROWS[1:], str(GOAL), ("not-measured", "rule", 256)),
    ],
)
def test_what_cannot_be_told_is_refused(rows: list[BestRow], goal: str, said: Any) -> None:
    with refused(*said):
        largeness(rows, ("rule", 256), Goal.parse(goal), None)


def test_baselines_are_read_as_they_are_written() -> None:
    assert Baseline.parse("a@b@256") == Baseline(recipe="a@b", batch_size=256)
    assert str(Baseline.parse("rule@8")) == "rule@8"
    for wrong in ("rule", "rule@", "@8", "rule@0", "rule@-1", "rule@x"):
        with refused("wrong-value", "RECIPE@BATCH_SIZE", repr(wrong)):
            Baseline.parse(wrong)


def test_the_gap_is_what_was_lost_off_the_training_set() -> None:
    with_own = replace(BASE, metrics={"test/error": 0.05, "train/error": 0.01})
    (gap,) = gaps([with_own, BASE, replace(with_own, censored=True)], GOAL)
    assert gap.value == pytest.approx(0.04)
    higher = replace(BASE, metrics={"val/accuracy": 0.9, "train/accuracy": 0.97})
    (gap,) = gaps([higher], Goal.parse("val/accuracy > 0.5"))
    assert gap.value == pytest.approx(0.07)
