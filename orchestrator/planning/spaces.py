"""The search space of a recipe at each batch size, and the points that its search is given."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.planning.rule_presets import entries_of
from orchestrator.planning.sweep import Recipe, Search
from orchestrator.records import (
    LARGEST,
    SMALLEST,
    BadInput,
    Choice,
    Range,
    RateAt,
    ScalingRule,
    Space,
    Value,
    shown,
    unknown,
    wrong_value,
)
from orchestrator.records.lr_schedules import SCHEDULE_SETTINGS, check_schedule
from orchestrator.search import (
    Entry,
    check_conditions,
    check_value,
    even_axes,
    grid,
    load_space,
    searched,
    space_from,
)
from orchestrator.training import check_metaparameters
from orchestrator.workloads import Workload

ONLY = "only"
"""The key of a recipe's `space` that holds all metaparameters it searches. Without this key, the
optimizer's search space supplies those that the recipe does not name."""


def space_of(recipe: Recipe, name: str, workload: Workload | None) -> dict[str, Entry]:
    """The space of a recipe for a workload, or, if that is None, for a program, which takes what
    the recipe names and nothing else."""
    where, given = f"recipe {recipe.name!r}: space", recipe.space
    shared = {} if workload is None else load_space(recipe.optimizer, name)
    if ONLY in given:
        if len(given) > 1 or not isinstance(given[ONLY], dict):
            raise BadInput(
                f"{where}: `{ONLY}` must be the only key, with the whole space in braces.",
                code="not-together",
            )
        shared, given = {}, given[ONLY]
    try:
        rules = entries_of(recipe.rules)
    except BadInput as error:
        raise error.at(f"recipe {recipe.name!r}: rules") from None
    for key, others in (("schedule", recipe.schedule), ("rules", rules)):
        if twice := sorted(given.keys() & others.keys()):
            raise BadInput(
                f"recipe {recipe.name!r}: {twice[0]!r} is in both space and {key}. Remove one.",
                code="given-twice",
            )
    for setting in recipe.schedule:
        if setting not in SCHEDULE_SETTINGS:
            raise unknown(
                f"setting of recipe {recipe.name!r}: schedule:", setting, SCHEDULE_SETTINGS
            )
    space = {
        **shared,
        **space_from(given, where),
        **space_from(rules, f"recipe {recipe.name!r}: rules"),
        **space_from(recipe.schedule, f"recipe {recipe.name!r}: schedule"),
    }
    try:
        check_conditions(space)
        if workload is None:
            return space
        check_metaparameters(recipe.optimizer, space, workload)
        decay = space.get("decay", "constant")
        check_schedule(space, decay.options if isinstance(decay, Choice) else [str(decay)])
    except BadInput as error:
        raise error.at(f"recipe {recipe.name!r}") from None
    return space


def scaled_to(space: Mapping[str, Entry], batch_size: int, examples: int) -> Space:
    """The space with every scaling rule replaced by its value at the batch size, in a training that
    is for this number of examples."""
    return {
        name: entry.at(batch_size, rate=_rate_of(space, name, entry), data=examples)
        if isinstance(entry, ScalingRule)
        else entry
        for name, entry in space.items()
    }


def _rate_of(space: Mapping[str, Entry], name: str, rule: ScalingRule) -> RateAt | None:
    """The learning rate at each batch size, for a rule that follows it."""
    if rule.rule != "timescale":
        return None
    rate = space.get(rule.of)

    def at(batch_size: float) -> float:
        found = rate.at(batch_size) if isinstance(rate, ScalingRule) else rate
        if isinstance(found, bool) or not isinstance(found, int | float) or not found > 0:
            raise wrong_value(f"{rule.of!r}, which {name!r} follows,", "above 0", found)
        return found

    if rule.of not in space or isinstance(rate, Range | Choice):
        is_it = "is searched" if rule.of in space else "is not in its space"
        raise BadInput(
            f"{name!r} has rule timescale, so {rule.of!r} must be fixed or follow a rule, but it "
            f"{is_it}. Give it in `space`, or name it with `of`.",
            code="missing-value",
        )
    if name == rule.of or (isinstance(rate, ScalingRule) and rate.rule == "timescale"):
        raise BadInput(
            f"{name!r} has rule timescale, so {rule.of!r} must follow another rule.",
            code="not-together",
        )
    return at


def chosen_points(recipe: Recipe, search: Search, space: Space) -> tuple[dict[str, Value], ...]:
    """The points that a search of algorithm `points` lists; empty for other algorithms."""
    if search.algorithm == "grid":
        return grid(space, search.grid or even_axes(space, search.trials))
    names = searched(space)
    for point in search.points:
        for name in point.keys() - set(names):
            raise unknown(f"metaparameter in the points of recipe {recipe.name!r}:", name, names)
        if missing := [name for name in names if name not in point]:
            raise BadInput(
                f"recipe {recipe.name!r}: points: {shown(point)} has no {', '.join(missing)}.",
                code="missing-value",
            )
        for name, value in point.items():
            try:
                _check_point(check_value(value), space[name])
            except BadInput as error:
                raise error.at(f"recipe {recipe.name!r}: points: {name}") from None
    fixed = {name: entry for name, entry in space.items() if name not in names}
    return tuple({**fixed, **point} for point in search.points)


def _check_point(value: Value, entry: Range | Choice | Value) -> None:
    """Raises `BadInput` for a value of a point that does not exist on the scale of its range."""
    if isinstance(entry, Range):
        if isinstance(value, (bool, str)) or not abs(value) <= LARGEST:
            raise wrong_value("it", "a number, as it has a range", value)
        if {"log": value < SMALLEST, "reverse_log": value >= 1}.get(entry.scale):
            raise wrong_value("it", f"on the {entry.scale} scale of its range", value)
