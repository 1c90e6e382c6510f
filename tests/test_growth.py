"""Growing a run: what is missing is trained, what can't be compared is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import orchestrate, train_all

from orchestrator.growth import refuse_incomparable
from orchestrator.records import BadInput
from orchestrator.results import Run, frontier_of, median_interval, to_csv
from orchestrator.studies import Plan, plan
from orchestrator.sweep import load_sweep

SweepFile = Callable[..., Path]


def made(path: Path, file: Path, *changes: str) -> tuple[Run, Plan]:
    planned = plan(load_sweep(file, changes))
    run = Run(path)
    run.create(planned.sweep.resolved(), planned.studies, {})
    return run, planned


@pytest.mark.parametrize(
    ("change", "trained"),
    [
        ("search.trials=5", 4),
        ("batch_sizes=[64, 128, 256]", 3),
        ("recipes=[sgd, momentum]", 6),
        ("repeats=2", 4),
        ("goals=[val/error < 0.6]", 0),
    ],
)
def test_only_what_is_missing_is_trained(
    sweep_file: SweepFile, tmp_path: Path, change: str, trained: int
) -> None:
    run, planned = made(tmp_path / "run", sweep_file())
    assert train_all(run, planned) == 6
    more = plan(load_sweep(sweep_file(), [change]))
    refuse_incomparable(run, more)
    assert train_all(run, more) == trained


def test_the_first_trials_of_a_search_are_a_search_for_so_many(
    sweep_file: SweepFile, tmp_path: Path
) -> None:
    """Many diverge, some only after the frontier's step, and are replaced or not."""
    space = {"learning_rate": {"low": 0.01, "high": 1e9, "scale": "log"}}
    recipes = [{"name": "sgd", "space": space}]
    file = sweep_file(recipes=recipes, goals=["val/error < 0.3"], stop={"dominated": False})
    run, _ = made(tmp_path / "run", file)
    answers = {}
    for trials in (2, 4, 12):
        train_all(run, plan(load_sweep(file, [f"search.trials={trials}"])))
        rows = frontier_of(run)
        answers[trials] = to_csv(rows), [row.trials_used for row in rows]
    assert len({text for text, _ in answers.values()}) > 1
    assert not {2, 4, 12} & {used for _, many in answers.values() for used in many}
    for trials, answer in answers.items():
        rows = frontier_of(run, first=trials)
        assert (to_csv(rows), [row.trials_used for row in rows]) == answer


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("seed=1", "seed: 0 there, 1 here"),
        ("budget.steps=50", r"budget\.steps: 60 there, 50 here"),
        ("evaluate.spacing=0.5", r"evaluate\.spacing: None there, 0\.5 here"),
        ("recipes=[{name: sgd, space: {learning_rate: {low: 1, high: 2}}}]", "recipe 'sgd'"),
        ("goals=[val/error < 0.2]", r"goal val/error < 0\.2 .* stopped at another goal"),
        ("batch_sizes=[64]", "batch size 256: there, but not here"),
        ("search.trials=2", "trials: 3 there, 2 here"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    sweep_file: SweepFile, tmp_path: Path, change: str, named: str
) -> None:
    run, planned = made(tmp_path / "run", sweep_file())
    train_all(run, planned)
    with pytest.raises(BadInput, match=f"(?s){named}"):
        refuse_incomparable(run, plan(load_sweep(sweep_file(), [change])))


def test_repeats_come_with_a_median_and_an_interval(sweep_file: SweepFile, tmp_path: Path) -> None:
    run, planned = made(tmp_path / "run", sweep_file(), "repeats=5", "batch_sizes=[64]")
    train_all(run, planned)
    (row,) = frontier_of(Run.open(tmp_path / "run"))
    again = row.repeats
    assert again is not None
    assert (again.count, again.reached) == (5, 5)
    assert again.low <= again.median <= again.high  # type: ignore[operator]
    assert again.confidence == pytest.approx(1 - 2 / 32)
    assert len(run.trials(planned.studies[0].key)) == 3


@pytest.mark.parametrize(
    ("count", "places"), [(1, (0, 0)), (5, (0, 4)), (8, (1, 6)), (20, (5, 14))]
)
def test_the_interval_of_a_median_covers_it(count: int, places: tuple[int, int]) -> None:
    low, high, confidence = median_interval(count)
    assert (low, high) == places
    draws = np.sort(np.random.default_rng(0).random((20_000, count)), axis=1)
    covered = ((draws[:, low] <= 0.5) & (draws[:, high] >= 0.5)).mean()
    assert covered == pytest.approx(confidence, abs=0.01)


@pytest.mark.slow
def test_a_run_in_use_is_refused(sweep_file: SweepFile, tmp_path: Path) -> None:
    run, _ = made(tmp_path / "run", sweep_file())
    with run.locked():
        result: Any = orchestrate("resume", tmp_path / "run")
    assert result.returncode == 2
    assert "is being written to by another sweep (process " in result.stderr
