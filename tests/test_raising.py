"""A larger budget on a run that is there comes to what it would have come to from the start."""

import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import conftest
import pytest
from holding import first_held
from hypothesis import given, settings
from hypothesis import strategies as st
from test_race import Gang

from orchestrator.planning.growth import as_grown
from orchestrator.records import (
    EvaluationGrid,
    FinishedTrial,
    Goal,
    Measurement,
    Range,
    Status,
    Study,
    Trial,
    TrialKey,
    ranges,
)
from orchestrator.search import Director, Proposal, rounds

GOALS = tuple(f"val/error < {level}.5" for level in range(4))
HELD = tuple(
    f"val/error < {level}.5 for {length}"
    for level, length in enumerate(("2 measurements", "60 examples", "3 measurements"))
)

LONGEST = 400
"""Nothing happens in a trial after so many steps."""

Files = dict[TrialKey, FinishedTrial]


@dataclass(frozen=True)
class World:
    """What trials show, whatever their budget."""

    seed: int
    divergent: float

    def error(self, trial: Trial, step: int) -> float:
        key = trial.key
        falls, end = self._fate(key.study.batch_size, key.index, key.repeat)
        noise = random.Random(f"{self.seed}/{key}/{step}").choice((0, 0, 0, 1))
        return math.nan if step >= end else float(sum(step < fall for fall in falls) + noise)

    @lru_cache(maxsize=200)  # noqa: B019 - worlds live briefly
    def _fate(self, batch_size: int, index: int, repeat: int) -> tuple[list[float], float]:
        chance = random.Random(f"{self.seed}/{batch_size}/{index}/{repeat}")
        falls = [chance.choice((1.0, 4.0)) * chance.randint(0, LONGEST) for _ in GOALS]
        return falls, chance.randint(0, LONGEST) if chance.random() < self.divergent else math.inf

    def train(self, proposal: Proposal) -> FinishedTrial:
        trial = proposal.trial
        curve = (
            Measurement(step=step, seconds=0.0, metrics={"val/error": self.error(trial, step)})
            for step in trial.study.measured()
        )
        gang = Gang(trial, proposal.bounds, proposal.limit, curve, 0)
        while (finished := gang.advance()) is None:
            pass
        return finished


@st.composite
def studies(draw: st.DrawFn) -> list[Study]:
    grid = EvaluationGrid(
        spacing=draw(st.sampled_from([0.0, 0.3, 1.0])), min_gap=draw(st.integers(3, 60))
    )
    goals = draw(
        st.sampled_from(
            [GOALS[:1], GOALS[1:3], GOALS[::3], HELD[:1], HELD[1:], (HELD[1], GOALS[0])]
        )
    )
    one_point = draw(st.sampled_from([False, False, True]))
    at_goal = draw(st.sampled_from([True, True, False]))
    study = conftest.make_trial(
        batch_size=1,
        goals=goals,
        budget_steps=draw(st.integers(1, LONGEST)),
        grid=grid,
        space={"learning_rate": 0.1 if one_point else Range(low=0.1, high=1.0, scale="log")},
        trials=1 if one_point else draw(st.integers(1, 5)),
        repeats=draw(st.sampled_from([0, 2])),
        keep=draw(st.sampled_from([1, 1, 2])),
        inherit=draw(st.sampled_from([None, 1.0, 1.5])),
        stop_at_goal=at_goal,
        stop_dominated=at_goal and draw(st.booleans()),
    ).study
    return [replace(study, batch_size=2**n) for n in range(draw(st.integers(1, 2)))]


def sweep(studies: Iterable[Study], world: World, files: Files, most: float = math.inf) -> Files:
    """What a run holds that held `files`, after at most so many trials."""
    director, held = Director(studies, 0), Files()
    for study in studies:
        there = [
            replace(one, trial=replace(one.trial, study=study))
            for key, one in files.items()
            if key.study == study.key
        ]
        for one in as_grown(study, there):
            held[one.trial.key] = one
            director.load(one)
    director.begin()
    while most > 0 and (proposal := conftest.following(director)) is not None:
        held[proposal.trial.key] = finished = world.train(proposal)
        director.record(finished)
        most -= 1
    return held


