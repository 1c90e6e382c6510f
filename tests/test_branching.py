"""Branches: their files, the trials that are trained, and that kills change nothing."""

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import models
import pytest
import yaml
from conftest import ROOT, ended, make_trial, refused
from stacking import packed
from test_growth import command

import orchestrator
from orchestrator.files.places import Place
from orchestrator.planning.branch_file import load_branches
from orchestrator.planning.branch_parts import LOWER
from orchestrator.planning.branch_plan import points_of, trunk_of
from orchestrator.planning.growth import refuse_incomparable
from orchestrator.planning.studies import Plan, plan
from orchestrator.planning.sweep_file import load_sweep
from orchestrator.records import (
    BatchSchedule,
    Choice,
    EvaluationGrid,
    FinishedTrial,
    Measurement,
    Trial,
)
from orchestrator.results import RunFiles
from orchestrator.search import Branching, Fork
from orchestrator.training import States, Task

TRUNK: dict[str, Any] = {
    "workload": "digits/mlp",
    "optimizer": "sgd",
    "space": {"learning_rate": 0.1},
    "batch_size": 8,
    "budget": {"examples": 8000},
}
BRANCHES: dict[str, Any] = {
    "name": "branches",
    "trunk": TRUNK,
    "points": [20, 80],
    "factors": [1, 2, 4],
    "seeds": 4,
    "learning_rate": {"rules": ["linear"], "multiples": [0.5, 1]},
    "length": {"examples": 512, "at_most": 2048},
}


def described(folder: Path, **changes: Any) -> Path:
    file = folder / "branches.yaml"
    file.write_text(yaml.safe_dump({**BRANCHES, **changes}))
    return file


def planned(folder: Path, **changes: Any) -> Plan:
    return plan(load_branches(described(folder, **changes)))


def test_a_branch_goes_on_as_its_trunk_did(tmp_path: Path) -> None:
    """A branch with the trunk's batch size, learning rate and order of examples repeats the trunk,
    both alone and in a stack."""
    trunk = make_trial(
        models.name(models.MLP), optimizer="momentum", batch_size=8, budget_steps=60,
        params={"learning_rate": 0.01, "momentum": 0.9},
        grid=EvaluationGrid(spacing=0, min_gap=20), states_at=(20,),
    )  # fmt: skip
    folder = Place.at(tmp_path)
    whole = trained([trunk], States(folder=folder, keep_at=(20,)), width=1)[0]
    study = replace(
        trunk.study, states_at=(), start_step=20, batch_schedule=BatchSchedule.constant(8),
        space={"learning_rate": Choice(options=(0.01, 0.02))},
    )  # fmt: skip
    same = replace(trunk, study=study)
    other = replace(same, index=1, params={**trunk.params, "learning_rate": 0.02})
    for width in (1, 2):
        branch, faster = trained([same, other], States(folder=folder, begin_at=20), width)
        assert [m.step for m in branch] == [20, 40, 60]
        for ours, theirs in zip(branch, whole[1:], strict=True):
            tolerance = 0 if width == 1 else 1e-4
            for name in ("val/loss", "val/error"):
                assert ours.metrics[name] == pytest.approx(theirs.metrics[name], rel=tolerance)
        assert faster[0].metrics["val/loss"] == branch[0].metrics["val/loss"]
        assert faster[1].metrics["val/loss"] != branch[1].metrics["val/loss"]


def trained(trials: Sequence[Trial], states: States, width: int) -> list[list[Measurement]]:
    ended = packed([Task(trial=trial, states=states) for trial in trials], width)
    return [[*one.measurements] for one in ended]


def test_a_state_that_is_gone_is_told(tmp_path: Path) -> None:
    study = replace(make_trial().study, start_step=20)
    trial = replace(make_trial(), study=study)
    with refused("bad-input", tmp_path / "state-000000020.pt"):
        trained([trial], States(folder=Place.at(tmp_path), begin_at=20), width=1)


def test_points_and_lengths(tmp_path: Path) -> None:
    found = planned(tmp_path)
    trunk = trunk_of(found.sweep, found.studies)
    assert trunk.params == {"learning_rate": 0.1}
    points = points_of(found.sweep, found.studies)
    assert [trunk.study.examples(step) for step in trunk.study.states_at] == [
        point.at_examples for point in points
    ]
    for point in points:
        assert point.lengths == (512, 1024, 2048)
        assert point.asked == (2, 2, 2)
        assert [study.batch_size for study in point.studies] == [8, 16, 32]
        for study in point.studies:
            rates = [p["learning_rate"] for p in study.search.points]
            assert rates[:2] == [0.1 * study.batch_size / 8 * m for m in (0.5, 1)]
            assert (min(rates), max(rates)) == (rates[0] / 2**5, rates[1] * 2**3)
            # All batch sizes are measured after the same numbers of examples.
            steps = [step for step in study.measured() if step >= study.start_step][:9]
            examples = [study.examples(step) - point.at_examples for step in steps]
            assert examples == [64 * number for number in range(9)]


