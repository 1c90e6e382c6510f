"""Reads sweep files and explains the mistakes in them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from orchestrator.files.yaml_files import parse_yaml, read_yaml
from orchestrator.planning.sweep import Sweep
from orchestrator.records import BadInput, cut, shown, unknown

Kind = TypeVar("Kind", bound=BaseModel)

SWEEPS = Path(__file__).parent.parent / "sweeps"

MISTAKES_TOLD = 10
"""Largest number of mistakes in a file that are listed. The first ones often cause the others."""


WORKLOADS, TRUNK = "workloads", "trunk"
"""The keys that tell a sweep file from a branch file."""


def find_sweep_file(name: str | None) -> Path:
    """The file called `name`, or the sweep of the project that has this name. None is the
    quickstart."""
    known = {path.stem: path for path in SWEEPS.glob("*.yaml")}
    if name is None:
        return known["quickstart"]
    # Unlike Path.exists, os.path.exists returns False for a name that no file can have.
    exists = os.path.exists(name)
    if name in known and not exists:
        return known[name]
    if not exists:
        if name.endswith((".yaml", ".yml")):
            raise BadInput(
                f"There is no sweep file {name}. Sweeps of the project: {', '.join(sorted(known))}."
            )
        raise unknown("sweep", name, known)
    return Path(name)


def load_sweep(path: Path, overrides: Iterable[str] = ()) -> Sweep:
    """The sweep in the file at `path` after `key=value` overrides (dotted keys, YAML values)."""
    document = overridden(read_yaml(path), overrides)
    if {*document} & {TRUNK, WORKLOADS} == {TRUNK}:
        raise BadInput(
            f"{path} describes branches of one training: `orchestrate branch {path}` trains them."
        )
    return validated(document, str(path))


def overridden(document: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """A copy of the document with each `key=value` override applied."""
    for override in overrides:
        _override(document, override)
    return document


def validated(document: Mapping[str, Any], place: str) -> Sweep:
    """The sweep that `document` describes. Error messages name `place` as its location."""
    return validated_as(Sweep, document, place)


def validated_as(kind: type[Kind], document: Mapping[str, Any], place: str) -> Kind:
    """The document as a model of this `kind`. Raises `BadInput` with one line per mistake."""
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        mistakes = error.errors(include_url=False, include_context=False)
        lines = [_explain(kind, place, dict(mistake)) for mistake in mistakes[:MISTAKES_TOLD]]
        if (more := len(mistakes) - MISTAKES_TOLD) > 0:
            lines.append(f"{place}: {more:,} more mistakes.")
        raise BadInput("\n".join(lines)) from None


def _override(document: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise BadInput(
            f"--set takes KEY=VALUE, for example search.trials=50, but got {shown(override)}."
        )
    source = f"--set {cut(override)}"
    *path, last = key.split(".")
    place: Any = document
    for name in path:
        place = place.setdefault(name, {})
        if not isinstance(place, dict):
            raise BadInput(
                f"{source}: {shown(name)} holds {shown(place)}, which has no keys that could be "
                f"set."
            )
    place[last] = parse_yaml(text, source)


def _explain(kind: type[BaseModel], source: str, error: Mapping[str, Any]) -> str:
    """One line for one error of pydantic: the file, the key, the value, and what is accepted."""
    location = [part for part in error["loc"] if part not in ("list", "ladder")]
    key = ".".join(cut(str(part)) for part in location) or "the file"
    if error["type"] == "extra_forbidden":
        known = _keys_at(kind, location[:-1])
        return f"{source}: {unknown('key', key, [*map(str, known)])}"
    if error["type"] == "missing":
        return f"{source}: {key}: this key is required."
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "model_type":
        names = ", ".join(name.rpartition(".")[2] for name in _keys_at(kind, location))
        message = f"write it in braces, {{key: value, ...}}, with some of the keys {names}"
    got = "" if "but got" in message else f" (got {shown(error['input'])})"
    return f"{source}: {key}: {message[0].lower() + message[1:].removesuffix('.')}{got}."


def _keys_at(kind: type[BaseModel], location: list[Any]) -> list[str]:
    """The keys accepted at a place in the file."""
    part = kind
    for piece in location:
        part = _part(part, piece) or part
    prefix = "".join(f"{piece}." for piece in location)
    return [f"{prefix}{field.alias or name}" for name, field in part.model_fields.items()]


def _part(part: type[BaseModel], piece: Any) -> type[BaseModel] | None:
    """The model of the section that lies under the key `piece` of another section."""
    field = part.model_fields.get(str(piece))
    return next(_parts_in(field.annotation), None) if field else None


def _parts_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _parts_in(inner)
