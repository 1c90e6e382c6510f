"""What is printed of a run for papers, and what pages quote of the quickstart."""

import csv
import re
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ROOT, called
from test_frontier import write_run

from orchestrator.analysis import scalings
from orchestrator.analysis.methods import methods_of
from orchestrator.analysis.scaling import compared_with
from orchestrator.analysis.words import errors_in_words, factor_in_words, headline, in_words
from orchestrator.cli.answers import in_format
from orchestrator.records import Range
from orchestrator.results import FrontierRow, RunFiles, frontier_of

QUICKSTART = ROOT / "atlas/runs/quickstart.zip"
PAGES = ("README.md", "docs/index.md", "docs/first-sweep.md", "docs/report.md")

RUN = ROOT / "atlas/runs/rules_digits.zip"


@pytest.fixture(scope="module")
def rows() -> list[FrontierRow]:
    return frontier_of(RunFiles.open(RUN))


def test_methods_say_what_was_searched_and_how_far_rules_go(rows: list[FrontierRow]) -> None:
    run = RunFiles.open(RUN)
    said = methods_of(run, rows)
    (study, *_) = (study for study in run.studies() if study.trials > 1)
    (entry,) = (entry for entry in study.space.values() if isinstance(entry, Range))
    sweep = run.sweep()
    for value in (
        f"{entry.low:g} to {entry.high:g}",
        f"search with seed {sweep['seed']} tried {study.trials} points",
        f"best {study.repeat_best} points",
        f"{study.repeats} times",
        f"{study.batch_size:,}",
        run.provenance()["packages"]["torch"],
    ):
        assert value in said
    rates = [s.space["learning_rate"] for s in run.studies() if s.recipe == "linear"]
    ends = f"{min(rates):.4g} at batch size 4 to {max(rates):.4g} at 1,400"
    assert f"linear (momentum): learning_rate {ends}, momentum 0.9;" in said


def test_methods_say_how_batches_grow_and_what_each_workload_was_searched_in(
    tmp_path: Path,
) -> None:
    seesaw, run = RunFiles.open(ROOT / "atlas/runs/seesaw.zip"), RunFiles(tmp_path)
    near = {"learning_rate": Range(low=0.25, high=0.75)}
    studies = seesaw.studies()
    other = [replace(one, space=near) if "cnn" in one.workload else one for one in studies]
    run.create(seesaw.sweep(), other, {})
    said = methods_of(run, frontier_of(seesaw))
    assert "steps are medians of the trainings that had no part in the choice" in said
    assert "8 and 8 to 64" in said
    assert "doubled (adamw) on digits/cnn: learning_rate 0.25 to 0.75" in said
    assert "{batch_size: 64, examples: 3000, learning_rate: 0.3536}" in said


def test_methods_say_when_trials_ended_and_that_a_run_goes_on() -> None:
    run = RunFiles.open(ROOT / "atlas/runs/quality.zip")
    (first, *others) = frontier_of(run)
    whole = methods_of(run, [first, *others])
    assert "A trial ended after 2,000 steps." in whole
    assert "The run has not finished." not in whole
    unfinished = methods_of(run, [replace(first, finished=False), *others])
    assert "The run has not finished." in unfinished


def test_methods_of_one_trial_that_misses_its_goal_tell_of_no_steps(tmp_path: Path) -> None:
    write_run(tmp_path, [("exhausted", [0.5, 0.4])], "val/error < 0.2")
    run = RunFiles(tmp_path)
    said = methods_of(run, frontier_of(run))
    assert "The run holds 1 trial and 0 repeats." in said
    assert "Steps are" not in said
    assert "Intervals" not in said


def test_tables_hold_the_numbers_of_the_answers(rows: list[FrontierRow]) -> None:
    printed = [*csv.DictReader(called("report", RUN, "--table", "csv").splitlines())]
    found = scalings(rows)
    assert [row["Recipe"] for row in printed] == [one.recipe for one in found]
    known = [one.critical_batch_size for one in found]
    shown = [row["B_crit"].partition(" ")[0] for row in printed]
    assert shown == ["" if one is None else f"{one.value:,.0f}" for one in known]


def test_latex_takes_any_name() -> None:
    text = in_format([{"A_B": "50 % < x & {y}", "": ""}], "latex")
    assert r"A\_B \\" in text
    assert r"50 \% $<$ x \& \{y\} \\" in text
    assert r"a\textbackslash{}b\textasciicircum{}" in in_format([{"": r"a\b^"}], "latex")
    assert in_format([], "markdown").startswith("| ")
    assert in_format([{"a": "x|y"}], "markdown").splitlines()[-1] == r"| x\|y |"


def plain(text: str) -> str:
    """Without marks of quotations and the breaks of lines."""
    return " ".join(text.replace("\n> ", " ").split())


def test_pages_quote_what_the_quickstart_answers() -> None:
    """Its run is in the repository, since other kinds of processors may round otherwise."""
    run = RunFiles.open(QUICKSTART)
    answers = scalings(frontier_of(run))
    page = {name: plain((ROOT / name).read_text()) for name in PAGES}
    fifths = [in_words(one.critical_by_examples) for one in answers if one.critical_by_examples]
    useful = [one.max_useful_batch_size for one in answers]
    ends = [
        f"({one.low:,.0f} to {one.high:,.0f})" for one in useful if one and one.low and one.high
    ]
    assert len(fifths) == len(ends) == 3
    assert [each for each in fifths[1:] if each not in page["README.md"]] == []
    assert [each for each in ends if each not in page["README.md"]] == []
    assert ends[0] in page["docs/index.md"]
    assert headline(answers[0]) in page["docs/report.md"]
    ratios = map(factor_in_words, compared_with(*answers[:2]))
    assert [each for each in ratios if each not in page["docs/report.md"]] == []
    assert errors_in_words(answers[0]) in page["docs/first-sweep.md"]
    assert errors_in_words(answers[0]) in plain((ROOT / "docs/search.md").read_text())
    printed = called("frontier", QUICKSTART).splitlines()
    first = [" ".join(line.split()) for line in printed[2:5]]
    assert [line for line in first if line not in page["docs/first-sweep.md"]] == []
    rules = " ".join(called("frontier", RUN, "--rules").split())
    assert rules in " ".join((ROOT / "docs/recipes.md").read_text().split())
    repeats = [row.repeats for row in frontier_of(run) if row.repeats]
    lost = (
        f"{sum(one.lost or 0 for one in repeats)} of {sum(one.reached for one in repeats)} repeats"
    )
    assert lost in page["README.md"]
    assert lost in plain((ROOT / "docs/limits.md").read_text())
    medians = [
        row.repeats.median for row in frontier_of(run) if row.recipe == "sgd" and row.repeats
    ]
    told = re.findall(r"(?m)^sgd +[\d,]+ +[\d,]+ +([\d,.]+) \(", (ROOT / PAGES[2]).read_text())
    assert [float(each.replace(",", "")) for each in told] == medians
