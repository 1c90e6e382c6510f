"""What a run may grow by, and what would make its old trials and new ones incomparable."""

from __future__ import annotations

import json
from dataclasses import fields

from orchestrator.records import BadInput, Study, StudyKey, widened_to
from orchestrator.results import Run, frontier_of
from orchestrator.studies import Plan
from orchestrator.sweep import differences

GROWING = ("goals", "trials", "search", "repeats", "inherit")
"""Fields of a study that may change; what of them may not is seen in the sweep file."""


def refuse_incomparable(run: Run, planned: Plan) -> None:
    """Refuses to go on with `run` as `planned`, unless that asks for the same or for more."""
    problems = differences(run.sweep(), planned.sweep.resolved())
    old = {study.key: study for study in run.studies()}
    new = {study.key: study for study in planned.studies}
    problems += [f"{key}: there, but not here" for key in old.keys() - new.keys()]
    for key in old.keys() & new.keys():
        problems += [f"{key}: {problem}" for problem in _of_study(old[key], new[key])]
        if new[key].trials > old[key].trials and _was_widened(run, old[key]):
            problems.append(f"{key}: its ranges were widened, so points can't be added inside")
    problems = problems or _out_of_reach(run, old, new)
    if problems:
        more = len(problems) - LISTED
        raise BadInput(
            f"{run.place} was made from another sweep. It differs in\n  "
            + "\n  ".join(problems[:LISTED])
            + (f"\n  and {more} more" if more > 0 else "")
            + "\nMore trials, repeats, batch sizes, recipes and workloads can be added, and looser "
            "goals. For anything else, name another folder with --out."
        )


LISTED = 8


def _of_study(old: Study, new: Study) -> list[str]:
    lines = [
        f"{field.name}: {getattr(old, field.name)!r} there, {getattr(new, field.name)!r} here"
        for field in fields(Study)
        if field.name not in GROWING and getattr(old, field.name) != getattr(new, field.name)
    ]
    if old.search.points != new.search.points[: len(old.search.points)]:
        lines.append("its points are others")
    if new.trials < old.trials:
        lines.append(f"trials: {old.trials} there, {new.trials} here")
    return lines


def _was_widened(run: Run, study: Study) -> bool:
    points = [json.loads(params) for params in run.trials(study.key)["params"].to_pylist()]
    return widened_to(study.space, points) != study.space


def _out_of_reach(run: Run, old: dict[StudyKey, Study], new: dict[StudyKey, Study]) -> list[str]:
    """Goals which trials that stopped early say nothing about."""
    asked = {
        key: [goal for goal in new[key].goals if goal not in study.goals]
        for key, study in old.items()
    }
    goals = {goal for extra in asked.values() for goal in extra}
    return [
        f"goal {row.goal} of {row.workload} {row.recipe} batch size {row.batch_size}: its trials "
        f"stopped at another goal"
        for goal in goals
        for row in frontier_of(run, [goal])
        if row.censored
    ]
