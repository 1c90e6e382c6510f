"""What the columns of other people's tables mean: the mapping that a user writes, and its guess."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError

from orchestrator.records import BadInput, Goal, cut, shown, unknown
from orchestrator.results.archive import first_of
from orchestrator.results.archive_documents import MOST_PARAMETERS
from orchestrator.results.curve_files import MOST_COLUMNS
from orchestrator.results.tables import is_metric

Unit = Literal["steps", "examples", "tokens", "epochs"]

TO_GOAL = "Of a table of steps to a goal, make two rows per run (docs/outside-runs.md says how)."

LISTS = ("run", "batch_size", "workload", "recipe", "seed", "params", "metrics", "goal")
"""Keys whose value is a text or a list of texts; all but goals are columns."""


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """What the columns of a table mean. docs/outside-runs.md says what each key is for."""

    run: tuple[str, ...] = ()
    step: str | None = None
    unit: Unit = "steps"
    tokens_per_example: Annotated[float, Field(ge=1, lt=2**62)] | None = None
    batch_size: tuple[str, ...] = ()
    workload: tuple[str, ...] = ()
    recipe: tuple[str, ...] = ()
    seed: tuple[str, ...] = ()
    params: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    seconds: str | None = None
    status: str | None = None
    goal: tuple[str, ...] = ()
    scale: Mapping[str, str] = field(default_factory=dict)
    examples: Annotated[int, Field(ge=1, lt=2**62)] | None = None

    def document(self) -> dict[str, Any]:
        """The mapping as it is written to a file: the keys that say something."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return {key: [*v] if isinstance(v, tuple) else v for key, v in found.items() if v}

    def to_yaml(self) -> str:
        listed = self.document().items()
        return "\n".join(f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in listed)


def read_mapping(document: Mapping[str, Any], columns: Collection[str]) -> dict[str, Any]:
    """The keys of a mapping that a user wrote, checked against the columns of the table."""
    keys = [each.name for each in fields(Meaning)]
    if wrong := [key for key in document if key not in keys]:
        raise unknown("key of a mapping:", wrong[0], keys)
    said = {
        key: tuple(value if isinstance(value, list) else [value]) if key in LISTS else value
        for key, value in document.items()
        if value is not None
    }
    try:
        meaning = TypeAdapter(Meaning).validate_python(said)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise BadInput(
            f"`{key}` of a mapping is {shown(first['input'])}. {first['msg']}.", code="wrong-value"
        ) from None
    found = {key: getattr(meaning, key) for key in document}
    for key, value in found.items():
        for name in [] if key in ("goal", "unit") else _columns_in(value):
            if name not in columns:
                raise unknown("column", name, columns)
    for goal in meaning.goal:
        Goal.parse(goal)
    return found


def _columns_in(value: Any) -> list[str]:
    """The texts of a value of a mapping."""
    listed = [*value.values()] if isinstance(value, dict) else value
    return [*listed] if isinstance(listed, tuple | list) else [value] * isinstance(value, str)


