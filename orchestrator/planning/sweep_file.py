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
from orchestrator.planning.workload_parts import ProgramWorkload, named
from orchestrator.records import BadInput, cut, shown, unknown, wrong_value
from orchestrator.records.lr_schedules import SCHEDULE_SETTINGS
from orchestrator.results.purpose import STUDIES, without_gone

FileModel = TypeVar("FileModel", bound=BaseModel)

SWEEPS = Path(__file__).parent.parent / "sweeps"

MISTAKES_TOLD = 10
"""Largest number of mistakes in a file that are listed. The first ones often cause the others."""

WORKLOADS, TRUNK = "workloads", "trunk"
"""The keys that tell a sweep file from a branch file."""

LONG_FORMS = {"repeats": Repeats, "workloads": ProgramWorkload, "workload": ProgramWorkload}
"""Key of a sweep file -> its parts, if it is written as a mapping in place of a number or text."""

OURS = ("branch", "programs", "scales")
"""Keys of a `Sweep` that its validators write, not people."""


def find_sweep_file(name: str | None, *others: Path) -> Path:
    """The file called `name`, or the project's sweep of this name; None: the quickstart."""
    quickstart = SWEEPS / "quickstart.yaml"
    return quickstart if name is None else find_file("sweep file", name, *others, SWEEPS)


def find_file(kind: str, name: str, *folders: Path) -> Path:
    """The file called `name`, or the one of the project that has this name, in the last of
    `folders` that has one."""
    known = {path.stem: path for folder in folders for path in folder.glob("*.yaml")}
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
        for piece in _as_written(document, mistake["loc"]):
            inside = piece in at if isinstance(at, dict) else isinstance(piece, int)
            if inside or (piece == mistake["loc"][-1] and mistake["type"] == "missing"):
                place.append(piece)
                at = at[piece] if inside else None
        whole = {**mistake, "loc": place}
        if (before := found.setdefault((*place, str(mistake["input"])), whole)) is not whole:
            taken = [re.sub(", (unable|got) .*", "", each["msg"]) for each in (before, mistake)]
            taken[1] = taken[1].removeprefix("Input should be ")
            before["msg"] = ", or ".join(dict.fromkeys(taken))
    return [*found.values()]


def _as_written(document: Mapping[str, Any], place: tuple[Any, ...]) -> tuple[Any, ...]:
    """Where the file has what a `Sweep` has at a place: a program is one of its workloads."""
    if place[:1] != ("programs",) or "programs" in document:
        return place
    names, _ = named(document.get("workloads", []))
    at = ("workloads", names.index(place[1])) if place[1] in names else ("scale", "workload")
    return *at, *place[2:]


def _explain(kind: type[BaseModel], source: str, error: Mapping[str, Any]) -> BadInput:
    """One error of pydantic in a line: the file, the key, the value, and what is accepted."""
    location = error["loc"]
    key = ".".join(cut(str(part)) for part in location)
    if error["type"] == "extra_forbidden":
        from orchestrator.training.settings import ALIASES, GENERAL  # loads torch

        name = ALIASES.get(location[-1], location[-1])
        if name in {"momentum", "label_smoothing", *ALIASES.values(), *GENERAL}:
            part = "schedule" if name in SCHEDULE_SETTINGS else "space"
            said = f"{{name: ..., {part}: {{{name}: {shown(error['input'])}}}}}"
            return BadInput(f"{source}: {key}: write it into a recipe: {said}.", code="unknown-key")
        known, last = _keys_at(kind, location[:-1]), f".{location[-1]}"
        # It may belong into a part, as `trials` into `search`; those of `more` are beyond these.
        parts = [name.split(".") for name in known if name != "more"]
        known += [deep for part in parts for deep in _keys_at(kind, part) if deep.endswith(last)]
        return unknown("key", key, known, code="unknown-key").at(source)
    if error["type"] == "missing":
        return BadInput(f"{source}: {key}: this key is required.", code="missing-key")
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "model_type":
        names = ", ".join(name.rpartition(".")[2] for name in _keys_at(kind, location))
        message = f"write it in braces, {{key: value, ...}}, with some of the keys {names}"
    # Of a mistake in the file as a whole, the message says what it is.
    told = "but got" in message or (not location and isinstance(error["input"], dict))
    got = "" if told else f" (got {shown(error['input'])})"
    code = getattr(error.get("ctx", {}).get("error"), "code", "wrong-value")
    where = f"{source}: {key}" if location else source
    text = f"{where}: {message[0].lower() + message[1:].removesuffix('.')}{got}."
    return BadInput(text, code=code)


def _keys_at(kind: type[BaseModel], location: list[Any]) -> list[str]:
    """The keys that people may write at a place in the file."""
    part = kind
    for piece in location:
        field = part.model_fields.get(str(piece))
        part = next(_parts_in(LONG_FORMS.get(str(piece), field and field.annotation)), part)
    names = [field.alias or name for name, field in part.model_fields.items() if name not in OURS]
    prefix = "".join(f"{piece}." for piece in location)
    return [f"{prefix}{name}" for name in [*names, *["scale"] * (part is Sweep)]]


def _parts_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _parts_in(inner)
