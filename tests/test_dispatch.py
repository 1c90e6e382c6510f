"""Whatever happens to the machines that train, nothing is lost, nothing that counts is trained
twice, and the frontier is the same. No Ray is needed to see that."""

import math
import random
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pretending import DIED, LOST, RAISED, Disk, Killed, Luck, Pretended, session
from test_race import Habits, World, frontier, play, points, worlds
from test_rounds import make_study

from orchestrator.planning.sweep import Faults
from orchestrator.records import FinishedTrial, Outcome, SearchPlan, SweepFailed, Trial
from orchestrator.search import Director
from orchestrator.sweeping import dispatch, usage
from orchestrator.sweeping.executor import LAST_WORDS_SECONDS, Failure, News
from orchestrator.sweeping.retries import MAX_LOSSES, Retries

EASY = World(studies=(make_study(trials=4, budget_steps=40),), seed=1, divergent=0.0)


def run(executor: Pretended, **options: Any) -> Any:
    _, progress, done = session(executor, **options)
    assert done
    return progress


def trained(executor: Pretended) -> list[int]:
    return sorted(key.index for key in executor.disk.held)


lucks = st.builds(
    Luck,
    dies=st.sampled_from([0.0, 0.02, 0.2]),
    lost=st.sampled_from([0.0, 0.1]),
    hangs=st.sampled_from([0.0, 0.03]),
    twice=st.sampled_from([0.0, 0.5, 1.0]),
    faults=st.integers(0, 12),
)


@pytest.mark.dear
@settings(max_examples=100)
@given(
    worlds(), lucks, st.integers(0, 2**32), st.integers(1, 4), st.sampled_from([1, 3]),
    st.lists(st.integers(1, 60), max_size=4), st.sampled_from([0.0, 0.3]),
)  # fmt: skip
def test_whatever_happens_the_frontier_is_the_same(
    world: World, luck: Luck, seed: int, ranks: int, width: int, ends: list[int], fills_up: float
) -> None:
    chance, disk = random.Random(seed), Disk()
    disk.full = lambda: chance.random() < fills_up

    def killed_after_writing() -> None:
        if ends and chance.random() < 0.05:
            raise Killed

    disk.after_write = killed_after_writing
    left = luck.faults
    while True:  # session after session, as `orchestrate resume` makes them
        how = [ends.pop()] if ends else []
        kills, asked = (how, []) if chance.random() < 0.5 else ([], how)
        executor = Pretended(
            world, disk, replace(luck, faults=left), seed=chance.randint(0, 2**32), ranks=ranks,
            width=width, kills=kills,
        )  # fmt: skip
        try:
            director, _, done = session(
                executor, asked_to_end=lambda e=executor, a=asked: e.waits in a
            )
        except (Killed, SweepFailed):
            done = False
        left = executor.faults
        failed = any(held.outcome.status == "failed" for held in disk.held.values())
        if done and not failed:
            break
    full = [replace(study, stop_dominated=False) for study in world.studies]
    reference, _ = play(world, full, Habits())
    # Where a trial failed at every attempt, others may have been repeated in its place at first.
    kept = {key: t for key, t in disk.held.items() if key in reference or not key.repeat}
    assert points(kept) == points(reference)
    for study in world.studies:
        found = director.searches[study.key].bounds
        assert found == frontier(study, disk.held) == frontier(study, reference)


def starts_of(executor: Pretended, index: int) -> list[int]:
    """The widths of the packs that a trial was given in."""
    return [p.width for p in executor.packs for q in p.proposals if q.trial.index == index]


def test_a_trial_that_raises_fails_after_its_attempts_and_others_go_on() -> None:
    executor = Pretended(EASY, Disk(), raises=lambda trial, width: trial.index == 2)
    run(executor, faults=Faults(max_failures=2))
    assert len(starts_of(executor, 2)) == 3
    statuses = {key.index: held.outcome.status for key, held in executor.disk.held.items()}
    assert statuses.pop(2) == "failed"
    assert "failed" not in statuses.values()
    (error,) = [h.outcome.error for h in executor.disk.held.values() if h.outcome.error]
    assert error == RAISED.text
    # A session in which the last trials fail again ends as the first did.
    run(Pretended(EASY, executor.disk, raises=executor.raises))