def check(meaning: Meaning, columns: Collection[str], problems: Sequence[str]) -> None:
    """Raises `BadInput` if rows with this meaning can't make studies, perhaps due to `problems`."""
    taken = [name for name in meaning.metrics if not is_metric(name)]
    unmeasured = [goal for goal in meaning.goal if Goal.parse(goal).metric not in meaning.metrics]
    needed = {"epochs": "examples", "tokens": "tokens_per_example"}.get(meaning.unit)

    def listed(like: str) -> str:
        found = sorted(columns, key=lambda name: like not in name.lower())
        return cut(", ".join(map(repr, found)), 1000)

    rules = (
        (
            meaning.batch_size,
            f"`batch_size` must name its column, or columns whose product it is, of "
            f"{listed('batch')}. A folder called batch_size=32 gives it to all files within.",
        ),
        (
            meaning.step or "data" in meaning.scale,
            f"`step` must name its column, of {listed('step')}. If each row is the end of a run, "
            f"`scale: {{data: COLUMN}}` does, too. {TO_GOAL}",
        ),
        (
            0 < len(meaning.metrics) <= MOST_COLUMNS,
            f"`metrics` must name 1 to {MOST_COLUMNS} columns, of {listed('loss')}. {TO_GOAL}",
        ),
        (
            len(meaning.params) <= MOST_PARAMETERS,
            f"`params` must name at most {MOST_PARAMETERS} columns, but names "
            f"{len(meaning.params)}.",
        ),
        (not taken, f"No metric can be called {' or '.join(taken)}: rename the column."),
        (not unmeasured, f"`goal` must be of one of `metrics`, not {' or '.join(unmeasured)}."),
        (needed is None or getattr(meaning, needed), f"`unit: {meaning.unit}` needs `{needed}`."),
    )
    for holds, rule in rules:
        if not holds:
            todo = f"Write it to a file and give --map FILE.{first_of(problems)}"
            raise BadInput(f"{rule} {todo}", code="mapping")


NAMES: Mapping[str, tuple[bool | None, tuple[str, ...]]] = {
    "batch_size": (True, (
        "global_batch_size", "total_batch_size", "effective_batch_size", "batch_size", "bs",
        "train_batch_size", "batch",
    )),
    "step": (True, (
        "global_step", "trainer_global_step", "train_global_step", "step", "steps", "iteration",
        "iterations", "iter", "updates",
    )),
    "seconds": (True, ("seconds", "elapsed", "runtime", "wall_time", "time", "timestamp")),
    "status": (False, ("status", "state")),
    "seed": (None, ("seed", "random_seed", "data_seed", "repeat", "replicate")),
    "run": (None, (
        "run", "run_id", "run_name", "trial", "trial_id", "experiment", "exp_name", "name", "id",
    )),
    "recipe": (False, ("recipe", "optimizer", "optim", "opt")),
    "workload": (False, (
        "workload", "dataset", "task", "data", "model", "model_name", "arch", "architecture",
    )),
}  # fmt: skip
"""Key -> whether its columns hold numbers (None: or texts), and their names as people write them,
after `_plain`. Keys of one column take the first that is there."""

GLOBAL = ("global_batch_size", "total_batch_size", "effective_batch_size")
PARTS = re.compile(
    r".*accum.*|grad_acc.*|gas|(n|num)_?(gpu|device|rank|node|process|replica)(e?s)?|gpus|devices|"
    r"ranks|n?nodes|(gpu|device|node)_count|nproc.*|.*_per_node|.*world_size|(dp|data_parallel)_size"
)
"""Into how many devices or passes a batch is divided."""

AMOUNTS: Mapping[str, Unit] = {
    "examples": "examples", "samples": "examples", "examples_seen": "examples", "tokens": "tokens",
    "tokens_seen": "tokens", "epoch": "epochs", "epochs": "epochs",
}  # fmt: skip
SCALE = {
    "data": ("d", "data", "tokens", "train_tokens", "total_tokens", "num_tokens"),
    "model": ("n", "model", "n_params", "num_params", "parameters", "model_size"),
}
PARAM = re.compile(
    r"lr|wd|eta|eps(ilon)?|gamma|momentum|.*(learning_rate|_lr|decay|beta_?[12]?|dropout|warmup.*|"
    r"smoothing|width|depth|layers|heads|hidden.*)"
)
METRIC = re.compile(
    r".*(loss|acc|accuracy|error|err|perplexity|ppl|score|auc|f1|bleu|reward|precision|recall|mse|"
    r"mae|bpb|grad(ient)?_norm)(_.*)?|(val|valid|validation|eval|test|train)_(?!batch|size).*"
)
_PREFIX = re.compile(r"^_|^(config|params?|hparams?|hyperparameters?|user_attrs?)[_./]+")


