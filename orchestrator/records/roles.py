"""What may change when a run goes on with another sweep. Each field of a study and each key of a
sweep file says in its annotation what depends on it: `Annotated[int, GROWS]`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum, auto
from itertools import zip_longest
from typing import Any, get_type_hints


class Role(Enum):
    """What depends on a setting, and so how it may change."""

    COURSE = auto()
    """What a trial measures. It must not change."""
    END = auto()
    """When a trial ends. It may move if what was measured until then stays right."""
    SEARCH = auto()
    """Which trials there are, and in what order they go on. It must not change."""
    GROWS = auto()
    """How many trials there are. It must not shrink."""
    FREE = auto()
    """No trial. It may change: names, machines, and how much is repeated, known or shown."""
    STUDIES = auto()
    """The studies of a sweep. They are compared, however a sweep file describes them."""


COURSE, END, SEARCH, GROWS, FREE, STUDIES = Role


def settings_of(kind: type) -> dict[str, tuple[str, Role | None]]:
    """Field of a study or a sweep, or of a part of it -> what the setting is called in sweep files,
    and its role. None: its parts have roles, or the role of the whole."""
    found: dict[str, tuple[str, Role | None]] = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        said = getattr(hint, "__metadata__", ())
        key = next((each for each in said if isinstance(each, str)), name)
        found[name] = key, next((each for each in said if isinstance(each, Role)), None)
    return found


def differences(
    a: Any, b: Any, at: str = "", role: Role | None = None
) -> Iterator[tuple[str, Role | None, Any, Any]]:
    """The settings in which two studies, sweeps or documents differ: key, role, both values."""
    if a == b:
        return
    parts: list[tuple[Any, Role | None, Any, Any]] = []
    if type(a) is type(b) and (settings := settings_of(type(a))):
        parts = [(k, own, getattr(a, n), getattr(b, n)) for n, (k, own) in settings.items()]
    elif isinstance(a, Mapping) and isinstance(b, Mapping):
        parts = [(key, None, a.get(key), b.get(key)) for key in dict.fromkeys([*a, *b])]
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        parts = [(n, None, *both) for n, both in enumerate(zip(a, b, strict=True))]
    else:
        yield at, role, a, b
    for key, own, one, other in parts:
        yield from differences(one, other, f"{at}.{key}" if at else str(key), own or role)


def shown_pair(a: Any, b: Any) -> tuple[Any, Any]:
    """Two values of a setting as numbers and texts. Of two tuples, the first items that differ."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        a, b = next((one, other) for one, other in zip_longest(a, b) if one != other)
    known = (int, float, str, type(None))
    return a if isinstance(a, known) else str(a), b if isinstance(b, known) else str(b)