def test_what_raises_in_a_stack_only_is_trained_outside_of_it() -> None:
    executor = Pretended(EASY, Disk(), width=4, raises=lambda trial, width: width > 1)
    run(executor, faults=Faults(max_failures=0))
    assert trained(executor) == [0, 1, 2, 3]
    assert not any(held.outcome.error for held in executor.disk.held.values())
    assert starts_of(executor, 0)[-1] == 1


@pytest.mark.parametrize(
    ("failure", "begun", "put_back"),
    [
        (RAISED, [0, 1], [2, 3]),
        (RAISED, [], [0, 1, 2, 3]),
        (DIED, [0, 1], []),
        (LOST, [0, 1], [0, 1, 2, 3]),
    ],
)
def test_the_blame_for_a_failed_stack(
    failure: Failure, begun: list[int], put_back: list[int]
) -> None:
    """Only a trial that had a slot can have raised. A process that died may have begun others in
    its last second. A machine that is lost for the first time is nobody's fault."""
    trials = [Trial(study=EASY.studies[0], index=n, seed=0, params={}) for n in range(4)]
    retries = Retries(2, clock=lambda: 0.0)
    decision = retries.judge(trials, {trials[n].key for n in begun}, 4, failure)
    assert [trial.index for trial in decision.put_back] == put_back
    again = []
    while (trial := retries.next()) is not None:
        again.append(trial.index)
    assert sorted([*again, *put_back]) == [0, 1, 2, 3]
    assert (decision.failed, decision.counts) == (None, False)


def test_attempts_wait_longer_each_time_and_lost_machines_count_apart() -> None:
    now = [0.0]
    trial = Trial(study=EASY.studies[0], index=0, seed=0, params={})
    retries, waits = Retries(2, clock=lambda: now[0]), []
    for failure in [LOST, DIED, LOST, DIED]:
        decision = retries.judge([trial], [], 1, failure)
        assert decision.counts == (failure is DIED)
        began = now[0]
        while retries.next() is None:
            now[0] += 0.5
        waits.append(now[0] - began)
    assert waits == [1, 2, 4, 8]
    assert retries.judge([trial], [], 1, DIED).failed is trial
    others = Retries(0, clock=lambda: 0.0)
    decisions = [others.judge([trial], [], 1, LOST) for _ in range(MAX_LOSSES + 1)]
    assert [decision.failed for decision in decisions] == [None] * MAX_LOSSES + [trial]


def test_a_sweep_in_which_nothing_works_is_given_up() -> None:
    executor = Pretended(EASY, Disk(), raises=lambda trial, width: True)
    with pytest.raises(
        SweepFailed, match=rf"\({dispatch.GIVE_UP_AFTER} so far(.|\n)*{RAISED.text}"
    ):
        session(executor)


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_study_in_which_nothing_works_keeps_no_other_from_its_turn(ranks: int) -> None:
    """The largest batch, which starts first, may not fit. A slow trial that runs may yet end."""
    study = EASY.studies[0]
    world = replace(EASY, studies=(study, replace(study, batch_size=64)))
    executor = Pretended(world, Disk(), raises=lambda t, width: t.study is not study, ranks=ranks)
    director, _, done = session(executor)
    assert done
    assert len(executor.disk.held) == 8
    assert director.searches[study.key].frontier_step() is not None
    hopeless = Pretended(world, Disk(), raises=lambda trial, width: True, ranks=ranks)
    with pytest.raises(SweepFailed, match=r"Nothing but failures \(\d so far"):
        session(hopeless)


