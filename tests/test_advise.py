"""More trials at some batch sizes, and the advice on which ones to train next."""

import math
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from conftest import orchestrate, refused, train_all

import orchestrator
from orchestrator.analysis.additions import Addition, Price, amount_of, price_at
from orchestrator.analysis.candidates import Ground, candidates, middles
from orchestrator.analysis.enough import variance_of_median
from orchestrator.analysis.hyperbola import fit_hyperbola
from orchestrator.analysis.known_curves import beyond_end, own_seed_variances
from orchestrator.analysis.known_points import (
    KnownCurve,
    KnownPoint,
    curve_of,
)
from orchestrator.analysis.next_trials import after, next_steps, within_budget
from orchestrator.analysis.step_words import verdict_on
from orchestrator.cli.advise import advise
from orchestrator.cli.advising import advised_for
from orchestrator.planning.growing import with_batch_sizes, with_more_of
from orchestrator.planning.growth import refuse_incomparable
from orchestrator.planning.studies import Plan, plan
from orchestrator.planning.sweep import Sweep
from orchestrator.planning.sweep_file import load_sweep, overridden, validated
from orchestrator.records import (
    EvaluationGrid,
    FinishedTrial,
    Measurement,
    Outcome,
    Range,
    SearchPlan,
    Study,
    StudyKey,
    Trial,
)
from orchestrator.results import (
    Run,
    export_archive,
    frontier_of,
    import_archive,
    median_interval,
    parse_goals,
)
from orchestrator.results.repeats import Repeats

SweepFile = Callable[..., Path]

SIZES = (2, 8, 32, 128, 512)

PRICES = {
    ("w", "sgd"): {size: Price(trial=1e3, repeat=1e3, seconds_per_example=None) for size in SIZES}
}

KEYS = [StudyKey(workload="w", recipe="sgd", batch_size=size) for size in SIZES]


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


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("recipes: [sdg], batch_sizes: [64], trials: 6", ("unknown-name", "more.0 'sdg'", "'sgd'")),
        ("workloads: [x], batch_sizes: [64], trials: 6", ("unknown-name", "more.0 'x'")),
        ("batch_sizes: [65], trials: 6", ("bad-input", "more.0.batch_sizes", 65, "64, 256")),
        ("batch_sizes: [full], trials: 6", ("bad-input", "more.0.batch_sizes", "full")),
        ("batch_sizes: [64], trials: 2", ("bad-input", "more.0.trials", 3, 2)),
        ("batch_sizes: [64], repeats: 1", ("bad-input", "more.0.repeats", 2, 1)),
        ("batch_sizes: [64]", ("wrong-value", "more.0", "`trials`", "`repeats`")),
        ("trials: 6", ("missing-key", "more.0.batch_sizes")),
        ("batch_sizes: [64], trials: 9", ("bad-input", "more.0", "max_launches", 8)),
    ],
)
def test_more_that_is_no_more_is_refused(sweep_file: SweepFile, entry: str, said: Any) -> None:
    file = sweep_file(repeats=2, search={"trials": 3, "max_launches": 8})
    with refused(*said):
        plan(load_sweep(file, [f"more=[{{{entry}}}]"]))


@pytest.mark.dear
def test_a_run_grows_where_it_is_given_more(sweep_file: SweepFile, tmp_path: Path) -> None:
    begun = plan(load_sweep(sweep_file(repeats=1)))
    run = Run(tmp_path / "run")
    run.create(begun.sweep.resolved(), begun.studies, {})
    assert train_all(run, begun) == 8
    for entry, trained in (
        ("{batch_sizes: [256], repeats: 4}", 3),
        ("{batch_sizes: [256], repeats: 5, trials: 3}", 1),
    ):
        grown = plan(load_sweep(sweep_file(repeats=1), [f"more=[{entry}]"]))
        refuse_incomparable(run, grown)
        assert train_all(run, grown) == trained
        run.create(grown.sweep.resolved(), grown.studies, {})
    with refused("incomparable", run.place, "256", "repeats: 5", "1"):
        refuse_incomparable(run, begun)


# --- what is known of a curve


def known(
    seeds: Mapping[int, float] | None = None,
    *,
    off: Mapping[int, float] | None = None,
    finite: Mapping[int, float] | None = None,
    **others: Any,
) -> KnownCurve:
    """A curve with B_crit 32 and S_min 100, with these variances, some points off it."""
    points = [
        KnownPoint(
            batch_size=size,
            log2_steps=math.log2(100 * (1 + 32 / size)) + (off or {}).get(size, 0.0),
            rounding=1e-5,
            seeds=(seeds or {}).get(size, 0.0),
            finite=(finite or {}).get(size, 0.0),
            trials=20,
            repeats=5,
            **others,
        )
        for size in SIZES
    ]
    return curve_of("w", "sgd", "g", points)


