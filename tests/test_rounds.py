"""The course of a search in cases that can be worked out by hand."""

import gc
import math
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import test_race
from conftest import ended, following, make_trial, refused
from hypothesis import given
from hypothesis import strategies as st
from test_race import Habits, World

from orchestrator.records import (
    Choice,
    EvaluationGrid,
    FinishedTrial,
    Goal,
    Measurement,
    Range,
    Scale,
    SearchPlan,
    Status,
    Study,
    Trial,
)
from orchestrator.records.studies import Program
from orchestrator.results import RunFiles, frontier_of
from orchestrator.search import Director, Proposal, ending, even_axes, grid
from orchestrator.search.race import closed

FIRST, SECOND = (Goal.parse(f"val/error < {bound}") for bound in (0.5, 0.1))

Fate = tuple[Status, int]
"""What becomes of a trial that is let alone: `reached` (all goals, at that step), `exhausted`,
`diverged` or `failed`."""


def make_study(**changes: Any) -> Study:
    settings: dict[str, Any] = {
        "workload": "w",
        "recipe": "r",
        "batch_size": 1,
        "goals": (FIRST,),
        "grid": EvaluationGrid(spacing=0, min_gap=1),
        "space": {"learning_rate": Range(low=1e-4, high=1, scale="log")},
        "trials": 4,
        "stop_dominated": False,
        **changes,
    }
    return make_trial(**settings).study


def finish(
    trial: Trial, fate: Fate, passes: dict[Goal, int] | None = None, value: float = 1.0
) -> FinishedTrial:
    status, steps = fate
    passes = passes or (dict.fromkeys(trial.study.goals, steps) if status == "reached" else {})
    shown = {steps: value}
    for goal, step in sorted(passes.items(), key=lambda item: item[1]):
        shown[step] = goal.bound / 2
    return ended(trial, status, dict(sorted(shown.items())), steps=steps, seconds=0)


def all_waiting(director: Director) -> list[Proposal]:
    found = []
    while (proposal := following(director)) is not None:
        found.append(proposal)
    return found


def begin(*studies: Study, **options: Any) -> Director:
    director = Director(studies, 0, **options)
    director.begin()
    return director


def play(
    director: Director, fate: Callable[[Trial], Fate], limited: bool = False
) -> list[list[Proposal]]:
    """Plays round after round until the end. A trial that goes beyond its limit is paused there."""
    played = []
    while proposals := all_waiting(director):
        played.append(proposals)
        for proposal in proposals:
            status, steps = fate(proposal.trial)
            if limited and proposal.limit is not None and steps > proposal.limit:
                status, steps = "paused", proposal.limit
            director.record(finish(proposal.trial, (status, steps)))
    assert director.done
    return played


def indices(proposals: Iterable[Proposal]) -> list[int]:
    return sorted(proposal.trial.index for proposal in proposals)


def by_index(**fates: Fate) -> Callable[[Trial], Fate]:
    """Sets the fates of trials: `t3=...` is that of trial 3. All others spend their budget."""
    return lambda trial: fates.get(f"t{trial.index}", ("exhausted", 100))


def test_a_recipe_without_a_search_is_trained_with_other_seeds_and_no_more() -> None:
    director = begin(make_study(space={"learning_rate": 0.1}, trials=1, repeats=2))
    assert [*map(indices, play(director, lambda trial: ("diverged", 1)))] == [[0], [0, 0]]


def test_launches_can_be_capped_lower() -> None:
    director = begin(make_study(search=SearchPlan(launches=5)))
    rounds = play(director, by_index(t0=("diverged", 1), t1=("diverged", 1)))
    assert [*map(indices, rounds)] == [[0, 1, 2, 3], [4]]


def test_failed_trials_are_not_replaced_and_win_nothing() -> None:
    director = begin(make_study())
    *others, last = sorted(all_waiting(director), key=lambda p: -p.trial.index)
    director.record(finish(last.trial, ("failed", 5), passes={FIRST: 5}))
    for proposal in others:
        director.record(finish(proposal.trial, ("exhausted", 100)))
    (search,) = director.searches.values()
    assert director.done
    assert search.bounds == ((),)


