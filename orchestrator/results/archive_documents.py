"""Reads and checks the two JSON documents of a published archive, study.json and metadata.json.

They were written by others. A `ValueError` names the key and the value that can't be used. A value
that is not required is left out and reported as a flaw. Code that uses the results of this file
need not check a value again.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from orchestrator.records import (
    MANY,
    Choice,
    EvaluationGrid,
    Range,
    Scale,
    Space,
    Status,
    Study,
    Value,
    shown,
)
from orchestrator.results.curve_files import content_of

LAYOUT = ("DATASET", "MODEL", "OPTIMIZER", "BATCH_SIZE")
"""Names of the nested folders that lead to a study, below any number of groups."""

STATUS_IN: dict[str, Status] = {
    "COMPLETE": "exhausted",
    "INFEASIBLE": "diverged",
    "INCOMPLETE": "failed",
}
SCALES: dict[str, Scale] = {
    "LINEAR_SCALE": "linear",
    "LOG_SCALE": "log",
    "REVERSE_LOG_SCALE": "reverse_log",
}

TRAIN_SIZES = {"mnist": 55_000, "fashion_mnist": 55_000, "cifar_10": 45_000}
"""Name of a published data set -> its training examples; `mnist_N` has N."""

MOST_BYTES = 4 * 2**20
"""Largest size of a document. As Python objects, JSON takes up to thirty times as much memory."""

MOST_PARAMETERS = 100
"""Largest number of metaparameters of a trial; each takes a column or two on the page."""

MOST_LETTERS = 200

MOST_IN_FOLDER = 240
"""Largest number of bytes in a name that becomes part of a folder's name, which may have 255."""

MOST_WHOLE = 2**62
MOST_TRIALS = 2**31 - 1


def read_document(path: str) -> dict[str, Any]:
    content = content_of(path, MOST_BYTES)
    try:
        document = json.loads(content)
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8 text") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    if not isinstance(document, dict):
        raise ValueError("is not a JSON object")
    return document


def published_study(parts: Sequence[str], document: Mapping[str, Any], flaws: list[str]) -> Study:
    """The study whose folder has the path `parts` within the archive."""
    if len(parts) < len(LAYOUT) or not re.fullmatch("[0-9]{1,18}", parts[-1]):
        raise ValueError(f"is not at [GROUP/]{'/'.join(LAYOUT)}")
    *workload, optimizer, folder = parts
    size = _whole("batch size", int(folder), 1, MANY)
    if (other := document.get("batch_size", size)) != size:
        flaws.append(f"has batch_size {shown(other)}, but its folder says {size}, which is used")
    subset, steps = re.fullmatch("mnist_([1-9][0-9]{0,9})", workload[-2]), 0
    try:
        steps = _whole("train_steps", document.get("train_steps") or 0, 0, MOST_WHOLE)
    except ValueError as error:
        flaws.append(str(error))
    return Study(
        workload=checked_name("workload", "/".join(workload)),
        recipe=checked_name("optimizer", optimizer),
        optimizer=optimizer,
        batch_size=size,
        goals=(),
        budget_steps=steps,
        grid=EvaluationGrid(spacing=0, min_gap=1),
        space=_space(document.get("parameter_configs"), flaws),
        trials=0,
        train_size=int(subset[1]) if subset else TRAIN_SIZES.get(workload[-2]),
        stop_at_goal=bool(document.get("early_stopping")),
        stop_dominated=False,
    )


def _space(configs: Any, flaws: list[str]) -> Space:
    space: dict[str, Range | Choice | Value] = {}
    for name, entry in _parameters("parameter_configs", configs, flaws).items():
        try:
            space[_parameter_name(name)] = _space_entry(entry)
        except ValueError as error:
            flaws.append(f"parameter {shown(name)}: {error}")
    return space


def _space_entry(entry: Any) -> Range | Choice:
    if not isinstance(entry, dict):
        raise ValueError(f"is {shown(entry)}, not a JSON object")
    kind = _one_of("type", entry.get("type"), ("DOUBLE", "INTEGER", "DISCRETE"))
    if kind == "DISCRETE":
        points = entry.get("feasible_points")
        if not isinstance(points, list):
            raise ValueError(f"feasible_points is {shown(points)}, not a list")
        return Choice(options=tuple(_setting("feasible_points", point) for point in points))
    low, high = (_number(name, _from_text(entry.get(name))) for name in ("min_value", "max_value"))
    scale = SCALES[_one_of("scale", entry.get("scale"), SCALES)]
    return Range(low=low, high=high, scale=scale, integer=kind == "INTEGER")