def ground(**others: Any) -> Ground:
    told: dict[str, Any] = {"batch_sizes": SIZES, "largest": 512, **others}
    return Ground(workloads=("w",), recipes=("sgd",), trials=20, **told)


def test_the_width_is_that_of_the_fit_to_scattered_points() -> None:
    rng = np.random.default_rng(0)
    sizes, ratios = np.array(SIZES, dtype=float), []
    for _ in range(30):
        off = dict(zip(SIZES, 0.1 * rng.standard_normal(len(SIZES)), strict=True))
        curve = known(off=off)
        steps = 2 ** np.array([point.log2_steps for point in curve.points])
        low, high = fit_hyperbola(sizes, steps, np.full(5, 1e-6)).critical_interval
        ratios.append(curve.width / math.log2(high / low))
    assert np.median(ratios) == pytest.approx(1, abs=0.05)


def test_variances_of_medians_come_from_the_spread_of_repeats() -> None:
    rng = np.random.default_rng(0)
    rows = [sorted(2 ** (10 + 0.2 * rng.standard_normal(9))) for _ in range(200)]
    low, high, confidence = median_interval(9)
    repeats = [
        Repeats(
            count=9, reached=9, median=row[4], low=round(row[low]), high=round(row[high]),
            confidence=confidence, resolution=1, steps=tuple(map(round, row)),
        )
        for row in rows
    ]  # fmt: skip
    true = float(np.var([math.log2(row[4]) for row in rows]))
    assert np.mean(own_seed_variances(repeats)) == pytest.approx(true, rel=0.15)
    assert variance_of_median(9) * 0.2**2 == pytest.approx(true, rel=0.15)
    assert own_seed_variances([None, None]) == [0.0, 0.0]


# --- which step is best


def test_repeats_go_where_seeds_are_the_only_uncertainty() -> None:
    curve = known({128: 0.01}, off={128: 0.1})
    (best, *_) = next_steps([curve], PRICES, ground())
    assert (best.addition.kind, best.addition.totals) == ("repeats", ((128, 15),))
    (effect,) = best.effects
    assert effect.after < 0.75 * effect.before


def test_trials_go_where_their_number_is_the_only_uncertainty() -> None:
    curve = known(off={128: 0.1}, finite={128: 0.01})
    (best, *_) = next_steps([curve], PRICES, ground())
    assert (best.addition.kind, best.addition.totals) == ("trials", ((128, 40),))
    assert after(curve, best.addition).points[3].finite == pytest.approx(0.01 / 2 ** (4 / 3))
    kinds = {one.kind for one in candidates([curve], PRICES, ground(fixed=KEYS))}
    assert kinds == {"batch size"}


def test_a_batch_size_that_decides_between_laws_comes_first() -> None:
    curve = known(off={8: 0.1, 128: -0.1})
    (best, *_) = next_steps([curve], PRICES, ground(deciding=(64,)))
    assert (best.addition.kind, best.addition.batch_sizes) == ("batch size", (64,))
    assert best.addition.decides


def test_a_winner_at_the_end_of_its_range_and_above_the_law_asks_for_a_wider_one() -> None:
    curve = known(off={512: 0.5})
    points = [replace(p, beyond=7 * (p.batch_size == 512)) for p in curve.points]
    curve = curve_of("w", "sgd", "g", points)
    (best, *_) = next_steps([curve], PRICES, ground())
    assert (best.addition.kind, best.addition.totals) == ("range", ((512, 27),))
    assert best.amount.trainings == pytest.approx(7 + 5 * 7 / 27)
    below = curve_of(
        "w",
        "sgd",
        "g",
        [replace(p, log2_steps=p.log2_steps - 2 * 0.5 * (p.batch_size == 512)) for p in points],
    )
    assert all(step.addition.kind != "range" for step in next_steps([below], PRICES, ground()))


def test_a_wider_range_takes_trials_in_proportion_to_its_volume() -> None:
    space = {
        "learning_rate": Range(low=1e-3, high=1e1, scale="log"),
        "momentum": Range(low=0.0, high=0.9),
    }
    study = replace(_study(), space=space)
    assert beyond_end(study, {"learning_rate": 9.9, "momentum": 0.5}) == 5
    assert beyond_end(study, {"learning_rate": 0.1, "momentum": 0.5}) == 0
    widened = replace(study, search=SearchPlan(extend=True))
    assert beyond_end(widened, {"learning_rate": 9.9, "momentum": 0.5}) == 0


