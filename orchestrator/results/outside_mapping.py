"""What the columns of other people's tables mean: the mapping that a user writes, and its guess."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from orchestrator.records import BadInput, Goal, cut, unknown, wrong_value
from orchestrator.results.archive_documents import MOST_PARAMETERS
from orchestrator.results.curve_files import MOST_COLUMNS
from orchestrator.results.tables import is_metric

Unit = Literal["steps", "examples", "tokens", "epochs"]

LISTS = ("run", "batch_size", "workload", "recipe", "seed", "params", "metrics", "goal")
"""Keys whose value is a text or a list of texts; all but goals are columns."""


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """What the columns of a table mean."""

    run: tuple[str, ...] = ()
    """Columns that tell runs apart. Without them, runs differ in a setting or in the seed."""
    step: str | None = None
    """How far the training was. Without it, each row is the end of a run that trained on the data
    of `scale`."""
    unit: Unit = "steps"
    """Unit of `step`."""
    tokens_per_example: float = 1
    """Tokens in an example, where `step` or `scale: {data: ...}` counts tokens."""
    batch_size: tuple[str, ...] = ()
    """The batch size, or columns whose product it is."""
    workload: tuple[str, ...] = ()
    """What is trained. Runs with other values have curves of their own."""
    recipe: tuple[str, ...] = ()
    """How it is trained. Runs with other values have curves of their own."""
    seed: tuple[str, ...] = ()
    """Runs that differ in these alone are repeats of one point."""
    params: tuple[str, ...] = ()
    """Metaparameters, which make a run's point."""
    metrics: tuple[str, ...] = ()
    """What was measured."""
    seconds: str | None = None
    """Seconds since the start, or the time of day in seconds."""
    status: str | None = None
    """How a run ended."""
    goal: tuple[str, ...] = ()
    """Goals, such as val_loss < 3."""
    scale: Mapping[str, str] = field(default_factory=dict)
    """Variable of scale, such as `data` and `model`, -> its column. Workloads are named by them."""
    examples: int | None = None
    """Size of the training set, for steps and questions in epochs."""

    def document(self) -> dict[str, Any]:
        """The mapping as it is written to a file: the keys that say something."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        usual = {"unit": "steps", "tokens_per_example": 1}
        return {
            key: [*value] if isinstance(value, tuple) else value
            for key, value in found.items()
            if value and value != usual.get(key)
        }


@dataclass(frozen=True, kw_only=True)
class Guess:
    """A mapping, and for each key that was guessed, why."""

    meaning: Meaning
    reasons: Mapping[str, str]

    def to_yaml(self) -> str:
        return "\n".join(
            f"{key}: {_flow(value)}" + (f"  # {self.reasons[key]}" if key in self.reasons else "")
            for key, value in self.meaning.document().items()
        )


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_flow(k)}: {_flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return _flow(value[0]) if len(value) == 1 else f"[{', '.join(map(_flow, value))}]"
    plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z_][\w./-]*", value)
    # These are YAML's other words for true, false and null.
    words = ("y", "n", "yes", "no", "on", "off", "true", "false", "null")
    return value if plain and value.lower() not in words else json.dumps(value)


def read_mapping(document: Mapping[str, Any], columns: Collection[str]) -> dict[str, Any]:
    """The keys of a mapping that a user wrote, checked against the columns of the table."""
    keys = [each.name for each in fields(Meaning)]
    found: dict[str, Any] = {}
    for key, written in document.items():
        if key not in keys:
            raise unknown("key of a mapping:", key, keys)
        value: Any = written
        right, rule = True, "a column"
        if key in LISTS:
            value = tuple(value) if isinstance(value, list) else () if value is None else (value,)
            right, rule = all(isinstance(each, str) for each in value), "a text or a list of texts"
        elif key == "scale":
            value, rule = {} if value is None else value, "names with a column each"
            right = isinstance(value, dict) and all(isinstance(v, str) for v in value.values())
        elif key == "unit":
            right, rule = value in get_args(Unit), f"one of {', '.join(get_args(Unit))}"
        elif key in ("tokens_per_example", "examples"):
            rule = "a number from 1 on"
            right = type(value) in (int, float) and 1 <= value < 2**62
        elif value is not None:
            right = isinstance(value, str)
        if not right:
            raise wrong_value(f"`{key}` of a mapping", rule, value)
        for name in [] if key in ("goal", "unit") else _named(value):
            if name not in columns:
                raise unknown("column", name, columns)
        found[str(key)] = value
    for goal in found.get("goal", ()):
        Goal.parse(goal)
    return found


def check(meaning: Meaning, columns: Iterable[str]) -> None:
    """Raises `BadInput` if rows with this meaning can't make studies."""
    taken = [name for name in meaning.metrics if not is_metric(name)]
    listed = cut(", ".join(map(repr, columns)), 1000)
    rules = (
        (meaning.batch_size, f"`batch_size` must name its column, of {listed}."),
        (
            meaning.step or "data" in meaning.scale,
            f"`step` must name its column, of {listed}. If each row is the end of a run, "
            f"`scale: {{data: COLUMN}}` does, too.",
        ),
        (
            0 < len(meaning.metrics) <= MOST_COLUMNS,
            f"`metrics` must name 1 to {MOST_COLUMNS} columns, of {listed}.",
        ),
        (
            len(meaning.params) <= MOST_PARAMETERS,
            f"`params` must name at most {MOST_PARAMETERS} columns, but names "
            f"{len(meaning.params)}.",
        ),
        (not taken, f"No metric can be called {' or '.join(taken)}: rename the column."),
        (meaning.unit != "epochs" or meaning.examples, "`unit: epochs` needs `examples`."),
    )
    for holds, rule in rules:
        if not holds:
            raise BadInput(f"{rule} Write it to a file and give --map FILE.", code="mapping")


