"""Search spaces. Each optimizer has a YAML file, which may have overrides for a family of workloads
(`mnist`) and for a workload (`mnist/lenet`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, get_args

from orchestrator.files.yaml_files import read_yaml
from orchestrator.records import (
    RULES,
    BadInput,
    Choice,
    Range,
    Scale,
    ScalingRule,
    Space,
    Value,
    mistakes_in,
    plain,
    refuse_unknown,
    searched,
    unknown,
    wrong_value,
)
from orchestrator.records.scaling_rules import NUMBERS

Entry = Range | Choice | ScalingRule | Value

MOST_OPTIONS = 100
"""Largest number of options of a choice. Each option is tried out before a sweep starts."""

LONGEST_TEXT = 250
"""Largest number of characters of a metaparameter's name, or of a value that is text."""

SEARCH_SPACES = Path(__file__).parent.parent / "search_spaces"


def known_spaces() -> list[str]:
    return sorted(path.stem for path in SEARCH_SPACES.glob("*.yaml"))


def load_space(optimizer: str, workload: str) -> dict[str, Entry]:
    """The search space of `optimizer` for `workload` from the optimizer's file, if there is one."""
    stem = {plain(stem): stem for stem in known_spaces()}.get(plain(optimizer))
    if stem is None:
        return {}
    path = SEARCH_SPACES / f"{stem}.yaml"
    document = read_yaml(path)
    name = workload.partition("?")[0]
    overrides = document.get("workloads", {})
    of_family, of_workload = overrides.get(name.partition("/")[0], {}), overrides.get(name, {})
    return space_from({**document["space"], **of_family, **of_workload}, str(path))


def assemble(space: Space, fractions: Sequence[float]) -> dict[str, Value]:
    """The point at `fractions` (0 to 1) of what varies."""
    chosen = dict(zip(searched(space), fractions, strict=True))
    return {
        name: entry.at(chosen[name]) if isinstance(entry, (Range, Choice)) else entry
        for name, entry in space.items()
    }


def distinct(points: Iterable[dict[str, Value]]) -> tuple[dict[str, Value], ...]:
    """The points, in the order of the space, without repetitions."""
    return tuple(map(dict, dict.fromkeys(tuple(point.items()) for point in points)))


def space_from(entries: Mapping[str, Any], where: str) -> dict[str, Entry]:
    """The search space that is written as `name: {low:, high:, scale:}`, `name: {options: []}`,
    `name: {rule:, base:, at_batch_size:}` or `name: value`. `where` is the file and key for error
    messages."""
    return {name: _entry(entry, f"{where}: {name}") for name, entry in entries.items()}


def check_value(value: Any) -> Value:
    """The value, or refuses it if no metaparameter can have it."""
    if not isinstance(value, (bool, int, float, str)):
        raise wrong_value("a value", "a number, text, true or false", value)
    if isinstance(value, str) and len(value) > LONGEST_TEXT:
        raise wrong_value("text", f"at most {LONGEST_TEXT} characters", value)
    return value


def _entry(entry: Any, where: str) -> Entry:
    if isinstance(entry, list) or entry is None:
        raise wrong_value(
            where,
            "{low: ..., high: ..., scale: ...}, {options: [...]}, {rule: ..., base: ..., "
            "at_batch_size: ...} or a fixed value",
            entry,
        )
    with mistakes_in(where):
        return _described(entry) if isinstance(entry, dict) else check_value(entry)


def _described(entry: Mapping[str, Any]) -> Entry:
    kind = Choice if "options" in entry else ScalingRule if "rule" in entry else Range
    known = [field.name for field in fields(kind)]
    refuse_unknown("key", entry, known, code="unknown-key")
    needed = {field.name: None for field in fields(kind) if field.default is MISSING}
    found: dict[str, Any] = {**needed, **entry}
    for key, value in found.items():
        if key in NAMED and value not in NAMED[key]:
            raise unknown(key, value, NAMED[key])
        if key in FORMS and not FORMS[key][0](value):
            raise wrong_value(f"`{key}`", FORMS[key][1], value)
    if kind is Choice:
        if len(values := found["options"]) > MOST_OPTIONS:
            raise BadInput(
                f"`options` must hold at most {MOST_OPTIONS} values, not {len(values):,}.",
                code="too-many",
            )
        found["options"] = tuple(map(check_value, values))
    return kind(**found)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


NAMED = {"scale": get_args(Scale), "rule": RULES}
"""Key of an entry -> the names that it may have."""

FORMS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("low", "high", *NUMBERS), (_is_number, "a number")),
    "integer": (lambda value: isinstance(value, bool), "true or false"),
    "options": (lambda value: isinstance(value, list), "a list"),
}
"""Other key of an entry -> whether a value is of its form, and what that is."""
