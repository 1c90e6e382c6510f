"""The atlas: its page says what its files say, and its sweeps can be run."""

import html
import json
import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, files_of_repository, orchestrate
from quadratic import steps_to_goal

from orchestrator.planning.sweep_file import load_sweep
from orchestrator.records import EvaluationGrid
from orchestrator.workloads import load_workload

sys.path.insert(0, str(ROOT / "atlas"))

import findings
import measured
import power
import rules
from picture import FITS, MARGIN
from rules import Decide, Numbers

ATLAS = ROOT / "atlas"
SWEEPS = [
    path.relative_to(ATLAS) for place in (".", "larger") for path in ATLAS.glob(f"{place}/*.yaml")
]


@pytest.mark.dear
def test_the_page_says_what_the_runs_say() -> None:
    """Every number of the page, and of its pictures, is computed anew."""
    wrong = [
        path.name
        for path, text in findings.files().items()
        if not path.exists() or path.read_text() != text
    ]
    assert not wrong, "`make atlas` writes them anew"
    swept = [path.stem for path in measured.RUNS.glob("*.zip") if "branch" not in path.stem]
    short = [row.key for name in swept for row in measured.frontier_of(name) if not row.finished]
    assert not short, "`orchestrate sweep atlas/NAME.yaml --out RUN` trains what a run lacks"


def test_the_atlas_is_small() -> None:
    files = [ROOT / path for path in files_of_repository() if path.parts[0] == "atlas"]
    assert len(files) <= 100
    assert sum(file.stat().st_size for file in files) < 25e6


@pytest.mark.parametrize("name", SWEEPS, ids=str)
def test_its_sweeps_are_accepted(name: Path) -> None:
    assert all(load_workload(workload) for workload in load_sweep(ATLAS / name).workloads)


@pytest.mark.slow
def test_a_group_measured_again_agrees(tmp_path: Path) -> None:
    """It is the same byte for byte on the same kind of processor. Elsewhere it need not be, and
    processors of several kinds have one name, so that the test asks only whether the runs agree, at
    the batch size that takes the least time."""
    how = ("--no-ray", "--set", "batch_sizes=[256]", "--out", tmp_path / "again")
    orchestrate("sweep", ATLAS / "rules_digits.yaml", *how)
    compared = orchestrate("compare", ATLAS / "runs" / "rules_digits.zip", tmp_path / "again")
    assert compared.returncode == 0, compared.stdout
    assert " of 4 studies agree" in compared.stdout


@pytest.mark.parametrize(("batch_size", "goal"), [(1, 0.2), (256, 0.1)])
def test_fewest_steps_are_those_of_the_recursion(batch_size: int, goal: float) -> None:
    grid = EvaluationGrid(spacing=0, min_gap=1)
    rates = np.geomspace(0.005, 1.99, 120)
    steps = (
        steps_to_goal(
            d=20, goal=goal, learning_rate=rate, batch_size=batch_size, budget=2000, grid=grid
        )
        for rate in rates
    )
    fewest = measured.fewest_steps(batch_size, goal=goal, dimensions=20)
    assert min(steps) == pytest.approx(math.ceil(fewest), rel=0.01, abs=1)


def numbers(
    *ends: tuple[float, float], speaks: tuple[int, ...] = (), is_open: bool = False
) -> Numbers:
    """Independent ratios with these 90 % intervals; if `is_open`, the first has no upper end."""
    low, high = np.log2(np.array(ends)).T
    deviations = (high - low) / 2 / 1.6449
    return Numbers(
        names=[str(at) for at in range(len(ends))],
        values=(low + high) / 2,
        covariance=np.diag(deviations**2),
        speaks=speaks,
        open=[is_open, *[False] * (len(ends) - 1)],
    )


@pytest.mark.parametrize(
    ("rule", "of", "answer"),
    [
        (rules.more(1.25), numbers((1.1, 3)), "agrees"),
        (rules.more(1.25), numbers((1.1, 3), speaks=(-1,)), "undecided"),
        (rules.more(1.25), numbers((0.9, 3)), "undecided"),
        (rules.more(1.25), numbers((0.5, 0.9)), "disagrees"),
        (rules.more(1.25), numbers((0.9, 1.2)), "equal"),
        (rules.more(1.25), numbers((0.9, 1.2), speaks=(1,)), "undecided"),
        (rules.same(1.25), numbers((0.9, 1.2)), "agrees"),
        (rules.same(1.25), numbers((0.9, 1.3)), "undecided"),
        (rules.same(1.25), numbers((1.3, 2)), "disagrees"),
        (rules.same(1.25), numbers((0.9, 1.2), (0.9, 1.1), is_open=True), "undecided"),
        (rules.same(1.25), numbers((1.4, 2), (1.4, 2), is_open=True), "disagrees"),
        (rules.each_within(0.5, 2), numbers((0.6, 1.9), is_open=True), "undecided"),
        # Their mean is near 1, but they are not.
        (rules.same(1.25), numbers((1.9, 2), (0.5, 0.53)), "undecided"),
        (rules.each_within(0.5, 2), numbers((0.6, 1.9), (0.9, 1)), "agrees"),
        (rules.each_within(0.5, 2), numbers((0.4, 1.9), (0.9, 1)), "undecided"),
        (rules.each_within(0.5, 2), numbers((0.1, 0.2), (0.9, 1)), "disagrees"),
    ],
)
def test_only_whole_intervals_decide(rule: Decide, of: Numbers, answer: str) -> None:
    assert rule(of) == answer


def test_points_that_ratios_share_count_once() -> None:
    """Of (a / b) over (c / b), the steps at b are no part."""
    a, b, c = (
        rules.At("digits_mlp", "digits/mlp", "sgd", "val/error < 0.04", n) for n in (4, 16, 64)
    )
    shared = rules.over(rules.over({a: 1}, {b: 1}), rules.over({c: 1}, {b: 1}))
    assert {at: power for at, power in shared.items() if power} == {a: 1, c: -1}
    whole = rules.mean([rules.over({a: 1}, {b: 1}), rules.over({b: 1}, {c: 1})])
    assert whole == {a: 0.5, b: 0, c: -0.5}


@pytest.mark.slow
def test_rules_find_what_is_true_and_rarely_what_is_not() -> None:
    """With the errors that the planned points have; as it was before anything was measured."""
    found = power.all_shares()
    assert found == json.loads(power.FILE.read_text()), "`python atlas/power.py --write`"
    assert min(each["true"] for each in found.values()) > 0.75
    assert max(each["false"] for each in found.values()) < 0.1


def test_no_name_in_a_picture_is_cut_off() -> None:
    names = [
        name
        for picture in (ROOT / "docs/pictures/atlas").glob("*.svg")
        for name in re.findall(rf'<text x="{MARGIN}" y="\d+">(.*?)</text>', picture.read_text())
    ]
    assert len(names) > 50
    assert not [name for name in map(html.unescape, names) if len(name) > FITS]
