"""More trials at some batch sizes, and the advice on which ones to train next."""

import shlex
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from conftest import ROOT, TINY, called, ended, made
from test_growth import SweepFile

import orchestrator
from orchestrator.analysis import Scaling
from orchestrator.analysis.errors import Errors
from orchestrator.analysis.next_steps import Step, next_steps
from orchestrator.analysis.scaling import scaling_of
from orchestrator.cli.advising import (
    Suggestion,
    advised_for,
    go_beyond,
    with_batch_sizes,
    with_more_of,
)
from orchestrator.cli.reading import _print_advice
from orchestrator.planning.growth import refuse_incomparable
from orchestrator.planning.studies import Plan, plan
from orchestrator.planning.sweep import Sweep
from orchestrator.planning.sweep_file import load_sweep, overridden, validated
from orchestrator.records import EvaluationGrid, FinishedTrial, SearchPlan, Study, StudyKey, Trial
from orchestrator.results import MeanCost, RunFiles, frontier_of, parse_goals

SIZES = (2, 8, 32, 128, 512)

TAKEN = [
    MeanCost(
        key=StudyKey(workload="w", recipe="sgd", batch_size=size),
        trial_examples=1e3, repeat_examples=1e3, seconds_per_example=None,
    )
    for size in SIZES
]  # fmt: skip

# --- `more` in sweep files


def numbers(planned: Plan) -> dict[tuple[str, int], tuple[int, int]]:
    return {(s.recipe, s.batch_size): (s.trials, s.repeats) for s in planned.studies}


def test_more_is_of_the_studies_that_an_entry_names(sweep_file: SweepFile) -> None:
    more = [
        {"recipes": ["sgd"], "batch_sizes": ["full"], "trials": 6, "repeats": 5},
        {"batch_sizes": [64, "full"], "trials": 4},
    ]
    file = sweep_file(recipes=["sgd", "momentum"], batch_sizes=[64, 256, "full"], more=more)
    assert numbers(plan(load_sweep(file))) == {
        ("sgd", 64): (4, 0),
        ("momentum", 64): (4, 0),
        ("sgd", 256): (3, 0),
        ("momentum", 256): (3, 0),
        ("sgd", 1400): (6, 5),
        ("momentum", 1400): (4, 0),
    }


def test_all_trials_that_more_repeats_are_known_exactly(sweep_file: SweepFile) -> None:
    more = [{"batch_sizes": [256], "repeats": 4}]
    file = sweep_file(batch_sizes=[64, 256], repeats={"count": 0, "of": 3}, more=more)
    keeps = {study.batch_size: study.keep for study in plan(load_sweep(file)).studies}
    assert keeps == {64: 1, 256: 3}


# --- which step is best


def known(
    *, seeds: float = 0.0, few: float = 0.0, critical: float = 32, sizes: Sequence[int] = SIZES
) -> Scaling:
    """A curve with S_min 100 and these variances of its points."""
    errors = Errors(
        resolution=np.full(len(sizes), 1e-5),
        seeds=np.full(len(sizes), seeds),
        few_trials=few * np.eye(len(sizes)),
    )
    points = [(size, 100 * (1 + critical / size)) for size in sizes]
    return scaling_of(("w", "sgd", "g"), points, errors, tested=len(sizes))


def _study(size: int) -> Study:
    return Study(
        workload="w", recipe="sgd", optimizer="sgd", batch_size=size, goals=(), budget_steps=100,
        grid=EvaluationGrid(spacing=0.0, min_gap=1), space={}, trials=20, repeats=5, repeat_best=2,
    )  # fmt: skip


STUDIES = [_study(size) for size in SIZES]


def steps_for(scaling: Scaling) -> list[Step]:
    return next_steps([scaling], STUDIES, TAKEN)


def test_what_lowers_the_largest_part_of_the_error_is_advised() -> None:
    (best, *_) = steps_for(known(seeds=0.02))
    assert (best.kind, best.totals[0]) == ("repeats", (2, 10))
    (effect,) = best.effects
    assert effect.after < 0.9 * effect.before
    # From 5 to 10: three more of each of two points, and two more of the one that these choose.
    assert (best.trainings, best.examples) == (5 * (2 * 3 + 2), 5 * (2 * 3 + 2) * 1e3)
    kinds = [step.kind for step in steps_for(known(few=0.02))]
    assert "trials" in kinds
    assert "repeats" not in kinds


