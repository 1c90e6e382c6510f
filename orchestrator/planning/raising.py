"""Decides which trials of a run that grew still count, and which begin anew.

If a study keeps more of its best trials than before (`Study.keep`), trials begin anew that were
ended because fewer were kept. The rest of this file is about a budget that was raised.

The measurement of a trial at a step depends only on its point, its seed and the step, so it would
have been the same under the larger budget. Two things differ: the trial would not have ended at the
last step of the old budget, and it might not have been measured at that step.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from orchestrator.records import FinishedTrial, Study
from orchestrator.results import Run
from orchestrator.search import StudySearch, result_of


def trials_within(run: Run, study: Study) -> tuple[list[FinishedTrial], int]:
    """The trials and repeats that count for `study` as it is now, and the number of others, which
    have to begin anew. If the study has grown since they ended, the run's files are updated first.
    If that update is interrupted, the next call completes it."""
    there = [*run.finished(study)]
    counting = as_grown(study, there)
    if counting is there:
        return there, 0
    run.replace(study, counting)
    left = {one.trial.key for one in counting if one.outcome.status != "paused"}
    ended = [one for one in there if one.outcome.status not in ("paused", "failed")]
    return counting, sum(one.trial.key not in left for one in ended)


def as_grown(study: Study, there: list[FinishedTrial]) -> list[FinishedTrial]:
    """The finished trials that count for `study`; the same list if all do. A trial that ended at a
    smaller budget is `paused` at its last measurement, from where it may go on, or `dominated` if
    it can't win from there. Its repeats are dropped. Points that replaced diverged ones or lie
    beyond a range are dropped, too, if other points might take their place now."""
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
        # The goals that its point has won may have changed, and with them how far it is trained.
        and (certain or one.outcome.status != "dominated")
    ]
    return [*_judged(study, trials), *repeats]


def _keeping_more(study: Study, there: list[FinishedTrial]) -> list[FinishedTrial]:
    """The finished trials, where a trial that was ended but might be among the best that `study`
    keeps is `paused`. The same list if there is none."""
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
    """The trial, or its state at its last measurement that counts."""
    if _stands(one, measured):
        return one
    measurements = tuple(m for m in one.measurements if m.step in measured)
    last = measurements[-1]
    outcome = replace(one.outcome, status="paused", steps=last.step, seconds=last.seconds)
    return replace(one, outcome=outcome, measurements=measurements)


def _first_round_tells(study: Study, trials: Sequence[FinishedTrial]) -> bool:
    """Whether the `trials` of the first round passed every goal. If so, the later points of the
    search depend only on the steps that this took."""
    ended = [result_of(one) for one in trials if one.outcome.status != "failed"]
    passed = {goal for result in ended for goal in result.passed}
    return len(ended) == study.trials and passed >= {*study.goals}


def _judged(study: Study, trials: Sequence[FinishedTrial]) -> list[FinishedTrial]:
    """The trials, where those that were ended from outside are `paused`, or `dominated` if they can
    no longer win against the others."""
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
