"""Decides by what a run may grow, and which of its trials still count when it has grown.

Studies are compared, which say what is trained, not the sweep files that describe them. Changes
that make old and new trials incomparable are refused.

If a study keeps more of its best trials than before (`Study.keep`), trials begin anew that were
ended because fewer were kept. If its budget is raised, trials begin anew that spent the old one.
The measurement of a trial at a step depends only on its point, its seed and the step, so it would
have been the same under the larger budget. Two things differ: the trial would not have ended at the
last step of the old budget, and it might not have been measured at that step. If a goal is added,
trials begin anew that had stopped at the others and may matter for it, such as a winner's repeats.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

from orchestrator.planning.studies import Plan
from orchestrator.planning.sweep import Sweep
from orchestrator.planning.sweep_file import validated
from orchestrator.records import (
    BadInput,
    FinishedTrial,
    Study,
    StudyKey,
    cut,
    differences,
    shown_pair,
)
from orchestrator.records.lr_schedules import tied_to_horizon
from orchestrator.records.roles import COURSE, GROWS, SEARCH
from orchestrator.results import RunFiles, frontier_of
from orchestrator.search import StudySearch, result_of


def refuse_incomparable(run: RunFiles, planned: Plan) -> None:
    """Raises `BadInput` unless `planned` asks for the same as `run` was made for, or for more."""
    # A setting that an older version did not have yet acted like today's default.
    before = validated(run.sweep(), f"{run.place} (studies.json)")
    old = {study.key: study for study in run.studies()}
    new = {study.key: study for study in planned.studies}
    problems = [*_refused(before, planned.sweep)]
    both = [key for key in old if key in new]
    found: dict[str, list[StudyKey]] = defaultdict(list)
    for key in both:
        for problem in (*_refused(old[key], new[key]), *_of_budget(old[key], new[key])):
            found[problem].append(key)
    for problem, keys in found.items():
        more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
        problems.append(problem if keys == both else f"{keys[0]}{more}: {problem}")
    problems += [f"{key}: in the run, but not in this sweep" for key in old if key not in new]
    problems = problems or _unreached(run, old, new)
    if problems:
        raise BadInput(
            f"{run.place} was made from another sweep. It differs in\n{_listed(problems)}\n"
            "Trials, repeats, batch sizes, recipes, workloads and looser goals can be added. A "
            "budget can be raised if learning rates and points do not depend on it. For any other "
            "change, name another folder with --out.",
            code="incomparable",
        )


def refuse_changed(run: RunFiles) -> None:
    """Raises `BadInput` if the run's sweep file was changed since the run was made."""
    sweep, file = run.sweep(), run.sweep_file()
    # If the file holds the sweep that the run has grown from, writing the file was interrupted.
    if file not in (None, sweep, run.grown_from()):
        raise BadInput(
            f"{run.place / 'sweep.yaml'} was changed since the run was made. It differs in\n"
            f"{_listed([_changed(key, *both) for key, _, *both in differences(sweep, file)])}\n"
            f"`orchestrate resume` trains only what the run was made for. To enlarge the run: "
            f"orchestrate sweep {run.place / 'sweep.yaml'} --out {run.place}. To undo the changes, "
            f"remove the file; it is written again.",
            code="changed-run",
        )


LISTED = 8


def _listed(problems: Sequence[str]) -> str:
    more = [f"and {len(problems) - LISTED} more"] if len(problems) > LISTED else []
    return "\n".join(f"  {line}" for line in [*problems[:LISTED], *more])


def _refused(old: Study | Sweep, new: Study | Sweep) -> Iterator[str]:
    """Settings whose change makes trials incomparable; what has no role must not change."""
    for key, role, a, b in differences(old, new):
        shrunk = role is GROWS and (b[: len(a)] != a if isinstance(a, tuple) else b < a)
        if shrunk or role in (COURSE, SEARCH, None):
            yield _changed(key, a, b)


def _changed(key: str, old: Any, new: Any) -> str:
    before, after = (cut(str(value)) for value in shown_pair(old, new))
    return f"{key}: {before} in the run, {after} in the sweep"


def _of_budget(old: Study, new: Study) -> Iterator[str]:
    """Reasons why trials of the old budget can't be compared with trials of the new one."""
    if old.cooldown is not None and (old.budget_steps, old.goals) != (new.budget_steps, new.goals):
        yield "budget and goals: they decide where cooldowns begin"
    tests = [[g for g in study.goals if g.metric.startswith("test/")] for study in (old, new)]
    if tests[1] and not tests[0] and old.program is None:
        yield f"goal {tests[1][0]}: test splits were evaluated only where trials passed other goals"
    if old.budget_steps == new.budget_steps:
        return
    steps = f"budget: {old.budget_steps:,} steps in the run, {new.budget_steps:,} in the sweep"
    if new.budget_steps < old.budget_steps:
        yield f"{steps}; a budget can be raised, not lowered"
        return
    if old.program is not None:
        yield f"{steps}, but a program was told the old one, and can't be judged by another"
    if old.search.is_adaptive:
        yield (
            f"{steps}, but {old.search.algorithm} chose its points by results within the old budget"
        )
    epoch = old.train_size and old.train_size / old.batch_size
    if found := tied_to_horizon(old.space, horizon=old.budget_steps, steps_per_epoch=epoch):
        name, value = found
        yield f"{steps}, but with {name} {value} the learning rate of each step depends on it"
    if {*old.goals} != {*new.goals}:
        yield f"{steps}, and its goals differ, too: raise the budget first, then change the goals"


