"""Best batch sizes and laws of scale: planted, and found again. benchmarks/scale_laws.py plants
more."""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import called, make_trial, refused

from orchestrator import open_run
from orchestrator.analysis import Estimate
from orchestrator.analysis.best_batch import EARLY, HIGH_RATE, best_batch_sizes
from orchestrator.analysis.scale_laws import (
    BEST_BATCH,
    BEST_RATE,
    FIFTH_MORE,
    TIMESCALE,
    Law,
    ScalePoint,
    at_best,
    law_in_words,
    laws_of,
    laws_of_critical,
    predicted_in_words,
    scale_answer,
    scales_of,
)
from orchestrator.analysis.scaling import Scaling
from orchestrator.analysis.valleys import Points, minima
from orchestrator.records import FinishedTrial, Measurement, Outcome, Range, Study, Trial
from orchestrator.results import GoalOf, RunFiles, Within

SIZES = 2 ** np.arange(1, 10)
DATA = 2.0**14


def valley(sizes: Any, best: float) -> Any:
    """Steeper to the right."""
    return 2 + 0.05 * (sizes / best + 2 * (sizes / best) ** -0.5)


def points(values: Any) -> Points:
    return Points(log_sizes=np.log2(SIZES), values=values, errors=np.zeros(len(SIZES)))


def kinked(sizes: Any, best: float) -> Any:
    """Twice as steep to the right."""
    away = 0.05 * np.log2(sizes / best)
    return 2 + np.maximum(2 * away, -away)


@pytest.mark.parametrize("valley", [valley, kinked])
def test_intervals_hold_the_minimum_of_uneven_valleys(valley: Callable[[Any, float], Any]) -> None:
    chance, held = np.random.default_rng(0), []
    for _ in range(4):
        bests = 2 ** chance.uniform(2, 7, size=5)
        noise = 0.004 * chance.standard_normal((5, len(SIZES)))
        found = minima([points(valley(SIZES, b) + n) for b, n in zip(bests, noise, strict=True)])
        for best, one in zip(bests, found, strict=True):
            held.append(one.holds(best))
    assert np.mean(held) >= 0.83


def test_a_minimum_at_an_end_or_nowhere_is_no_number() -> None:
    falling, rising = minima([points(1.0 / SIZES), points(np.log(SIZES))])
    assert (falling.high, rising.low) == (math.inf, 0)
    chance = np.random.default_rng(0)
    (flat,) = minima([points(chance.standard_normal(len(SIZES)))])
    assert flat.ends == (0, math.inf)
    (lonely,) = minima([points(np.array([0.2, 3.9, 1.0, 0.1, 6.6, 0.0, 30.0, 28.0, 20.0]))])
    assert lonely.holds(SIZES[3]), "the lowest point between two high ones"


def test_values_that_are_equal_say_nothing_of_how_far_others_scatter() -> None:
    noise = 0.1 * np.random.default_rng(0).standard_normal(len(SIZES))
    scattered = points(valley(SIZES, 20) + noise)
    (alone,) = minima([scattered])
    beside, tied = minima([scattered, points(np.ones(len(SIZES)))])
    assert (beside, tied.ends) == (alone, (0, math.inf))
    four = points(np.array([0.7, 0.4, 0.2, 0.1, 0.1, 0.1, 0.1, 0.3, 0.5]))
    (beside, _) = minima([scattered, four])
    assert beside.ends == pytest.approx(alone.ends, rel=0.5), "four of them are the lowest"


def planted(
    truth: Callable[[float, float], float], chance: np.random.Generator, *, scatter: float = 0.0
) -> list[ScalePoint]:
    """Points at four amounts of data and three models, with errors of different sizes."""
    found = []
    for data in (1e9, 4e9, 16e9, 64e9):
        for model in (1e8, 4e8, 16e8):
            error = chance.uniform(0.05, 0.15)
            off = math.hypot(error, scatter) * chance.standard_normal()
            value, reach = truth(data, model) * math.exp(off), math.exp(1.645 * error)
            estimate = Estimate(value=value, low=value / reach, high=value * reach)
            at = {"data": data, "model": model}
            found.append(ScalePoint(workload=f"{data} {model}", at=at, value=estimate))
    return found


def law_through(found: Sequence[ScalePoint]) -> Law:
    joint, _ = laws_of(BEST_BATCH, "r", found)
    return joint


