"""Search spaces: one YAML file per optimizer, with overrides per workload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from orchestrator.records import BadInput, Choice, Range, Space, Value, unknown
from orchestrator.yaml_files import read_yaml

SEARCH_SPACES = Path(__file__).parent.parent / "search_spaces"


def known_spaces() -> list[str]:
    return sorted(path.stem for path in SEARCH_SPACES.glob("*.yaml"))


def load_space(optimizer: str, workload: str) -> Space:
    """The space of `optimizer` as its file gives it for `workload`."""
    if optimizer not in known_spaces():
        raise unknown("search space", optimizer, known_spaces())
    path = SEARCH_SPACES / f"{optimizer}.yaml"
    document = read_yaml(path)
    overrides = document.get("workloads", {}).get(workload.partition("?")[0], {})
    return space_from({**document["space"], **overrides}, str(path))


def space_from(entries: Mapping[str, Any], place: str) -> dict[str, Range | Choice | Value]:
    """The space written as `name: {low:, high:, scale:}`, `name: {options: []}` or `name: value`.
    `place` (a file and key) goes into the error message."""
    return {name: _entry(entry, f"{place}: {name}") for name, entry in entries.items()}


def _entry(entry: Any, place: str) -> Range | Choice | Value:
    if isinstance(entry, (bool, int, float, str)):
        return entry
    if not isinstance(entry, dict):
        raise BadInput(
            f"{place}: expected {{low: ..., high: ..., scale: linear | log | reverse_log}}, "
            f"{{options: [...]}} or a fixed value, but got {entry!r}."
        )
    kind = Choice if "options" in entry else Range
    known = [field.name for field in fields(kind)]
    try:
        for key in entry:
            if key not in known:
                raise unknown("key", str(key), known)
        if kind is Choice:
            return Choice(options=tuple(entry["options"]))
        return _range(entry)
    except BadInput as error:
        raise BadInput(f"{place}: {error}") from None


def _range(entry: Mapping[str, Any]) -> Range:
    for key in ("low", "high"):
        number = entry.get(key)
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            raise BadInput(f"`{key}` must be a number, but got {number!r}.")
    scale = entry.get("scale", "linear")
    if scale not in ("linear", "log", "reverse_log"):
        raise unknown("scale", str(scale), ("linear", "log", "reverse_log"))
    integer = entry.get("integer", False)
    return Range(low=entry["low"], high=entry["high"], scale=scale, integer=bool(integer))