@pytest.mark.parametrize("racing", [False, True])
def test_winners_are_repeated_for_the_goals_that_they_won(racing: bool) -> None:
    study = make_study(goals=(FIRST, SECOND), repeats=3, stop_dominated=racing)
    director = begin(study)
    firsts = {p.trial.index: p.trial for p in all_waiting(director)}
    director.record(finish(firsts[0], ("exhausted", 100)))
    director.record(finish(firsts[1], ("reached", 80), passes={FIRST: 10, SECOND: 80}))
    director.record(finish(firsts[2], ("reached", 70), passes={FIRST: 20, SECOND: 70}))
    director.record(finish(firsts[3], ("exhausted", 100)))
    repeats = all_waiting(director)
    names = [(index, repeat) for index in (1, 2) for repeat in (1, 2, 3)]
    assert sorted((p.trial.index, p.trial.repeat) for p in repeats) == names
    seeds = {p.trial.seed for p in repeats} | {trial.seed for trial in firsts.values()}
    assert len(seeds) == 6 + 4
    for proposal in repeats:
        trial = proposal.trial
        assert trial.params == firsts[trial.index].params
        beaten = closed(trial.study)
        assert proposal.bounds == (((), beaten) if trial.index == 1 else (beaten, ()))
        assert proposal.limit is None
        director.record(finish(trial, ("diverged", 1)))
    assert director.done
    (search,) = director.searches.values()
    assert search.bounds == (((10, 1),), ((70, 2),))


def test_repeats_choose_among_the_best_of_each_goal_and_measure_only_the_chosen() -> None:
    study = make_study(goals=(FIRST, SECOND), repeats=5, repeat_best=2, keep=2)
    director = begin(study)
    (search,) = director.searches.values()
    firsts = {p.trial.index: p.trial for p in all_waiting(director)}
    for index, steps in {0: (10, 90), 1: (20, 60), 2: (30, 70), 3: (5, 95)}.items():
        passes = dict(zip((FIRST, SECOND), steps, strict=True))
        director.record(finish(firsts[index], ("reached", steps[1]), passes=passes))
    choosing = {(p.trial.index, p.trial.repeat): p for p in all_waiting(director)}
    assert sorted(choosing) == [(index, repeat) for index in range(4) for repeat in (1, 2)]
    led = {index: [not bounds for bounds in choosing[index, 1].bounds] for index in range(4)}
    assert led == {0: [True, False], 1: [False, True], 2: [False, True], 3: [True, False]}
    assert (search.planned, search.may_repeat) == (4 + 8, 2 * 3)
    # Trial 3 led the first goal by luck: one of two repeats is slow, and the higher middle counts.
    of_first = {0: (12, 14), 3: (5, 30)}
    of_second = {1: (70, 80), 2: (75, 79)}
    for (index, repeat), proposal in choosing.items():
        assert search.may_repeat == 6
        if index in of_first:
            passed = of_first[index][repeat - 1]
            found = finish(proposal.trial, ("dominated", passed), passes={FIRST: passed})
        else:
            found = finish(proposal.trial, ("reached", of_second[index][repeat - 1]))
        director.record(found)
    judging = all_waiting(director)
    names = [(index, repeat) for index in (0, 2) for repeat in (3, 4, 5)]
    assert sorted((p.trial.index, p.trial.repeat) for p in judging) == names
    assert (search.planned, search.may_repeat) == (4 + 8 + 6, 0)
    for proposal in judging:
        director.record(finish(proposal.trial, ("diverged", 1)))
    # Both missed their goals, so the next ones take their places.
    judging = all_waiting(director)
    assert {p.trial.index for p in judging} == {1, 3}
    for proposal in judging:
        director.record(finish(proposal.trial, ("diverged", 1)))
    assert director.done


@pytest.mark.parametrize("seed", range(5, 10))
def test_files_choose_points_that_the_search_has_judged(seed: int, tmp_path: Path) -> None:
    """If half of the repeats that judge a point miss the goal, another one is the answer; and a
    goal has one, no later, if a stricter goal has."""
    draw = random.Random(seed)
    study = make_study(goals=(FIRST, SECOND), repeats=4, repeat_best=2, keep=2)
    run, director = RunFiles(tmp_path), begin(study)
    run.create({"name": "x"}, [study], {})
    rows = frontier_of(run)
    while not director.done:
        for proposal in all_waiting(director):
            trial, first, second = proposal.trial, draw.randrange(5, 9), draw.randrange(9, 13)
            reached, missed = [{FIRST: first, SECOND: second}, {FIRST: first}], [{}]
            passes = draw.choice(reached + missed * bool(trial.repeat))
            fate: Fate = ("reached", second) if SECOND in passes else ("exhausted", 100)
            run.write(one := finish(trial, fate, passes))
            director.record(one)
        rows = frontier_of(run)
    assert all(row.finished for row in rows)
    of_first, of_second = (row.repeats for row in rows)
    assert of_first is not None
    if of_second is not None and of_second.median is not None:
        assert of_first.median is not None
        assert of_first.median <= of_second.median


