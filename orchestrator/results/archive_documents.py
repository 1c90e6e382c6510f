"""Reads and checks the two JSON documents of a published archive, study.json and metadata.json.

They were written by others. A `ValueError` names the key and the value that can't be used. A value
that is not required is left out and reported as a flaw. Code that uses the results of this file
need not check a value again.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from orchestrator.records import (
    MANY,
    STATUSES,
    Choice,
    EvaluationGrid,
    Goal,
    Range,
    Scale,
    Space,
    Status,
    Study,
    Value,
    shown,
)
from orchestrator.results.curve_files import content_of
from orchestrator.results.tables import TRIALS

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

OURS = "orchestrate"
"""The key in these documents under which our exports keep our record."""

MOST_BYTES = 4 * 2**20
"""Largest size of a document. As Python objects, JSON takes up to thirty times as much memory."""

MOST_PARAMETERS = 100
"""Largest number of metaparameters of a trial; each takes a column or two on the page."""

MOST_LETTERS = 200

MOST_IN_FOLDER = 240
"""Largest number of bytes in a name that becomes part of a folder's name, which may have 255."""

MOST_WHOLE = 2**62
MOST_TRIALS = 2**31 - 1
MOST_EXAMPLES = 2**40
"""Largest number of examples in an epoch."""

MOST_SPACING = 1e9
MOST_SECONDS = 1e15
LEAST_SECONDS = 1e-9
"""Smallest time other than 0 that is accepted; a shorter one can't have been measured."""


def read_document(path: str) -> dict[str, Any]:
    content = content_of(path, MOST_BYTES)
    try:
        document = _DECODER.decode(content.decode(json.detect_encoding(content)))
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8 text") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    if not isinstance(document, dict):
        raise ValueError("is not a JSON object")
    return document


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        (twice, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"has the key {shown(twice)} twice")
    return document


_DECODER = json.JSONDecoder(object_pairs_hook=_unique)


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
        workload=_name("workload", "/".join(workload)),
        recipe=_name("optimizer", optimizer),
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


def own_study(document: Any) -> tuple[int, Study]:
    """A study that was exported from this project, and its position in its run."""
    # Importing pydantic takes a tenth of a second, which only our own archives need.
    from pydantic import TypeAdapter, ValidationError

    if not isinstance(document, dict):
        raise ValueError(f"is {shown(document)}, not a JSON object")
    try:
        study = TypeAdapter(Study).validate_python(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    _name("workload", study.workload)
    _name("recipe", study.recipe)
    _name("optimizer", study.optimizer)
    _whole("batch_size", study.batch_size, 1, MANY)
    _whole("budget_steps", study.budget_steps, 0, MOST_WHOLE)
    _whole("trials", study.trials, 0, MOST_TRIALS)
    _whole("train_size", study.train_size or 1, 1, MOST_EXAMPLES)
    _number("inherit", study.inherit or 0, 0, MOST_SPACING)
    _number("grid.spacing", study.grid.spacing, 0, MOST_SPACING)
    _whole("grid.min_gap", study.grid.min_gap, 1, MOST_WHOLE)
    if max(len(study.goals), len(study.space)) > MOST_PARAMETERS:
        raise ValueError(f"has more than {MOST_PARAMETERS} goals or metaparameters")
    for goal in study.goals:
        if Goal.parse(str(goal)) != goal:
            raise ValueError(f"goal {shown(str(goal))} is not a usable goal")
    for name, entry in study.space.items():
        _parameter_name(name)
        for value in entry.options if isinstance(entry, Choice) else [entry]:
            if not isinstance(value, Range):
                _setting(f"space.{name}", value)
    _encodable("the study", json.dumps(asdict(study), ensure_ascii=False))
    position = _whole("place", document.get("place"), 0, MOST_WHOLE)
    return position, replace(study, repeats=0)


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
    if document.get(OURS) is not None:
        return _own_row(document[OURS], study, flaws)
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


def _own_row(document: Any, study: Study, flaws: list[str]) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise ValueError(f"{OURS} is {shown(document)}, not a JSON object")
    row: dict[str, Any] = {"archive_status": None}
    for field in TRIALS:
        name, value = field.name, document.get(field.name)
        if name == "params":
            row[name] = _params(value, study.space, flaws)
        elif value is None:
            if not field.nullable:
                raise ValueError(f"{OURS} has no {name}")
            row[name] = None
        elif name == "status":
            row[name] = _one_of(name, value, STATUSES)
        elif pa.types.is_string(field.type):
            row[name] = _encodable(name, value)
        elif pa.types.is_floating(field.type):
            row[name] = _number(name, value, 0, MOST_SECONDS)
            if 0 < row[name] < LEAST_SECONDS:
                raise ValueError(f"{name} {shown(value)} is less than {LEAST_SECONDS:g}")
        else:
            most = MOST_TRIALS if field.type == pa.int32() else 2**63 - 1
            most = MANY if name == "steps" else most
            row[name] = _whole(name, value, 1 if name == "ranks" else 0, most)
    return row


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


def _number(key: str, value: Any, least: float = -math.inf, most: float = math.inf) -> float:
    if not _is_number(value) or not least <= value <= most:
        raise ValueError(
            f"{key} {shown(value)} is not a finite number of 64 bits from {least:g} to {most:g}"
        )
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


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable() or len(value) > MOST_LETTERS:
        raise ValueError(
            f"{key} {shown(value)} is not printable text of up to {MOST_LETTERS} characters"
        )
    return value


def _encodable(key: str, value: Any) -> str:
    if not isinstance(value, str) or value != value.encode(errors="ignore").decode():
        raise ValueError(f"{key} {shown(value)} is not text, or has unpaired surrogate characters")
    return value


def _name(key: str, value: str) -> str:
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
