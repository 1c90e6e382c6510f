"""Two runs of one sweep: what `orchestrate compare` says of them, and what it leaves to chance."""

import json
import shutil
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import invoked, refused
from test_report import ROW, UNREACHED

import orchestrator
from orchestrator.analysis.pairs import Answers
from orchestrator.analysis.tuned import costs_of
from orchestrator.analysis.two_runs import (
    Agreement,
    agreement_in_words,
    agreement_of,
    remarks_on,
    with_holm,
)
from orchestrator.cli.options import DIFFER, DONE
from orchestrator.results import FrontierRow, RunFiles
from orchestrator.results.provenance import provenance
from orchestrator.results.repeats import WinnerRepeats, median_interval

pytestmark = pytest.mark.dear

SIZES = [2**k for k in range(10)]


def curve(
    recipe: str = "sgd", *, times: float = 1, noise: float = 0.03, repeats: int = 5, seed: int = 0
) -> list[FrontierRow]:
    """Ten batch sizes on a hyperbola. The logarithms of the steps of repeats have a standard
    deviation of `noise`, and the goal is looked at every 2 % of the steps."""
    draw = np.random.default_rng(seed)
    rows = []
    for size in SIZES:
        true = times * 200 * (1 + 64 / size)
        apart = round(0.02 * true)
        steps = sorted(_measured(step) for step in true * np.exp(noise * draw.normal(size=repeats)))
        low, high, confidence = median_interval(repeats)
        found = WinnerRepeats(
            trial=3, params=ROW.params, count=repeats, reached=repeats,
            median=float(np.median(steps)), low=steps[low], high=steps[high],
            confidence=confidence, resolution=apart, steps=tuple(steps),
        )  # fmt: skip
        row = replace(ROW, recipe=recipe, batch_size=size, steps=steps[0], resolution=apart)
        rows.append(replace(row, repeats=found))
    return rows


def _measured(step: float) -> int:
    """The first step at or after this one at which there is a measurement."""
    return round(1.02 ** np.ceil(np.log(step) / np.log(1.02)))


def compared(a: list[FrontierRow], b: list[FrontierRow]) -> Agreement:
    budgets = {row.key: 10**6 for row in (*a, *b)}
    answers = (Answers(rows=rows, budgets=budgets) for rows in (a, b))
    return agreement_of(*answers)


def test_equal_rows_are_the_same() -> None:
    found = compared(curve(), curve())
    assert found.verdict == "same"
    assert {pair.verdict for pair in (*found.studies, *found.curves)} == {"same"}
    assert agreement_in_words(found) == "The frontiers are the same, byte for byte."


def test_a_number_that_is_only_a_bound_is_not_said_to_be_more() -> None:
    late = curve()[SIZES.index(64) :]
    (pair,) = compared(late, late).curves
    assert pair.said == ("below the smallest tested",) * 2


def test_a_planted_difference_is_found_with_its_size() -> None:
    slow, place = curve(seed=3), SIZES.index(16)
    slow[place] = curve(seed=3, times=1.3)[place]
    found = compared(curve(seed=0), slow)
    (pair,) = (pair for pair in found.studies if pair.beyond_chance)
    assert pair.batch_size == 16
    assert pair.ratio.value == pytest.approx(1.3, rel=0.1)
    assert pair.ratio.low > 1.1
    assert found.verdict == "differ"
    assert any(f"studies: 1 of {len(found.differing)}." in said for said in remarks_on(found))


@pytest.mark.parametrize("repeats", [3, 10])
def test_of_pairs_without_a_difference_no_more_than_the_nominal_share_differ(repeats: int) -> None:
    """In 18 such simulations, 8 % of the studies and 6 % of the curves differed."""
    runs = [
        [
            row
            for number in range(20)
            for row in curve(f"r{number}", repeats=repeats, noise=0.1, seed=first + number)
        ]
        for first in (80_000, 90_000)
    ]
    found = compared(*runs)
    differing = [pair for pair in found.studies if pair.verdict == "differ"]
    assert len(found.studies) == 200
    assert 2 <= len(differing) <= 28  # of 200, beyond which nineteen in twenty do not come
    assert found.verdict == "agree"
    assert sum(pair.verdict == "differ" for pair in found.curves) <= 4