def _plain(name: str) -> str:
    """A column's name as the lists above have it."""
    return re.sub(r"\W+", "_", _PREFIX.sub("", name.lower())).strip("_")


def is_setting(name: str, column: pa.ChunkedArray, runs: NDArray[np.int64]) -> bool:
    """Whether a column of measurements holds a setting: one value in each of the `runs` of its
    rows, and the name of a setting or, where runs have it several times, several values."""
    plain = _plain(name)
    if has_step([name]) or METRIC.fullmatch(plain):
        return False
    table = pa.table({"run": runs, "value": column}).filter(column.is_valid())
    each, values = _distinct(table, ["run", "value"]), _distinct(table, ["value"])
    if each > _distinct(table, ["run"]):
        return False
    # A text of each run is a name or a note.
    differs = 1 < values < each + (not pt.is_dictionary(column.type)) and 2 * each <= len(table)
    return differs or bool(PARAM.fullmatch(plain)) or any(plain in w for _, w in NAMES.values())


def has_step(names: Iterable[str]) -> bool:
    """Whether one of these columns looks like a step."""
    return any(_plain(name) in (*NAMES["step"][1], *AMOUNTS) for name in names)


def names_runs(name: str) -> bool:
    """Whether a column looks like one of names of runs, which are texts even if numbers."""
    return _plain(name) in NAMES["run"][1]


def guess(table: pa.Table, written: Mapping[str, Any], settings: Collection[str] | None) -> Meaning:
    """The meaning of the columns by their names, and by their contents where names don't tell.
    What the user has written stands. `settings` are the columns that hold settings of runs, if the
    source tells them from what was measured."""
    found = {**written}
    taken = {name for value in written.values() for name in _columns_in(value)}
    # What a program logs beside what it was told to begins with _.
    names = sorted(table.column_names, key=lambda name: name.startswith("_"))
    free = {name: _plain(name) for name in names if name not in taken}

    def look(names: Iterable[str], number: bool | None) -> list[str]:
        there = [name for plain in names for name in free if free[name] == plain]
        there = [name for name in there if number in (None, _is_number(table, name))]
        return [name for name in there if number or settings is None or name in settings]

    def take(key: str, value: Any) -> None:
        if value and key not in written:
            found[key] = tuple(value) if isinstance(value, list) else value
            for name in _columns_in(value):
                free.pop(name, None)

    for key, (number, words) in NAMES.items():
        columns = look(words, number)
        if key == "step" and settings is not None:  # one that is set is the length of the run
            also = [*columns, *look(AMOUNTS, True)]
            columns = [name for name in also if name not in settings] or columns
        if key == "batch_size" and columns:
            # Two columns of the batch size would be multiplied. One that may be of a single device
            # or pass is none: only its owner knows.
            parts = look([plain for plain in free.values() if PARTS.fullmatch(plain)], True)
            most = max([pc.max(table[name]).as_py() or 0 for name in parts], default=0)
            whole = free[columns[0]] in GLOBAL or most <= 1
            columns = columns[:whole]
        take(key, columns if key in LISTS else next(iter(columns), None))
    for name in look(AMOUNTS, True)[:1]:
        # The amount of data that a run is for has few values, and is no step.
        if "step" not in found and _distinct(table, [name]) > max(20, 0.01 * len(table)):
            take("step", name)
    take("unit", AMOUNTS.get(_plain(found.get("step") or "").removeprefix("train_")))
    scale = {variable: name for variable in SCALE for name in look(SCALE[variable], True)[:1]}
    run, step = found.get("run", ()), _columns_in(found.get("step"))
    rows = _distinct(table, [*run, *step])

    def is_scale(name: str) -> bool:
        # One that was measured, or has a value for each step of a run, says how far it has come.
        measured = settings is not None and name not in settings
        grows = run and 2 * _distinct(table, [*run, name]) > rows > 2 * _distinct(table, run)
        return not measured and not grows and (pc.min(table[name]).as_py() or 0) >= 1000

    take("scale", {v: name for v, name in scale.items() if is_scale(name)})
    if "step" not in found and "data" in found.get("scale", {}):
        known = [found["scale"]["data"], *found.get("batch_size", ())]
        length, tokens = _step_of_data(table, known, look(free.values(), True))
        take("step", length)
        take("tokens_per_example", tokens)
    fixed = [name for key in ("batch_size", "seed", "run") for name in found.get(key, ())]
    kinds = {name: _kind(table, name, fixed, settings) for name in free}
    for key in ("params", "metrics", "run"):
        # Where others tell rows apart, a text of each row is a time of day or a message.
        apart = ("step", "batch_size", "workload", "recipe", "seed", "params", "scale")
        others = [name for each in apart for name in _columns_in(found.get(each))]
        if key != "run" or ("run" not in found and _distinct(table, others) <= 0.9 * len(table)):
            take(key, [name for name in kinds if kinds[name] == key])
    if "run" not in written:
        found["run"] = _whole_run(table, found.get("run", ()), others, found)
    return Meaning(**found)


