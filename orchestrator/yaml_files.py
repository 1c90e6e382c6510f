"""YAML as people write it: `1e-3` is a number, a repeated key an error, errors name a line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from orchestrator.records import BadInput


class _Loader(yaml.SafeLoader):
    """Safe loading with YAML 1.2 floats and without silent overwriting."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {key.value!r} is given twice", problem_mark=key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


# YAML 1.1, which PyYAML implements, reads 1e-3 as text because it has no dot.
_Loader.yaml_implicit_resolvers = {
    first: list(resolvers) for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def parse_yaml(text: str, source: str) -> Any:
    """The document in `text`; `source` names it in the error message."""
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - _Loader is a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        # Where options are most likely to be written: `workloads: [digits/mlp?classes=5]`.
        hint = " Within [ ], text with a `?` must be in quotes." if "'?'" in str(error) else ""
        raise BadInput(f"{source}{line}: not valid YAML: {error.problem or error}.{hint}") from None
    except yaml.YAMLError as error:
        raise BadInput(f"{source}: not valid YAML: {error}.") from None


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in the file at `path`."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise BadInput(f"{path}: can't be read: {reason}.") from None
    return parse_mapping(text, str(path))


def parse_mapping(text: str, source: str) -> dict[str, Any]:
    """The mapping in `text`; `source` names it in the error message."""
    document = parse_yaml(text, source)
    if not isinstance(document, dict):
        raise BadInput(f"{source}: expected `key: value` lines, but it holds {document!r:.60}.")
    return document


def write_yaml(document: dict[str, Any]) -> str:
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)
