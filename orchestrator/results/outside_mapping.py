"""What the columns of other people's tables mean: the mapping that a user writes, and its guess."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from orchestrator.records import BadInput, Goal, unknown, wrong_value

Unit = Literal["steps", "examples", "tokens", "epochs"]
UNITS: tuple[Unit, ...] = ("steps", "examples", "tokens", "epochs")

COLUMNS = ("run", "batch_size", "workload", "recipe", "seed", "params", "metrics")
"""Keys whose value is a column or a list of columns."""

COLUMN = ("step", "seconds", "status")
"""Keys whose value is one column."""


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """What the columns of a table mean."""

    run: tuple[str, ...] = ()
    """Columns that tell runs apart. Without them, runs differ in a setting or the seed."""
    step: str | None = None
    """How far the training was. Without it, `scale: {data: COLUMN}` says how far it went."""
    unit: Unit = "steps"
    """Unit of `step`."""
    tokens_per_example: float = 1
    """Tokens of an example, where `step` or the scale `data` counts tokens."""
    batch_size: tuple[str, ...] = ()
    """The batch size, or columns whose product it is."""
    workload: tuple[str, ...] = ()
    """What is trained. Runs with other values have curves of their own."""
    recipe: tuple[str, ...] = ()
    """How it is trained. Runs with other values have curves of their own."""
    seed: tuple[str, ...] = ()
    """Runs that differ in these alone are repeats of one point."""
    params: tuple[str, ...] = ()
    """Metaparameters. They are a run's point."""
    metrics: tuple[str, ...] = ()
    """What was measured."""
    seconds: str | None = None
    """Time since the start in seconds, or the time of day."""
    status: str | None = None
    """How a run ended."""
    goal: tuple[str, ...] = ()
    """Goals, such as val_loss < 3."""
    scale: Mapping[str, str] = field(default_factory=dict)
    """Variable of scale -> its column: `data` and `model`. Workloads are named by them."""
    examples: int | None = None
    """Size of the training set, if steps or questions are in epochs."""

    @property
    def columns(self) -> list[str]:
        """All columns that it names, each once."""
        named = [name for key in COLUMNS for name in getattr(self, key)]
        named += [name for key in COLUMN if (name := getattr(self, key))]
        return [*dict.fromkeys([*named, *self.scale.values()])]

    def document(self) -> dict[str, Any]:
        """The mapping as it is written to a file: the keys that say something."""
        return {
            key: [*value] if isinstance(value, tuple) else value
            for key, value in asdict(self).items()
            if value not in (None, (), {})
        }


@dataclass(frozen=True, kw_only=True)
class Guess:
    """A mapping, and for each key why it was guessed so. Keys that the user wrote have none."""

    meaning: Meaning
    reasons: Mapping[str, str]

    def to_yaml(self) -> str:
        lines = []
        for key, value in self.meaning.document().items():
            text = f"{key}: {_flow(value)}"
            lines.append(f"{text}  # {self.reasons[key]}" if key in self.reasons else text)
        return "\n".join(lines)


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_flow(k)}: {_flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return _flow(value[0]) if len(value) == 1 else f"[{', '.join(map(_flow, value))}]"
    plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z_][\w./-]*", value)
    # These are YAML's other words for true, false and null.
    words = ("y", "n", "yes", "no", "on", "off", "true", "false", "null", "none")
    return value if plain and value.lower() not in words else json.dumps(value)


