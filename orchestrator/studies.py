"""A sweep becomes studies, each of which is known to be trainable."""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.lr_schedules import SCHEDULE_SETTINGS, check_schedule
from orchestrator.records import (
    WIDENINGS,
    BadInput,
    Choice,
    Divergence,
    EvaluationGrid,
    Extras,
    Goal,
    Range,
    ScalingRule,
    SearchPlan,
    Space,
    Study,
    Trial,
    Value,
    unknown,
)
from orchestrator.search import (
    Entry,
    assemble,
    check_conditions,
    even_axes,
    grid,
    load_space,
    searched,
    space_from,
)
from orchestrator.sweep import BatchLadder, Budget, Recipe, Search, Sweep, validated
from orchestrator.training import (
    check_metaparameters,
    one_thread,
    rehearse,
)
from orchestrator.workloads import Workload, load_workload, splits_of

REHEARSED = 50
"""So many of a list of points are tried out before a sweep starts."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A sweep and the studies it comes to."""

    sweep: Sweep
    studies: tuple[Study, ...]
    doubts: tuple[str, ...] = ()
    """What speaks against training them, though it need not be so."""


def plan(sweep: Sweep, data_dir: Path | None = None) -> Plan:
    """The studies of `sweep`, in the order in which they are best run."""
    _refuse_repeats("workload", sweep.workloads)
    _refuse_repeats("recipe", [recipe.name for recipe in sweep.recipes])
    studies: list[Study] = []
    doubts: list[str] = []
    for name in sweep.workloads:
        of_workload = _studies_of(sweep, name, load_workload(name), data_dir)
        # What a rule makes of a metaparameter is furthest off at the ends of the ladder.
        count = len(sweep.recipes)
        ends = {study.key: study for study in of_workload[:count] + of_workload[-count:]}
        for study in ends.values():
            points = study.search.points[:REHEARSED] or _points(study.space)
            if study.search.extend:
                points = [*points, *_points(_widest(study.space))]
            doubts += _rehearse(study, points, data_dir)
        studies += of_workload
    return Plan(sweep=sweep, studies=tuple(studies), doubts=tuple(dict.fromkeys(doubts)))


def single_trial(
    workload: str,
    optimizer: str,
    batch_size: int,
    *,
    params: Mapping[str, Any],
    steps: int | None,
    seed: int,
    evaluate: Mapping[str, Any] | None = None,
    data_dir: Path | None = None,
) -> Trial:
    """A trial by hand. It trains exactly `steps`, or else until the workload's goal or budget.
    A metaparameter that isn't given takes the middle of its range."""
    document = {
        "name": "trial",
        "workloads": [workload],
        "recipes": [{"name": optimizer, "optimizer": optimizer, "space": dict(params)}],
        "batch_sizes": [batch_size],
        "budget": None if steps is None else {"steps": steps},
        "evaluate": dict(evaluate or {}),
    }
    sweep = validated(document, "orchestrate trial")
    (study,) = _studies_of(sweep, workload, load_workload(workload), data_dir)
    chosen = _point(study.space, 0.5)
    _rehearse(study, [chosen], data_dir)
    if steps is not None:
        study = replace(study, goals=())
    return Trial(study=study, index=0, seed=seed, params=chosen)


def _studies_of(sweep: Sweep, name: str, workload: Workload, data_dir: Path | None) -> list[Study]:
    train_size = splits_of(workload, data_dir)["train"].size
    goals = tuple(Goal.parse(text) for text in sweep.goals or [workload.goal])
    evaluate = sweep.evaluate
    spacing = workload.evaluation_spacing if evaluate.spacing is None else evaluate.spacing
    min_examples = evaluate.min_examples or workload.evaluation_min_examples
    own = Budget.model_validate(dict(workload.budget))
    budgets = [(recipe.budget or sweep.budget or own).or_else(own) for recipe in sweep.recipes]
    spaces = [_space(recipe, name, workload) for recipe in sweep.recipes]
    return [
        Study(
            workload=name,
            recipe=recipe.name,
            optimizer=recipe.optimizer,
            batch_size=batch_size,
            train_size=train_size,
            goals=goals,
            inherit=budget.inherit,
            budget_steps=budget.in_steps(batch_size, train_size),
            grid=EvaluationGrid(spacing=spacing, min_gap=math.ceil(min_examples / batch_size)),
            space=(scaled := _scaled(space, batch_size)),
            trials=len(chosen := _chosen(recipe, search, scaled)) or search.trials,
            search=SearchPlan(
                algorithm="points" if chosen else search.algorithm,
                launches=search.max_launches,
                generation=search.generation,
                extend=search.extend,
                points=chosen,
            ),
            repeats=sweep.repeats,
            stop_at_goal=sweep.stop.at_goal,
            stop_dominated=(
                sweep.stop.at_goal if sweep.stop.dominated is None else sweep.stop.dominated
            ),
            extras=Extras(
                train_examples=min(evaluate.train_examples, train_size or evaluate.train_examples),
                gradient_norm=evaluate.gradient_norm,
                distance=evaluate.distance,
            ),
            divergence=Divergence(**sweep.stop.diverged.model_dump()),
        )
        for batch_size in _batch_sizes(sweep.batch_sizes, name, train_size)
        for recipe, space, budget in zip(sweep.recipes, spaces, budgets, strict=True)
        for search in [recipe.search or sweep.search]
    ]


