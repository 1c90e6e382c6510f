"""Decides by what a run may grow, and refuses changes that make old and new trials
incomparable."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from orchestrator.planning.rehearsal import widest
from orchestrator.planning.studies import Plan
from orchestrator.planning.sweep_file import validated
from orchestrator.records import BadInput, Choice, Range, Study, StudyKey, Value, widened_to
from orchestrator.records.lr_schedules import tied_to_horizon
from orchestrator.results import Run, frontier_of
from orchestrator.search import is_adaptive

GROWING = (
    "goals", "trials", "search", "repeats", "repeat_best", "inherit", "budget_steps", "keep",
)  # fmt: skip
"""Fields of a study that may change. Changes of theirs that are not allowed are found by comparing
sweep files, or below."""

GROWS = (
    "workloads",
    "batch_sizes",
    "repeats",
    "repeat_best",
    "more",
    "resources",
    "checkpoint",
    "faults",
    "goals",
    "report",
)
"""Keys of a sweep that may change without making a run's trials incomparable."""

GROWS_IN_SEARCH = ("trials", "max_launches", "extend")


def refuse_incomparable(run: Run, planned: Plan) -> None:
    """Raises `BadInput` unless `planned` asks for the same as `run` was made for, or for more."""
    # A setting that an older version did not have yet acted like today's default.
    before = validated(run.sweep(), f"{run.place} (studies.json)").resolved()
    after = planned.sweep.resolved()
    old = {study.key: study for study in run.studies()}
    new = {study.key: study for study in planned.studies}
    if all(old[key].space == new[key].space for key in old.keys() & new.keys()):
        # The same ranges, whether the sweep names them or search_spaces/ does.
        before, after = _without_spaces(before), _without_spaces(after)
    problems = differences(before, after)
    problems += [f"{key}: in the run, but not in this sweep" for key in old.keys() - new.keys()]
    if budgets := [
        f"{study.key}: {problem}"
        for study in planned.studies
        if study.key in old
        for problem in _of_budget(old[study.key], study)
    ]:
        problems += _changes(_budgets(before), _budgets(after)) + budgets
    for key in old.keys() & new.keys():
        problems += [f"{key}: {problem}" for problem in _of_study(old[key], new[key])]
        if new[key].trials > old[key].trials and _was_widened(run, old[key]):
            problems.append(f"{key}: its ranges were widened, so points can't be added inside")
    problems = problems or _out_of_reach(run, old, new)
    if problems:
        raise BadInput(
            f"{run.place} was made from another sweep. It differs in\n{_listed(problems)}\n"
            "Trials, repeats, batch sizes, recipes, workloads and looser goals can be added. A "
            "budget can be raised if learning rates and points do not depend on it. For any other "
            "change, name another folder with --out."
        )


def refuse_changed(run: Run) -> None:
    """Raises `BadInput` if the run's sweep file was changed since the run was made."""
    sweep, file = run.sweep(), run.sweep_file()
    # If the file holds the sweep that the run has grown from, writing the file was interrupted.
    if file not in (None, sweep, run.grown_from()):
        raise BadInput(
            f"{run.place / 'sweep.yaml'} was changed since the run was made. It differs in\n"
            f"{_listed(_changes(sweep, file))}\n"
            f"`orchestrate resume` trains only what the run was made for. To enlarge the run: "
            f"orchestrate sweep {run.place / 'sweep.yaml'} --out {run.place}. To undo the changes, "
            f"remove the file; it is written again."
        )


LISTED = 8
"""Largest number of differences that a message lists."""

LONGEST_VALUE = 120
"""Largest number of characters of a value that a message shows."""


def _listed(problems: Sequence[str]) -> str:
    more = [f"and {len(problems) - LISTED} more"] if len(problems) > LISTED else []
    return "\n".join(f"  {line}" for line in [*problems[:LISTED], *more])


def _changes(old: Any, new: Any, place: str = "") -> list[str]:
    """The differences between two documents, one line each."""
    if isinstance(old, dict) and isinstance(new, dict):
        pairs = [(key, old.get(key), new.get(key)) for key in dict.fromkeys([*old, *new])]
    elif isinstance(old, list | tuple) and isinstance(new, list | tuple) and len(old) == len(new):
        pairs = [(number, *both) for number, both in enumerate(zip(old, new, strict=True))]
    else:
        return (
            [] if old == new else [f"{place}: {_short(old)} in the run, {_short(new)} in the sweep"]
        )
    return [
        line
        for key, before, after in pairs
        for line in _changes(before, after, f"{place}.{key}" if place else str(key))
    ]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]} ..."