def test_trials_are_advised_beside_recipes_whose_points_are_listed() -> None:
    listed = [replace(study, search=SearchPlan(algorithm="points")) for study in STUDIES]
    others = [replace(study, recipe="other") for study in listed]
    for studies, advised in ((STUDIES + others, True), (listed, False)):
        steps = next_steps([known(few=0.02)], studies, TAKEN)
        assert ("trials" in [step.kind for step in steps]) == advised


def test_a_recipe_with_nothing_to_search_is_priced_as_one_point() -> None:
    """Beside one that tried 64 points and repeated three of them 20 times, one 20 times more."""
    found, _ = advised_for(RunFiles.open(ROOT / "atlas/runs/rules_digits.zip"))
    trainings = {(one.step.kind, one.step.recipes[-1]): one.step.trainings for one in found}
    assert trainings["batch size", "constant"] == 64 + 4 * 20 + 3 * (1 + 40)
    assert trainings["repeats", "constant"] == 5 * 40
    assert trainings["repeats", "tuned"] == 5 * 4 * 20


def test_a_packed_run_gets_no_commands_since_nothing_can_be_trained_in_it() -> None:
    _, (remark,) = advised_for(RunFiles.open(ROOT / "atlas/runs/half_life.zip"))
    assert "Batch sizes below 2 may take fewer examples" in remark
    assert "orchestrate sweep" not in remark


def test_a_batch_size_is_advised_where_the_curve_is_not_seen(tmp_path: Path) -> None:
    between = steps_for(known(seeds=0.01, few=0.01))
    assert {step.totals[0][0] for step in between if step.kind == "batch size"} <= {4, 16, 64, 1}
    late = known(critical=60, sizes=(64, 128, 256, 512, 1024), seeds=0.01)
    assert late.critical_by_examples_is
    studies = [_study(size) for size in (64, 128, 256, 512, 1024)]
    run = RunFiles(tmp_path / "run")
    run.create({}, studies, {})
    (said,) = go_beyond(run, [late], studies)
    assert "Batch sizes below 64 may take fewer examples" in said
    assert "--set 'batch_sizes=[32, 64, 128, 256, 512, 1024]'" in said
    assert [*go_beyond(run, [known()], STUDIES)] == []


def test_a_larger_batch_size_is_advised_where_steps_still_fall(tmp_path: Path) -> None:
    falling = known(critical=5000, seeds=0.003)
    run = RunFiles(tmp_path / "run")
    run.create({}, STUDIES, {})
    (said,) = go_beyond(run, [falling], STUDIES)
    assert "Steps still fall at 512, the largest batch size" in said
    assert "--set 'batch_sizes=[2, 8, 32, 128, 512, 1024]'" in said
    for examples, larger in ((600, ["600"]), (512, [])):
        sized = [replace(study, train_size=examples) for study in STUDIES]
        assert [said.rsplit(", ", 1)[1][:-2] for said in go_beyond(run, [falling], sized)] == larger


def test_batch_sizes_are_advised_for_each_workload_in_its_own_range(tmp_path: Path) -> None:
    """Both sweeps go up to the whole training set, one of 512 examples and one of 50,000."""
    sizes = (2, 8, 32, 128, 50_000)
    large = [replace(_study(size), workload="large", train_size=50_000) for size in sizes]
    studies = [*(replace(study, train_size=512) for study in STUDIES), *large]
    falling = replace(known(critical=10**6, sizes=sizes, seeds=0.003), workload="large")
    bounded = replace(falling, critical_by_examples_is="at most")
    run = RunFiles(tmp_path / "run")
    run.create({}, studies, {})
    assert falling.still_falls
    assert [*go_beyond(run, [falling], studies)] == []
    from_8 = [study for study in studies if study.workload == "w" or study.batch_size > 2]
    (said,) = go_beyond(run, [bounded], from_8)
    assert "Batch sizes below 8 may take fewer examples" in said
    bent = replace(known(critical=10_000, sizes=sizes, seeds=0.003), workload="large")
    steps = next_steps([bent], studies, TAKEN)
    assert [step for step in steps if step.kind == "batch size" and step.batch_sizes > [512]] == []


def test_where_there_are_several_workloads_additions_name_theirs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (step, *_) = steps_for(known(seeds=0.02))
    one = Suggestion(step=step, change=None, command=None, money=None)
    _print_advice([one], several=True)
    assert "w, sgd: x" in capsys.readouterr().out


# --- the changes that take a step


def changed(sweep: Sweep, change: str) -> Sweep:
    return validated(overridden(sweep.resolved(), [change]), "test")


