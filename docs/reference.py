"""Writes the tables of the reference pages. `make reference` calls it.

A table lies between `<!-- made of X -->` and `<!-- end -->`. X is `sweep` or `branch` for the keys
at the top of such a file, `sweep.search` for those of a part of it, and `commands` for the command
line. tests/test_docs.py checks that the pages are what this writes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import typer.main
import yaml

from orchestrator.cli import app
from orchestrator.planning.schema import SCHEMA_FILES, schema_of

DOCS = Path(__file__).parent
ROOT = DOCS.parent
MADE = re.compile(r"(<!-- made of ([\w.]+) -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Key:
    """A key of a file."""

    name: str
    """With the names of the parts that it lies in: `search.trials`."""
    type: str
    default: str
    description: str
    example: str


def filled(page: str) -> str:
    """The page with every table made anew."""
    return MADE.sub(lambda found: f"{found[1]}\n{_made_of(found[2])}\n\n{found[3]}", page)


def _made_of(what: str) -> str:
    if what == "commands":
        return "\n\n".join(_commands(typer.main.get_command(app), "orchestrate"))
    kind, _, part = what.partition(".")
    return _table(keys_of(kind, part))


def _table(keys: list[Key]) -> str:
    rows = ["| key | type | default | what it says |", "|---|---|---|---|"]
    for key in keys:
        example = f" Example: `{key.example}`" if key.example else ""
        rows.append(f"| `{key.name}` | {key.type} | {key.default} | {key.description}{example} |")
    return "\n".join(rows)


@cache
def _schema(kind: str) -> dict[str, Any]:
    return schema_of(kind)


@cache
def _sections(kind: str) -> dict[str, list[str]]:
    """Key at the top of a file -> the parts that its value may be, or hold."""
    found = {name: _parts_in(entry) for name, entry in _schema(kind)["properties"].items()}
    return {name: parts for name, parts in found.items() if parts}


def keys_of(kind: str, part: str) -> list[Key]:
    """The keys of one part of a file; the part `""` is the file itself."""
    schema = _schema(kind)
    if not part:
        keys = [*schema["properties"]]
        return [_linked(_key(schema, schema, name, name), kind) for name in keys]
    return [key for name in _sections(kind)[part] for key in _keys_in(kind, name, part)]


def _keys_in(kind: str, part: str, within: str) -> Iterator[Key]:
    """Of a part, and of those in it that have no section of their own."""
    schema = _schema(kind)
    elsewhere = {name for parts in _sections(kind).values() for name in parts}
    holder = schema["$defs"][part]
    for name, entry in holder["properties"].items():
        inner = [each for each in _parts_in(entry) if each not in elsewhere]
        # A part that is never written as a whole stands for its keys.
        if not inner or "examples" in entry:
            yield _key(schema, holder, name, f"{within}.{name}")
        for each in inner:
            yield from _keys_in(kind, each, f"{within}.{name}")


def _parts_in(entry: Any) -> list[str]:
    """The parts that a key's value may be, or hold."""
    if isinstance(entry, list):
        return [part for each in entry for part in _parts_in(each)]
    if not isinstance(entry, dict):
        return []
    if "$ref" in entry:
        return [entry["$ref"].rpartition("/")[2]]
    return [part for name in ("anyOf", "oneOf", "items") for part in _parts_in(entry.get(name, []))]


def _key(schema: dict[str, Any], holder: dict[str, Any], name: str, path: str) -> Key:
    entry = holder["properties"][name]
    # A key that has no words of its own says what its part says of itself.
    about = entry if "description" in entry else schema["$defs"][_parts_in(entry)[0]]
    description, default = _split_default(about["description"])
    given = entry.get("default")
    if name in holder.get("required", []) or path == "recipes":
        default = "required"
    elif not default and (given or isinstance(given, bool | int)) and not isinstance(given, dict):
        default = f"`{_in_yaml(given)}`"
    example = f"{name}: {_in_yaml(entry['examples'][0])}" if "examples" in entry else ""
    return Key(
        name=path, type=_type(entry), default=default, description=description, example=example
    )


def _linked(key: Key, kind: str) -> Key:
    """With a link to the section that has the keys of the part."""
    if key.name not in _sections(kind):
        return key
    shared = kind == "branch" and key.name in _sections("sweep")
    place = f"{'sweep-file.md' if shared else ''}#{key.name}"
    return replace(key, type=key.type.replace("mapping", f"[mapping]({place})"))


