"""Reads sweep files and explains the mistakes in them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from orchestrator.files.yaml_files import parse_yaml, read_yaml
from orchestrator.planning.sweep import Repeats, Sweep
from orchestrator.records import BadInput, cut, shown, unknown, wrong_value
from orchestrator.results.purpose import STUDIES, without_gone

FileModel = TypeVar("FileModel", bound=BaseModel)

SWEEPS = Path(__file__).parent.parent / "sweeps"

MISTAKES_TOLD = 10
"""Largest number of mistakes in a file that are listed. The first ones often cause the others."""


WORKLOADS, TRUNK = "workloads", "trunk"
"""The keys that tell a sweep file from a branch file."""

LONG_FORMS = {"repeats": Repeats}
"""Key of a sweep file -> its parts, if it is written as a mapping in place of a number."""


def find_sweep_file(name: str | None) -> Path:
    """The file called `name`, or the project's sweep of this name; None: the quickstart."""
    return SWEEPS / "quickstart.yaml" if name is None else find_file("sweep file", name, SWEEPS)


def find_file(kind: str, name: str, folder: Path) -> Path:
    """The file called `name`, or the one of the project that has this name, in `folder`."""
    known = {path.stem: path for path in folder.glob("*.yaml")}
    # Unlike Path.exists, os.path.exists returns False for a name that no file can have.
    if os.path.exists(name):
        return Path(name)
    if name not in known:
        beside = Path(name).parent.glob("*.y*ml") if "." in name else ()
        raise unknown(kind, name, [*known, *map(str, beside)])
    return known[name]


def load_sweep(path: Path, overrides: Iterable[str] = ()) -> Sweep:
    """The sweep in the file at `path` after `key=value` overrides (dotted keys, YAML values)."""
    document = read_yaml(path)
    if (path.parent / STUDIES).is_file():  # that of a run, which an earlier version may have made
        document = without_gone(document)
    document = overridden(document, overrides)
    if {*document} & {TRUNK, WORKLOADS} == {TRUNK}:
        raise BadInput(
            f"{path} describes branches: `orchestrate branch {path}` trains them.",
            code="wrong-command",
        )
    return validated(document, str(path))


def overridden(document: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """The document, in which each `key=value` override is applied."""
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key:
            raise wrong_value("--set", "KEY=VALUE, such as search.trials=50", override)
        source = f"--set {cut(override)}"
        *path, last = key.split(".")
        at: Any = document
        for name in path:
            at = at.setdefault(name, {})
            if not isinstance(at, dict):
                raise wrong_value(
                    f"{source}: {shown(name)}", "a mapping, as a key of it is set", at
                )
        at[last] = parse_yaml(text, source)
    return document


def validated(document: Mapping[str, Any], where: str) -> Sweep:
    """The sweep that `document` describes. Error messages name `where` as its location."""
    return validated_as(Sweep, document, where)


def validated_as(kind: type[FileModel], document: Mapping[str, Any], where: str) -> FileModel:
    """The document as a model of this `kind`. Raises `BadInput` with one line per mistake."""
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        mistakes = _by_place(document, error)
        errors = [_explain(kind, where, mistake) for mistake in mistakes[:MISTAKES_TOLD]]
        lines = [*map(str, errors)]
        if (more := len(mistakes) - MISTAKES_TOLD) > 0:
            lines.append(f"{where}: {more:,} more mistakes.")
        raise BadInput("\n".join(lines), code=errors[0].code) from None


def _by_place(document: Mapping[str, Any], error: ValidationError) -> list[dict[str, Any]]:
    """The mistakes, each at its place in the document, where all that was accepted is one."""
    found: dict[Any, dict[str, Any]] = {}
    for mistake in map(dict[str, Any], error.errors(include_url=False)):
        at: Any = document
        place = []
        for piece in mistake["loc"]:
            inside = piece in at if isinstance(at, dict) else isinstance(piece, int)
            if inside or (piece == mistake["loc"][-1] and mistake["type"] == "missing"):
                place.append(piece)
                at = at[piece] if inside else None
        whole = {**mistake, "loc": place}
        if (before := found.setdefault((*place, str(mistake["input"])), whole)) is not whole:
            taken = [re.sub(", (unable|got) .*", "", each["msg"]) for each in (before, mistake)]
            before["msg"] = ", or ".join([taken[0], taken[1].removeprefix("Input should be ")])
    return [*found.values()]


def _explain(kind: type[BaseModel], source: str, error: Mapping[str, Any]) -> BadInput:
    """One error of pydantic in a line: the file, the key, the value, and what is accepted."""
    location = error["loc"]
    key = ".".join(cut(str(part)) for part in location) or "the file"
    if error["type"] == "extra_forbidden":
        known = _keys_at(kind, location[:-1])
        return unknown("key", key, known, code="unknown-key").at(source)
    if error["type"] == "missing":
        return BadInput(f"{source}: {key}: this key is required.", code="missing-key")
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "model_type":
        names = ", ".join(name.rpartition(".")[2] for name in _keys_at(kind, location))
        message = f"write it in braces, {{key: value, ...}}, with some of the keys {names}"
    value = shown(error["input"])
    if not location and isinstance(error["input"], dict):
        value = f"the keys {cut(', '.join(map(str, error['input'])))}"
    got = "" if "but got" in message else f" (got {value})"
    code = getattr(error.get("ctx", {}).get("error"), "code", "wrong-value")
    text = f"{source}: {key}: {message[0].lower() + message[1:].removesuffix('.')}{got}."
    return BadInput(text, code=code)


def _keys_at(kind: type[BaseModel], location: list[Any]) -> list[str]:
    """The keys accepted at a place in the file."""
    part = kind
    for piece in location:
        if (field := part.model_fields.get(str(piece))) is not None:
            part = next(_parts_in(LONG_FORMS.get(str(piece), field.annotation)), part)
    prefix = "".join(f"{piece}." for piece in location)
    return [f"{prefix}{field.alias or name}" for name, field in part.model_fields.items()]


def _parts_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _parts_in(inner)
