"""Search spaces. Each optimizer has a YAML file, which may have overrides for a family of workloads
(`mnist`) and for a workload (`mnist/lenet`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from orchestrator.files.yaml_files import read_yaml
from orchestrator.records import (
    RULES,
    BadInput,
    Choice,
    Range,
    ScalingRule,
    Space,
    Value,
    When,
    cut,
    shown,
    unknown,
    wrong_value,
)

Entry = Range | Choice | ScalingRule | Value
"""The entry of a metaparameter in a search space."""

MOST_OPTIONS = 100
"""Largest number of options of a choice. Each option is tried out before a sweep starts."""

LONGEST_TEXT = 250
"""Largest number of characters of a metaparameter's name, or of a value that is text."""

SEARCH_SPACES = Path(__file__).parent.parent / "search_spaces"


def known_spaces() -> list[str]:
    return sorted(path.stem for path in SEARCH_SPACES.glob("*.yaml"))


def load_space(optimizer: str, workload: str) -> dict[str, Entry]:
    """Returns the search space of `optimizer` for `workload` from the optimizer's file. It is empty
    if there is no file."""
    # An optimizer's name may be written with or without underscores, in upper or lower case.
    stems = {stem.replace("_", ""): stem for stem in known_spaces()}
    stem = stems.get(optimizer.replace("_", "").lower())
    if stem is None:
        return {}
    path = SEARCH_SPACES / f"{stem}.yaml"
    document = read_yaml(path)
    name = workload.partition("?")[0]
    overrides = document.get("workloads", {})
    of_family, of_workload = overrides.get(name.partition("/")[0], {}), overrides.get(name, {})
    return space_from({**document["space"], **of_family, **of_workload}, str(path))


def searched(space: Space) -> list[str]:
    """Returns the metaparameters that vary. They are the dimensions of the search."""
    return [name for name, entry in space.items() if isinstance(entry, (Range, Choice))]


def assemble(space: Space, fractions: Sequence[float]) -> dict[str, Value]:
    """Returns the point at `fractions` (0 to 1) of the metaparameters that vary. Metaparameters
    whose conditions don't hold are left out."""
    places = dict(zip(searched(space), fractions, strict=True))
    point = {
        name: entry.at(places[name]) if isinstance(entry, (Range, Choice)) else entry
        for name, entry in space.items()
    }
    while absent := [name for name in point if not _condition_holds(space[name], point)]:
        for name in absent:
            del point[name]
    return point


def distinct(points: Iterable[dict[str, Value]]) -> tuple[dict[str, Value], ...]:
    """Returns the points without repetitions. The values of each point must be in the order of the
    space."""
    first: dict[tuple[tuple[str, Value], ...], dict[str, Value]] = {}
    for point in points:
        first.setdefault(tuple(point.items()), point)
    return tuple(first.values())


def _condition_holds(entry: Range | Choice | Value, point: Mapping[str, Value]) -> bool:
    when = entry.when if isinstance(entry, (Range, Choice)) else None
    return all(point.get(name) in values for name, values in (when or {}).items())


def check_conditions(space: Mapping[str, Entry]) -> None:
    """Refuses conditions that never hold."""
    for name, entry in space.items():
        if not isinstance(entry, (Range, Choice)):
            continue
        for other, values in (entry.when or {}).items():
            if other not in space:
                raise unknown(f"metaparameter in `when` of {name!r}:", other, space)
            condition = space[other]
            known = condition.options if isinstance(condition, Choice) else (condition,)
            for value in values:
                if not isinstance(condition, (Range, ScalingRule)) and value not in known:
                    raise unknown(
                        f"value of {other!r} in `when` of {name!r}:",
                        value,
                        [str(option) for option in known],
                    )


def space_from(entries: Mapping[str, Any], place: str) -> dict[str, Entry]:
    """Returns the search space that is written as `name: {low:, high:, scale:}`,
    `name: {options: []}`, `name: {rule:, base:, at_batch_size:}` or `name: value`. The first two
    may have a condition `when: {other: value or list of values}`, without which the metaparameter
    does not exist. `place` is the file and key for error messages."""
    return {name: _entry(entry, f"{place}: {name}") for name, entry in entries.items()}