def _of_study(old: Study, new: Study) -> list[str]:
    lines = [
        f"{field.name}: {getattr(old, field.name)!r} in the run, {getattr(new, field.name)!r} in "
        f"the sweep"
        for field in fields(Study)
        if field.name not in (*GROWING, "space")
        and getattr(old, field.name) != getattr(new, field.name)
    ]
    lines += [
        f"{name}: {_entry(old.space.get(name))} in the run, {_entry(new.space.get(name))} in the "
        f"sweep"
        for name in dict.fromkeys([*old.space, *new.space])
        if old.space.get(name) != new.space.get(name)
    ]
    if old.search.points != new.search.points[: len(old.search.points)]:
        lines.append("its points differ")
    lines += [
        f"{name}: {getattr(old, name)} in the run, {getattr(new, name)} in the sweep"
        for name in ("trials", "repeats")
        if getattr(new, name) < getattr(old, name)
    ]
    return lines


def _entry(entry: Range | Choice | Value | None) -> str:
    """An entry of a search space, as a sweep file has it."""
    if entry is None:
        return "nothing"
    if isinstance(entry, Range):
        return f"{entry.low:g} to {entry.high:g}, {entry.scale}"
    return _short(entry)


def _of_budget(old: Study, new: Study) -> Iterator[str]:
    """Reasons why trials of the old budget can't be compared with trials of the new one."""
    if old.budget_steps == new.budget_steps:
        return
    steps = (
        f"its budget is {old.budget_steps:,} steps in the run, {new.budget_steps:,} in the sweep"
    )
    if new.budget_steps < old.budget_steps:
        yield f"{steps}; a budget can be raised, not lowered"
        return
    if is_adaptive(old.search.algorithm):
        yield (
            f"{steps}, but {old.search.algorithm} chose its points by results within the old budget"
        )
    space = widest(old.space) if old.search.extend else old.space
    epoch = old.train_size and old.train_size / old.batch_size
    if found := tied_to_horizon(space, horizon=old.budget_steps, steps_per_epoch=epoch):
        name, value = found
        yield f"{steps}, but with {name} {value} the learning rate of each step depends on it"
    if {*old.goals} != {*new.goals}:
        yield f"{steps}, and its goals differ, too: raise the budget first, then change the goals"


def _budgets(document: Mapping[str, Any]) -> dict[str, Any]:
    """The budgets of a resolved sweep and of its recipes, as the file gives them."""
    recipes = {recipe["name"]: {"budget": recipe["budget"]} for recipe in document["recipes"]}
    return {"budget": document["budget"], "recipes": recipes}


def _was_widened(run: Run, study: Study) -> bool:
    points = [json.loads(params) for params in run.trials(study.key)["params"].to_pylist()]
    return widened_to(study.space, points) != study.space


def _out_of_reach(run: Run, old: dict[StudyKey, Study], new: dict[StudyKey, Study]) -> list[str]:
    """Sentences on goals for which trials that stopped early give no answer."""
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


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The differences between two resolved sweeps that make their trials incomparable, one line
    each."""
    before, after = (
        {
            **{key: value for key, value in document.items() if key not in (*GROWS, "recipes")},
            **_without_growth(document),
        }
        for document in (old, new)
    )
    lines = _changes(before, after)
    of_old, of_new = ({recipe["name"]: recipe for recipe in d["recipes"]} for d in (old, new))
    for name in of_old.keys() & of_new.keys():
        before, after = ({**r, **_without_growth(r)} for r in (of_old[name], of_new[name]))
        lines += [f"recipe {name!r}: {line}" for line in _changes(before, after)]
    return lines


def _without_spaces(sweep: Mapping[str, Any]) -> dict[str, Any]:
    return {**sweep, "recipes": [{**recipe, "space": None} for recipe in sweep["recipes"]]}


def _without_growth(part: Mapping[str, Any]) -> dict[str, Any]:
    """A sweep or a recipe without the keys of its search, budget, early stopping and branches that
    may change. The sizes of budgets are compared in the studies instead."""
    search, budget, branch = (part.get(name) or {} for name in ("search", "budget", "branch"))
    stop = part.get("stop") or {}
    return {
        "search": {key: value for key, value in search.items() if key not in GROWS_IN_SEARCH},
        "budget": {"inherit": budget.get("inherit")},
        "stop": {key: value for key, value in stop.items() if key != "keep"},
        "branch": {key: value for key, value in branch.items() if key != "confirm"},
    }