def test_single_trainings_of_one_point_differ_by_their_seeds() -> None:
    """Here the scatter about the curve says by how much, also beside a recipe that was tuned."""
    a, b = (curve(repeats=1, noise=0.1, seed=seed) for seed in (0, 1))
    assert compared(a, b).verdict == "agree"
    answers = Answers(rows=[*curve("tuned"), *(replace(row, trials_used=1) for row in b)])
    held = [cost.ratio is not None and cost.ratio.holds(1) for cost in costs_of(answers, {"sgd"})]
    assert len(held) == 10
    assert sum(held) > 7


def test_other_points_may_differ_by_the_luck_of_few_trials() -> None:
    """Medians of the same point have no such error. Here the scatter about the curve stands for
    it."""
    low, high = curve(times=0.9), curve(times=1.1)
    a = [(low, high)[place % 2][place] for place in range(len(SIZES))]
    b = [replace(row, steps=row.steps + 1) for row in a]
    c = [replace(row, repeats=replace(row.repeats, params={"learning_rate": 1.0})) for row in b]
    widths = []
    for other in (b, c):
        ratio = compared(a, other).studies[0].ratio
        widths.append(ratio.value / ratio.low)
    assert widths[0] < 1.1
    assert widths[1] > 1.2


def test_neighbouring_measurements_may_be_of_the_same_step() -> None:
    a = [replace(ROW, batch_size=size, steps=1000, resolution=100) for size in (8, 16)]
    b = [replace(row, steps=steps) for row, steps in zip(a, (1100, 1101), strict=True)]
    near, far = compared(a, b).studies
    assert (near.verdict, far.verdict) == ("agree", "differ")


def test_what_only_one_run_reached_is_bounded_by_the_budget_of_the_other() -> None:
    missed = replace(UNREACHED, batch_size=1)
    answers = [Answers(rows=[ROW], budgets={ROW.key: 9000})]
    answers += [Answers(rows=[missed], budgets={ROW.key: budget}) for budget in (1024, 9000, 500)]
    judged = [agreement_of(answers[0], other).studies[0] for other in answers[1:]]
    assert [pair.verdict for pair in judged] == ["agree", "differ", "not known"]
    assert {pair.reason for pair in judged} == {"not reached in B"}
    assert judged[1].ratio.value == pytest.approx(9000 / 1024)
    (turned,) = agreement_of(answers[2], answers[0]).studies
    assert (turned.verdict, turned.ratio.low) == ("differ", 0)
    assert turned.ratio.value == pytest.approx(1024 / 9000)


def test_holm_asks_more_of_the_first_of_many() -> None:
    """Of ten pairs, the levels are 0.1 / 10, 0.1 / 9, 0.1 / 8 ..."""
    pair = compared([ROW], [ROW]).studies[0]
    probabilities = [0.5, 0.011, 0.009, 0.013, 0.0126, 0.6, 0.7, 0.8, 0.9, 1.0]
    marked = with_holm([replace(pair, probability=each) for each in probabilities])
    assert [each.probability for each in marked if each.beyond_chance] == [0.011, 0.009]


def test_medians_are_not_compared_with_minima() -> None:
    without = [replace(row, repeats=None) for row in curve()]
    found = compared(curve(), without)
    assert not any(pair.of_medians for pair in found.studies)
    assert found.as_minima == (("digits/mlp", "sgd", ROW.goal),)
    assert all(pair.ratio is not None and pair.ratio.value == 1 for pair in found.studies)


STUDY = "noisy_quadratic?d=20&replicas=10 momentum"

