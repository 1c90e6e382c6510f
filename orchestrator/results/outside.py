"""Makes a run of runs that were trained elsewhere: rows in, studies out.

Every source becomes one table with a row per measurement, and a mapping says what its columns mean.
Runs that differ in their seed alone are one point: the first is its trial, the others its repeats.
A run that ended before the longest of its study could still have reached a goal, whatever the
reason. It counts as ended early, and the frontier says where that could change an answer.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from orchestrator.records import (
    MANY,
    BadInput,
    Choice,
    EvaluationGrid,
    Goal,
    Range,
    SearchPlan,
    Space,
    Status,
    Study,
    StudyKey,
    Value,
    counted,
    escaped,
)
from orchestrator.records.ranges import LARGEST, SMALLEST
from orchestrator.records.studies import WIDEST_SPACING
from orchestrator.results.archive import IMPORTED_TRIALS, complete, holds_no, refuse_run
from orchestrator.results.archive_documents import MOST_LETTERS, MOST_WHOLE, checked_name
from orchestrator.results.outside_mapping import Meaning, check, guess, read_mapping
from orchestrator.results.store import RunFiles
from orchestrator.results.tables import REPEAT, as_number, numbers

COMPLETE = ("finished", "complete", "completed", "exhausted", "reached", "success", "done", "ok")
"""What sources write of a run that came to its end."""

CRASHED = ("failed", "fail", "crashed", "killed", "error", "infeasible", "preempted")


@dataclass(frozen=True, kw_only=True)
class Rows:
    """What a source holds."""

    name: str
    table: pa.Table
    """A row per measurement. Columns hold whole numbers, numbers or dictionaries of texts."""
    settings: frozenset[str] | None = None
    """Columns that hold settings of runs; None if the source does not tell them from metrics."""
    problems: list[str] = field(default_factory=list)

    def guess(self, written: Mapping[str, Any]) -> Meaning:
        """What the columns mean. What the user has `written` of it stands."""
        return guess(self.table, read_mapping(written, self.table.column_names), self.settings)


@dataclass(frozen=True, kw_only=True)
class _Training:
    """A run of the table."""

    number: int
    key: StudyKey
    params: Mapping[str, Value]
    seed: tuple[Any, ...]
    status: str
    """What the source says of its end."""


Points = dict[str, dict[Any, _Training]]
"""The points of a study, each with its trainings by their seed."""


def import_rows(rows: Rows, meaning: Meaning, run: RunFiles) -> str:
    """Makes `run` of these rows, and says in a line how many there are."""
    if not rows.table.num_columns:
        raise holds_no("column that can be used", rows.name, rows.problems)
    check(meaning, rows.table.column_names, rows.problems)
    refuse_run(run)
    with run.locked():
        run.repeats.place.remove_folder()  # of an import that was killed, by another mapping
        runs = _Runs(rows, meaning)
        points = runs.points()
        spaces = _spaces(points)
        studies = [
            _write(run, runs, key, points[key], spaces[key.workload, key.recipe])
            for key in sorted(points)
        ]
        rows.problems.extend(
            escaped(f"{rows.name}: {what}: {number:,}")
            for what, number in runs.counted.items()
            if number
        )
        if not studies:
            raise holds_no("run that can be used", rows.name, rows.problems)
        origin = {"mapping": meaning.document(), "scales": runs.scales}
        complete(run, rows.name, studies, rows.problems, **origin)
    trials = sum(study.trials for study in studies)
    repeats = sum(len(point) - 1 for study in points.values() for point in study.values())
    numbers = ((len(studies), "study"), (trials, "trial"), (repeats, "repeat"))
    return ", ".join(counted(*one) for one in numbers)


class _Runs:
    """The runs of a table, and their measurements in order of run and step."""

    def __init__(self, rows: Rows, meaning: Meaning) -> None:
        self.meaning = meaning
        self.counted = Counter[str]()
        """What is odd -> how often it is found."""
        self.scales: dict[str, dict[str, float]] = {}
        self._name, self._table = rows.name, rows.table
        run = self._run_of_rows()
        # Without a step, a run is as long as its data are enough for.
        amount = numbers(self._number(meaning.step or meaning.scale["data"]))
        order = np.lexsort((amount, run))
        if (order[1:] < order[:-1]).any():
            self._table, run, amount = self._table.take(pa.array(order)), run[order], amount[order]
        self._begins = np.searchsorted(run, np.arange(run.max(initial=-1) + 2))
        self.trainings = self._describe()
        self._measure(run, amount)

    def _number(self, name: str) -> pa.ChunkedArray:
        """A column as numbers."""
        column = self._table[name]
        if pa.types.is_dictionary(column.type):
            raise BadInput(f"The column {name!r} holds texts. Name one of numbers.", code="mapping")
        return column.cast(pa.float64())

    def _run_of_rows(self) -> NDArray[np.int64]:
        """The number of each row's run, in order of appearance."""
        meaning, length = self.meaning, len(self._table)
        if not meaning.run and meaning.step is None:
            return np.arange(length)  # a row per run
        apart = [*meaning.workload, *meaning.recipe, *meaning.scale.values(), *meaning.batch_size]
        number: NDArray[np.int64] = np.zeros(length, np.int64)
        for name in meaning.run or dict.fromkeys([*apart, *meaning.params, *meaning.seed]):
            coded = self._table[name].dictionary_encode().unify_dictionaries().combine_chunks()
            code = pc.fill_null(coded.indices, -1).to_numpy() + np.int64(1)
            both = pa.array(number * (code.max(initial=0) + 1) + code).dictionary_encode()
            number = both.indices.to_numpy().astype(np.int64)
        return number

    def _describe(self) -> list[_Training | None]:
        """What each run is a training of; None if it can't be used."""
        meaning = self.meaning
        named = [*meaning.batch_size, *meaning.workload, *meaning.recipe, *meaning.seed]
        named += [*meaning.params, *meaning.scale.values()]
        values = {name: self._of_runs(name) for name in named}
        for name, firsts in values.items():
            lasts = self._of_runs(name, last=True)
            problem = f"runs in which {name!r} changes, whose first value counts"
            self.counted[problem] += sum(map(str.__ne__, map(str, firsts), map(str, lasts)))
        found: list[_Training | None] = []
        for number, word in enumerate(self._of_runs(meaning.status, last=True)):
            of = {name: column[number] for name, column in values.items()}
            try:
                training = _Training(
                    number=number,
                    key=self._key(of),
                    params={name: of[name] for name in meaning.params if _is_setting(of[name])},
                    seed=tuple(of[name] for name in meaning.seed),
                    status=str(word or "").lower(),
                )
            except ValueError as error:
                self.counted[f"runs that are left out, since {error}"] += 1
                training = None
            found.append(training)
        return found

    def _of_runs(self, name: str | None, *, last: bool = False) -> list[Any]:
        """For each run, the first value of a column, or its last one."""
        if name is None:
            return [None] * (len(self._begins) - 1)
        values: list[Any] = _one_of_each(self._table[name], self._begins, last=last).to_pylist()
        return values

    def _key(self, of: Mapping[str, Any]) -> StudyKey:
        meaning = self.meaning
        size = math.prod(_float(of[name]) for name in meaning.batch_size)
        if not (1 <= size <= MANY and size == int(size)):
            raise ValueError(f"the batch size is no whole number from 1 to {MANY:,}")
        scales = {variable: _float(of[name]) for variable, name in meaning.scale.items()}
        if not all(0 < value < 1e30 for value in scales.values()):
            raise ValueError("a scale is no number above 0")
        parts = [str(of[name]) for name in meaning.workload]
        parts += [",".join(f"{name}={value:.12g}" for name, value in scales.items())] * bool(scales)
        workload = checked_name("workload", escaped("/".join(dict.fromkeys(parts)) or self._name))
        recipes = dict.fromkeys(str(of[name]) for name in meaning.recipe)
        recipe = checked_name("recipe", escaped("/".join(recipes)) or "as trained")
        if scales:
            self.scales[workload] = scales
        return StudyKey(workload=workload, recipe=recipe, batch_size=int(size))

    def _measure(self, run: NDArray[np.int64], amount: NDArray[np.float64]) -> None:
        """Makes one row of the rows of a run and a step, and leaves out those without either."""
        meaning = self.meaning
        size = np.array([one.key.batch_size if one else math.nan for one in self.trainings], float)
        per_example = {
            "examples": 1,
            "tokens": meaning.tokens_per_example or 1,
            "epochs": 1 / (meaning.examples or math.nan),
        }.get(meaning.unit if meaning.step else "tokens")
        if per_example is not None:
            # A last batch that is not full is a step, too; what rounding adds is none.
            amount = amount / (size * per_example)[run]
            whole = np.round(amount)
            is_whole = np.isclose(amount, whole, rtol=1e-6, atol=0)
            amount = np.where(is_whole, whole, np.ceil(amount))
        columns = {name: self._number(name) for name in meaning.metrics}
        measured = np.any([column.is_valid().to_numpy() for column in columns.values()], axis=0)
        used = measured & ~np.isnan(size)[run]
        right = (amount >= 0) & (amount <= MANY) & (amount == np.floor(amount))
        problem = f"rows whose step is no whole number from 0 to {MANY:,}"
        self.counted[problem] += int(np.sum(used & ~right))
        used &= right
        if meaning.seconds:
            columns["seconds"] = self._number(meaning.seconds)
        if not used.all():
            run, amount = run[used], amount[used]
            columns = {name: column.filter(pa.array(used)) for name, column in columns.items()}
        new = np.ones(len(run), bool)
        new[1:] = (run[1:] != run[:-1]) | (amount[1:] != amount[:-1])
        if not new.all():
            begins, twice = np.append(np.flatnonzero(new), len(new)), np.zeros(new.sum(), bool)
            for name, column in columns.items():
                if name != "seconds":
                    twice |= np.add.reduceat(column.is_valid().to_numpy(), begins[:-1]) > 1
                columns[name] = _one_of_each(column, begins, last=False)
            self.counted["steps that are there twice, whose first value counts"] += int(twice.sum())
            run, amount = run[new], amount[new]
        self._step = amount.astype(np.int64)
        self._begins = np.searchsorted(run, np.arange(len(size) + 1))
        calls = np.arange(len(run)) - self._begins[run]
        if meaning.step == "_step" and np.array_equal(self._step, calls):
            odd = "runs whose _step is 0, 1, 2 and so on, which may count calls of log, not steps"
            self.counted[odd] = len(size)
        seconds = np.full(len(run), math.nan)
        if meaning.seconds:
            # The time of day, not the time since the start, is a large number from the beginning.
            column = columns.pop("seconds")
            start = numbers(_one_of_each(column, self._begins, last=False))
            seconds = numbers(column) - np.where(start > 1e8, start, 0)[run]
        known = pa.array(seconds, mask=~((seconds >= 0) & (seconds <= 1e15)))
        self._table = pa.table({"step": self._step, "seconds": known, **columns})
        self._seconds = self._of_runs("seconds", last=True)
        goals = {Goal.parse(text).metric for text in meaning.goal}
        self._diverged = np.zeros(len(size), bool)
        for name, column in columns.items():
            if name in goals or name.endswith("loss"):
                finite = pc.is_finite(_one_of_each(column, self._begins, last=True))
                self._diverged |= ~finite.fill_null(True).to_numpy()

    def points(self) -> dict[StudyKey, Points]:
        found: dict[StudyKey, Points] = {}
        for training in filter(None, self.trainings):
            if not len(self.steps(training)):
                self.counted["runs without measurements"] += 1
                continue
            name = json.dumps(training.params, sort_keys=True)
            point = found.setdefault(training.key, {}).setdefault(name, {})
            seed = training.seed if self.meaning.seed else training.number
            if seed in point:
                problem = "runs with the point and the seed of another, of which the longest counts"
                self.counted[problem] += 1
            if seed not in point or self.steps(training)[-1] > self.steps(point[seed])[-1]:
                point[seed] = training
        return found

    def steps(self, training: _Training) -> NDArray[np.int64]:
        return self._step[slice(*self._begins[training.number : training.number + 2])]

    def measurements(self, order: Sequence[tuple[int, int, _Training]]) -> pa.Table:
        """The measurements of trainings, each given by trial, repeat and training."""
        trials, repeats, trainings = zip(*order, strict=True)
        begins = [self._begins[training.number] for training in trainings]
        lengths = [len(self.steps(training)) for training in trainings]
        table = pa.concat_tables(map(self._table.slice, begins, lengths)).combine_chunks()
        columns = {
            "trial": np.repeat(np.array(trials, np.int32), lengths),
            "repeat": np.repeat(np.array(repeats, np.int32), lengths),
            "step": table["step"],
            "examples": pc.multiply(table["step"], trainings[0].key.batch_size),
            "seconds": table["seconds"],
        }
        metrics = [name for name in self.meaning.metrics if table[name].null_count < len(table)]
        return pa.table(columns | {name: table[name] for name in metrics})

    def row(self, trial: int, repeat: int, training: _Training, budget: int) -> dict[str, Any]:
        """A training's row in `trials`."""
        seed = _float(training.seed[0]) if len(training.seed) == 1 else math.nan
        return {
            "trial": trial,
            "repeat": repeat,
            "optimizer": training.key.recipe,
            "status": self._status(training, budget),
            "steps": int(self.steps(training)[-1]),
            "params": json.dumps(training.params),
            "seed": int(seed) if abs(seed) < 2**62 else None,
            "seconds": self._seconds[training.number],
            "error": training.status[:MOST_LETTERS] if training.status in CRASHED else None,
            "archive_status": "COMPLETE",
        }

    def _status(self, training: _Training, budget: int) -> Status:
        steps = self.steps(training)
        gaps = np.diff(steps)
        # Steps may be equally far apart or farther and farther, but a run's last may come sooner.
        self.counted["runs with uneven steps"] += bool((gaps[1:-1] + 1 < 0.75 * gaps[:-2]).any())
        self.counted["runs that crashed"] += training.status in CRASHED
        if self._diverged[training.number]:
            self.counted["runs that diverged"] += 1
            return "diverged"
        gap, missing = int(gaps[-1]) if len(gaps) else 0, budget - int(steps[-1])
        if missing <= 0 or missing < gap or (missing == gap and training.status in COMPLETE):
            return "exhausted"
        self.counted["runs that ended before the longest of their study"] += 1
        return "paused"