@pytest.mark.parametrize("scatter", [0.0, 0.3])
def test_intervals_hold_planted_exponents(scatter: float) -> None:
    chance, held = np.random.default_rng(1), []
    for _ in range(150):
        found = planted(lambda d, n: (d / 1e9) ** 0.5 * (n / 1e8) ** -0.2, chance, scatter=scatter)
        law = law_through(found)
        for name, true in (("data", 0.5), ("model", -0.2)):
            held.append(law.exponents[name].holds(true))
        held += [one.holds for one in law.held]
    assert 0.87 <= np.mean(held) <= 0.97


def test_a_change_of_exponent_is_told() -> None:
    chance, told = np.random.default_rng(2), []
    for _ in range(20):
        law = law_through(planted(lambda d, n: min(d, 8e9) ** 0.7, chance))
        told.append("data" in law.bent)
        far = law.at({"data": 1e12, "model": 1e8})
        assert far.if_bent is not None
        assert far.beyond == {"data": pytest.approx(15.625), "model": 1.0}
    assert np.mean(told) >= 0.9
    assert "NOT to be trusted" in predicted_in_words(law, far)
    assert any("no one power holds" in line for line in law_in_words(law))
    none = replace(law, exponents={**law.exponents, "model": Estimate(value=-1e-3)})
    assert "model^0.00" in law_in_words(none)[0]


def test_an_interval_widens_with_the_distance() -> None:
    law = law_through(planted(lambda d, n: d**0.5, np.random.default_rng(3)))
    widths = []
    for data in (8e9, 1e11, 1e12, 1e13):
        low, high = law.at({"data": data, "model": 4e8}).value.ends
        widths.append(high / low)
    assert widths == sorted(widths)


def test_a_law_is_known_no_better_than_its_points() -> None:
    found = planted(lambda d, n: d**0.5, np.random.default_rng(5))
    on_law = [
        replace(p, value=Estimate(value=v, low=v / 3, high=v * 3))
        for p in found[::3]
        for v in [p.at["data"] ** 0.5]
    ]
    (law,) = laws_of(BEST_BATCH, "r", on_law)
    # Four points over a factor of 64, each known to a factor of 3.
    low, high = law.exponents["data"].ends
    apart = np.log([p.at["data"] for p in on_law])
    assert high - low == pytest.approx(2 * math.log(3) / apart.std() / len(apart) ** 0.5)


def test_points_that_cannot_tell_have_no_law() -> None:
    found = planted(lambda d, n: d**0.5, np.random.default_rng(5))
    assert [*laws_of(BEST_BATCH, "r", found[:2])] == []
    together = [replace(p, at={"data": p.at["data"], "model": p.at["data"] / 20}) for p in found]
    assert [[*law.exponents] for law in laws_of(BEST_BATCH, "r", together)] == [["data"]]
    assert [*laws_of(BEST_BATCH, "r", [replace(p, at={"data": 1.0}) for p in found])] == []


def test_laws_are_held_against_their_largest_data() -> None:
    found = planted(lambda d, n: d**0.5, np.random.default_rng(6))
    turned = [replace(p, at={"model": p.at["model"], "data": p.at["data"]}) for p in found]
    assert [one.point.at["data"] for one in law_through(turned).held] == [64e9] * 3


def study(size: int, workload: str = "w", **changes: Any) -> Study:
    usual = make_trial(
        workload=workload, batch_size=size, goals=["val/loss < 0.1"], trials=5,
        budget_steps=round(DATA / size), stop_at_goal=False, stop_dominated=False,
        space={"learning_rate": Range(low=0.1, high=1.6, scale="log")},
    ).study  # fmt: skip
    return replace(usual, **changes)