# Names as people write them, after `_plain`. Of some lists, the first that is there is taken.
BATCH = (
    "global_batch_size", "total_batch_size", "effective_batch_size", "batch_size", "batchsize",
    "bs", "train_batch_size", "batch",
)  # fmt: skip
BATCH_PARTS = (
    ("per_device_train_batch_size", "per_device_batch_size", "device_batch_size",
     "micro_batch_size", "micro_batch"),
    ("gradient_accumulation_steps", "accumulate_grad_batches", "grad_accum", "grad_accum_steps"),
    ("world_size", "num_devices", "n_devices", "devices", "num_gpus", "n_gpus", "gpus"),
)  # fmt: skip
STEP = (
    "global_step", "trainer_global_step", "train_global_step", "step", "steps", "num_steps",
    "train_steps", "total_steps", "iteration", "iterations", "iter", "updates",
)  # fmt: skip
AMOUNTS: Mapping[str, Unit] = {
    "examples": "examples", "samples": "examples", "examples_seen": "examples",
    "samples_seen": "examples", "tokens": "tokens", "tokens_seen": "tokens", "n_tokens": "tokens",
    "epoch": "epochs", "epochs": "epochs",
}  # fmt: skip
SECONDS = (
    "seconds", "elapsed", "elapsed_seconds", "runtime", "wall_time", "time", "train_time",
    "timestamp",
)  # fmt: skip
STATUS = ("status", "state", "run_state")
SEED = ("seed", "random_seed", "rng_seed", "train_seed", "init_seed", "data_seed", "repeat",
        "replicate")  # fmt: skip
RUN = ("run", "run_id", "run_name", "trial", "trial_id", "experiment", "exp_name", "exp_id", "name",
       "id", "number")  # fmt: skip
RECIPE = ("recipe", "optimizer", "optim", "opt")
WORKLOAD = ("workload", "dataset", "data_set", "task", "data", "model", "model_name", "arch",
            "architecture")  # fmt: skip
SCALE = {
    "data": ("d", "data", "tokens", "train_tokens", "total_tokens", "n_tokens", "num_tokens"),
    "model": ("n", "model", "n_params", "num_params", "n_parameters", "num_parameters",
              "parameters", "model_size", "non_embedding_params"),
}  # fmt: skip
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


def has_step(names: Iterable[str]) -> bool:
    """Whether one of these columns looks like a step."""
    return any(_plain(name) in STEP or _plain(name) in AMOUNTS for name in names)


def guess(table: pa.Table, written: Mapping[str, Any], settings: Collection[str] | None) -> Guess:
    """The meaning of the columns by their names, and by their contents where names don't tell.
    What the user has written stands. `settings` are the columns that hold settings of runs, if the
    source tells them from what was measured."""
    search = _Search(table, written, settings)
    return Guess(meaning=Meaning(**search.found), reasons=search.reasons)


def _named(value: Any) -> list[str]:
    """The texts of a value of a mapping."""
    listed = [*value.values()] if isinstance(value, dict) else value
    return [*listed] if isinstance(listed, tuple | list) else [value] * isinstance(value, str)