def _write(run: RunFiles, runs: _Runs, key: StudyKey, points: Points, space: Space) -> Study:
    """Stores a study's trials and repeats."""
    most = max(len(point) - 1 for point in points.values())
    order = []
    for trial, point in enumerate(points.values()):
        for repeat, training in enumerate(point.values()):
            # Half of a point's repeats choose the point, and have the numbers up to half of `most`.
            half = (len(point) - 1) // 2
            order.append((trial, repeat + (most // 2 - half) * (repeat > half), training))
    order.sort(key=lambda one: one[1] > 0)
    steps = [runs.steps(training) for *_, training in order]
    budget = int(max(each[-1] for each in steps))
    trials = pa.Table.from_pylist(
        [runs.row(*one, budget) for one in order], schema=IMPORTED_TRIALS.insert(1, REPEAT)
    )
    middle = len(points)
    run.write_study(
        key, trials[:middle].drop("repeat"), runs.measurements(order[:middle]).drop("repeat")
    )
    if most:
        run.repeats.write_study(key, trials[middle:], runs.measurements(order[middle:]))
    meaning = runs.meaning
    return Study(
        workload=key.workload, recipe=key.recipe, optimizer=key.recipe, batch_size=key.batch_size,
        goals=tuple(map(Goal.parse, meaning.goal)), budget_steps=budget, grid=_grid(steps, budget),
        space=space, trials=middle, search=SearchPlan(algorithm="unknown"),
        train_size=meaning.examples, repeats=most,
        repeat_best=max(sum(len(point) > 1 for point in points.values()), 1),
        stop_at_goal=False, stop_dominated=False,
    )  # fmt: skip


def _grid(steps: Sequence[NDArray[np.int64]], budget: int) -> EvaluationGrid:
    """A grid that is nowhere wider than the steps of these runs, the last of each left out. So no
    run that ended early could have been measured earlier than the grid says."""
    last = int(any(len(each) > 2 for each in steps))
    gaps = np.concatenate([np.diff(each[: len(each) - last]) for each in steps])
    if not len(gaps):
        return EvaluationGrid(spacing=0, min_gap=max(budget, 1))
    begins = np.concatenate([each[: -1 - last] for each in steps])
    spacing = float((gaps / np.maximum(begins, 1e-9)).min()) * (1 - 1e-9)
    return EvaluationGrid(spacing=min(spacing, WIDEST_SPACING), min_gap=max(int(gaps.min()), 1))


def _spaces(studies: Mapping[StudyKey, Points]) -> dict[tuple[str, str], Space]:
    """Workload and recipe -> the values that its runs had."""
    values: dict[tuple[str, str], dict[str, set[Value]]] = {}
    for key, points in studies.items():
        of = values.setdefault((key.workload, key.recipe), {})
        for name, value in [pair for point in points for pair in json.loads(point).items()]:
            of.setdefault(name, set()).add(value)
    return {key: {n: _entry([*of[n]]) for n in of} for key, of in values.items()}


def _entry(options: Sequence[Any]) -> Range | Choice | Value:
    """The values of a metaparameter as an entry of a search space."""
    if len(options) == 1:
        value: Value = options[0]
        return value
    if any(isinstance(value, str) or abs(value) > LARGEST for value in options):
        return Choice(options=tuple(sorted(options, key=str)))
    low, high = float(min(options)), float(max(options))
    if low > SMALLEST and high >= 10 * low:
        return Range(low=low, high=high, scale="log")
    near_one = low >= 0.5 and high < 1 and 1 - low >= 10 * (1 - high)
    return Range(low=low, high=high, scale="reverse_log" if near_one else "linear")


def _one_of_each(column: pa.ChunkedArray, begins: NDArray[np.int64], *, last: bool) -> Any:
    """The first value, or the last one, of each group of rows that follow each other."""
    there = np.append(np.flatnonzero(column.is_valid().to_numpy()), 0)
    ends = np.searchsorted(there[:-1], begins)
    rows = there[ends[1:] - 1 if last else ends[:-1]]
    return column.take(pa.array(rows, mask=ends[1:] == ends[:-1]))


def _float(value: Any) -> float:
    """NaN for what is no number."""
    return math.nan if (found := as_number(value)) is None else found


def _is_setting(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return value is not None and (not isinstance(value, int) or abs(value) <= MOST_WHOLE)
