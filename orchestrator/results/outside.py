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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import quote

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
    escaped,
)
from orchestrator.records.ranges import LARGEST, SMALLEST
from orchestrator.records.studies import WIDEST_SPACING
from orchestrator.results.archive import IMPORTED_TRIALS, Problem
from orchestrator.results.archive_documents import MOST_IN_FOLDER, MOST_LETTERS, MOST_WHOLE
from orchestrator.results.outside_mapping import Guess, Meaning, check, guess, read_mapping
from orchestrator.results.provenance import provenance
from orchestrator.results.store import Run
from orchestrator.results.tables import REPEAT

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
    problems: list[Problem] = field(default_factory=list)

    def guess(self, written: Mapping[str, Any]) -> Guess:
        """What the columns mean. What the user has `written` of it stands."""
        return guess(self.table, read_mapping(written, self.table.column_names), self.settings)


def import_rows(rows: Rows, meaning: Meaning, run: Run) -> str:
    """Makes `run` of these rows, and says in a line how many there are."""
    if run.exists:
        raise BadInput(f"{run.place} is a run already: give another --out.", code="exists")
    check(meaning, rows.table.column_names)
    run.check_writable()
    with run.locked():
        runs = _Runs(rows, meaning)
        studies = [_write(run, runs, key, places) for key, places in runs.studies().items()]
        if not studies:
            first = f" The first problem: {rows.problems[0]}." if rows.problems else ""
            raise BadInput(f"{rows.name} holds no run that can be used.{first}", code="no-study")
        for what, number in runs.ends.items():
            runs.count(what, number)
        (run.place / "problems.txt").write_text("".join(f"{each}\n" for each in rows.problems))
        told = {"mapping": meaning.document(), "counted": runs.counted, "scales": runs.scales}
        run.create(
            {"name": rows.name, "imported": True, **told},
            studies,
            {**provenance(), "imported from": rows.name},
        )
    trials = sum(study.trials for study in studies)
    repeats = len(runs.order) - trials
    return f"{len(studies):,} studies, {trials:,} trials, {repeats:,} repeats"


