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
    stored = [*run.finished(study)]
    counting = as_grown(study, stored)
    if counting is stored:
        return stored, 0
    run.replace(study, counting)
    left = {trained.trial.key for trained in counting if trained.outcome.status != "paused"}
    ended = [trained for trained in stored if trained.outcome.status not in ("paused", "failed")]
    return counting, sum(trained.trial.key not in left for trained in ended)


def as_grown(study: Study, stored: list[FinishedTrial]) -> list[FinishedTrial]:
    """The finished trials that count for `study`; the same list if all do. A trial that ended at a
    smaller budget is `paused` at its last measurement, from where it may go on, or `dominated` if
    it can't win from there. Its repeats are dropped. Points that replaced diverged ones or lie
    beyond a range are dropped, too, if other points might take their place now."""
    steps = _measured(study, max((trained.outcome.steps for trained in stored), default=0))
    if all(_stands(trained, steps) for trained in stored):
        return _keeping_more(study, stored) if study.keep > 1 else stored
    searched = [trained for trained in stored if not trained.trial.repeat]
    trials = [_up_to(trained, steps) for trained in searched if trained.trial.index < study.trials]
    certain = _first_round_tells(study, trials)
    if certain:
        trials += [
            _up_to(trained, steps) for trained in searched if trained.trial.index >= study.trials
        ]
    repeats = [
        trained
        for trained in stored
        if trained.trial.repeat
        and _stands(trained, steps)
        # The goals that its point has won may have changed, and with them how far it is trained.
        and (certain or trained.outcome.status != "dominated")
    ]
    return [*_judged(study, trials), *repeats]


def _keeping_more(study: Study, stored: list[FinishedTrial]) -> list[FinishedTrial]:
    """The finished trials, where a trial that was ended but might be among the best that `study`
    keeps is `paused`. The same list if there is none."""
    judged = [
        *_judged(study, [trained for trained in stored if not trained.trial.repeat]),
        *(trained for trained in stored if trained.trial.repeat),
    ]
    statuses = {trained.trial.key: trained.outcome.status for trained in stored}
    changed = any(
        statuses[trained.trial.key] == "dominated" and trained.outcome.status == "paused"
        for trained in judged
    )
    return judged if changed else stored


def _measured(study: Study, last: int) -> set[int]:
    """The steps up to `last` at which the study's trials are measured."""
    steps, step = {0}, study.following(0)
    while step <= last and step not in steps:
        steps.add(step)
        step = study.following(step)
    return steps


def _stands(trained: FinishedTrial, measured: Collection[int]) -> bool:
    """Whether a trial of its study could have ended like this."""
    study, outcome = trained.trial.study, trained.outcome
    if outcome.status == "failed":
        return True
    at_the_end = outcome.status == "exhausted" or (
        outcome.status == "reached" and not study.stop_at_goal
    )
    return outcome.steps in measured and not (at_the_end and outcome.steps < study.budget_steps)


def _up_to(trained: FinishedTrial, measured: Collection[int]) -> FinishedTrial:
    """The trial, or its state at its last measurement that counts."""
    if _stands(trained, measured):
        return trained
    measurements = tuple(m for m in trained.measurements if m.step in measured)
    last = measurements[-1]
    outcome = replace(trained.outcome, status="paused", steps=last.step, seconds=last.seconds)
    return replace(trained, outcome=outcome, measurements=measurements)


def _first_round_tells(study: Study, trials: Sequence[FinishedTrial]) -> bool:
    """Whether the `trials` of the first round passed every goal. If so, the later points of the
    search depend only on the steps that this took."""
    ended = [result_of(trained) for trained in trials if trained.outcome.status != "failed"]
    passed = {goal for result in ended for goal in result.passed}
    return len(ended) == study.trials and passed >= {*study.goals}


def _judged(study: Study, trials: Sequence[FinishedTrial]) -> list[FinishedTrial]:
    """The trials, where those that were ended from outside are `paused`, or `dominated` if they can
    no longer win against the others."""
    search = StudySearch(study, sweep_seed=0)
    for trained in trials:
        search.record(result_of(trained))
    return [
        replace(trained, outcome=replace(trained.outcome, status="dominated" if over else "paused"))
        if trained.outcome.status in ("paused", "dominated")
        else trained
        for trained in trials
        for over in [search.has_ended(trained.trial)]
    ]