def _study() -> Study:
    return Study(
        workload="w", recipe="sgd", optimizer="sgd", batch_size=8, goals=(), budget_steps=100,
        grid=EvaluationGrid(spacing=0.0, min_gap=1), space={}, trials=20,
    )  # fmt: skip


def test_one_more_point_narrows_by_its_place_and_by_the_quantile() -> None:
    curve = known(off={8: 0.1, 128: -0.1})
    size = Addition(kind="batch size", workloads=("w",), recipes=("sgd",), totals=((64, 20),))
    grown = after(curve, size)
    assert len(grown.points) == 6
    assert grown.variance == pytest.approx(curve.variance)
    assert grown.width < 0.9 * curve.width
    few_steps = replace(size, totals=((2**30, 20),))
    assert after(replace(curve, level=2.0), few_steps).points == curve.points


def test_a_curve_that_is_known_needs_nothing() -> None:
    curve = known()
    assert next_steps([curve], PRICES, ground()) == []
    assert "needs no more trainings" in (verdict_on(curve, []) or "")
    wide = known(off={8: 0.4, 128: -0.4})
    assert "nothing cheap" in (verdict_on(wide, []) or "")


def test_a_budget_is_kept_and_each_step_follows_those_before_it() -> None:
    curve = known(dict.fromkeys(SIZES, 0.02), off={8: 0.2, 128: -0.2})
    steps = within_budget([curve], PRICES, ground(), 100e3)
    assert len(steps) > 1
    assert sum(step.amount.examples for step in steps) <= 100e3
    for before, then in pairwise(steps):
        assert then.effects[0].before == pytest.approx(before.effects[0].after)
    assert within_budget([curve], PRICES, ground(), 1.0) == []


def test_prices_between_and_beyond_batch_sizes() -> None:
    prices = {
        4: Price(trial=100.0, repeat=200.0, seconds_per_example=0.1),
        16: Price(trial=400.0, repeat=200.0, seconds_per_example=0.05),
    }
    assert price_at(prices, 8).trial == pytest.approx(200)
    assert price_at(prices, 64).trial == pytest.approx(1600)
    assert price_at(prices, 1).repeat == pytest.approx(200)
    assert price_at(prices, 1).seconds_per_example == pytest.approx(0.2)
    grown = Addition(kind="batch size", workloads=("w",), recipes=("sgd",), totals=((8, 10),))
    amount = amount_of(grown, [known()], {("w", "sgd"): prices})
    assert amount.trainings == 15
    assert amount.examples == pytest.approx(10 * 200 + 5 * 200)


def test_middles_of_the_widest_gaps_come_first() -> None:
    assert middles([1, 4, 64, 128]) == [16, 2]


# --- the changes that take a step


def changed(sweep: Sweep, change: str) -> Sweep:
    return validated(overridden(sweep.resolved(), [change]), "test")


def test_changes_add_to_what_the_sweep_has(sweep_file: SweepFile) -> None:
    sweep = load_sweep(sweep_file(recipes=["sgd", "momentum"], repeats=2))
    sweep = changed(sweep, with_more_of(sweep, "trials", {64: 6}, ["digits/mlp"], ["sgd"]))
    sweep = changed(sweep, with_more_of(sweep, "repeats", {64: 8}, ["digits/mlp"], ["sgd"]))
    change = with_more_of(sweep, "trials", {64: 12, 256: 6}, ["digits/mlp"], ["sgd"])
    assert change == (
        "more=[{recipes: [sgd], batch_sizes: [64], trials: 12, repeats: 8}, "
        "{recipes: [sgd], batch_sizes: [256], trials: 6}]"
    )
    sweep = changed(sweep, change)
    assert numbers(plan(sweep))["sgd", 256] == (6, 2)
    both = ["sgd", "momentum"]
    change = with_more_of(sweep, "repeats", {64: 9, 256: 9}, ["digits/mlp"], both)
    sweep = changed(sweep, change)
    assert numbers(plan(sweep))["sgd", 64] == (12, 9)
    assert numbers(plan(sweep))["momentum", 256] == (3, 9)
    change = with_more_of(sweep, "trials", {256: 12}, ["digits/mlp"], ["sgd"])
    sweep = changed(
        sweep, with_more_of(changed(sweep, change), "repeats", {256: 8}, ["digits/mlp"], ["sgd"])
    )
    assert [entry.batch_sizes for entry in sweep.more] == [[64, 256], [64, 256]]