def read_mapping(document: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """The keys of a mapping that a user wrote, checked. `known` are the table's columns."""
    keys = [each.name for each in fields(Meaning)]
    found: dict[str, Any] = {}
    for key, value in document.items():
        if key not in keys:
            raise unknown("key of the mapping:", key, keys)
        if key in COLUMNS or key == "goal":
            found[key] = _texts(key, value)
        elif key == "scale":
            if not isinstance(value, dict | None) or len(value or {}) > 10:
                raise wrong_value("`scale`", "names of variables with a column each", value)
            found[key] = {
                str(name): _text(f"scale.{name}", at) for name, at in (value or {}).items()
            }
        elif key in COLUMN:
            found[key] = None if value is None else _text(key, value)
        elif key == "unit":
            if value not in UNITS:
                raise wrong_value("`unit`", f"one of {', '.join(UNITS)}", value)
            found[key] = value
        else:
            found[key] = _positive(key, value)
    for goal in found.get("goal", ()):
        Goal.parse(goal)
    for name in Meaning(**{k: v for k, v in found.items() if k != "goal"}).columns:
        if name not in known:
            raise unknown("column", name, known)
    return found


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise wrong_value(f"`{key}`", "the name of a column", value)
    return value


def _texts(key: str, value: Any) -> tuple[str, ...]:
    listed = value if isinstance(value, list) else [] if value is None else [value]
    return tuple(dict.fromkeys(_text(key, each) for each in listed))


def _positive(key: str, value: Any) -> Any:
    if value is None:
        return 1 if key == "tokens_per_example" else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 2**62:
        raise wrong_value(f"`{key}`", "a number above 0", value)
    return int(value) if key == "examples" else float(value)


# Names as people write them, after `_plain`. In a tuple, the first that is there is taken.
BATCH = (
    "global_batch_size", "total_batch_size", "effective_batch_size", "batch_size", "batchsize", "bs",
    "train_batch_size", "batch",
)  # fmt: skip
BATCH_PARTS = (
    ("per_device_train_batch_size", "per_device_batch_size", "device_batch_size",
     "micro_batch_size", "micro_batch"),
    ("gradient_accumulation_steps", "accumulate_grad_batches", "grad_accum", "grad_accum_steps"),
    ("world_size", "num_devices", "n_devices", "devices", "num_gpus", "n_gpus", "gpus"),
)  # fmt: skip
STEP = (
    "global_step", "trainer_global_step", "train_global_step", "step", "steps", "num_steps",
    "train_steps", "total_steps", "iteration", "iterations", "iter", "num_iterations", "updates",
)  # fmt: skip
AMOUNTS: Mapping[str, Unit] = {
    "examples": "examples", "samples": "examples", "examples_seen": "examples",
    "samples_seen": "examples", "tokens": "tokens", "tokens_seen": "tokens", "n_tokens": "tokens",
    "epoch": "epochs", "epochs": "epochs",
}  # fmt: skip
SECONDS = ("seconds", "elapsed", "elapsed_seconds", "runtime", "wall_time", "walltime", "time",
           "train_time", "timestamp")  # fmt: skip
STATUS = ("status", "state", "run_state")
SEED = ("seed", "random_seed", "rng_seed", "train_seed", "init_seed", "data_seed", "repeat",
        "replicate")  # fmt: skip
RUN = ("run", "run_id", "run_name", "trial", "trial_id", "experiment", "exp_name", "exp_id", "name",
       "id", "number")  # fmt: skip
RECIPE = ("recipe", "optimizer", "optim", "opt")
WORKLOAD = ("workload", "dataset", "data_set", "task", "data", "model", "model_name", "architecture",
            "arch")  # fmt: skip
SCALE = {
    "data": ("d", "data", "tokens", "train_tokens", "total_tokens", "n_tokens", "num_tokens",
             "dataset_tokens"),
    "model": ("n", "model", "n_params", "num_params", "n_parameters", "num_parameters",
              "parameters", "model_size", "model_params", "non_embedding_params"),
}  # fmt: skip
PARAM = re.compile(
    r"lr|eta|eps(ilon)?|gamma|momentum|.*(learning_rate|_lr|weight_decay|beta_?[12]?|dropout|"
    r"warmup.*|decay|smoothing|width|depth|layers|heads|hidden.*)|wd"
)
METRIC = re.compile(
    r".*(loss|acc|accuracy|error|err|perplexity|ppl|score|auc|f1|bleu|rouge|reward|precision|recall|"
    r"mse|mae|rmse|bpb|grad(ient)?_norm|throughput|per_second)(_.*)?|(val|valid|validation|eval|test|"
    r"train)_(?!batch|steps?$|epochs?$|size).*"
)
_FIRST = re.compile(r"^_|^(config|params?|hparams?|hyperparameters?|user_attrs?)[_./]+")


def _plain(name: str) -> str:
    """A column's name as the lists above have it."""
    return re.sub(r"\W+", "_", _FIRST.sub("", name.lower())).strip("_")


def has_step(names: Iterable[str]) -> bool:
    """Whether one of these columns looks like a step."""
    return any(_plain(name) in STEP or _plain(name) in AMOUNTS for name in names)


def guess(
    table: pa.Table, written: Mapping[str, Any], settings: Collection[str] | None = None
) -> Guess:
    """The meaning of the columns by their names, and by their contents where names don't tell.
    What the user has written stands. `settings` are the columns that hold settings of runs, if the
    source tells them from what was measured."""
    search = _Search(table, written, settings)
    meaning = Meaning(**{**search.found, **written})
    taken = {name for key in written for name in _named(written[key])}
    for key, value in search.found.items():
        if key not in written and isinstance(value, tuple):
            meaning = replace(meaning, **{key: tuple(n for n in value if n not in taken)})
    return Guess(
        meaning=meaning, reasons={k: v for k, v in search.reasons.items() if k not in written}
    )


def _named(value: Any) -> Iterable[str]:
    return (
        value.values()
        if isinstance(value, Mapping)
        else [value]
        if isinstance(value, str)
        else (value if isinstance(value, tuple) else ())
    )


class _Search:
    """Takes one column after the other, the surest first."""

    def __init__(
        self, table: pa.Table, written: Mapping[str, Any], settings: Collection[str] | None
    ) -> None:
        self._table, self._settings = table, settings
        self.found: dict[str, Any] = {}
        self.reasons: dict[str, str] = {}
        taken = {name for value in written.values() for name in _named(value)}
        self._free = {name: _plain(name) for name in table.column_names if name not in taken}
        self._written = written
        self._batch()
        self._step()
        for key, names in (("seconds", SECONDS), ("status", STATUS)):
            if (name := self._first(key, names)) is not None:
                self._take(key, name, f"by its name, {name!r}")
        self._several("seed", SEED, "by its name")
        self._scale()
        self._step_by_contents()
        self._several("run", RUN, "by its name")
        self._several("recipe", RECIPE, "by its name", text=True)
        self._several("workload", WORKLOAD, "by its name, and because it holds text", text=True)
        self._rest()

    def _take(self, key: str, value: Any, reason: str) -> None:
        if key in self._written:
            return
        self.found[key], self.reasons[key] = value, reason
        for name in _named(value):
            self._free.pop(name, None)

    def _first(self, key: str, names: Sequence[str], *, text: bool = False) -> str | None:
        """The first of `names` that is there."""
        if key in self._written:
            return None
        for plain in names:
            for name in sorted(self._free, key=lambda name: name.startswith("_")):
                number = not text and key not in ("status",)
                if self._free[name] == plain and self._is_number(name) == number:
                    return name
        return None

    def _several(self, key: str, names: Sequence[str], reason: str, *, text: bool = False) -> None:
        found = [n for n, plain in self._free.items() if plain in names]
        if text:
            found = [name for name in found if not self._is_number(name)]
        found = [name for name in found if not self._measured(name)]
        if found and key not in self._written:
            self._take(key, tuple(found), reason)

    def _measured(self, name: str) -> bool:
        """Whether the source says that a column was measured, and is no setting."""
        return self._settings is not None and name not in self._settings

    def _is_number(self, name: str) -> bool:
        kind = self._table.schema.field(name).type
        return bool(pt.is_integer(kind) or pt.is_floating(kind))

    def _batch(self) -> None:
        if (name := self._first("batch_size", BATCH)) is not None:
            self._take("batch_size", (name,), f"by its name, {name!r}")
            return
        parts = [self._first("batch_size", names) for names in BATCH_PARTS]
        if parts[0] is not None:
            self._take("batch_size", tuple(filter(None, parts)), "their product, by their names")

    def _step(self) -> None:
        name = self._first("step", STEP)
        if name is not None:
            self._take("step", name, f"by its name, {name!r}")
            return
        if (name := self._first("step", [*AMOUNTS])) is not None:
            unit = AMOUNTS[self._free[name]]
            if unit == "tokens" and not self._grows(name):
                return  # the amount of training data, which is a scale
            self._take("step", name, f"by its name, {name!r}")
            if "unit" not in self._written:
                self._take("unit", unit, f"by the name {name!r}")

    def _grows(self, name: str) -> bool:
        """Whether a column has many values, as one that grows along runs."""
        distinct = pc.count_distinct(self._table[name]).as_py()
        return bool(distinct > 20 and distinct > 0.01 * len(self._table))

    def _scale(self) -> None:
        scale = {}
        for variable, names in SCALE.items():
            name = self._first("scale", names)
            if name is not None and (pc.min(self._table[name]).as_py() or 0) >= 1000:
                scale[variable] = name
        if scale:
            self._take("scale", scale, "by their names; leave it out if they aren't that")

    def _step_by_contents(self) -> None:
        """Takes the column that is the amount of data over the batch size and a constant."""
        scale = self._written.get("scale", self.found.get("scale", {}))
        if self._so_far("step") or "step" in self._written or "data" not in scale:
            return
        names = [scale["data"], *self._so_far("batch_size")]
        data, *sizes = (pc.cast(self._table[name], pa.float64()).to_numpy() for name in names)
        for name in [name for name in self._free if self._is_number(name)]:
            with np.errstate(all="ignore"):
                tokens = data / np.prod([*sizes, self._table[name].to_numpy()], axis=0)
                close = len(tokens) and np.max(tokens) < 1.01 * np.min(tokens) < np.inf
            if close and len(np.unique(data)) > 1:
                self._take("step", name, f"{name!r} is {scale['data']!r} over the batch size")
                if (each := round(float(np.median(tokens)))) > 1:
                    self._take(
                        "tokens_per_example", float(each), "so many are in a batch's example"
                    )
                return

    def _rest(self) -> None:
        """Tells metaparameters from metrics, and both from names of runs."""
        fixed = [n for key in ("batch_size", "seed", "run") for n in self._so_far(key)]
        params, metrics, names = [], [], []
        for name, plain in self._free.items():
            column = self._table[name]
            if column.null_count == len(column) or (name.startswith("_") and self._measured(name)):
                continue
            if not self._is_number(name):
                if self._measured(name):
                    continue
                text = pc.count_distinct(column).as_py() > max(len(column) / 2, 2)
                (names if text and self._settings is None else params).append(name)
            elif self._settings is not None:
                (metrics if self._measured(name) else params).append(name)
            elif METRIC.fullmatch(plain):
                metrics.append(name)
            elif PARAM.fullmatch(plain):
                params.append(name)
            else:
                (metrics if self._changes(name, fixed) else params).append(name)
        if self._settings is not None:  # they hold paths, versions and the like
            params = [
                name
                for name in params
                if PARAM.fullmatch(self._free[name])
                or pc.count_distinct(self._table[name]).as_py() > 1
            ]
        if names and not self._so_far("run"):
            self._take("run", tuple(names), "text that is another one in most rows")
        if params:
            self._take("params", tuple(params), "what else is set: a point of the search")
        if metrics:
            self._take("metrics", tuple(metrics), "by their names, or because they change in a run")

    def _so_far(self, key: str) -> Sequence[str]:
        found: Sequence[str] = self._written.get(key, self.found.get(key, ()))
        return found

    def _changes(self, name: str, fixed: Sequence[str]) -> bool:
        """Whether a column has other values where these are the same, or, in a table with a row per
        run, hardly a value twice."""
        groups = self._table.select([*fixed, name]).group_by([*fixed, name]).aggregate([])
        apart = self._table.select(fixed).group_by([*fixed]).aggregate([]) if fixed else [0]
        if len(apart) > 0.9 * len(self._table):
            kind = self._table.schema.field(name).type
            return bool(
                pt.is_floating(kind)
                and len(groups) > 0.9 * len(self._table)
                and pc.count_distinct(self._table[name]).as_py() > 0.5 * len(self._table)
            )
        return len(groups) > 0.5 * len(self._table)


def need_batch_size(meaning: Meaning, columns: Iterable[str]) -> None:
    if not meaning.batch_size:
        raise BadInput(
            f"No column is known to hold the batch size. Say which: `batch_size: COLUMN` in a file, "
            f"and --map FILE. The columns are {', '.join(map(repr, np.array([*columns])[:50]))}.",
            code="mapping",
        )