def run_of(
    place: Path,
    studies: Iterable[Study],
    best: Callable[[Study], float] = lambda _: 32,
    scales: Any = None,
    *,
    status: Any = "exhausted",
    params: Any = None,
    repeats: int = 0,
) -> RunFiles:
    """A run whose best rate lies between two that were tried, and whose loss falls with the steps.
    Repeats are a tenth worse."""
    run, studies = RunFiles(place), [*studies]
    stop = {"at_goal": False, "dominated": None}
    sweep = {"name": "planted", "seed": 0, "stop": stop, "scales": scales or {}}
    run.create(sweep, studies, {})
    for one in studies:
        trained = []
        for index, rate in enumerate(0.1 * 2.0 ** np.arange(5)):
            loss = valley(one.batch_size, best(one)) + 0.02 * (index - 2.3) ** 2
            told = {"learning_rate": rate, **(params(index) if params else {})}
            for repeat in range(1 + repeats * (index == 2)):
                trial = Trial(study=one, index=index, seed=repeat, params=told, repeat=repeat)
                measured = tuple(
                    Measurement(
                        step=max(one.budget_steps // part, 1),
                        seconds=10 / part,
                        metrics={"val/loss": loss * (0.9 + part / 10) * (1 + (repeat > 0) / 10)},
                    )
                    for part in (4, 2, 1)
                )  # fmt: skip
                steps = one.budget_steps if status == "exhausted" else one.budget_steps // 2
                ended = Outcome(status=status, steps=max(steps, 1), seconds=10.0)
                trained.append(FinishedTrial(trial=trial, outcome=ended, measurements=measured))
        run.replace(one, [each for each in trained if not each.trial.repeat])
        if repeats:
            run.write(*(each for each in trained if each.trial.repeat))
    return run


def test_a_run_says_its_best_batch_size_for_each_amount(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", map(study, SIZES.tolist()))
    amounts = [f"examples={DATA}", f"examples={DATA / 2}", "steps=8"]
    for best in open_run(run.place).best_batch_size("val/loss", within=amounts):
        if best.within == "steps=8":
            assert "too few" in best.verdict
            continue
        low, high = best.batch_size.ends
        assert low <= 32 <= high < 64
        # The parabola is exact, between the grid's rates.
        at = {point.batch_size: point for point in best.points}[32]
        assert at.params["learning_rate"] == pytest.approx(0.1 * 2**2.3, rel=0.05)
        part = 1 if best.within == f"examples={DATA:.15g}" else 1.1
        assert at.value == pytest.approx(part * valley(32, 32), rel=1e-3)


def test_medians_of_repeats_answer_where_all_have_some(tmp_path: Path) -> None:
    studies = [study(size, repeats=3) for size in SIZES.tolist()]
    (best,) = best_batch_sizes(run_of(tmp_path / "run", studies, repeats=3), "val/loss")
    assert [point.error for point in best.points] == pytest.approx([0.0] * len(SIZES))
    assert best.points[4].value == pytest.approx(1.1 * (valley(32, 32) + 0.02 * 0.3**2))


def test_trials_that_were_stopped_early_cannot_answer(tmp_path: Path) -> None:
    studies = [study(size, stop_at_goal=True) for size in SIZES.tolist()]
    run = run_of(tmp_path / "run", studies, status="reached")
    (best,) = best_batch_sizes(run, "val/loss")
    assert (best.batch_size, best.points) == (None, ())
    assert EARLY in best.left_out[0]
    assert 'id="best-batch"' not in Path(open_run(run.place).report()).read_text()


def test_a_decay_answers_only_for_what_it_was_made_for(tmp_path: Path) -> None:
    decayed = {"learning_rate": Range(low=0.1, high=1.6, scale="log"), "decay": "linear"}
    studies = [study(size, space=decayed) for size in SIZES.tolist()]
    run = run_of(tmp_path / "run", studies, params=lambda _: {"decay": "linear"})
    half, whole = best_batch_sizes(
        run, "val/loss", within=[Within.parse(f"examples={DATA / n}") for n in (2, 1)]
    )
    assert HIGH_RATE in half.left_out[0]
    assert not half.points
    assert not whole.verdict


def test_unfinished_and_missing_batch_sizes_are_told(tmp_path: Path) -> None:
    studies = [study(size, trials=5 + (size == 64)) for size in SIZES.tolist()]
    (best,) = best_batch_sizes(run_of(tmp_path / "run", studies), "val/loss")
    assert best.left_out == ("64 (not finished yet)",)
    assert len(best.points) == len(SIZES) - 1


@pytest.fixture(scope="module")
def scaled(tmp_path_factory: pytest.TempPathFactory) -> RunFiles:
    """Best batch sizes like D^0.5."""
    scales = {f"w{number}": {"data": 4.0**number} for number in range(5)}
    studies = [study(size, name) for name in scales for size in SIZES.tolist()]
    return run_of(
        tmp_path_factory.mktemp("scaled") / "run",
        studies,
        best=lambda one: 8 * 2.0 ** int(one.workload[1:]),
        scales=scales,
    )


def test_the_command_says_laws_and_places(scaled: RunFiles) -> None:
    document = json.loads(called("scale", scaled.place, "--at", "data=4096", "--json"))
    law = next(law for law in document["laws"] if law["quantity"] == BEST_BATCH)
    exponent = law["exponents"]["data"]
    assert exponent["low"] <= 0.5 <= exponent["high"]
    assert law["at"]["value"]["low"] <= 8 * 64 <= law["at"]["value"]["high"]
    assert law["at"]["beyond"] == {"data": 16}
    assert all(one["holds"] for one in law["held"])
    with refused("wrong-value", "data=-1"):
        called("scale", scaled.place, "--at", "data=-1")
    with refused("unknown-name", "size", "data"):
        called("scale", scaled.place, "--at", "data=4096", "--at", "size=1")
    page = Path(open_run(scaled.place).report()).read_text()
    assert 'id="best-batch"' in page
    assert 'id="scales"' in page


def test_laws_of_several_amounts_say_which(scaled: RunFiles) -> None:
    amounts = ["steps=4", "examples=8192"]
    found = scale_answer({"": scaled}, within=[Within.parse(text) for text in amounts])
    laws = [law for law in found.laws if law.quantity.startswith(BEST_BATCH)]
    assert [law.quantity for law in laws] == [f"{BEST_BATCH} within examples=8192"]
    again = scale_answer({"": scaled}, within=[Within.parse("examples=8192")] * 2)
    assert again.laws[0].points == laws[0].points, "no amount counts twice"


def test_a_goal_that_is_asked_for_says_which_value_is_best(scaled: RunFiles) -> None:
    found = scale_answer({"": scaled}, goals=[GoalOf.parse("val/loss > 0")])
    best = next(one for one in found.bests if one.workload == "w2")
    highest = best_batch_sizes(scaled, "val/loss", maximise=True)
    assert best.points == highest[2].points


def test_runs_of_equal_names_are_told_apart(scaled: RunFiles) -> None:
    with refused("given-twice"):
        called("scale", scaled.place, f"{scaled.place}/")
    one, two = (
        {best.workload for best in scale_answer(dict.fromkeys(names, scaled)).bests}
        for names in (["a"], ["a", "b"])
    )
    assert two == {f"{name}: {workload}" for name in ("a", "b") for workload in one}


def test_the_laws_of_rates_and_timescales(scaled: RunFiles) -> None:
    laws = {law.quantity: law for law in scale_answer({"": scaled}).laws}
    assert TIMESCALE not in laws  # nothing decays
    assert laws[BEST_RATE].exponents["data"].holds(0), "the best rate is the same everywhere"
    best = best_batch_sizes(scaled, "val/loss")[2]
    tuned = {
        point.batch_size: {"lr": 0.1 * point.batch_size**0.5, "wd": 0.01} for point in best.points
    }
    best = replace(best, points=tuple(replace(p, params=tuned[p.batch_size]) for p in best.points))
    size = best.batch_size.value
    rate, timescale = at_best(best, BEST_RATE), at_best(best, TIMESCALE)
    assert rate.value == pytest.approx(0.1 * size**0.5)
    assert timescale.value == pytest.approx(size**0.5 / (0.1 * 0.01 * DATA), rel=0.01)


def test_a_law_of_critical_batch_sizes() -> None:
    curves, scales = [], {}
    for number, at in enumerate((8.0, 16.0, 32.0, 64.0)):
        scales[f"{number}"] = {"data": 4.0**number}
        value = Estimate(value=at, low=at / 1.2, high=at * 1.2)
        usual = Scaling(workload=f"{number}", recipe="r", goal="val/loss < 1", verdict="")
        curves.append(replace(usual, critical_batch_size=None if number == 3 else value,
                              critical_by_examples=value))  # fmt: skip
    (law,) = laws_of_critical(curves, scales)
    assert law.quantity.startswith(FIFTH_MORE)  # which is known for more of them
    assert law.exponents["data"].value == pytest.approx(0.5)


def test_runs_without_scales_say_so(tmp_path: Path) -> None:
    found = scale_answer({"": run_of(tmp_path / "run", map(study, SIZES.tolist()))})
    assert found.laws == ()
    assert "no scale is named" in found.notes[0]


@pytest.mark.parametrize("scales", [[1], {"w": 3}, {"w": {"data": 0}}, {"w": {"data": True}}])
def test_scales_that_are_no_places_are_refused(tmp_path: Path, scales: Any) -> None:
    run = run_of(tmp_path / "run", [study(2)], scales=scales)
    with refused("wrong-value"):
        scales_of(run)