def check_value(value: Any) -> Value:
    """Returns the value, or refuses it if no metaparameter can have it."""
    if not isinstance(value, (bool, int, float, str)):
        raise wrong_value("a value", "a number, text, true or false", value)
    if isinstance(value, str) and len(value) > LONGEST_TEXT:
        raise wrong_value("text", f"at most {LONGEST_TEXT} characters", value)
    return value


def _entry(entry: Any, place: str) -> Entry:
    if isinstance(entry, list) or entry is None:
        raise BadInput(
            f"{place} must be {{low: ..., high: ..., scale: ...}}, {{options: [...]}}, {{rule: "
            f"..., base: ..., at_batch_size: ...}} or a fixed value, but got {shown(entry)}.",
            code="wrong-value",
        )
    try:
        return _described(entry) if isinstance(entry, dict) else check_value(entry)
    except BadInput as error:
        raise error.at(place) from None


def _described(entry: Mapping[str, Any]) -> Entry:
    kind = Choice if "options" in entry else ScalingRule if "rule" in entry else Range
    known = [field.name for field in fields(kind)]
    for key in entry:
        if key not in known:
            raise unknown("key", key, known, code="unknown-key")
    if kind is Choice:
        if not isinstance(entry["options"], list):
            raise wrong_value("`options`", "a list", entry["options"])
        return Choice(options=_values("options", entry["options"]), when=_when(entry))
    return _rule(entry) if kind is ScalingRule else _range(entry)


def _values(key: str, values: list[Any]) -> tuple[Value, ...]:
    if len(values) > MOST_OPTIONS:
        raise BadInput(
            f"`{key}` must hold at most {MOST_OPTIONS} values, not {len(values):,}.",
            code="too-many",
        )
    return tuple(map(check_value, values))


def _rule(entry: Mapping[str, Any]) -> ScalingRule:
    if entry["rule"] not in RULES:
        raise unknown("rule", entry["rule"], RULES)
    _need_numbers(entry, *(key for key in entry if key not in ("rule", "of")))
    if not isinstance(entry.get("of", ""), str):
        raise wrong_value("`of`", "the name of the learning rate", entry["of"])
    return ScalingRule(**entry)


def _need_numbers(entry: Mapping[str, Any], *keys: str) -> None:
    for key in keys:
        number = entry.get(key)
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            raise wrong_value(f"`{key}`", "a number", number)


def _range(entry: Mapping[str, Any]) -> Range:
    _need_numbers(entry, "low", "high")
    scale = entry.get("scale", "linear")
    if scale not in ("linear", "log", "reverse_log"):
        raise unknown("scale", scale, ("linear", "log", "reverse_log"))
    integer = entry.get("integer", False)
    if not isinstance(integer, bool):
        raise wrong_value("`integer`", "true or false", integer)
    return Range(
        low=entry["low"],
        high=entry["high"],
        scale=scale,
        integer=integer,
        limits=_limits(entry.get("limits", [None, None])),
        when=_when(entry),
    )


def _limits(limits: Any) -> tuple[float | None, float | None]:
    numbers = (int, float, type(None))
    if (
        not isinstance(limits, list)
        or len(limits) != 2
        or not all(isinstance(limit, numbers) and not isinstance(limit, bool) for limit in limits)
    ):
        raise wrong_value("`limits`", "[low, high], numbers or null", limits)
    return limits[0], limits[1]


def _when(entry: Mapping[str, Any]) -> When | None:
    when = entry.get("when")
    if when is None:
        return None
    if not isinstance(when, dict):
        raise wrong_value("`when`", "{other: value or list of values}", when)
    return {
        str(name): _values(
            f"when: {cut(str(name))}", values if isinstance(values, list) else [values]
        )
        for name, values in when.items()
    }