class _Runs:
    """The runs of a table in order of study, trial and repeat, with their measurements."""

    def __init__(self, rows: Rows, meaning: Meaning) -> None:
        self._rows, self._meaning = rows, meaning
        self.counted: dict[str, int] = {}
        self.ends = Counter[str]()
        self.scales: dict[str, dict[str, float]] = {}
        self._metrics = {name: self._number(name) for name in meaning.metrics}
        self._run = self._runs_of_rows()
        self._describe()
        step, used = self._steps()
        self._arrange(*self._trials(step, used), step, used)

    def count(self, what: str, number: Any, told: str = "") -> None:
        if number:
            self.counted[what] = self.counted.get(what, 0) + int(number)
            reason = escaped(f"{number:,} {what}{told}")
            self._rows.problems.append(Problem(path=escaped(self._rows.name), reason=reason))

    def _number(self, name: str) -> pa.Array:
        """A column as numbers."""
        column = self._rows.table[name]
        if pa.types.is_dictionary(column.type):
            raise BadInput(f"The column {name!r} holds texts, not numbers.", code="mapping")
        return pc.cast(column, pa.float64()).combine_chunks()

    def _runs_of_rows(self) -> NDArray[np.int32]:
        """The number of each row's run, in order of appearance."""
        meaning, length = self._meaning, len(self._rows.table)
        apart = [*meaning.workload, *meaning.recipe, *meaning.scale.values(), *meaning.batch_size]
        names = meaning.run or dict.fromkeys([*apart, *meaning.params, *meaning.seed])
        codes = [self._codes(name) for name in names]
        if not meaning.run and meaning.step is None:
            codes = [np.arange(length)]  # a row per run
        changes = np.zeros(length, bool)
        changes[:1] = True
        for code in codes:
            changes[1:] |= code[1:] != code[:-1]
        heads = np.flatnonzero(changes)
        together = np.zeros(len(heads), np.int64)
        for code in codes:
            key = together * (int(code.max(initial=0)) + 1) + code[heads]
            together = np.unique(key, return_inverse=True)[1]
        _, first, number = np.unique(together, return_index=True, return_inverse=True)
        self._many = len(first)
        number = np.argsort(np.argsort(first))[number].astype(np.int32)
        return np.repeat(number, np.diff(heads, append=length))

    def _codes(self, name: str) -> NDArray[np.int64]:
        """A number for each value of a column; 0 where there is none."""
        column = self._rows.table[name]
        if not pa.types.is_dictionary(column.type):
            column = column.dictionary_encode()
        coded = column.unify_dictionaries().combine_chunks()
        codes: NDArray[np.int64] = pc.fill_null(coded.indices, -1).to_numpy(zero_copy_only=False)
        return codes + 1

    def _settings(self, name: str | None, *, last: bool = False) -> list[Any]:
        """For each run, the first value of a column, or its last one."""
        found: list[Any] = [None] * self._many
        if name is None:
            return found
        column = self._rows.table[name]
        if not last:
            code = self._codes(name)
            moved = (code[1:] != code[:-1]) & (code[1:] > 0) & (code[:-1] > 0)
            moved &= self._run[1:] == self._run[:-1]
            changing = len(np.unique(self._run[1:][moved]))
            self.count(f"runs in which {name!r} changes", changing, "; its first value counts")
        rows = np.flatnonzero(column.is_valid().to_numpy())
        rows = rows[::-1] if last else rows
        runs, at = np.unique(self._run[rows], return_index=True)
        for number, value in zip(runs.tolist(), column.take(rows[at]).to_pylist(), strict=True):
            found[number] = value
        return found

    def _describe(self) -> None:
        """Finds what each run is a training of."""
        meaning = self._meaning
        named = [*meaning.batch_size, *meaning.workload, *meaning.recipe, *meaning.seed]
        named += [*meaning.params, *meaning.scale.values()]
        values = {name: self._settings(name) for name in dict.fromkeys(named)}
        self._words = [str(word or "") for word in self._settings(meaning.status, last=True)]
        self.keys: list[StudyKey | None] = [None] * self._many
        self.params: list[dict[str, Value]] = []
        self.seeds: list[tuple[Any, ...]] = []
        wrong = Counter[str]()
        for number in range(self._many):
            of = {name: column[number] for name, column in values.items()}
            self.params.append({name: of[name] for name in meaning.params if _is_setting(of[name])})
            self.seeds.append(tuple(of[name] for name in meaning.seed))
            try:
                self.keys[number] = self._key(of)
            except ValueError as error:
                wrong[str(error)] += 1
        for reason, many in wrong.items():
            self.count("runs are left out", many, f": {reason}")

    def _key(self, of: Mapping[str, Any]) -> StudyKey:
        meaning = self._meaning
        size = math.prod(_float(of[name]) or math.nan for name in meaning.batch_size)
        if not (1 <= size <= MANY and size == int(size)):
            raise ValueError(f"the batch size is no whole number from 1 to {MANY:,}")
        place = {variable: _float(of[name]) or 0.0 for variable, name in meaning.scale.items()}
        if not all(0 < value < 1e30 for value in place.values()):
            raise ValueError("a scale is no number above 0")
        parts = [str(of[name]) for name in meaning.workload]
        parts += [",".join(f"{name}={value:.12g}" for name, value in place.items())] * bool(place)
        workload = _name("/".join(dict.fromkeys(parts)) or self._rows.name)
        recipe = _name("/".join(dict.fromkeys(str(of[n]) for n in meaning.recipe)) or "as trained")
        if place:
            self.scales[workload] = place
        return StudyKey(workload=workload, recipe=recipe, batch_size=int(size))

    def _steps(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The step of each row, and which rows are used: those that measure something."""
        meaning, run = self._meaning, self._run
        size = np.array([key.batch_size if key else math.nan for key in self.keys])[run]
        per_step: Any = size
        if meaning.step is None:
            data = self._settings(meaning.scale["data"])
            exact = np.array([_float(value) or math.nan for value in data])[run]
        else:
            exact = _floats(self._number(meaning.step))
        if meaning.step is None or meaning.unit == "tokens":
            per_step = size * meaning.tokens_per_example
        elif meaning.unit == "epochs":
            per_step = size / (meaning.examples or math.nan)
        if meaning.step is None or meaning.unit != "steps":
            # A last batch that is not full is a step, too; what rounding adds is none.
            exact = np.ceil(exact / per_step * (1 - 1e-6))
        used = ~np.isnan(size)
        used &= np.any([_is_there(column) for column in self._metrics.values()], axis=0)
        right = (exact >= 0) & (exact <= MANY) & (exact == np.floor(exact))
        rule = f": it must be a whole number from 0 to {MANY:,}"
        self.count("rows have no usable step", np.count_nonzero(used & ~right), rule)
        return np.where(right, exact, 0).astype(np.int64), used & right

    def _trials(
        self, step: NDArray[np.int64], used: NDArray[np.bool_]
    ) -> tuple[list[tuple[StudyKey, int, int, int]], NDArray[np.int32]]:
        """Each run's study, trial, repeat and number, in order; and the place there of each row."""
        last = np.full(self._many, -1, np.int64)
        np.maximum.at(last, self._run[used], step[used])
        points: dict[tuple[StudyKey, str], dict[Any, int]] = {}
        again = empty = 0
        for number, key in enumerate(self.keys):
            empty += key is not None and last[number] < 0
            if key is None or last[number] < 0:
                continue
            point = points.setdefault((key, json.dumps(self.params[number], sort_keys=True)), {})
            seed = self.seeds[number] if self._meaning.seed else number
            again += seed in point
            if seed not in point or last[number] > last[point[seed]]:
                point[seed] = number
        self.count("runs have no measurements", empty)
        self.count("runs have the point and the seed of another", again, ": the longest counts")
        self.most = Counter[StudyKey]()
        for (key, _), point in points.items():
            self.most[key] = max(self.most[key], len(point) - 1)
        trials, order = Counter[StudyKey](), []
        for (key, _), point in points.items():
            first, *others = sorted(point.values())
            order.append((key, trials[key], 0, first))
            # Half of a point's repeats choose the point, and have the numbers up to half of `most`.
            half = len(others) // 2
            for place, number in enumerate(others, start=1):
                moved = self.most[key] // 2 - half if place > half else 0
                order.append((key, trials[key], place + moved, number))
            trials[key] += 1
        order.sort(key=lambda one: (one[0], one[2] > 0, one[1], one[2]))
        places = np.full(self._many, -1, np.int32)
        places[[number for *_, number in order]] = np.arange(len(order))
        return order, places[self._run]

    def _arrange(
        self,
        order: list[tuple[StudyKey, int, int, int]],
        at: NDArray[np.int32],
        step: NDArray[np.int64],
        used: NDArray[np.bool_],
    ) -> None:
        """Brings the rows into this order, and makes one of the rows of a run and a step."""
        used &= at >= 0
        seconds = None if (name := self._meaning.seconds) is None else self._number(name)
        columns = {**self._metrics, "": seconds}
        if not used.all():
            rows = np.flatnonzero(used)
            at, step = at[rows], step[rows]
            columns = {name: c and c.take(pa.array(rows)) for name, c in columns.items()}
        same = at[1:] == at[:-1]
        mixed = np.unique(at[1:][same & (step[1:] < step[:-1])])
        self.count("runs have steps that are not in order", len(mixed), "; they were sorted")
        if len(mixed) or (at[1:] < at[:-1]).any():
            rows = np.lexsort((step, at))
            at, step = at[rows], step[rows]
            columns = {name: c and c.take(pa.array(rows)) for name, c in columns.items()}
        new = np.ones(len(at), bool)
        new[1:] = (at[1:] != at[:-1]) | (step[1:] != step[:-1])
        if not new.all():
            columns = self._merged(columns, np.cumsum(new) - 1)
            at, step = at[new], step[new]
        self.order, self.at, self.step = order, at, step
        self.begins = np.searchsorted(at, np.arange(len(order) + 1))
        self._seconds, self._metrics = columns.pop(""), columns

    def _merged(
        self, columns: Mapping[str, pa.Array | None], group: NDArray[np.int64]
    ) -> dict[str, pa.Array | None]:
        """The first value of each column in each group of rows."""
        many = int(group[-1]) + 1
        twice, other = np.zeros(many, bool), np.zeros(many, bool)
        found: dict[str, pa.Array | None] = {}
        for name, column in columns.items():
            if column is None:
                continue
            rows = np.flatnonzero(_is_there(column))
            value, of = _floats(column)[rows], group[rows]
            groups, first = np.unique(of, return_index=True)
            kept = np.full(many, math.nan)
            kept[groups] = value[first]
            counts = np.bincount(of, minlength=many)
            found[name] = pa.array(kept, mask=counts == 0)
            if name:
                twice |= counts > 1
                other[of[(value != kept[of]) & ~(np.isnan(value) & np.isnan(kept[of]))]] = True
        self.count("steps are there twice", np.count_nonzero(twice))
        told = "; the first counts"
        self.count("steps have several values of a metric", np.count_nonzero(other), told)
        return {"": None, **found}

    def studies(self) -> dict[StudyKey, range]:
        """Study -> the places of its runs."""
        found: dict[StudyKey, range] = {}
        for place, (key, *_) in enumerate(self.order):
            found[key] = range(found[key].start if key in found else place, place + 1)
        return found

    def table(self, places: range, batch_size: int) -> pa.Table:
        """The measurements of runs that follow each other."""
        begin, end = self.begins[places.start], self.begins[places.stop]
        of, step = self.at[begin:end] - places.start, self.step[begin:end]
        order = self.order[places.start : places.stop]
        seconds = [self.seconds(place) for place in places]
        columns = {
            "trial": np.array([trial for _, trial, *_ in order], np.int32)[of],
            "repeat": np.array([repeat for *_, repeat, _ in order], np.int32)[of],
            "step": step,
            "examples": step * batch_size,
            "seconds": pa.array(np.concatenate(seconds) if seconds else [], from_pandas=True),
        }
        columns |= {name: c.slice(begin, end - begin) for name, c in self._metrics.items()}
        empty = {n for n in self._metrics if columns[n].null_count == len(columns[n])}
        return pa.table({name: c for name, c in columns.items() if name not in empty})

    def seconds(self, place: int) -> NDArray[np.float64]:
        """The times of a run since its start; NaN where they are not known."""
        begin, end = self.begins[place], self.begins[place + 1]
        if self._seconds is None:
            return np.full(end - begin, math.nan)
        seconds = _floats(self._seconds.slice(begin, end - begin))
        # The time of day, not the time since the start, is a large number from the first row on.
        seconds = seconds - (seconds[0] if seconds[0] > 1e8 else 0)
        return np.where((seconds >= 0) & (seconds <= 1e15), seconds, math.nan)

    def rows(self, places: range, budget: int) -> Iterator[dict[str, Any]]:
        """The rows in `trials` of runs that follow each other."""
        for place in places:
            key, trial, repeat, number = self.order[place]
            word, seconds = self._words[number], float(self.seconds(place)[-1])
            seed = _float(self.seeds[number][0]) if len(self.seeds[number]) == 1 else None
            yield {
                "trial": trial,
                "repeat": repeat,
                "optimizer": key.recipe,
                "status": self._status(place, word.lower(), budget),
                "steps": int(self.step[self.begins[place + 1] - 1]),
                "params": json.dumps(self.params[number]),
                "seed": int(seed) if seed is not None and abs(seed) < 2**62 else None,
                "seconds": None if math.isnan(seconds) else seconds,
                "error": word[:MOST_LETTERS] if word.lower() in CRASHED else None,
                "archive_status": "COMPLETE",
            }

    def _status(self, place: int, word: str, budget: int) -> Status:
        begin, end = self.begins[place], self.begins[place + 1]
        gaps = np.diff(self.step[begin:end])
        # Steps may be equally far apart or farther and farther, but a run's last may come sooner.
        uneven = len(gaps) > 2 and (gaps[1:-1] + 1 < 0.75 * gaps[:-2]).any()
        self.ends["runs have uneven steps"] += bool(uneven)
        self.ends["runs crashed"] += word in CRASHED
        for name in self._watched:
            values = self._metrics[name].slice(begin, end - begin).drop_null()
            if len(values) and not math.isfinite(values[-1].as_py()):
                self.ends["runs diverged"] += 1
                return "diverged"
        gap, missing = int(gaps[-1]) if len(gaps) else 0, budget - int(self.step[end - 1])
        if missing <= 0 or missing < gap or (missing == gap and word in COMPLETE):
            return "exhausted"
        self.ends["runs ended before the longest of their study"] += 1
        return "paused"

    @cached_property
    def _goals(self) -> set[str]:
        return {Goal.parse(text).metric for text in self._meaning.goal} & self._metrics.keys()

    @cached_property
    def _watched(self) -> list[str]:
        """The metrics of which a value that is not finite means divergence."""
        return [name for name in self._metrics if name in self._goals or name.endswith("loss")]

    def grid(self, places: range, budget: int) -> EvaluationGrid:
        """A grid that is nowhere wider than the steps of these runs, the last of each left out. So
        no run that ended early could have been measured earlier than the grid says."""
        begin, end = self.begins[places.start], self.begins[places.stop]
        columns = [self._metrics[name] for name in self._goals or self._metrics]
        there = np.any([_is_there(c.slice(begin, end - begin)) for c in columns], axis=0)
        at, step = self.at[begin:end][there], self.step[begin:end][there]
        same, gaps = at[1:] == at[:-1], np.diff(step)
        goes_on = same & np.append(same[1:], False)
        counted = goes_on if goes_on.any() else same
        if not counted.any():
            return EvaluationGrid(spacing=0, min_gap=max(budget, 1))
        spacing = float((gaps[counted] / np.maximum(step[:-1][counted], 1e-9)).min()) * (1 - 1e-9)
        gap = max(int(gaps[counted].min()), 1)
        return EvaluationGrid(spacing=min(spacing, WIDEST_SPACING), min_gap=gap)

    @cached_property
    def spaces(self) -> dict[tuple[str, str], Space]:
        """Workload and recipe -> the values that its runs had."""
        values: dict[tuple[str, str], dict[str, set[Value]]] = {}
        for key, _, _, number in self.order:
            of = values.setdefault((key.workload, key.recipe), {})
            for name, value in self.params[number].items():
                of.setdefault(name, set()).add(value)
        return {key: {n: _entry([*of[n]]) for n in of} for key, of in values.items()}


def _write(run: Run, runs: _Runs, key: StudyKey, places: range) -> Study:
    """Stores a study's trials and repeats."""
    budget = int(runs.step[runs.begins[places.start] : runs.begins[places.stop]].max())
    rows = [*runs.rows(places, budget)]
    repeated = {row["trial"] for row in rows if row["repeat"]}
    trials = sum(row["repeat"] == 0 for row in rows)
    middle = places.start + trials
    table = pa.Table.from_pylist(rows[:trials], schema=IMPORTED_TRIALS)
    of_trials = runs.table(range(places.start, middle), key.batch_size)
    run.write_study(key, table, of_trials.drop(["repeat"]))
    if repeated or run.repeats.holds(key):  # of an import that was killed
        again = pa.Table.from_pylist(rows[trials:], schema=IMPORTED_TRIALS.insert(1, REPEAT))
        of_repeats = runs.table(range(middle, places.stop), key.batch_size)
        run.repeats.write_study(key, again, of_repeats)
    meaning = runs._meaning
    return Study(
        workload=key.workload, recipe=key.recipe, optimizer=key.recipe, batch_size=key.batch_size,
        goals=tuple(map(Goal.parse, meaning.goal)), budget_steps=budget,
        grid=runs.grid(places, budget), space=runs.spaces[key.workload, key.recipe], trials=trials,
        search=SearchPlan(algorithm="unknown"), train_size=meaning.examples,
        repeats=runs.most[key], repeat_best=max(len(repeated), 1),
        stop_at_goal=False, stop_dominated=False,
    )  # fmt: skip


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


def _is_there(column: pa.Array) -> NDArray[np.bool_]:
    there: NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return there


def _floats(column: pa.Array) -> NDArray[np.float64]:
    found: NDArray[np.float64] = pc.fill_null(column, math.nan).to_numpy(zero_copy_only=False)
    return found


def _float(value: Any) -> float | None:
    try:
        return None if value is None else float(value)
    except (ValueError, OverflowError):
        return None


def _is_setting(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return value is not None and (not isinstance(value, int) or abs(value) <= MOST_WHOLE)


def _name(text: str) -> str:
    """A text as the name of a folder in a run."""
    text = escaped(text)
    if len(quote(text, safe="")) > MOST_IN_FOLDER:
        raise ValueError(f"a name would be longer than {MOST_IN_FOLDER} bytes")
    return text