def _from_text(value: Any) -> Any:
    """The number that a text contains, since some programs write numbers as text."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def trial_row(
    document: Mapping[str, Any], folder: str, study: Study, flaws: list[str]
) -> dict[str, Any]:
    """The row in `trials` of the trial whose folder has this name. Its `steps` may be None."""
    status = _one_of("status", document.get("status"), STATUS_IN)
    steps = document.get("steps")
    return {
        "trial": _whole("trial_id", _digits(document.get("trial_id", folder)), 0, MOST_TRIALS),
        "optimizer": study.optimizer,
        "status": STATUS_IN[status],
        "steps": None if steps is None else _whole("steps", _digits(steps), 0, MANY),
        "params": _params(document.get("parameters"), study.space, flaws),
        "error": "INCOMPLETE in the archive" if status == "INCOMPLETE" else None,
        "archive_status": status,
    }


def _params(parameters: Any, space: Space, flaws: list[str]) -> str:
    """The parameters as JSON. A parameter that has a range in the space must be a number."""
    found: dict[str, Value] = {}
    for name, value in _parameters("parameters", parameters, flaws).items():
        try:
            if value is None:
                continue
            check = _number if isinstance(space.get(name), Range) else _setting
            check("its value", value)
            found[_parameter_name(name)] = value
        except ValueError as error:
            flaws.append(f"parameter {shown(name)} is left out: {error}")
    return json.dumps(found)


def _parameters(key: str, value: Any, flaws: list[str]) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        flaws.append(f"{key} is {shown(value)}, not a JSON object")
        return {}
    if len(value) > MOST_PARAMETERS:
        flaws.append(f"{key} has {len(value):,} entries; at most {MOST_PARAMETERS} are read")
        return {}
    return value


def _whole(key: str, value: Any, least: int, most: int) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{key} {shown(value)} is not a whole number from {least} to {most:,}")
    return value


def _digits(value: Any) -> Any:
    return int(value) if isinstance(value, str) and re.fullmatch("[0-9]{1,19}", value) else value


def _is_number(value: Any) -> bool:
    """Whether the value is a finite number that fits into 64 bits."""
    if type(value) is int:
        return abs(value) <= MOST_WHOLE
    return isinstance(value, float) and math.isfinite(value)


def _number(key: str, value: Any) -> float:
    if not _is_number(value):
        raise ValueError(f"{key} {shown(value)} is not a finite number of 64 bits")
    return float(value)


def _setting(key: str, value: Any) -> Value:
    """A metaparameter's value."""
    if isinstance(value, str):
        return _text(key, value)
    if not isinstance(value, bool) and not _is_number(value):
        raise ValueError(f"{key} {shown(value)} is neither a finite number of 64 bits nor text")
    setting: Value = value
    return setting


def _one_of(key: str, value: Any, known: Sequence[str] | Mapping[str, Any]) -> str:
    if value is None:
        raise ValueError(f"has no {key}")
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{key} {shown(value)} is not one of {', '.join(known)}")
    return value


def _text(key: str, value: str) -> str:
    if not value.isprintable() or len(value) > MOST_LETTERS:
        raise ValueError(
            f"{key} {shown(value)} is not printable text of up to {MOST_LETTERS} characters"
        )
    return value


def checked_name(key: str, value: str) -> str:
    """A text that becomes the name of a folder in a run."""
    if not value or not value.isprintable():
        raise ValueError(f"{key} {shown(value)} is not a printable name")
    if (length := len(quote(value, safe=""))) > MOST_IN_FOLDER:
        raise ValueError(
            f"{key} {shown(value)} is too long: as the name of a folder it has {length} bytes, but "
            f"at most {MOST_IN_FOLDER} are allowed"
        )
    return value


def _parameter_name(name: str) -> str:
    if not _text("name", name):
        raise ValueError("a parameter has no name")
    return name
