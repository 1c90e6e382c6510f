"""Ending trials early changes nothing. This is tested with random studies, in any order, with
losses and pauses."""

import math
import random
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import pytest
from conftest import exhaust, following, make_trial
from holding import first_held
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.programs.hearing import Hearing
from orchestrator.records import (
    EvaluationGrid,
    FinishedTrial,
    Goal,
    Measurement,
    Outcome,
    Program,
    Range,
    Status,
    Study,
    StudyKey,
    Trial,
    TrialKey,
    Value,
)
from orchestrator.records.cooling import CooledStanding, standing_of
from orchestrator.records.stages import Cooldown
from orchestrator.search import Bounds, Director, ending, rounds
from orchestrator.search.race import tighter

METRICS = ("val/error", "val/accuracy", "test/error")
GOALS = (
    *(f"val/error < {level}.5" for level in range(4)),
    *(f"val/accuracy > -{level}.5" for level in range(4)),
    "test/error < 1.5",
    *(f"val/error < {level}.5 for 2 measurements" for level in range(4)),
    *(f"val/accuracy > -{level}.5 for {7 * 3**level} examples" for level in range(4)),
    "test/error < 2.5 for 4 measurements",
)

Finished = dict[TrialKey, FinishedTrial]


@dataclass(frozen=True, eq=False)
class World:
    """The measurements that every trial would have if it were never ended early."""

    studies: tuple[Study, ...]
    seed: int
    divergent: float

    def curve(self, trial: Trial) -> tuple[Measurement, ...]:
        return self._curves(trial.study.batch_size, trial.index, trial.repeat)

    @lru_cache(maxsize=200)  # noqa: B019 - worlds live briefly
    def _curves(self, batch_size: int, index: int, repeat: int) -> tuple[Measurement, ...]:
        study = next(study for study in self.studies if study.batch_size == batch_size)
        chance = random.Random(f"{self.seed}/{batch_size}/{index}/{repeat}")
        if study.cooldown is not None:
            return tuple(cooled(Trial(study=study, index=index, seed=0, params={}), chance))
        steps = irregular(study, chance) if study.program is not None else [*study.measured()]
        # Few places at which anything happens: trials often tie.
        last = len(steps) - 1
        places = [min(1, last), last // 8, last // 4, last // 2, 3 * last // 4, last, last + 1]
        noisy = chance.random() < 0.3
        values: dict[str, list[float]] = {}
        for metric in METRICS:
            falls = [chance.choice(places) for _ in range(4)]
            levels = [4 - sum(fall <= place for fall in falls) for place in range(last + 1)]
            if noisy:
                levels = [level + chance.choice((-1, 0, 0, 0, 1)) for level in levels]
            sign = -1.0 if metric == "val/accuracy" else 1.0
            values[metric] = [sign * level for level in levels]
        if chance.random() < self.divergent:
            end = chance.choice([0, *places])
            for metric in chance.sample(METRICS, chance.randint(1, len(METRICS))):
                values[metric][end:] = [math.nan] * (last + 1 - end)
        measured = [
            Measurement(
                step=step, seconds=0.0, metrics={name: values[name][place] for name in METRICS}
            )
            for place, step in enumerate(steps)
        ]
        return tuple(measured if study.program is None else heard(study, measured, chance))


def cooled(trial: Trial, chance: random.Random) -> Iterator[Measurement]:
    """The measurements of a trial that is cooled down, whose values need not fall. Some trunks
    diverge, and some cooldowns do."""
    standing, budget = CooledStanding(trial), trial.study.budget_steps
    ends, noisy = chance.randint(1, 2 * budget), chance.choice([0, 0, 1, 3])
    levels = [chance.randint(0, budget) for _ in range(4)]
    while standing.status is None:
        step = standing.upcoming
        if standing.turns(step):
            standing.cools = True
            continue
        level = 4.0 - sum(at <= step for at in levels) + chance.randint(-noisy, noisy)
        if not standing.cools:
            metrics = {"trunk/val/error": math.nan if step > ends else level}
        else:
            level = math.nan if chance.random() < 0.05 else level
            metrics = {"val/error": level, "val/accuracy": -level, "test/error": level}
        measurement = Measurement(step=step, seconds=0.0, metrics=metrics)
        yield measurement
        standing.add(measurement)


def irregular(study: Study, chance: random.Random) -> list[int]:
    """The steps at which a program reports, which may end early, or go on after its budget."""
    gap, wide = study.grid.min_gap, 1 + study.budget_steps // 5
    steps = [chance.randint(0, min(gap, study.budget_steps))]
    last = study.budget_steps * chance.choice([0.5, 1, 1, 1.5])
    while steps[-1] < last:
        steps.append(steps[-1] + gap + chance.choice([0, 0, 1, wide]))
    if chance.random() < 0.5:  # and once more at its end
        steps = [*(step for step in steps if step < study.budget_steps), study.budget_steps]
    return steps


def heard(
    study: Study, measured: Sequence[Measurement], chance: random.Random
) -> Iterator[Measurement]:
    """What is heard of a program that reports in parts, or leaves parts out, on several ranks."""
    hearing = Hearing(study)
    for number, measurement in enumerate(measured):
        names = [*METRICS]
        chance.shuffle(names)
        if number and chance.random() < 0.3:
            names = names[: chance.randint(0, 2)]
        cut = chance.randint(0, len(names))
        for part in [names[:cut], names[cut:], names]:
            metrics = {name: measurement.metrics[name] for name in part}
            yield from hearing.report({"step": measurement.step, **metrics, "time": 0.0})
    yield from hearing.rest()


@dataclass(frozen=True)
class Habits:
    """The order and timing with which a cluster works."""

    seed: int = 0
    slots: int = 1
    looks: float = 0.0
    """How often a running trial hears what others reached, after a measurement."""
    stride: int = 1000
    """Most measurements before another trial has its turn."""
    crashes: int = 0
    crash: float = 0.0


@st.composite
def worlds(draw: st.DrawFn) -> World:
    budget = draw(st.integers(1, 12) | st.integers(1, 400))
    grid = EvaluationGrid(
        spacing=draw(st.sampled_from([0.0, 0.05, 0.3, 1.0])),
        min_gap=draw(st.integers(1 + budget // 40, 3 + budget // 4)),
    )
    every = draw(st.sampled_from([None, None, 0, 1, 1 + budget // 20]))
    cooldown = draw(st.sampled_from([None, Cooldown(fraction=0.2), Cooldown(steps=2)]))
    if every is not None or budget < 2 * grid.min_gap:
        cooldown = None
    some: Sequence[str] = GOALS
    if cooldown is not None:
        metric = draw(st.sampled_from(METRICS))
        some = [goal for goal in GOALS if goal.startswith(metric) and " for " not in goal]
    goals = draw(st.lists(st.sampled_from(some), min_size=1, max_size=3, unique=True))
    if every is not None:
        grid = EvaluationGrid(spacing=0.0, min_gap=every or 1)
    study = make_trial(
        batch_size=1,
        goals=goals,
        budget_steps=budget,
        grid=grid,
        space={"learning_rate": Range(low=0.1, high=1.0, scale="log")},
        trials=draw(st.integers(1, 6)),
        repeats=draw(st.sampled_from([0, 0, 2])),
        keep=draw(st.sampled_from([1, 1, 2, 3, 5])),
        inherit=draw(st.sampled_from([None, 1.0, 1.5])),
        program=None if every is None else Program(command=("any",), every=every or None),
        cooldown=cooldown,
    ).study
    return World(
        studies=tuple(replace(study, batch_size=2**n) for n in range(draw(st.integers(1, 2)))),
        seed=draw(st.integers(0, 2**32)),
        divergent=draw(st.sampled_from([0.0, 0.3, 0.7, 1.0])),
    )


habits = st.builds(
    Habits,
    seed=st.integers(0, 2**32),
    slots=st.integers(1, 4),
    looks=st.sampled_from([0.0, 0.2, 1.0]),
    stride=st.sampled_from([1, 4, 1000]),
    crashes=st.integers(0, 4),
    crash=st.sampled_from([0.05, 0.3]),
)


def train(
    trial: Trial,
    curve: Iterable[Measurement],
    there: int = 0,
    cut: Callable[[dict[Goal, int], int], str | None] = lambda unmet, upcoming: None,
) -> Generator[Measurement, None, Status]:
    """Trains like the training loop, or follows a program, which ends by itself. The first `there`
    measurements come from a checkpoint."""
    standing = standing_of(trial)
    for number, measurement in enumerate(curve, start=1):
        if measurement.step > trial.study.budget_steps:
            break
        standing.add(measurement)
        yield measurement
        if standing.status is not None:
            return standing.status
        if number >= there and cut(standing.unmet, standing.open_from or standing.upcoming):
            return "dominated"
    return "reached" if standing.all_reached else "exhausted"


@dataclass
class Gang:
    """A trial in training."""

    trial: Trial
    bounds: Bounds
    limit: int | None
    curve: Iterable[Measurement]
    there: int
    measured: list[Measurement] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.training = train(self.trial, self.curve, self.there, self._cut)

    def _cut(self, unmet: dict[Goal, int], upcoming: int) -> str | None:
        return ending(
            self.trial.study,
            self.bounds,
            self.limit,
            unmet=unmet,
            upcoming=upcoming,
            index=self.trial.index,
        )

    def advance(self) -> FinishedTrial | None:
        try:
            self.measured.append(next(self.training))
        except StopIteration as end:
            outcome = Outcome(status=end.value, steps=self.measured[-1].step, seconds=0.0)
            return FinishedTrial(
                trial=self.trial, outcome=outcome, measurements=tuple(self.measured)
            )
        return None


def open_director(studies: Iterable[Study], finished: Iterable[FinishedTrial]) -> Director:
    director = Director(studies, sweep_seed=7)
    for trial in finished:
        director.load(trial)
    director.begin()
    return director


def play(world: World, studies: Iterable[Study], habits: Habits) -> tuple[Finished, Director]:
    """Plays a whole run. Returns everything that is left in its folder, and the director at the
    end."""
    chance = random.Random(habits.seed)
    finished: Finished = {}
    running: dict[TrialKey, Gang] = {}
    board: dict[StudyKey, Bounds] = {}
    director, crashes = open_director(studies, ()), habits.crashes
    while running or not director.done:
        while len(running) < habits.slots and (proposal := following(director)) is not None:
            trial, key = proposal.trial, proposal.trial.key
            assert key not in running, "the same trial twice at once"
            paused = finished.get(key)
            # What was paused goes on from its checkpoint, if that was worth keeping.
            there = len(paused.measurements) if paused and chance.random() < 0.5 else 0
            running[key] = Gang(trial, proposal.bounds, proposal.limit, world.curve(trial), there)
        assert running, "nothing runs and nothing starts, but there is more to do"
        key = chance.choice(list(running))
        gang = running[key]
        for _ in range(chance.randint(1, habits.stride)):
            if chance.random() < habits.looks and not gang.trial.repeat:
                study = gang.trial.study
                gang.bounds = tighter(study, gang.bounds, board.get(key.study))
            if (ended := gang.advance()) is not None:
                del running[key]
                finished[key] = ended
                if (news := director.record(ended)) is not None:
                    board[key.study] = news
                break
        if crashes and chance.random() < habits.crash:
            crashes -= 1
            running, board = {}, {}
            held = list(finished.values())
            chance.shuffle(held)
            director = open_director(studies, held)
    return finished, director


def frontier(study: Study, finished: Finished) -> Bounds:
    """Computes the frontier from its definition: the best `keep` of all trials that passed each
    goal first."""
    first: list[dict[int, int]] = [{} for _ in study.goals]
    for key, trial in finished.items():
        if key.study != study.key or key.repeat:
            continue
        for number, goal in enumerate(study.goals):
            if (at := first_held(study, goal, in_order(trial.measurements))) is not None:
                first[number][key.index] = at
    return tuple(
        tuple(sorted((step, index) for index, step in of.items())[: study.keep]) for of in first
    )


def points(finished: Finished) -> dict[TrialKey, Mapping[str, Value]]:
    return {key: trial.trial.params for key, trial in finished.items()}


def in_order(measured: Iterable[Measurement]) -> list[Measurement]:
    """The measurements by step: the first end of a cooldown that passes is the answer."""
    return sorted(measured, key=lambda measurement: measurement.step)


def end_of(trial: Trial, measured: Sequence[Measurement]) -> int:
    """The step at which a trial ended, or, if it is cooled down, where it might have gone on."""
    standing = standing_of(trial)
    for measurement in measured:
        standing.add(measurement)
    return standing.open_from or measured[-1].step


def launches_by_the_rule(world: World, study: Study) -> int:
    """Computes the number of points of all rounds from complete curves, by the rule written out."""
    passed: dict[Goal, int] = {}
    counted = end = 0
    while counted < study.trials and end < 3 * study.trials:
        count = min(study.trials - counted, 3 * study.trials - end)
        diverged = []
        for index in range(end, end + count):
            trial = Trial(study=study, index=index, seed=0, params={})
            measured, status = exhaust(train(trial, world.curve(trial)))
            if status == "diverged":
                diverged.append(end_of(trial, measured))
            for goal in study.goals:
                if (at := first_held(study, goal, in_order(measured))) is not None:
                    passed[goal] = min(at, passed.get(goal, at))
        step = max(passed.values()) if len(passed) == len(study.goals) else math.inf
        counted += count - sum(at < step for at in diverged)
        end += count
    return end


@pytest.mark.dear
@settings(max_examples=200)
@given(worlds(), habits, st.sampled_from([1, 100]))
def test_ending_trials_early_changes_neither_frontier_nor_points(
    world: World, habits: Habits, shortest: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounds, "SHORTEST_LIMIT", shortest)
        full = [replace(study, stop_dominated=False) for study in world.studies]
        reference, _ = play(world, full, Habits())
        raced, director = play(world, world.studies, habits)
    assert points(raced) == points(reference)
    for study in world.studies:
        search = director.searches[study.key]
        assert search.bounds == frontier(study, raced) == frontier(study, reference)
        count = sum(key.study == study.key and not key.repeat for key in raced)
        assert count == launches_by_the_rule(world, study)