class _Search:
    """Takes one column after the other, the surest first."""

    def __init__(
        self, table: pa.Table, written: Mapping[str, Any], settings: Collection[str] | None
    ) -> None:
        self._table, self._written, self._settings = table, written, settings
        self.found: dict[str, Any] = {**written}
        self.reasons: dict[str, str] = {}
        taken = {name for value in written.values() for name in _named(value)}
        # What a program logs beside what it was told to begins with _.
        names = sorted(table.column_names, key=lambda name: name.startswith("_"))
        self._free = {name: _plain(name) for name in names if name not in taken}
        if not self._take("batch_size", self._first(BATCH)):
            parts = [*filter(None, map(self._first, BATCH_PARTS))]
            self._take("batch_size", parts, "by their names, of which it is the product")
        self._take_step()
        self._take("seconds", self._first(SECONDS))
        self._take("status", self._first(STATUS, number=False))
        self._take("seed", self._all(SEED))
        scale = {variable: self._first(names) for variable, names in SCALE.items()}
        large = {k: v for k, v in scale.items() if v and (pc.min(table[v]).as_py() or 0) >= 1000}
        self._take("scale", large)
        self._take_step_of_data()
        self._take("run", self._all(RUN))
        self._take("recipe", self._all(RECIPE))
        self._take("workload", self._all(WORKLOAD))
        self._take_rest()

    def _take(self, key: str, value: Any, reason: str = "by name") -> bool:
        """Gives a key its columns, unless the user did."""
        if not value or key in self._written:
            return False
        listed = key in LISTS and isinstance(value, str | list)
        self.found[key] = tuple(_named(value)) if listed else value
        self.reasons[key] = reason
        for name in _named(value):
            self._free.pop(name, None)
        return True

    def _first(self, names: Iterable[str], *, number: bool = True) -> str | None:
        found = (n for plain in names for n in self._free if self._free[n] == plain)
        return next((name for name in found if self._is_number(name) == number), None)

    def _all(self, names: Sequence[str]) -> list[str]:
        """The columns with such names, for what is trained and how only those of texts."""
        texts = names in (RECIPE, WORKLOAD)
        found = [name for name, plain in self._free.items() if plain in names]
        return [n for n in found if not self._measured(n) and not (texts and self._is_number(n))]

    def _measured(self, name: str) -> bool:
        """Whether the source says that a column was measured, and is no setting."""
        return self._settings is not None and name not in self._settings

    def _is_number(self, name: str) -> bool:
        return not pt.is_dictionary(self._table.schema.field(name).type)

    def _distinct(self, names: Sequence[str]) -> int:
        return len(self._table.select(names).group_by([*names]).aggregate([])) if names else 1

    def _take_step(self) -> None:
        if self._take("step", self._first(STEP)) or "step" in self._written:
            return
        name = self._first(AMOUNTS)
        # The amount of data that a run is for has few values, and is no step.
        if name and self._distinct([name]) > max(20, 0.01 * len(self._table)):
            unit = AMOUNTS[self._free[name]]
            self._take("step", name)
            self._take("unit", unit)

    def _take_step_of_data(self) -> None:
        """Takes the column that is the amount of data over the batch size and a constant."""
        data = self.found.get("scale", {}).get("data")
        sizes = self.found.get("batch_size", ())
        if "step" in self.found or data is None or self._distinct([data]) < 2:
            return
        columns = {n: self._table[n].to_numpy() for n in self._free if self._is_number(n)}
        known = [pc.cast(self._table[name], pa.float64()).to_numpy() for name in (data, *sizes)]
        for name, column in columns.items():
            with np.errstate(all="ignore"):
                tokens = known[0] / np.prod([*known[1:], column], axis=0)
                is_it = np.max(tokens) < 1.01 * np.min(tokens) < np.inf
            if is_it:
                self._take("step", name, f"{data} is the batch size times this times a constant")
                each = max(float(np.round(np.median(tokens))), 1.0)
                self._take("tokens_per_example", each, "this constant")
                return

    def _take_rest(self) -> None:
        """Tells metaparameters from metrics, and both from names of runs."""
        rest: dict[str, list[str]] = {"params": [], "metrics": [], "run": []}
        for name in self._free:
            if (kind := self._kind(name)) is not None:
                rest[kind].append(name)
        if "run" not in self.found:
            self._take("run", rest["run"], "texts that differ in most rows")
        self._take("params", rest["params"], "what else is set")
        self._take("metrics", rest["metrics"], "by name, or because it changes along runs")

    def _kind(self, name: str) -> str | None:
        plain, column = self._free[name], self._table[name]
        if column.null_count == len(column):
            return None
        if self._settings is not None:
            if self._measured(name):
                return None if name.startswith("_") or not self._is_number(name) else "metrics"
            # They hold paths, versions and the like, which are mostly the same in all runs.
            return "params" if PARAM.fullmatch(plain) or self._distinct([name]) > 1 else None
        if not self._is_number(name):
            return "run" if self._distinct([name]) > max(len(column) / 2, 2) else "params"
        if METRIC.fullmatch(plain) or PARAM.fullmatch(plain):
            return "metrics" if METRIC.fullmatch(plain) else "params"
        fixed = [n for key in ("batch_size", "seed", "run") for n in self.found.get(key, ())]
        a_row_per_run = self._distinct(fixed) > 0.9 * len(column)
        differs = self._distinct([name] if a_row_per_run else [*fixed, name])
        return "metrics" if differs > 0.5 * len(column) else "params"