def answer(studies: Iterable[Study], files: Files) -> object:
    """The points; of each goal who passed it first, as many as are kept, and when the repeats of
    the first did."""

    def passed(key: TrialKey, goal: Goal) -> float:
        first = first_held(files[key].trial.study, goal, files[key].measurements)
        return math.inf if first is None else first

    found: list[object] = []
    for study in studies:
        mine = sorted(key for key in files if key.study == study.key)
        found.append([files[key].trial.params for key in mine if not key.repeat])
        for goal in study.goals:
            ranked = sorted((passed(key, goal), key.index) for key in mine if not key.repeat)
            best = [one for one in ranked[: study.keep] if math.isfinite(one[0])]
            of_winner = [key for key in mine if key.repeat and key.index == ranked[0][1]]
            won = best or study.is_one_point
            found.append((best, [passed(key, goal) for key in of_winner] if won else []))
    return found


@pytest.mark.dear
@settings(max_examples=150)
@given(
    studies(),
    st.builds(World, st.integers(0, 2**32), st.sampled_from([0.0, 0.5, 0.8])),
    st.sampled_from([0, 1, 40, LONGEST]),
    st.integers(0, 3),
    st.sampled_from([math.inf, math.inf, 3, 10]),
    st.sampled_from([math.inf, 2, 7]),
)
def test_a_run_that_grew_comes_to_what_it_would_have_from_the_start(
    small: list[Study], world: World, more: int, kept: int, most: float, interrupted: float
) -> None:
    large = [
        replace(study, budget_steps=study.budget_steps + more, keep=study.keep + kept)
        for study in small
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounds, "SHORTEST_LIMIT", 1)
        patch.setattr(ranges, "NEAR_BOUND", 0.5)
        before = sweep(small, world, {}, most)
        raised = sweep(large, world, sweep(large, world, before, interrupted))
        direct = sweep(large, world, {})
    assert answer(large, raised) == answer(large, direct)
    for key in raised.keys() & direct.keys():
        length = min(len(raised[key].measurements), len(direct[key].measurements))
        assert str(raised[key].measurements[:length]) == str(direct[key].measurements[:length])


def test_a_trial_that_ended_at_a_smaller_budget_is_set_back_to_its_last_step_on_the_grid() -> None:
    study = conftest.make_trial(
        goals=GOALS[1:3], trials=4, budget_steps=95, grid=EvaluationGrid(spacing=0, min_gap=10),
        space={"learning_rate": Range(low=0.1, high=1.0)}, repeats=2,
    ).study  # fmt: skip
    raised, nan = replace(study, budget_steps=200), math.nan
    there = [
        ended(raised, 0, "exhausted", {90: 3, 95: 3}),
        ended(raised, 1, "reached", {90: 3, 95: 0}),
        ended(raised, 2, "diverged", {90: nan}),
        ended(raised, 3, "diverged", {90: 3, 95: nan}),
        ended(raised, 4, "reached", {90: 0}),
        ended(raised, 4, "exhausted", {90: 3, 95: 3}, repeat=1),
        # Ended at the other goal, which its point may win yet.
        ended(raised, 4, "dominated", {60: 2}, repeat=2),
        ended(raised, 5, "exhausted", {90: 3, 95: 3}),
    ]
    told = [(one.trial.index, one.outcome) for one in as_grown(raised, there)]
    assert [(index, outcome.status, outcome.steps) for index, outcome in told] == [
        (0, "paused", 90), (1, "paused", 90), (2, "diverged", 90), (3, "paused", 90),
    ]  # fmt: skip
    assert as_grown(raised, there[2:3]) == there[2:3]
    interrupted = [*there[:-1], replace(there[-1], measurements=())]
    assert as_grown(raised, interrupted) == as_grown(raised, there)


def ended(
    study: Study, index: int, status: Status, shown: Mapping[int, float], repeat: int = 0
) -> FinishedTrial:
    trial = Trial(study=study, index=index, seed=0, params={}, repeat=repeat)
    return conftest.ended(trial, status, shown)