NOISY: dict[str, Any] = {
    "name": "noisy",
    "workloads": ["noisy_quadratic?d=20&replicas=10"],
    "goals": ["val/loss < 0.2"],
    "recipes": ["momentum"],
    "batch_sizes": [1, 2, 4, 8],
    "search": {"trials": 8},
    "budget": {"steps": 400},
    "repeats": 3,
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of two runs that should be the same."""
    folder = tmp_path_factory.mktemp("runs")
    for name in ("a", "again"):
        trained(folder / name)
    return folder


def trained(path: Path, **changes: Any) -> RunFiles:
    orchestrator.sweep({**NOISY, **changes}, out=path, ray=False, quiet=True)
    return RunFiles(path)


def test_the_same_seed_gives_the_same_bytes(runs: Path) -> None:
    code, said = invoked("compare", runs / "a", runs / "again")
    assert code == DONE
    assert said.startswith("The frontiers are the same, byte for byte.\n")
    assert "Difference" not in said


def test_what_may_explain_a_difference_is_named_with_both_values(
    runs: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(runs / "a", elsewhere)
    trained(elsewhere, search={"trials": 9}, batch_sizes=[1, 2, 4, 8, 16])
    recorded = json.loads((elsewhere / "provenance.json").read_text())
    recorded["packages"]["torch"] = "9.9"
    (elsewhere / "provenance.json").write_text(json.dumps(recorded))
    differences = orchestrator.open_run(runs / "a").compare(elsewhere).differences
    assert [(one.what, one.a, one.b) for one in differences] == [
        (f"{STUDY} batch size 16, val/loss < 0.2", "not studied", "studied"),
        ("search.trials of 4 studies", 8, 9),
        ("packages.torch", version("torch"), "9.9"),
    ]


def test_gpus_are_named_beside_the_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.results.provenance.DRIVER", tmp_path)
    assert "gpus" not in provenance()
    for number, model in enumerate(["L4", "H100 80GB", "L4"]):
        text = f"Model: \t\t NVIDIA {model}\nIRQ:   \t\t 16\n"
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "information").write_text(text)
    assert provenance()["gpus"] == "1 x NVIDIA H100 80GB, 2 x NVIDIA L4"
    (tmp_path / "3" / "information").mkdir(parents=True)  # can't be read
    assert "gpus" not in provenance()


def test_a_run_that_is_slower_throughout_differs(runs: Path, tmp_path: Path) -> None:
    """As after a mistake in an optimizer."""
    tame = {"name": "momentum", "space": {"learning_rate": 0.02, "momentum": 0.5}}
    slow = trained(tmp_path / "slow", recipes=[tame], batch_sizes=[4, 8])
    code, said = invoked("compare", runs / "a", slow.place)
    assert code == DIFFER
    assert "2 of 2 studies differ beyond their intervals" in said
    assert said.count("differ beyond chance") == 2
    found = orchestrator.open_run(runs / "a").compare(slow.place.local or "")
    assert found.verdict == "differ"
    assert ("space.momentum of 2 studies", 0.5) in [(one.what, one.b) for one in found.differences]
    assert "2 of 2 studies differ beyond their intervals" in repr(found)


def test_runs_that_cannot_be_compared_are_refused(runs: Path, tmp_path: Path) -> None:
    tiny = {**NOISY, "workloads": ["noisy_quadratic?d=5"], "search": {"trials": 1}, "repeats": 0}
    orchestrator.sweep(tiny, out=tmp_path / "other", ray=False, quiet=True)
    a = RunFiles(runs / "a")
    RunFiles(tmp_path / "new").create(a.sweep(), a.studies(), provenance={})
    RunFiles(tmp_path / "branches").create({"name": "b", "branch": {"trunk": {}}}, [], {})
    for b, code in {
        runs / "a": "given-twice",
        tmp_path: "not-a-run",
        tmp_path / "other": "incomparable",
        tmp_path / "new": "unfinished",
        tmp_path / "branches": "holds-branches",
    }.items():
        with refused(code, b):
            orchestrator.open_run(runs / "a").compare(b)