def test_a_lost_repeat_is_trained_again_before_it_chooses() -> None:
    """Else the next process would choose another point, and measure that one as well."""
    study = make_study(repeats=2, repeat_best=2, keep=2)
    director = begin(study)
    for proposal in all_waiting(director):
        director.record(finish(proposal.trial, ("reached", 10 + proposal.trial.index)))
    first, *others = all_waiting(director)
    for proposal in others:
        director.record(finish(proposal.trial, ("reached", 20)))
    director.record(ended(first.trial, "failed", died=True))
    (search,) = director.searches.values()
    assert (search.lost, search.stalled, director.done) == ([first.trial], True, False)


def test_a_repeat_of_what_won_one_goal_ends_when_it_passes_that_one() -> None:
    study = make_study(goals=(FIRST, SECOND))
    bounds = ((), closed(study))
    assert ending(study, bounds, None, unmet={FIRST: 99, SECOND: 99}, upcoming=99, index=0) is None
    assert ending(study, bounds, None, unmet={SECOND: 1}, upcoming=1, index=0) == "dominated"


def value_of(trial: Trial) -> float:
    return float(trial.params["learning_rate"])


def test_a_budget_is_inherited_from_the_next_smaller_batch_size() -> None:
    director = begin(*(make_study(batch_size=size, inherit=1.5) for size in (16, 1, 4)))
    # Steps fall from 33 to 11 and 5.
    steps = {1: 33, 4: 11, 16: 5}
    rounds = play(director, lambda trial: ("reached", steps[trial.study.batch_size]), limited=True)
    assert [r[0].trial.study.batch_size for r in rounds] == [1, 4, 16]
    assert [{p.limit for p in r} for r in rounds] == [{None}, {math.ceil(1.5 * 33)}, {17}]


@pytest.mark.parametrize("resumes", [True, False])
def test_a_program_that_begins_anew_has_the_first_stage_alone(resumes: bool) -> None:
    program = Program(command=("train",), resumes=resumes)
    director = begin(make_study(stop_dominated=True, budget_steps=3200, program=program))
    rounds = play(director, lambda trial: ("exhausted", 3200), limited=True)
    assert [{p.limit for p in r} for r in rounds] == [{400}, *[{1600}] * resumes, {None}]


def test_a_limit_stands_once_as_many_have_passed_within_it_as_are_kept() -> None:
    steps = {0: 390, 1: 350, 2: 1500, 3: 1400}
    for keep, limits in ((2, [{400}]), (3, [{400}, {1600}])):
        director = begin(make_study(stop_dominated=True, budget_steps=3200, keep=keep))
        rounds = play(director, lambda t: ("reached", steps[t.index]), limited=True)
        assert [{p.limit for p in r} for r in rounds] == limits
        (search,) = director.searches.values()
        ranking = ((350, 1), (390, 0), (1400, 3))[:keep]
        assert (search.bounds, search.frontier_step()) == ((ranking,), 350)


def test_of_paused_trials_the_closest_to_the_goal_goes_on_first_until_none_can_win() -> None:
    director = begin(make_study(stop_dominated=True, budget_steps=3200))
    values = {0: 0.9, 1: 0.7, 2: math.nan, 3: 0.8}
    for proposal in all_waiting(director):
        trial = proposal.trial
        director.record(finish(trial, ("paused", 400), value=values[trial.index]))
    paused = {proposal.trial.index: proposal for proposal in all_waiting(director)}
    assert [(index, p.limit) for index, p in paused.items()] == [(n, 1600) for n in (1, 3, 0, 2)]
    (search,) = director.searches.values()
    assert {key.index for key in search.set_aside()} == set(range(4))
    director.record(finish(paused[1].trial, ("reached", 401)))
    assert not director.done, "trial 0 could tie, and would be first in the order"
    assert {key.index for key in search.set_aside()} == {0, 2, 3}
    director.record(finish(paused[0].trial, ("dominated", 401)))
    assert director.done
    assert not search.set_aside()


def test_a_trial_of_a_large_study_takes_no_longer() -> None:
    def seconds(trials: int) -> float:
        director = begin(make_study(trials=trials, stop_dominated=True))
        gc.disable()  # it looks through all that other tests have left
        began = time.process_time()
        play(director, by_index())
        gc.enable()
        return (time.process_time() - began) / trials

    seconds(10)
    assert seconds(4000) < 4 * seconds(200)


def test_large_gangs_and_long_studies_come_first() -> None:
    wide = make_study(batch_size=64, recipe="wide", trials=1)
    long = make_study(batch_size=2, recipe="long", trials=1, budget_steps=1000)
    short = make_study(batch_size=2, recipe="short", trials=1, budget_steps=10)
    director = begin(short, long, wide, shape=lambda study: study.batch_size)
    assert [p.trial.study.recipe for p in all_waiting(director)] == ["wide", "long", "short"]