def test_a_process_that_makes_no_step_is_ended_from_outside_and_told_so() -> None:
    executor = Pretended(EASY, Disk(), Luck(hangs=1.0, faults=1), ranks=1)
    run(executor, faults=Faults(hang_seconds=20, max_failures=0))
    assert executor.ended_from_outside == [1]
    # Its own watchdog would have acted first if it could.
    assert 20 + LAST_WORDS_SECONDS < executor.now < 200
    errors = [held.outcome.error for held in executor.disk.held.values() if held.outcome.error]
    assert errors == [dispatch.SILENT.format(seconds=20)]


def test_packs_are_not_ended_while_nobody_can_say_that_they_move(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executor = Pretended(EASY, Disk())
    monkeypatch.setattr(executor, "moved", lambda: None)
    run(executor, faults=Faults(hang_seconds=0.1))
    assert not executor.ended_from_outside


def test_time_in_which_this_process_was_stopped_is_no_silence() -> None:
    executor = Pretended(EASY, Disk(), ranks=1)
    wait = executor.wait

    def stopped_for_an_hour() -> list[News]:
        if executor.waits == 5:
            executor.now += 3600
            executor.moved()  # the answer on its way is lost
        return wait()

    executor.wait = stopped_for_an_hour  # type: ignore[method-assign]
    run(executor, faults=Faults(hang_seconds=20))
    assert not executor.ended_from_outside


def test_trials_are_kept_until_the_run_can_be_written_again() -> None:
    executor = Pretended(EASY, Disk())
    executor.disk.full = lambda: executor.now < 60
    progress = run(executor, faults=Faults(storage_seconds=600))
    assert trained(executor) == [0, 1, 2, 3]
    assert len(executor.packs) == 4, "none is trained twice"
    assert executor.disk.writes == [4], "at once when there is room"
    (note,) = progress.notes
    assert "No space left on device" in note
    assert "600 s (faults.storage_seconds)" in note


@pytest.mark.parametrize(("patience", "asked_after"), [(5, math.inf), (600, 50)])
def test_a_run_that_stays_unwritable_ends_the_sweep(patience: int, asked_after: float) -> None:
    executor = Pretended(EASY, Disk())
    executor.disk.full = lambda: True
    with pytest.raises(SweepFailed, match=r"\d finished trials could not be written"):
        session(
            executor,
            faults=Faults(storage_seconds=patience),
            asked_to_end=lambda: executor.now > asked_after,
        )
    assert executor.now < 60


@pytest.mark.parametrize(
    ("search", "divergent", "first"),
    [(SearchPlan(algorithm="tpe", generation=3), 0.0, 3), (SearchPlan(), 0.7, 6)],
    ids=["learning", "replacing what diverged"],
)
def test_a_search_waits_for_lost_trials_on_which_its_next_points_depend(
    search: SearchPlan, divergent: float, first: int
) -> None:
    study = make_study(trials=6, budget_steps=40, search=search)
    world = World(studies=(study,), seed=1, divergent=divergent)
    executor, undisturbed = Pretended(world, Disk(), Luck(dies=1.0, faults=1)), Disk()
    with pytest.raises(SweepFailed, match="lost at every attempt: w r batch size 1 trial"):
        session(executor, faults=Faults(max_failures=0))
    assert len(trained(executor)) == first
    run(Pretended(world, executor.disk))
    run(Pretended(world, undisturbed))
    assert points(executor.disk.held) == points(undisturbed.held)


def test_it_says_why_nothing_runs() -> None:
    executor = Pretended(EASY, Disk(), ranks=1)
    executor.ranks = 0
    _, progress, done = session(executor, asked_to_end=lambda: executor.now > 100)
    assert not done
    (note,) = progress.notes
    assert note == "No trial has run for 60 s. The machines are asleep."


def test_listeners_that_raise_stop_nothing() -> None:
    def deaf(finished: FinishedTrial, search: Any) -> None:
        assert finished.trial.key in executor.disk.held, "told before it is on disk"
        raise ConnectionError("nobody there")

    executor = Pretended(EASY, Disk())
    _, progress, done = session(executor, listeners=[deaf])
    assert done
    (note,) = progress.notes
    assert "nobody there" in note
    assert trained(executor) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("studies", "ranks", "sizes"),
    [(1, 3, [4, 4, 4]), (2, 3, [6, 6, 12]), (2, 2, [12, 12]), (3, 8, [4, 4, 4, 4, 4, 4, 6, 6])],
)
def test_many_gangs_share_the_trials_of_few_studies(
    studies: int, ranks: int, sizes: list[int]
) -> None:
    """No slot is left without a pack while trials wait that could be divided."""
    study = make_study(trials=12, budget_steps=40)
    several = tuple(replace(study, batch_size=2**n) for n in range(studies))
    executor = Pretended(World(several, seed=1, divergent=0.0), Disk(), ranks=ranks, width=12)
    run(executor)
    assert [len(pack.proposals) for pack in executor.packs[: len(sizes)]] == sizes