def _chosen(recipe: Recipe, search: Search, space: Space) -> tuple[dict[str, Value], ...]:
    """The points of a search that is told which; none for others."""
    if search.algorithm == "grid":
        return grid(space, search.grid or even_axes(space, search.trials))
    names = searched(space)
    for point in search.points:
        for name in point.keys() - set(names):
            raise unknown(f"metaparameter in the points of recipe {recipe.name!r}:", name, names)
        if missing := [name for name in names if name not in point]:
            raise BadInput(
                f"recipe {recipe.name!r}: each of `points` needs a value for {', '.join(missing)}, "
                f"but one is {point}."
            )
    fixed = {name: entry for name, entry in space.items() if name not in names}
    return tuple({**fixed, **point} for point in search.points)


def _space(recipe: Recipe, name: str, workload: Workload) -> dict[str, Entry]:
    if twice := sorted(recipe.space.keys() & recipe.schedule.keys()):
        raise BadInput(f"recipe {recipe.name!r}: {twice[0]!r} is in both space and schedule.")
    for setting in recipe.schedule:
        if setting not in SCHEDULE_SETTINGS:
            raise unknown(
                f"setting of recipe {recipe.name!r}: schedule:", setting, SCHEDULE_SETTINGS
            )
    space = {
        **load_space(recipe.optimizer, name),
        **space_from(recipe.space, f"recipe {recipe.name!r}: space"),
        **space_from(recipe.schedule, f"recipe {recipe.name!r}: schedule"),
    }
    try:
        check_metaparameters(recipe.optimizer, space, workload)
        check_conditions(space)
        decay = space.get("decay", "constant")
        check_schedule(space, decay.options if isinstance(decay, Choice) else [str(decay)])
    except BadInput as error:
        raise BadInput(f"recipe {recipe.name!r}: {error}") from None
    return space


def _scaled(space: Mapping[str, Entry], batch_size: int) -> Space:
    """The space with every scaling rule replaced by what it comes to."""
    return {
        name: entry.at(batch_size) if isinstance(entry, ScalingRule) else entry
        for name, entry in space.items()
    }


def _rehearse(
    study: Study, points: Iterable[Mapping[str, Value]], data_dir: Path | None
) -> list[str]:
    """Refuses what can't be trained or measured, before anything starts. Returns what may go
    wrong, for all that is known."""
    doubts = []
    for params in points:
        try:
            with one_thread():
                metrics = rehearse(Trial(study=study, index=0, seed=0, params=params), data_dir)
        except BadInput as error:
            raise BadInput(f"recipe {study.recipe!r}: {error}") from None
        if isinstance(metrics, Exception):
            doubts.append(_doubt(study, metrics))
            continue
        for goal in study.goals:
            if goal.metric not in metrics:
                where = f"workload {study.workload!r} with recipe {study.recipe!r}"
                raise unknown(f"metric of {where}:", goal.metric, metrics)
    return doubts


def _doubt(study: Study, error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    last = next((f for f in reversed(frames) if "site-packages" not in f.filename), frames[-1])
    reason = "".join(traceback.format_exception_only(error)).strip()
    return (
        f"{study.workload}, shown two examples on this machine, raised {reason} "
        f"({last.filename}:{last.lineno}). Trials will tell if that is always so."
    )


def _points(space: Space) -> list[dict[str, Value]]:
    """Those to rehearse: the ends and the middle of each range, each option of each choice."""
    choices = [len(entry.options) for entry in space.values() if isinstance(entry, Choice)]
    last = max([3, *choices]) - 1
    points = [_point(space, number / last) for number in range(last + 1)]
    return [point for place, point in enumerate(points) if point not in points[:place]]


def _point(space: Space, fraction: float) -> dict[str, Value]:
    """The point that lies `fraction` of the way through every range, on its scale."""
    return assemble(space, [fraction] * len(searched(space)))


def _widest(space: Space) -> Space:
    """The space as far as a search that may extend it can go."""
    wide = dict(space)
    for name, entry in space.items():
        if isinstance(entry, Range):
            for _ in range(WIDENINGS):
                entry = entry.widened("low") or entry  # noqa: PLW2901
                entry = entry.widened("high") or entry  # noqa: PLW2901
            wide[name] = entry
    return wide


def _batch_sizes(
    given: list[int | str] | BatchLadder, workload: str, train_size: int | None
) -> list[int]:
    if isinstance(given, BatchLadder):
        high = _resolve_full(given.high, workload, train_size)
        if given.low > high:
            raise BadInput(f"batch_sizes: `from <= to` must hold, but got {given.low} and {high}.")
        rungs = math.ceil(round(math.log(high / given.low, given.factor), 9))
        sizes = [round(given.low * given.factor**rung) for rung in range(rungs)] + [high]
    else:
        sizes = [_resolve_full(size, workload, train_size) for size in given]
    if not sizes:
        raise BadInput("batch_sizes: at least one is needed, but the list is empty.")
    for size in sizes:
        if train_size is not None and size > train_size:
            raise BadInput(
                f"batch_sizes: {size} is more than the {train_size} training examples of "
                f"{workload}. Write `full` for the whole training set."
            )
    return sorted(set(sizes))


def _resolve_full(size: int | str, workload: str, train_size: int | None) -> int:
    if isinstance(size, int):
        return size
    if train_size is None:
        raise BadInput(f"batch_sizes: {workload} has no end of examples, so none is `full`.")
    return train_size


def _refuse_repeats(kind: str, names: list[str]) -> None:
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise BadInput(f"Each {kind} must be named once, but got {', '.join(repeated)} again.")