def test_points_in_equal_distances(tmp_path: Path) -> None:
    found = planned(tmp_path, points={"count": 3})
    assert trunk_of(found.sweep, found.studies).study.states_at[-1] == pytest.approx(500, rel=0.05)
    assert len(points_of(found.sweep, found.studies)) == 3


COOLED_WINNER = {
    "run": str(ROOT / "atlas/runs/cooled_cnn.zip"), "recipe": "sgd_cooled", "batch_size": 16,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"points": [5000]}, ("beyond-the-end", "points", "5,000", "1,000")),
        ({"points": [990]}, ("beyond-the-end", "points", "step 1,000", 512)),
        ({"factors": [2, 4]}, ("wrong-value", "`factors`", 1)),
        ({"factors": [1, 1]}, ("wrong-value", "`factors`", "[1, 1]")),
        ({"factors": [1, 256]}, ("batch-too-large", "factors", 256, "1,400")),
        ({"trunk": {**TRUNK, "space": {}}}, ("missing-value", "trunk", "learning_rate")),
        ({"trunk": {**TRUNK, "run": "runs/x"}}, ("wrong-value", "trunk", "optimizer, space")),
        ({"trunk": {"run": "runs/never", "batch_size": 8}}, ("not-a-run", "runs/never")),
        ({"trunk": COOLED_WINNER}, ("bad-input", "without a cooldown", "none")),
        ({"trunk": {"batch_size": 8}}, ("wrong-value", "trunk", "`workload`", "`optimizer`")),
        ({"length": {"examples": 4096, "at_most": 512}}, ("range-order", "`at_most`", "4,096")),
        ({"loss": "val/los"}, ("unknown-name", "'val/los'", "'val/loss'")),
        ({"name": "a <b>"}, ("wrong-value", "name", "'a <b>'")),
    ],
)
def test_bad_files_are_refused_before_anything_starts(
    changes: dict[str, Any], said: Any, tmp_path: Path
) -> None:
    with refused(*said):
        planned(tmp_path, **changes)


def test_a_file_of_the_other_kind_is_told_in_a_line(tmp_path: Path) -> None:
    branches, sweep = described(tmp_path), tmp_path / "sweep.yaml"
    sweep.write_text("workloads: [digits/mlp]\nrecipes: [sgd]\nbatch_sizes: [8]\n")
    with refused("wrong-command", f"`orchestrate sweep {sweep}`"):
        load_branches(sweep)
    with refused("wrong-command", f"`orchestrate branch {branches}`"):
        load_sweep(branches)


def test_what_branches_may_take_is_planned(tmp_path: Path) -> None:
    done = command("plan", str(described(tmp_path, confirm=True)), "--json")
    trunk, confirming, *branches = json.loads(done.stdout)["studies"]
    last_point = max(planned(tmp_path).studies[0].states_at)
    assert (trunk["trials"], trunk["budget_steps"]) == (1, last_point)
    assert (confirming["trials"], confirming["budget_steps"]) == (3 * 4, 1000)
    # Two seeds choose between two rates, two judge; the longest see 2,048 examples.
    assert [(each["trials"], each["budget_steps"] * each["batch_size"]) for each in branches] == [
        (2 * 2 + 2, 2048)
    ] * 6
    named = command("plan", "digits_mlp")
    assert "At least so many trainings" in named.stderr


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"name": "renamed", "confirm": True}, None),
        ({"learning_rate": {"rules": ["linear"], "multiples": [1, 0.5]}}, None),
        ({"seeds": 6}, ("branch.seeds: 4", 6)),
        ({"points": [20, 90]}, ("states_at: 83", 93)),
    ],
)
def test_what_may_be_asked_of_branches_later(
    tmp_path: Path, changes: dict[str, Any], shown: tuple[object, ...] | None
) -> None:
    found, other = planned(tmp_path), planned(tmp_path, **changes)
    run = RunFiles(tmp_path / "run")
    run.create(found.sweep.resolved(), found.studies, {})
    with refused("incomparable", *shown) if shown else nullcontext():
        refuse_incomparable(run, other)


class ByRate:
    """A judge that prefers the second learning rate and is satisfied by the second length."""

    def chosen(self, point: Fork, length: int, ended: Sequence[FinishedTrial]) -> dict[int, int]:
        return {study.batch_size: 1 for study in point.studies}

    def settled(self, verdicts: Sequence[int]) -> bool:
        return len(verdicts) == 2

    def verdict(self, point: Fork, length: int, ended: Sequence[FinishedTrial]) -> int:
        return length


def queue_of(found: Plan, *ended: FinishedTrial, judge: ByRate | None = None) -> Branching[int]:
    trunk, points = trunk_of(found.sweep, found.studies), points_of(found.sweep, found.studies)
    queue = Branching(trunk, points, judge or ByRate(), seed=0)
    for each in ended:
        queue.load(each)
    queue.begin()
    return queue


