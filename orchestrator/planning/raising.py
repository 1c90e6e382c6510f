"""A run that grew: which of its trials count on, and which begin anew.

A study that keeps more of its best trials than before (`Study.keep`) lets trials begin anew that
were ended because fewer were kept. The rest is about a budget that was raised.

What a trial measures at a step follows from its point, its seed and the step alone, so it would
have measured the same under the larger budget. Two things differ: it would not have ended at the
last step of the old budget, and it might not have been measured at that step.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from orchestrator.records import FinishedTrial, Study
from orchestrator.results import Run
from orchestrator.search import StudySearch, result_of


def trials_within(run: Run, study: Study) -> tuple[list[FinishedTrial], int]:
    """The trials and repeats of `study` that count for it as it is now, and how many others have to
    begin anew. If it has grown since they ended, the run's files are brought up to it first; should
    that be cut short, the next call makes up for it."""
    there = [*run.finished(study)]
    counting = as_grown(study, there)
    if counting is there:
        return there, 0
    run.replace(study, counting)
    left = {one.trial.key for one in counting if one.outcome.status != "paused"}
    ended = [one for one in there if one.outcome.status not in ("paused", "failed")]
    return counting, sum(one.trial.key not in left for one in ended)


def as_grown(study: Study, there: list[FinishedTrial]) -> list[FinishedTrial]:
    """Those of the trials `there` that count for `study`: `there` itself if all do. One that ended
    at a smaller budget is `paused` at its last measurement, from where it may go on, or `dominated`
    if it can't win from there. Its repeats are dropped; so are the points that took the place of
    diverged ones or lie beyond a range, if these might be others now."""
    steps = _measured(study, max((one.outcome.steps for one in there), default=0))
    if all(_stands(one, steps) for one in there):
        return _keeping_more(study, there) if study.keep > 1 else there
    searched = [one for one in there if not one.trial.repeat]
    trials = [_up_to(one, steps) for one in searched if one.trial.index < study.trials]
    certain = _first_round_tells(study, trials)
    if certain:
        trials += [_up_to(one, steps) for one in searched if one.trial.index >= study.trials]
    repeats = [
        one
        for one in there
        if one.trial.repeat
        and _stands(one, steps)
        # Which goals its point has won, and so how far it is trained, might be others now.
        and (certain or one.outcome.status != "dominated")
    ]
    return [*_judged(study, trials), *repeats]


def _keeping_more(study: Study, there: list[FinishedTrial]) -> list[FinishedTrial]:
    """The trials `there`, with those `paused` that were ended though they might be among the best
    that `study` keeps: `there` itself if there are none."""
    judged = [
        *_judged(study, [one for one in there if not one.trial.repeat]),
        *(one for one in there if one.trial.repeat),
    ]
    statuses = {one.trial.key: one.outcome.status for one in there}
    changed = any(
        statuses[one.trial.key] == "dominated" and one.outcome.status == "paused" for one in judged
    )
    return judged if changed else there


def _measured(study: Study, last: int) -> set[int]:
    """The steps up to `last` at which the study's trials are measured."""
    steps, step = {0}, study.following(0)
    while step <= last and step not in steps:
        steps.add(step)
        step = study.following(step)
    return steps


def _stands(one: FinishedTrial, measured: Collection[int]) -> bool:
    """Whether a trial of its study could have ended like this."""
    study, outcome = one.trial.study, one.outcome
    if outcome.status == "failed":
        return True
    at_the_end = outcome.status == "exhausted" or (
        outcome.status == "reached" and not study.stop_at_goal
    )
    return outcome.steps in measured and not (at_the_end and outcome.steps < study.budget_steps)


def _up_to(one: FinishedTrial, measured: Collection[int]) -> FinishedTrial:
    """The trial, or how it stood at its last measurement that counts."""
    if _stands(one, measured):
        return one
    measurements = tuple(m for m in one.measurements if m.step in measured)
    last = measurements[-1]
    outcome = replace(one.outcome, status="paused", steps=last.step, seconds=last.seconds)
    return replace(one, outcome=outcome, measurements=measurements)


def _first_round_tells(study: Study, trials: Sequence[FinishedTrial]) -> bool:
    """Whether the `trials` of the first round passed every goal: what the search asks for after it
    depends on the steps that took, and on nothing later."""
    ended = [result_of(one) for one in trials if one.outcome.status != "failed"]
    passed = {goal for result in ended for goal in result.passed}
    return len(ended) == study.trials and passed >= {*study.goals}


def _judged(study: Study, trials: Sequence[FinishedTrial]) -> list[FinishedTrial]:
    """The same, with those that did not end of themselves `paused`, or `dominated` where what
    others did leaves them nothing to win."""
    search = StudySearch(study, sweep_seed=0)
    for one in trials:
        search.record(result_of(one))
    return [
        replace(one, outcome=replace(one.outcome, status="dominated" if over else "paused"))
        if one.outcome.status in ("paused", "dominated")
        else one
        for one in trials
        for over in [search.has_ended(one.trial)]
    ]
