"""The page of a run of branches, and what the commands say of such a run."""

import json
import math
import re
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from browser import CHROMIUM, Look, visits
from conftest import ROOT, refused
from test_branching import BRANCHES
from test_growth import command

from orchestrator.analysis import Estimate
from orchestrator.analysis.branch_answer import answer_in
from orchestrator.cli import live
from orchestrator.report.branch_figure import Mark, batch_sizes_along, marks_of, noise_of
from orchestrator.results import RunFiles

TINY = {
    **BRANCHES,
    "learning_rate": {"rules": ["linear"], "multiples": [1]},
    "length": {"examples": 512, "at_most": 1024},
}


@pytest.fixture(scope="module")
def branches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("branches")
    (folder / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    done = command("branch", f"{folder}/tiny.yaml", "--out", f"{folder}/run", "--no-ray", "--yes")
    assert f"Report: {folder}/run/report.html" in done.stderr
    return folder / "run"


def words_of(page: Path) -> str:
    """What is on the page, without what draws it."""
    text = re.sub(r"<script>.*?</script>", "", page.read_text(), flags=re.S)
    return re.sub(r"\s+", " ", text)


@pytest.mark.dear
def test_the_page_says_what_the_run_says(branches: Path) -> None:
    said = json.loads((branches / "branches.json").read_text())
    text = words_of(branches / "report.html")
    for verdict in said["verdicts"]:
        assert f"After {verdict['at_examples']:,} examples: " in text
        for cost in verdict["costs"][1:]:
            assert f"{cost['examples_ratio']['value']:.2f} (" in text
    for schedule in said["schedules"].values():
        assert f"<b>{schedule['steps_saved']:.0%}</b> fewer steps" in text
        assert f">{schedule['samples']}</pre>" in text
    found = re.findall(
        r"<pre[^>]*>(recipes:.*?)</pre>", (branches / "report.html").read_text(), re.S
    )
    recipes = [recipe for each in found for recipe in yaml.safe_load(each)["recipes"]]
    assert recipes == [schedule["recipe"] for schedule in said["schedules"].values()]
    assert "not complete" not in text
    assert not re.findall(r'(?:src|href)="(?!data:|#)', text)


def test_costs_below_what_can_be_told_are_bounds(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    command("report", f"{ROOT}/atlas/runs/branch_digits_cnn.zip", "-o", str(page))
    known = {*re.findall(r"(≤ )?0\.50\b", words_of(page))}
    assert known == {"≤ "}
    # Later stages change the learning rate alone.
    assert "batch size 8, 32 from 320 examples on</dd>" in words_of(page)


@pytest.mark.dear
def test_the_noise_scale_stands_beside_what_was_measured(branches: Path) -> None:
    run = RunFiles.open(branches)
    answer = answer_in(run)
    trunk = answer.trunk
    curve = {row["examples"]: row for row in run.curve(trunk.key, 0).to_pylist()}
    points = [trunk.examples(step) for step in trunk.states_at]
    scales = [curve[x]["noise/variance"] / curve[x]["noise/gradient_square"] for x in points]
    marks = marks_of(answer, noise_of(answer))["noise scale"]
    assert [mark.at_examples for mark in marks] == points
    assert [mark.value for mark in marks] == pytest.approx(scales)


@pytest.mark.dear
def test_the_command_makes_the_page_anew(branches: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    command("report", str(branches), "-o", str(page))
    assert words_of(page) == words_of(branches / "report.html")
    printed = command("report", str(branches), "--json").stdout
    written = (branches / "branches.json").read_text()
    assert json.loads(printed) == json.loads(written, parse_constant=lambda infinite: None)
    command("status", str(branches))


@pytest.mark.dear
def test_what_is_asked_of_searches_is_refused(branches: Path) -> None:
    for code, at_fault, *arguments in (
        ("holds-branches", branches, "frontier", branches),
        ("holds-branches", branches, "best", branches, "val/loss"),
        ("holds-branches", branches, "advise", branches),
        ("not-a-run", branches.parent, "report", branches, branches.parent, "-o", "x.html"),
        ("holds-branches", branches, "report", branches, f"{branches}/../run", "-o", "x.html"),
        ("holds-branches", "--goal", "report", branches, "--goal", "val/error<0.1"),
    ):
        with refused(code, at_fault):
            command(*map(str, arguments))


@pytest.mark.dear
@pytest.mark.parametrize(
    ("gone", "figures"), [("recipe=from*", 1), ("recipe=from*83", None), ("*", 0)]
)
def test_an_unfinished_run_has_a_page(
    branches: Path, tmp_path: Path, gone: str, figures: int | None
) -> None:
    run = tmp_path / "run"
    shutil.copytree(branches, run)
    for folder in run.glob(f"*/workload=*/{gone}"):
        shutil.rmtree(folder)
    command("report", str(run))
    text = words_of(run / "report.html")
    assert "This run is not complete" in text
    assert ("trained far enough" in text) == (figures is not None)
    assert figures is None or text.count('class="plot"') == figures


@pytest.mark.dear
def test_while_it_goes_on_the_page_says_so(
    branches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    shutil.copytree(branches, run)
    monkeypatch.setattr(sys, "argv", ["live", str(run), "30"])
    live.main()
    assert "This run was going on" in words_of(run / "report.html")


def test_what_is_but_a_bound_is_drawn_as_one() -> None:
    """Hollow, with an interval up to the edge of the figure."""
    known = Mark(
        at_examples=100, batch_size=Estimate(value=32, low=16, high=64), bound=16, said="known"
    )
    endless = Estimate(value=math.inf, low=128, high=math.inf)
    bound = Mark(at_examples=400, batch_size=endless, bound=64, said="at least 64")
    figure = batch_sizes_along(
        {"a": [known, bound]}, {},
        {"s": {"stages": [
            {"examples": 0, "batch_size": 8, "learning_rate": 1},
            {"examples": 100, "batch_size": 32, "learning_rate": 2},
        ]}},
        trunk=8, largest=64, until=1000,
    ).as_plotly()  # fmt: skip
    (marks,) = (trace for trace in figure.data if trace.name == "a")
    assert list(marks.y) == [32, 64]
    assert list(marks.marker.symbol) == ["circle", "circle-open"]
    assert list(marks.error_y.arrayminus) == [16, 0]
    assert math.log2(marks.y[1] + marks.error_y.array[1]) == 7
    (steps,) = (trace for trace in figure.data if trace.name == "s schedule")
    assert list(steps.y) == [8, 32, 32]


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_in_a_browser(branches: Path, tmp_path: Path) -> None:
    page = branches / "report.html"
    looks = [Look(page=page, width=390), Look(page=page, width=1400, dark=True)]
    for seen in visits(looks, tmp_path):
        assert (seen.errors, seen.requests, seen.violations) == ([], [], [])
        assert seen.drawn == [True]
        assert (seen.wider, seen.overlaps) == (0, [])