def course(queue: Branching[int], rng: random.Random) -> Iterator[tuple[Trial, int]]:
    """Ends trials as gangs would, several at a time and in any order."""
    running: list[tuple[Trial, int]] = []
    while not queue.done:
        while pack := queue.next_pack(lambda study, waiting: rng.randint(1, waiting)):
            running += [(each.trial, each.limit or 0) for each in pack]
        assert len({trial.key for trial, _ in running}) == len(running), "trained twice"
        trial, limit = running.pop(rng.randrange(len(running)))
        queue.record(ended(trial, "paused", steps=limit))
        yield trial, limit


def test_branches_are_trained_as_far_as_a_judge_wants(tmp_path: Path) -> None:
    found = planned(tmp_path)
    queue = queue_of(found)
    trained = [*course(queue, random.Random(1))]
    assert trained[0][0].key == trunk_of(found.sweep, found.studies).key
    assert queue.judged() == [[512, 1024], [512, 1024]]
    points = points_of(found.sweep, found.studies)
    for point in points:
        for study in point.studies:
            mine = [(t, limit) for t, limit in trained if t.study.key == study.key]
            assert {point.rate_of(t) for t, _ in mine if point.seed_of(t) >= 2} == {1}
            # The best is the higher of the two that were asked for: its neighbours are tried, too.
            assert {point.rate_of(t) for t, _ in mine if point.seed_of(t) < 2} == {0, 1, 22, 36}
            assert study.search.points[36]["learning_rate"] == pytest.approx(
                0.1 * study.batch_size / 8 / 2**0.25
            )
            assert {study.examples(limit) - point.at_examples for _, limit in mine} == {512, 1024}
            assert len(mine) == 2 * (4 * 2 + 2)
    seeds = {point.seed_of(t): t.seed for point in points for t, _ in trained[1:]}
    assert len({t.seed for t, _ in trained[1:]}) == len(seeds) == 4


def test_with_one_learning_rate_each_all_seeds_judge(tmp_path: Path) -> None:
    found = planned(tmp_path, learning_rate={"rules": ["linear"], "multiples": [1]})
    queue = queue_of(found)
    trained = [trial for trial, _ in course(queue, random.Random(3))]
    assert len(trained) == 1 + 2 * 3 * 4 * 2
    assert not queue.problems


def test_what_is_trained_does_not_depend_on_order_or_interruptions(tmp_path: Path) -> None:
    found = planned(tmp_path)
    whole = queue_of(found)
    expected = {(trial.key, limit) for trial, limit in course(whole, random.Random(2))}
    for seed in range(5):
        rng = random.Random(seed)
        paused: dict[Any, FinishedTrial] = {}
        reached: set[tuple[Any, int]] = set()
        over = False
        while not over:
            queue = queue_of(found, *paused.values())
            for trial, limit in course(queue, rng):
                paused[trial.key] = ended(trial, "paused", steps=limit)
                reached.add((trial.key, limit))
                if rng.random() < 0.1:
                    break
            over = queue.done
        assert reached == expected


@pytest.mark.dear
def test_a_winner_of_a_run_is_a_trunk(tmp_path: Path) -> None:
    sweep = {
        "name": "sweep", "workloads": ["digits/mlp"], "recipes": ["sgd"], "batch_sizes": [8],
        "search": {"trials": 2}, "budget": {"examples": 12000},
        "goals": ["val/error < 0.2", "val/error < 0.3"],
    }  # fmt: skip
    run = orchestrator.sweep(sweep, out=tmp_path / "run", ray=False)
    trunk = {"run": str(tmp_path / "run"), "batch_size": 8}
    found = planned(tmp_path, trunk=trunk, points={"count": 2})
    row, easier = run.frontier()  # the winner of the goal that took more steps
    assert (row.steps or 0) > (easier.steps or 0)
    first = trunk_of(found.sweep, found.studies)
    assert (first.seed, first.params) == (row.seed, row.params)
    assert row.steps is not None
    assert all(step <= row.steps for step in first.study.states_at)
    with refused("bad-input", trunk["run"], 9):
        planned(tmp_path, trunk={**trunk, "batch_size": 9})


class ByLength(ByRate):
    """A judge whose best learning rate changes with the length: first the second, then the one
    above it, which is tried from then on."""

    def chosen(self, point: Fork, length: int, ended: Sequence[FinishedTrial]) -> dict[int, int]:
        above = point.asked[0] + LOWER
        return {study.batch_size: 1 if length == 512 else above for study in point.studies}

    def verdict(self, point: Fork, length: int, ended: Sequence[FinishedTrial]) -> int:
        best = self.chosen(point, length, ended)
        for study in point.studies:
            judges = {
                point.seed_of(each.trial)
                for each in ended
                if each.trial.study.key == study.key
                and point.rate_of(each.trial) == best[study.batch_size]
                and study.examples(each.outcome.steps) >= point.at_examples + length
            }
            assert judges == {0, 1, 2, 3}
        return len({point.rate_of(each.trial) for each in ended})


def test_a_shorter_length_is_judged_by_the_rates_that_were_tried_by_then(tmp_path: Path) -> None:
    queue = queue_of(planned(tmp_path), judge=ByLength())
    assert [*course(queue, random.Random(1))]
    assert queue.judged() == [[4, 5], [4, 5]]