def test_batch_sizes_are_added_to_lists_and_ladders(sweep_file: SweepFile) -> None:
    ladder = {"from": 4, "to": "full", "factor": 8}
    planned = plan(load_sweep(sweep_file(batch_sizes=ladder)))
    assert with_batch_sizes(planned.studies, [11]) == "batch_sizes=[4, 11, 32, 256, full]"
    other = [replace(study, workload="small", train_size=100) for study in planned.studies[:2]]
    assert with_batch_sizes([*planned.studies, *other], [11]) is None


# --- the command


def ended(study: Study, index: int, repeat: int, chance: np.random.Generator) -> FinishedTrial:
    """A training whose steps follow a law with B_crit 32, instead of one that took time."""
    law = 100 * (1 + 32 / study.batch_size) * 2 ** (0.1 * chance.standard_normal() + 0.1 * index)
    steps = round(law)
    errors = {steps - 2: 0.9, steps: 0.1}
    return FinishedTrial(
        trial=Trial(
            study=study, index=index, seed=index, params={"learning_rate": 0.1}, repeat=repeat
        ),
        outcome=Outcome(status="reached", steps=steps, seconds=0.001 * steps),
        measurements=tuple(
            Measurement(step=step, seconds=0.001 * step, metrics={"val/error": error})
            for step, error in errors.items()
        ),
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Five batch sizes of two recipes with repeats."""
    folder, chance = tmp_path_factory.mktemp("advise"), np.random.default_rng(0)
    document = {
        "name": "small",
        "workloads": ["digits/mlp"],
        "goals": ["val/error < 0.3"],
        "recipes": ["sgd", "momentum"],
        "batch_sizes": [4, 16, 64, 256, "full"],
        "search": {"trials": 4},
        "budget": {"steps": 200},
        "repeats": 3,
    }
    (folder / "sweep.yaml").write_text(yaml.safe_dump(document))
    planned = plan(load_sweep(folder / "sweep.yaml"))
    run = Run(folder / "run")
    run.create(planned.sweep.resolved(), planned.studies, {})
    for study in planned.studies:
        for index in range(study.trials):
            run.write(ended(study, index, 0, chance))
        (row,) = (row for row in frontier_of(run) if row.key == study.key)
        assert row.trial is not None
        for repeat in range(1, study.repeats + 1):
            run.write(ended(study, row.trial, repeat, chance))
    return run


@pytest.mark.dear
def test_the_commands_parse_and_plan_what_is_missing(trained: Run) -> None:
    advised = advised_for(trained)
    commands = [suggestion.command for suggestion in advised.suggestions]
    commands.append(advised_for(trained, examples=1e6).together)
    assert len(commands) > 1
    for command in commands:
        assert command is not None
        name, verb, file, out, place, *sets = shlex.split(command)
        assert (name, verb, out, place) == ("orchestrate", "sweep", "--out", str(trained.place))
        assert {*sets[::2]} == {"--set"}
        grown = plan(load_sweep(Path(file), sets[1::2]))
        refuse_incomparable(trained, grown)
        had = {study.key: study.trials + study.repeats for study in trained.studies()}
        assert sum(s.trials + s.repeats for s in grown.studies) > sum(had.values())


@pytest.mark.dear
def test_an_imported_run_gets_advice_in_words(trained: Run, tmp_path: Path) -> None:
    export_archive(trained, tmp_path / "archive")
    imported = Run(tmp_path / "imported")
    import_archive(tmp_path / "archive", imported)
    advised = advised_for(imported, parse_goals(["val/error<0.3"]))
    assert advised.suggestions
    assert all(suggestion.command is None for suggestion in advised.suggestions)
    assert "imported from an archive" in advised.remarks[0]


def test_a_run_of_branches_is_refused(trained: Run, tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    run.create({**trained.sweep(), "branch": {}}, trained.studies(), {})
    with refused("holds-branches", run.place):
        advised_for(run)


@pytest.mark.dear
def test_the_command_says_what_the_steps_are(trained: Run) -> None:
    told = orchestrate("advise", trained.place)
    assert "Interval of B_crit" in told.stdout, told.stderr
    assert f"--out {trained.place} --set" in told.stdout
    with refused("wrong-value", "--budget", "examples=NUMBER", "'steps=3'"):
        advise(str(trained.place), budget="steps=3")
    table = orchestrator.open_run(str(trained.place)).advise()
    assert "narrowing" in table.to_arrow().column_names