def _unreached(run: RunFiles, old: dict[StudyKey, Study], new: dict[StudyKey, Study]) -> list[str]:
    """Sentences on goals for which trials that stopped early give no answer. Those that reached a
    stricter goal do, and all others go on."""
    asked = [goal for key in old for goal in new[key].goals if goal not in old[key].goals]
    return [
        f"goal {row.goal} of {row.key}: its trials stopped at another goal"
        for goal in dict.fromkeys(asked)
        for row in frontier_of(run, [goal])
        if row.censored and goal in new[row.key].goals
        if not any(each.implies(goal) for each in old[row.key].goals)
    ]


def trials_within(run: RunFiles, study: Study) -> tuple[list[FinishedTrial], int]:
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
    it can't win from there. Its repeats are dropped. Points that replaced diverged ones
    are dropped, too, if other points might take their place now."""
    steps = _measured(study, max((trained.outcome.steps for trained in stored), default=0))
    searched = [trained for trained in stored if not trained.trial.repeat]
    repeats = [trained for trained in stored if trained.trial.repeat]
    if all(_stands(trained, steps) for trained in stored):
        judged = _judged(study, searched) if study.keep > 1 else searched
        # A trial that was ended may be among the best that the study keeps now.
        begun_anew = any(
            (before.outcome.status, after.outcome.status) == ("dominated", "paused")
            for before, after in zip(searched, judged, strict=True)
        )
        return [*judged, *repeats] if begun_anew else stored
    # Of others, an update that was interrupted may have removed the measurements.
    first = [_up_to(each, steps) for each in searched if each.trial.index < study.trials]
    # If the first round passed every goal, later points depend only on the steps that this took.
    ended = [result_of(trained) for trained in first if trained.outcome.status != "failed"]
    passed = {goal for result in ended for goal in result.passed}
    certain = len(ended) == study.trials and passed >= {*study.goals}
    standing = [
        trained
        for trained in repeats
        if _stands(trained, steps)
        # The goals that its point has won may have changed, and with them how far it is trained.
        and (certain or trained.outcome.status != "dominated")
    ]
    trials = [_up_to(each, steps) for each in searched] if certain else first
    return [*_judged(study, trials), *standing]


def _measured(study: Study, last: int) -> Collection[int]:
    """The steps up to `last` at which the study's trials are measured."""
    if study.program is not None:
        return range(last + 1)  # it reports when it likes
    return {*takewhile(lambda step: step <= last, study.measured())}


def _stands(trained: FinishedTrial, measured: Collection[int]) -> bool:
    """Whether a trial of its study could have ended like this."""
    study, outcome = trained.trial.study, trained.outcome
    if outcome.status == "failed" or study.cooldown is not None:
        return True
    early, at_goals = outcome.steps < study.budget_steps, outcome.status == "reached"
    if early and at_goals and study.stop_at_goal and result_of(trained).unmet:
        return False  # a repeat of a point that has won another goal since then
    if study.program is not None:
        return True  # it may end by itself before its budget, which can't be raised
    at_the_end = outcome.status == "exhausted" or (at_goals and not study.stop_at_goal)
    return outcome.steps in measured and not (at_the_end and early)


def _up_to(trained: FinishedTrial, measured: Collection[int]) -> FinishedTrial:
    """The trial, or its state at its last measurement that counts."""
    if _stands(trained, measured):
        return trained
    measurements = tuple(m for m in trained.measurements if m.step in measured)
    last = measurements[-1]
    outcome = replace(trained.outcome, status="paused", steps=last.step, seconds=last.seconds)
    return replace(trained, outcome=outcome, measurements=measurements)


def _judged(study: Study, trials: Sequence[FinishedTrial]) -> list[FinishedTrial]:
    """The trials, where those that were ended from outside are `paused`, or `dominated` if they can
    no longer win against the others."""
    search = StudySearch(study, sweep_seed=0)
    for trained in trials:
        search.record(result_of(trained))
    return [
        replace(trained, outcome=replace(trained.outcome, status="dominated" if done else "paused"))
        if trained.outcome.status in ("paused", "dominated")
        else trained
        for trained in trials
        for done in [search.has_ended(trained.trial)]
    ]