def _split_default(description: str) -> tuple[str, str]:
    """A description, and the default that its last words tell."""
    text, _, default = description.partition(" Default: ")
    return text, default.removesuffix(".")


def _in_yaml(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=1000)
    return text.removesuffix("\n").removesuffix("\n...")


PLACEHOLDERS = {"str": "TEXT", "int": "NUMBER", "float": "NUMBER", "path": "PATH"}

NAMES = {
    "integer": "whole number",
    "number": "number",
    "boolean": "`true`, `false`",
    "string": "text",
}


def _type(entry: dict[str, Any]) -> str:
    if "const" in entry or "enum" in entry:
        return ", ".join(f"`{value}`" for value in entry.get("enum", [entry.get("const")]))
    if forms := entry.get("anyOf", entry.get("oneOf")):
        kinds = [_type(form) for form in forms if form.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if entry.get("type") == "array":
        return f"list of: {_type(entry['items'])}"
    if "$ref" in entry or entry.get("type") == "object":
        return "mapping"
    return NAMES[entry["type"]] + _bounds(entry)


def _bounds(entry: dict[str, Any]) -> str:
    """The bounds that a person may meet."""
    least, most = entry.get("minimum"), entry.get("maximum")
    if entry.get("exclusiveMinimum") is not None:
        return f" above {entry['exclusiveMinimum']:g}"
    if least is not None and most is not None and most <= 1024:
        return f" from {least:g} to {most:g}"
    return f" from {least:g}" if least is not None else ""


def _commands(command: Any, name: str) -> Iterator[str]:
    """A section for each command, with a table of its arguments and options."""
    context = command.context_class(command, info_name=name)
    usage = re.sub(r"\[(\[.*?\])\]|\{(.*?)\}", r"\1\2", command.get_usage(context))
    usage = usage.removeprefix("Usage: ")
    yield f"## {name}\n\n{_plain(command.help)}\n\n```text\n{' '.join(usage.split())}\n```"
    if command.params:
        rows = [_parameter(each, context) for each in command.params]
        yield "\n".join(["| argument or option | default | what it does |", "|---|---|---|", *rows])
    for each in getattr(command, "commands", {}).values():
        yield from _commands(each, f"{name} {each.name}")


def _parameter(each: Any, context: Any) -> str:
    names, told = each.get_help_record(context)
    text, _, extra = told.partition("  [")
    if text.startswith("["):
        text, extra = "", text[1:]
    if each.param_type_name == "argument":
        names = names.partition(" <")[0]
    value = re.sub(r"<(\S+)( range)?>", _placeholder, names)
    # A `|` would end the cell, and within backticks some readers show what escapes it.
    shown = f"<code>{value.replace('|', '&#124;')}</code>" if "|" in value else f"`{value}`"
    facts = extra.removesuffix("]").split("; ")
    return f"| {shown} | {_default(facts)} | {_plain(text)} |"


def _placeholder(kind: re.Match[str]) -> str:
    """What stands for the value of an option: a word, or the values to choose from."""
    return PLACEHOLDERS.get(kind[1], kind[1])


def _default(facts: list[str]) -> str:
    """The default of an option among what its help says in brackets."""
    if "required" in facts:
        return "required"
    told = {name: value for name, _, value in (fact.partition(": ") for fact in facts)}
    default = f"`{told['default']}`" if "default" in told else ""
    return f"{default} `${told['env var']}`".strip() if "env var" in told else default


def _plain(text: str) -> str:
    """Text of the terminal as Markdown."""
    escaped = " ".join(text.split()).replace("<", "&lt;").replace("|", "\\|")
    return re.sub(r"(?<!`)([*\[\]])(?!`)", r"\\\1", escaped)


SCHEMAS = {
    ROOT / "sweeps" / SCHEMA_FILES["sweep"]: "sweep",
    ROOT / "branches" / SCHEMA_FILES["branch"]: "branch",
}
"""File -> the kind of file whose schema it holds."""


def schema_text(kind: str) -> str:
    """The content of the file with the schema."""
    return json.dumps(_schema(kind), indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    for schema, kind in SCHEMAS.items():
        schema.write_text(schema_text(kind), encoding="utf-8")
    for path in DOCS.glob("*.md"):
        path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