def _whole_run(
    table: pa.Table, run: Sequence[str], others: Sequence[str], found: Mapping[str, Any]
) -> tuple[str, ...]:
    """`run`, with those of the `others` without which it has a step several times: it may number
    the trials of each study anew, or name all seeds alike."""
    rows = [*run, *_columns_in(found.get("step"))]
    for name in others if run and _distinct(table, rows) < len(table) else ():
        apart = _distinct(table, [*rows, name])
        # That of a schedule has about as many values as steps, and a resumed run some steps twice.
        is_set = name not in found.get("params", ()) or apart >= 2 * _distinct(table, [*run, name])
        if is_set and not table[name].null_count and apart > _distinct(table, rows):
            run, rows = (*run, name), [*rows, name]
    return tuple(run)


def _is_number(table: pa.Table, name: str) -> bool:
    return not pt.is_dictionary(table.schema.field(name).type)


def _distinct(table: pa.Table, names: Sequence[str]) -> int:
    names = [*dict.fromkeys(names)]
    return len(table.select(names).group_by(names).aggregate([])) if names else 1


def _step_of_data(
    table: pa.Table, known: Sequence[str], names: Sequence[str]
) -> tuple[str | None, float | None]:
    """The column among `names` by which data, divided by the batch size, are a constant; and that
    number of tokens."""
    data, *sizes = (table[name].to_numpy() for name in known)
    with np.errstate(all="ignore"):
        for name in names if len(data) and np.ptp(data) else ():
            tokens = data / np.prod([*sizes, table[name].to_numpy()], axis=0, dtype=float)
            if np.max(tokens) < 1.01 * np.min(tokens) < np.inf:
                return name, max(float(np.round(np.median(tokens))), 1.0)
    return None, None


def _kind(
    table: pa.Table, name: str, fixed: Sequence[str], settings: Collection[str] | None
) -> str | None:
    """Tells metaparameters, metrics and names of runs apart. `fixed` are the same in a run."""
    plain, column, number = _plain(name), table[name], _is_number(table, name)
    if column.null_count == len(column) or not is_metric(name):
        return None
    if settings is not None and name not in settings:
        return "metrics" if number and not name.startswith("_") else None
    if settings is not None:
        # They hold paths, versions and the like, which are mostly the same in all runs.
        return "params" if PARAM.fullmatch(plain) or _distinct(table, [name]) > 1 else None
    if not number:
        return "run" if _distinct(table, [name]) > max(len(column) / 2, 2) else "params"
    if METRIC.fullmatch(plain) or PARAM.fullmatch(plain):
        return "metrics" if METRIC.fullmatch(plain) else "params"
    a_row_per_run = _distinct(table, fixed) > 0.9 * len(column)
    differs = _distinct(table, [name] if a_row_per_run else [*fixed, name])
    return "metrics" if differs > 0.5 * len(column) else "params"
