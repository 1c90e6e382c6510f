"""Reads YAML as people write it: `1e-3` is a number, a repeated key is an error, and errors name a
line.

A file that would exhaust time or memory is refused while it is read. There are limits on its size,
on the depth of lists and mappings, and on the number of values after aliases are expanded.
"""

from __future__ import annotations

import re
import stat
from pathlib import Path
from typing import Any

import yaml

from orchestrator.records import BadInput, cut, shown, unreadable, wrong_value

LARGEST_FILE = 2**20
"""Largest size of a file in bytes. Sweep files and cluster files have a few thousand."""

MOST_NODES = 50_000
"""Largest number of values, keys, lists and mappings of a file, each counted as often as aliases
repeat it. It is enough for 10,000 points of two metaparameters, which take 2 seconds to read."""

DEEPEST = 50
"""Largest number of lists and mappings inside each other. A sweep file has 6."""

LONGEST_NUMBER = 100
"""Largest number of characters of a number. Python can read, print and make a float of it."""

NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


class _Loader(yaml.SafeLoader):
    """Loads text, numbers, true, false, null, lists and mappings, and nothing else. Floats are read
    as in YAML 1.2, and a repeated key is an error, so that no value is overwritten silently."""

    most_nodes = MOST_NODES

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = self._count = 0
        self._counts: dict[str, int] = {}
        """Anchor -> number of nodes that it stands for, including the nodes of aliases in them."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: yaml.Event = self.peek_event()  # type: ignore[no-untyped-call]
        if getattr(event, "tag", None) is not None:
            raise _error("tags are not allowed: leave out the `!`", event.start_mark)
        anchor: str | None = getattr(event, "anchor", None)
        if isinstance(event, yaml.AliasEvent):
            if anchor in self.anchors and anchor not in self._counts:
                raise _error(
                    f"*{cut(str(anchor))} must not be used inside of itself", event.start_mark
                )
            self._count += self._counts.get(str(anchor), 0)
            node = super().compose_node(parent, index)
        else:
            before = self._count
            self._count += 1
            self._depth += 1
            if self._depth > DEEPEST:
                raise _error(
                    f"there must be at most {DEEPEST} levels of lists and mappings inside each "
                    "other",
                    event.start_mark,
                )
            node = super().compose_node(parent, index)
            self._depth -= 1
            if anchor is not None:
                self._counts[anchor] = self._count - before
        if self._count > self.most_nodes:
            raise _error(
                f"there must be at most {self.most_nodes:,} values and keys, including those that "
                "aliases repeat",
                event.start_mark,
            )
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if isinstance(node, yaml.ScalarNode):
            if node.tag in NUMBERS and len(node.value) > LONGEST_NUMBER:
                raise _error(
                    f"a number must have at most {LONGEST_NUMBER} characters, but one has "
                    f"{len(node.value):,}",
                    node.start_mark,
                )
            if re.search(r"[\ud800-\udfff]", node.value):
                raise _error(
                    "text must not contain half a character (a lone surrogate)", node.start_mark
                )
        try:
            return super().construct_object(node, deep)
        except ValueError:
            raise _error(f"{shown(node.value)} is no number", node.start_mark) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _error("a key must be text, not a list or mapping", key.start_mark)
            if key.value in seen:
                raise _error(f"the key {shown(key.value)} is given twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _error(problem: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


# Dates and `=` stay text. PyYAML implements YAML 1.1, which reads 1e-3 as text because it has no
# dot. So the resolver of numbers is extended below.
_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern)
        for tag, pattern in resolvers
        if tag.rpartition(":")[2] not in ("timestamp", "value")
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class _RunLoader(_Loader):
    """Loads files that a run holds: with every default, they are larger than what users write."""

    most_nodes = 3 * MOST_NODES


def parse_yaml(text: str, source: str, loader: type[_Loader] = _Loader) -> Any:
    """Returns the document in `text`. `source` is its name in error messages."""
    try:
        return yaml.load(text, loader)  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        # The most likely cause is a workload with options: `workloads: [digits/mlp?classes=5]`.
        hint = " Within [ ], text with a `?` must be in quotes." if "'?'" in str(error) else ""
        problem = cut(error.problem or str(error), 200)
        raise BadInput(f"{source}{line}: not YAML: {problem}.{hint}", code="not-yaml") from None
    except yaml.YAMLError as error:
        problem = str(error).partition("\n")[0]
        raise BadInput(f"{source}: not valid YAML: {problem}.", code="not-yaml") from None


def read_yaml(path: Path) -> dict[str, Any]:
    """Returns the mapping in the file at `path`."""
    try:
        # Reading from a pipe might never return, and a device may be endless.
        if not stat.S_ISREG(path.stat().st_mode):
            instead = "name a file in it" if path.is_dir() else "copy it to one"
            raise BadInput(f"{path} must be a regular file: {instead}.", code="not-a-file")
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
        if len(content) > LARGEST_FILE:
            raise BadInput(
                f"{path} must have at most {LARGEST_FILE:,} bytes, but has more.", code="too-large"
            )
        text = content.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error) from None
    return _mapping(parse_yaml(text, str(path)), str(path))


def parse_mapping(text: str, source: str) -> dict[str, Any]:
    """Returns the mapping in a file that a run holds. `source` is its name in error messages."""
    return _mapping(parse_yaml(text, source, _RunLoader), source)


def _mapping(document: Any, source: str) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise wrong_value(source, "`key: value` lines", document)
    return document


class _WithoutAliases(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


for each in (_Loader, _WithoutAliases):  # which puts texts that look like such a number in quotes
    each.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"^[-+]?\d+(\.\d*)?[eE][-+]?\d+$"),
        list("-+0123456789"),
    )


def write_yaml(document: Any, *, width: float = 100, flow: bool | None = False) -> str:
    """The document as text. `flow`: in braces throughout, or, if it is None, where nothing is below
    a mapping or list."""
    return yaml.dump(
        document, Dumper=_WithoutAliases, sort_keys=False, allow_unicode=True, width=width,
        default_flow_style=flow,
    )  # fmt: skip