def test_another_study_is_served_while_one_waits_for_its_round() -> None:
    long, short = make_study(budget_steps=1000, recipe="long"), make_study(recipe="short")
    director = begin(short, long)
    proposals = [following(director) for _ in range(5)]
    recipes = [p.trial.study.recipe for p in proposals if p]
    assert recipes == ["long"] * 4 + ["short"]
    for proposal in proposals[:4]:
        director.record(finish(proposal.trial, ("diverged", 1)))
    after = following(director)
    assert (after.trial.study.recipe, after.trial.index >= 4) == ("long", True)


def test_what_lies_near_the_best_point_starts_first() -> None:
    director = begin(make_study(trials=12))
    first = following(director)
    director.record(finish(first.trial, ("reached", 10)))
    place = math.log(value_of(first.trial))
    distances = [abs(math.log(value_of(p.trial)) - place) for p in all_waiting(director)]
    assert distances == pytest.approx(sorted(distances))


def test_a_grid_has_both_ends_and_every_option() -> None:
    space = {
        "learning_rate": Range(low=0.01, high=1, scale="log"),
        "momentum": Range(low=0, high=1),
        "nesterov": Choice(options=(False, True)),
        "clip": 2,
    }
    points = grid(space, {"learning_rate": 3, "nesterov": 1})
    assert [(p["learning_rate"], p["nesterov"]) for p in points] == [
        (pytest.approx(rate), nesterov) for rate in (0.01, 0.1, 1) for nesterov in (False, True)
    ]
    assert all(point["momentum"] == 0.5 and point["clip"] == 2 for point in points)


@pytest.mark.parametrize(("trials", "each"), [(1, 1), (7, 1), (8, 2), (26, 2), (27, 3), (1000, 10)])
def test_the_axes_of_a_grid_are_even(trials: int, each: int) -> None:
    space = {name: Range(low=0, high=1) for name in "abc"}
    assert even_axes({**space, "fixed": 1}, trials) == dict.fromkeys("abc", each)


def test_a_grid_with_choices_has_no_more_points_than_trials() -> None:
    space = {"a": Range(low=0, high=1), "b": Choice(options=("x", "y", "z"))}
    assert [len(grid(space, even_axes(space, trials))) for trials in (3, 5, 6, 20)] == [3, 3, 6, 12]
    with refused("too-many", "3 points", "2 `trials`"):
        even_axes(space, 2)


def test_listed_points_are_tried_in_their_order_and_never_replaced() -> None:
    points = tuple({"learning_rate": rate} for rate in (0.3, 0.1, 0.2))
    plan = SearchPlan(algorithm="points", points=points)
    director = begin(make_study(trials=3, search=plan))
    (only,) = play(director, lambda trial: ("diverged", 1))
    assert tuple(p.trial.params for p in sorted(only, key=lambda p: p.trial.index)) == points


@given(
    st.sampled_from(["linear", "log", "reverse_log"]),
    st.floats(0.001, 0.9),
    st.floats(0.01, 0.09),
    st.floats(0, 1),
)
def test_a_fraction_is_found_again_in_its_value(
    scale: Scale, low: float, width: float, fraction: float
) -> None:
    entry = Range(low=low, high=low + width, scale=scale)
    assert entry.fraction(float(entry.at(fraction))) == pytest.approx(fraction, abs=1e-9)


class Bowl(World):
    """Trials have error 1 until they pass the goal, best at a learning rate of 0.01. Far from it,
    they diverge."""

    def curve(self, trial: Trial) -> tuple[Measurement, ...]:
        off = abs(math.log10(value_of(trial)) + 2)
        falls = 300 + round(200 * off)
        errors = [0.6 + off / (1 + step) if step < falls else 0.4 for step in range(0, 801, 10)]
        errors = [*errors[: 5 + trial.index], math.nan] if off > 1.5 else errors
        return tuple(
            Measurement(step=10 * number, seconds=0, metrics={"val/error": error})
            for number, error in enumerate(errors)
        )


def test_adaptive_points_are_the_same_whether_trials_were_cut_or_not() -> None:
    """Trials are seen complete, or as the race ends them in order of proposal."""
    study = make_study(
        trials=25, search=SearchPlan(algorithm="tpe", generation=5), budget_steps=800,
        grid=EvaluationGrid(spacing=0, min_gap=10),
    )  # fmt: skip
    found, cut = [], []
    for racing in (False, True):
        studies = (replace(study, stop_dominated=racing),)
        finished, _ = test_race.play(Bowl(studies, 0, 0.0), studies, Habits())
        found.append(test_race.points(finished))
        cut.append(sum(one.outcome.status == "dominated" for one in finished.values()))
    assert found[0] == found[1]
    assert (cut[0], cut[1] > 5, len(found[0]) >= 25) == (0, True, True)