def test_changes_add_to_what_the_sweep_has(sweep_file: SweepFile) -> None:
    sweep = load_sweep(sweep_file(recipes=["sgd", "momentum"], repeats=2))
    sweep = changed(sweep, with_more_of(sweep, "trials", {64: 6}, ["digits/mlp"], ["sgd"]))
    sweep = changed(sweep, with_more_of(sweep, "repeats", {64: 8}, ["digits/mlp"], ["sgd"]))
    change = with_more_of(sweep, "trials", {64: 12, 256: 6}, ["digits/mlp"], ["sgd"])
    sweep = changed(sweep, change)
    of_sgd = [numbers(plan(sweep))["sgd", size] for size in (64, 256)]
    assert of_sgd == [(12, 8), (6, 2)]
    both = ["sgd", "momentum"]
    change = with_more_of(sweep, "repeats", {64: 9, 256: 9}, ["digits/mlp"], both)
    sweep = changed(sweep, change)
    assert numbers(plan(sweep))["sgd", 64] == (12, 9)
    assert numbers(plan(sweep))["momentum", 256] == (3, 9)


def test_batch_sizes_are_added_to_lists_and_ladders(sweep_file: SweepFile) -> None:
    ladder = {"from": 4, "to": "full", "factor": 8}
    planned = plan(load_sweep(sweep_file(batch_sizes=ladder)))
    assert with_batch_sizes(planned.studies, [11]) == "batch_sizes=[4, 11, 32, 256, full]"
    other = [replace(study, workload="small", train_size=100) for study in planned.studies[:2]]
    assert with_batch_sizes([*planned.studies, *other], [11]) is None


# --- the command


def by_law(study: Study, index: int, repeat: int, chance: np.random.Generator) -> FinishedTrial:
    """A training whose steps follow a law with B_crit 32, instead of one that took time."""
    law = 100 * (1 + 32 / study.batch_size) * 2 ** (0.1 * chance.standard_normal() + 0.1 * index)
    steps = round(law)
    trial = Trial(
        study=study, index=index, seed=index, params={"learning_rate": 0.1}, repeat=repeat
    )
    return ended(trial, "reached", {steps - 2: 0.9, steps: 0.1}, seconds=0.001 * steps)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunFiles:
    """Five batch sizes of two recipes with repeats."""
    folder, chance = tmp_path_factory.mktemp("advise"), np.random.default_rng(0)
    document = {
        **TINY, "goals": ["val/error < 0.3"], "recipes": ["sgd", "momentum"], "repeats": 3,
        "batch_sizes": [4, 16, 64, 256, "full"], "search": {"trials": 4}, "budget": {"steps": 200},
    }  # fmt: skip
    (folder / "sweep.yaml").write_text(yaml.safe_dump(document))
    run, planned = made(folder / "run", load_sweep(folder / "sweep.yaml"))
    for study in planned.studies:
        for index in range(study.trials):
            run.write(by_law(study, index, 0, chance))
        (row,) = (row for row in frontier_of(run) if row.key == study.key)
        assert row.trial is not None
        for repeat in range(1, study.repeats + 1):
            run.write(by_law(study, row.trial, repeat, chance))
    return run


@pytest.mark.dear
def test_the_commands_parse_and_plan_what_is_missing(trained: RunFiles) -> None:
    suggestions, _ = advised_for(trained)
    assert suggestions
    told = called("advise", trained.place)
    for suggestion in suggestions:
        command = suggestion.command
        assert command is not None
        assert command in told
        name, verb, file, out, place, *sets = shlex.split(command)
        assert (name, verb, out, place) == ("orchestrate", "sweep", "--out", str(trained.place))
        assert {*sets[::2]} == {"--set"}
        grown = plan(load_sweep(Path(file), sets[1::2]))
        refuse_incomparable(trained, grown)
        had = {study.key: study.trials + study.repeats for study in trained.studies()}
        assert sum(s.trials + s.repeats for s in grown.studies) > sum(had.values())
    table = orchestrator.open_run(str(trained.place)).advise()
    assert "narrowing" in table.to_arrow().column_names


@pytest.mark.dear
def test_an_imported_run_gets_advice_in_words(trained: RunFiles, tmp_path: Path) -> None:
    shutil.copytree(str(trained.place), tmp_path / "imported")
    imported = RunFiles(tmp_path / "imported")
    imported.create({**trained.sweep(), "imported": True}, trained.studies(), {})
    suggestions, remarks = advised_for(imported, parse_goals(["val/error<0.3"]))
    assert suggestions
    assert all(suggestion.command is None for suggestion in suggestions)
    assert "imported from an archive" in remarks[0]