def test_trials_that_end_in_the_same_news_are_written_together() -> None:
    executor = Pretended(EASY, Disk(), width=4, ranks=1)
    run(executor)
    ended = sum(executor.disk.writes)
    assert len(executor.disk.writes) < ended


def test_steps_of_stacked_trials_are_timed_three_times_and_the_shortest_time_counts() -> None:
    world = World(studies=(make_study(trials=12, budget_steps=40),), seed=1, divergent=0.0)
    stacked, alone = Pretended(world, Disk(), ranks=3, width=2), Pretended(EASY, Disk())
    for executor, expected in ((stacked, 3), (alone, 0)):
        run(executor)
        assert sum(pack.to_time for pack in executor.packs) == expected
        assert [*executor.disk.times.values()] == [0.5] * bool(expected)


Change = Callable[[News], News]


@pytest.mark.parametrize(
    "nonsense",
    [
        lambda news: replace(news, serial=news.serial + 1000),
        lambda news: replace(news, ended=[*news.ended, *news.ended]),
        lambda news: replace(news, begun=[*news.begun, *[t.trial.key for t in news.ended]]),
    ],
)
def test_nonsense_from_an_executor_is_not_believed(nonsense: Change) -> None:
    executor = Pretended(EASY, Disk())
    wait = executor.wait
    executor.wait = lambda: [n for news in wait() for n in (nonsense(news), news)]  # type: ignore[method-assign]
    run(executor)
    assert trained(executor) == [0, 1, 2, 3]


def test_a_pack_that_is_over_without_its_trials_gives_them_back() -> None:
    executor = Pretended(EASY, Disk())
    wait = executor.wait

    def forgets_once() -> list[News]:
        return [
            News(serial=news.serial, done=True) if news.serial == 1 and news.ended else news
            for news in wait()
        ]

    executor.wait = forgets_once  # type: ignore[method-assign]
    run(executor)
    assert trained(executor) == [0, 1, 2, 3]


def test_an_error_while_trials_are_counted_is_not_taken_for_one_of_the_storage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Director, "record", Mock(side_effect=ConnectionError))
    with pytest.raises(ConnectionError):
        run(Pretended(EASY, Disk()))


@pytest.mark.parametrize(("set_by", "share"), [(0.0, 0.75), (-7200.0, None), (86_400.0, None)])
def test_how_busy_slots_were_is_not_said_if_the_clock_was_set_meanwhile(
    set_by: float, share: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two slots: one trains for all of the eight seconds, the other for half of them. In the end
    the clock is right again."""
    now = by = 0.0
    clock = SimpleNamespace(time=lambda: 1e9 + now + by, monotonic=lambda: now)
    monkeypatch.setattr(usage, "time", clock)
    measured = usage.Usage()
    trial = Trial(study=EASY.studies[0], index=0, seed=1, params={"learning_rate": 0.1})
    for begins, takes, by in [(0.0, 8.0, 0.0), (0.0, 4.0, set_by), (8.0, 1.0, 0.0)]:
        now = begins + takes
        outcome = Outcome(status="exhausted", steps=1, seconds=takes)
        measured.add(FinishedTrial(trial=trial, outcome=outcome, started=1e9 + begins + by))
    assert measured.summary(ranks=2)["busy_share"] == share
