"""Makes a run of runs that were trained elsewhere: rows in, studies out.

Every source becomes one table with a row per measurement, and a mapping says what its columns mean.
Runs that differ in their seed alone are one point: the first is its trial, the others its repeats.
Trials that ended before the others of their study could still have reached a goal later, so they
are marked as ended early, whatever the reason, and the frontier says where that matters.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
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
from orchestrator.results.archive import IMPORTED_TRIALS, Problem
from orchestrator.records.ranges import LARGEST, SMALLEST
from orchestrator.records.studies import WIDEST_SPACING
from orchestrator.results.archive_documents import (
    MOST_IN_FOLDER,
    MOST_LETTERS,
    MOST_PARAMETERS,
    MOST_WHOLE,
)
from orchestrator.results.curve_files import MOST_COLUMNS
from orchestrator.results.outside_mapping import (
    Guess,
    Meaning,
    guess,
    need_batch_size,
    read_mapping,
)
from orchestrator.results.provenance import provenance
from orchestrator.results.store import Run
from orchestrator.results.tables import REPEAT, is_metric

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

COMPLETE = ("finished", "complete", "completed", "exhausted", "reached", "success", "done", "ok")
"""What sources write of runs that came to their end."""

CRASHED = ("failed", "fail", "crashed", "killed", "error", "infeasible", "preempted")

UNKNOWN = (
    "These runs were trained elsewhere: how their points were chosen and in which ranges is unknown, "
    "and batch sizes need not have the same points. So nothing is said about what more or fewer "
    "trials would have found, and a batch size that was tuned less looks worse than it is."
)
"""What such runs can't say."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """What a source holds."""

    name: str
    table: pa.Table
    """A row per measurement. Columns hold whole numbers, numbers or dictionaries of texts."""
    settings: frozenset[str] | None = None
    """Columns that hold settings of runs; None if the source does not tell them from metrics."""
    problems: list[Problem] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Imported:
    """What became of the rows."""

    studies: int
    trials: int
    repeats: int
    counted: Mapping[str, int]
    """What was counted -> how often, such as runs that ended early."""
    problems: Sequence[Problem]


def unknown_of(run: Run) -> str | None:
    """What a run can't say because it was made elsewhere; None if it was made by a sweep or is a
    published archive."""
    return UNKNOWN if "mapping" in run.sweep() else None


def guess_of(rows: Rows, written: Mapping[str, Any]) -> Guess:
    """The mapping for these rows. What the user has `written` of it stands."""
    return guess(rows.table, read_mapping(written, rows.table.column_names), rows.settings)


def import_rows(rows: Rows, meaning: Meaning, run: Run) -> Imported:
    """Makes `run` of these rows."""
    if run.exists:
        raise BadInput(f"{run.place} is a run already: give another --out.", code="exists")
    need_batch_size(meaning, rows.table.column_names)
    run.check_writable()
    with run.locked():
        runs = _Runs(rows, meaning)
        studies = [_write(run, runs, key, of) for key, of in runs.studies().items()]
        for what, number in runs.tally.items():
            runs.count(what, number)
        if not studies:
            first = f" The first problem: {rows.problems[0]}." if rows.problems else ""
            raise BadInput(f"{rows.name} holds no run that can be used.{first}", code="no-study")
        (run.place / "problems.txt").write_text("".join(f"{each}\n" for each in rows.problems))
        sweep = {
            "name": rows.name, "imported": True, "mapping": meaning.document(),
            "counted": runs.counted, **({"scales": runs.scales} if runs.scales else {}),
        }  # fmt: skip
        run.create(sweep, studies, {**provenance(), "imported from": rows.name})
    trials = sum(study.trials for study in studies)
    return Imported(
        studies=len(studies), trials=trials, repeats=len(runs.order) - trials,
        counted=runs.counted, problems=rows.problems,
    )  # fmt: skip


class _Runs:
    """The runs of a table, in order of study, point and repeat, with their measurements."""

    def __init__(self, rows: Rows, meaning: Meaning) -> None:
        self._rows, self.meaning = rows, meaning
        self.counted: dict[str, int] = {}
        self.tally = Counter[str]()
        self.scales: dict[str, dict[str, float]] = {}
        self._numbers(meaning)
        self._of_rows()
        self._describe()
        self._measurements()
        self._arrange()

    # What was read, and what could not be used

    def problem(self, reason: str) -> None:
        self._rows.problems.append(Problem(path=escaped(self._rows.name), reason=escaped(reason)))

    def count(self, what: str, number: int, told: str = "") -> None:
        if number:
            self.counted[what] = self.counted.get(what, 0) + number
            self.problem(f"{number:,} {what}{told}")

    def _numbers(self, meaning: Meaning) -> None:
        """Picks the columns that hold numbers, and says which of their cells don't."""
        table = self._rows.table
        names = [name for name in meaning.metrics if is_metric(name)]
        if len(names) < len(meaning.metrics):
            raise BadInput(
                f"A metric can't have the name of a column of every run: "
                f"{', '.join(sorted({*meaning.metrics} - {*names}))}. Rename the column, or leave "
                f"it out of `metrics`.",
                code="mapping",
            )
        if not names or len(names) > MOST_COLUMNS:
            raise BadInput(
                f"`metrics` must name from 1 to {MOST_COLUMNS} columns, but names {len(names):,}.",
                code="mapping",
            )
        if len(meaning.params) > MOST_PARAMETERS:
            raise BadInput(
                f"`params` must name at most {MOST_PARAMETERS} columns, but names "
                f"{len(meaning.params):,}.",
                code="mapping",
            )
        self._metrics = {name: self._number(table[name], name) for name in names}

    def _number(self, column: pa.ChunkedArray, name: str) -> pa.Array:
        if not pa.types.is_dictionary(column.type):
            return pc.cast(column, pa.float64()).combine_chunks()
        coded = column.unify_dictionaries().combine_chunks()
        texts = coded.dictionary.to_pylist()
        values = pa.array([_float(text) for text in texts], pa.float64())
        found = values.take(coded.indices)
        self.count(
            f"cells of {name!r} that are no numbers", found.null_count - coded.null_count,
            f", such as {next((t for t in texts if _float(t) is None), '')!r}",
        )  # fmt: skip
        return found

    # Which run a row belongs to

    def _of_rows(self) -> None:
        """Gives each row the number of its run, in order of appearance."""
        meaning, table = self.meaning, self._rows.table
        names = meaning.run or dict.fromkeys(
            [*meaning.workload, *meaning.recipe, *meaning.scale.values(), *meaning.batch_size,
             *meaning.params, *meaning.seed]
        )  # fmt: skip
        codes = [_codes(table[name]) for name in names]
        if not meaning.run and meaning.step is None:
            codes = [np.arange(len(table))]  # a row per run
        changes = np.zeros(len(table), bool)
        changes[:1] = True
        for code in codes:
            changes[1:] |= code[1:] != code[:-1]
        heads = np.flatnonzero(changes)
        together = np.zeros(len(heads), np.int64)
        for code in codes:
            at_heads = code[heads]
            together = np.unique(
                together * (int(at_heads.max(initial=0)) + 1) + at_heads, return_inverse=True
            )[1]
        _, first, number = np.unique(together, return_index=True, return_inverse=True)
        number = np.argsort(np.argsort(first))[number]
        self.number = len(first)
        self._run = np.repeat(number, np.diff(heads, append=len(table))).astype(np.int32)

    def _firsts(self, name: str, *, last: bool = False) -> list[Any]:
        """For each run, the first value of a column, or its last one."""
        column = self._rows.table[name]
        rows = np.flatnonzero(pc.is_valid(column).to_numpy())
        rows = rows[::-1] if last else rows
        found: list[Any] = [None] * self.number
        if len(rows):
            runs, at = np.unique(self._run[rows], return_index=True)
            values = column.take(pa.array(rows[at])).to_pylist()
            for number, value in zip(runs.tolist(), values, strict=True):
                found[number] = value
        return found

    def _settled(self, name: str) -> list[Any]:
        """For each run, the value of a setting; says so if it changes within runs."""
        if name not in self._changing:
            code = _codes(self._rows.table[name])
            same = (self._run[1:] == self._run[:-1]) & (code[1:] != code[:-1])
            same &= (code[1:] > 0) & (code[:-1] > 0)
            self._changing[name] = len(np.unique(self._run[1:][same]))
            self.count(
                f"runs in which {name!r} changes", self._changing[name], "; its first value counts"
            )
        return self._firsts(name)

    def _describe(self) -> None:
        """Finds what each run is a training of."""
        meaning = self.meaning
        self._changing: dict[str, int] = {}
        values = {
            name: self._settled(name)
            for name in dict.fromkeys(
                [*meaning.batch_size, *meaning.workload, *meaning.recipe, *meaning.seed,
                 *meaning.params, *meaning.scale.values()]
            )
        }  # fmt: skip
        self._status = self._firsts(meaning.status, last=True) if meaning.status else []
        self.keys: list[StudyKey | None] = []
        self.params: list[dict[str, Value]] = []
        self.seeds: list[tuple[Any, ...]] = []
        self.data: list[float] = []
        wrong: dict[str, list[int]] = {}
        for number in range(self.number):
            of = {name: column[number] for name, column in values.items()}
            self.params.append({n: of[n] for n in meaning.params if _is_setting(of[n])})
            self.seeds.append(tuple(of[name] for name in meaning.seed))
            self.data.append(_float(of.get(meaning.scale.get("data", ""))) or math.nan)
            try:
                self.keys.append(self._key(of))
            except ValueError as error:
                self.keys.append(None)
                wrong.setdefault(str(error), []).append(number)
        for reason, numbers in wrong.items():
            self.count("runs are left out", len(numbers), f": {reason}")

    def _key(self, of: Mapping[str, Any]) -> StudyKey:
        meaning = self.meaning
        size = math.prod(_float(of[name]) or math.nan for name in meaning.batch_size)
        if not (1 <= size <= MANY and size == int(size)):
            raise ValueError(f"the batch size is no whole number from 1 to {MANY:,}")
        place = {}
        for variable, column in meaning.scale.items():
            value = _float(of[column])
            if value is None or not 0 < value < 1e30:
                raise ValueError(f"{column!r}, a scale, is no number above 0")
            place[variable] = value
        parts = [str(of[name]) for name in meaning.workload]
        parts += (
            [",".join(f"{name}={value:.12g}" for name, value in place.items())] if place else []
        )
        workload = _name("/".join(parts) or self._rows.name)
        if place:
            self.scales[workload] = place
        recipe = _name("/".join(str(of[name]) for name in meaning.recipe) or "as it was")
        return StudyKey(workload=workload, recipe=recipe, batch_size=int(size))

    # What was measured

    def _measurements(self) -> None:
        """Steps and seconds of the rows; leaves out those that have none, or belong to no run that
        is used."""
        meaning, table = self.meaning, self._rows.table
        size = np.array([key.batch_size if key else math.nan for key in self.keys])[self._run]
        if meaning.step is not None:
            amount = _floats(self._number(table[meaning.step], meaning.step))
            per_step = {
                "steps": 1.0,
                "examples": size,
                "tokens": size * meaning.tokens_per_example,
                "epochs": size / (meaning.examples or math.nan),
            }[meaning.unit]
            if meaning.unit == "epochs" and meaning.examples is None:
                raise BadInput(
                    "`unit: epochs` needs `examples`, the size of the training set.", code="mapping"
                )
        elif "data" in meaning.scale:
            amount, per_step = np.array(self.data)[self._run], size * meaning.tokens_per_example
        else:
            raise BadInput(
                "No column is known to hold the step. Say which: `step: COLUMN` in a file, and "
                "--map FILE; or `scale: {data: COLUMN}` if each row is the end of a run.",
                code="mapping",
            )
        exact = amount / per_step
        # A last batch that is not full is a step, too; what rounding adds is none.
        step = exact if meaning.unit == "steps" and meaning.step else np.ceil(exact - 1e-6 * exact)
        usable = (step >= 0) & (step <= MANY) & (step == np.floor(step))
        known = ~np.isnan(size)
        measured = np.zeros(len(table), bool)
        for column in self._metrics.values():
            measured |= column.is_valid().to_numpy(zero_copy_only=False)
        self.count(
            "rows without a usable step", int((known & measured & ~usable).sum()),
            f": it must be a whole number from 0 to {MANY:,}",
        )  # fmt: skip
        self._use = np.flatnonzero(usable & known & measured)
        self._step = np.where(usable, step, 0).astype(np.int64)
        self._seconds = np.full(len(table), math.nan)
        if meaning.seconds is not None:
            self._seconds = _floats(self._number(table[meaning.seconds], meaning.seconds))

    def _arrange(self) -> None:
        """Decides which run is a trial and which a repeat, and brings the rows into their order."""
        last = np.zeros(self.number, np.int64)
        rows = np.bincount(self._run[self._use], minlength=self.number)
        np.maximum.at(last, self._run[self._use], self._step[self._use])
        points: dict[tuple[StudyKey, str], list[int]] = {}
        for number, key in enumerate(self.keys):
            if key is not None and rows[number]:
                point = json.dumps(self.params[number], sort_keys=True)
                points.setdefault((key, point), []).append(number)
        self.count(
            "runs without measurements",
            sum(key is not None and not rows[number] for number, key in enumerate(self.keys)),
        )
        trials = Counter[StudyKey]()
        order: list[tuple[StudyKey, int, int, int]] = []
        again = 0
        most = {key: 0 for key, _ in points}
        found: dict[tuple[StudyKey, str], list[int]] = {}
        for (key, point), numbers in points.items():
            kept: dict[Any, int] = {}
            for number in numbers:
                seed = self.seeds[number] if self.meaning.seed else number
                other = kept.setdefault(seed, number)
                if last[number] > last[other]:
                    kept[seed] = number
            again += len(numbers) - len(kept)
            found[key, point] = sorted(kept.values())
            most[key] = max(most[key], len(kept) - 1)
        for (key, _), (first, *others) in found.items():
            trial = trials[key]
            trials[key] += 1
            order.append((key, trial, 0, first))
            # Half of a point's repeats choose the point, and have the numbers up to half of `most`.
            chosen = len(others) // 2
            for place, number in enumerate(others):
                later = most[key] // 2 - chosen if place >= chosen else 0
                order.append((key, trial, place + 1 + later, number))
        self.count(
            "runs with the point and the seed of another", again, ": of each the longest counts"
        )
        # Studies in order; in each, its trials and then its repeats.
        order.sort(key=lambda one: (one[0], one[2] > 0, one[1], one[2]))
        self.order = order
        self.most = most
        place = np.full(self.number, -1, np.int64)
        place[[number for *_, number in order]] = np.arange(len(order))
        self._use = self._use[place[self._run[self._use]] >= 0]
        at, step = place[self._run[self._use]], self._step[self._use]
        same = at[1:] == at[:-1]
        unsorted = np.unique(at[1:][same & (step[1:] < step[:-1])])
        self.count("runs whose steps are not in order", len(unsorted), "; they were sorted")
        if len(unsorted) or (at[1:] < at[:-1]).any():
            rows_in_order = np.lexsort((step, at))
            self._use, at, step = (each[rows_in_order] for each in (self._use, at, step))
        self._merge(at, step)

    def _merge(self, at: Ints, step: Ints) -> None:
        """Makes one row of the rows of a run and a step."""
        whole = len(self._use) == len(self._run) and bool((np.diff(self._use) == 1).all())
        taken = None if whole else pa.array(self._use)
        new = np.ones(len(at), bool)
        new[1:] = (at[1:] != at[:-1]) | (step[1:] != step[:-1])
        starts = np.flatnonzero(new)
        twice = np.zeros(len(starts), bool)
        other = np.zeros(len(starts), bool)
        for name in [*self._metrics]:
            column = self._metrics[name]
            column = column if taken is None else column.take(taken)
            if len(starts) < len(at):
                valid = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
                group = (np.cumsum(new) - 1)[valid]
                groups, first = np.unique(group, return_index=True)
                value = _floats(column)
                firsts = np.full(len(starts), math.nan)
                firsts[groups] = value[valid[first]]
                counts = np.bincount(group, minlength=len(starts))
                twice |= counts > 1
                differs = value[valid] != firsts[group]
                differs &= ~(np.isnan(value[valid]) & np.isnan(firsts[group]))
                other[group[differs]] = True
                column = pa.array(firsts, mask=counts == 0)
            self._metrics[name] = column
        self.count("steps that are there twice", int(twice.sum()))
        self.count("steps with several values of a metric", int(other.sum()), "; the first counts")
        seconds = self._seconds[self._use][starts]
        self.at, self.step = at[starts], step[starts]
        self.begins = np.searchsorted(self.at, np.arange(len(self.order) + 1))
        began = seconds[np.minimum(self.begins[:-1], len(seconds) - 1)] if len(seconds) else seconds
        # The time of day, not the time since the start, is a large number from the first row on.
        self.seconds = seconds - np.where(began > 1e8, began, 0.0)[self.at]
        self.seconds[~((self.seconds >= 0) & (self.seconds <= 1e15))] = math.nan

    def studies(self) -> dict[StudyKey, range]:
        """Study -> the places of its runs."""
        found: dict[StudyKey, range] = {}
        for place, (key, *_) in enumerate(self.order):
            found[key] = range(found[key].start if key in found else place, place + 1)
        return found

    def table(self, places: range, batch_size: int) -> pa.Table:
        """The measurements of runs that follow each other."""
        begin, end = self.begins[places.start], self.begins[places.stop]
        at, step = self.at[begin:end], self.step[begin:end]
        trial = np.array([self.order[place][1] for place in places], np.int32)
        repeat = np.array([self.order[place][2] for place in places], np.int32)
        seconds = self.seconds[begin:end]
        columns = {
            "trial": trial[at - places.start],
            "repeat": repeat[at - places.start],
            "step": step,
            "examples": step * batch_size,
            "seconds": pa.array(seconds, mask=np.isnan(seconds)),
        }
        columns |= {n: column.slice(begin, end - begin) for n, column in self._metrics.items()}
        return pa.table({name: c for name, c in columns.items() if c is not None})

    def rows(self, places: range, budget: int) -> list[dict[str, Any]]:
        """The rows in `trials` of runs that follow each other."""
        found = []
        for place in places:
            key, trial, repeat, number = self.order[place]
            status, said = self._ended(place, number, budget)
            end = self.begins[place + 1] - 1
            seconds = float(self.seconds[end])
            seeds = self.seeds[number]
            found.append(
                {
                    "trial": trial,
                    "repeat": repeat,
                    "optimizer": key.recipe,
                    "status": status,
                    "steps": int(self.step[end]),
                    "params": json.dumps(self.params[number]),
                    "seed": int(seeds[0]) if len(seeds) == 1 and _is_seed(seeds[0]) else None,
                    "seconds": None if math.isnan(seconds) else seconds,
                    "error": said,
                    "archive_status": "COMPLETE",
                }
            )
        return found

    def _ended(self, place: int, number: int, budget: int) -> tuple[Status, str | None]:
        """How a run ended, and its source's word for it if that is no good end."""
        begin, end = self.begins[place], self.begins[place + 1]
        word = str(self._status[number] or "") if self._status else ""
        crashed = word.lower() in CRASHED
        self.tally["crashed runs"] += crashed
        said = (
            f"its source says: {word[:MOST_LETTERS]}" if word and not _is_complete(word) else None
        )
        gaps = np.diff(self.step[begin:end])
        # Steps may be equally far apart or farther and farther, but a trial's last may come sooner.
        uneven = len(gaps) > 2 and (gaps[1:-1] + 1 < 0.75 * gaps[:-2]).any()
        self.tally["runs with uneven steps"] += bool(uneven)
        if any(self._is_lost(name, begin, end) for name in self._watched):
            self.tally["runs that diverged"] += 1
            return "diverged", said
        gap, short = int(gaps[-1]) if len(gaps) else 0, budget - int(self.step[end - 1])
        if short <= 0 or short < gap or (short == gap and _is_complete(word)):
            return "exhausted", said
        self.tally["runs that ended before the longest of their study"] += 1
        return "paused", said

    def _is_lost(self, name: str, begin: int, end: int) -> bool:
        """Whether the last value of a metric is not finite."""
        values = self._metrics[name].slice(begin, end - begin).drop_null()
        return len(values) > 0 and not math.isfinite(values[-1].as_py())

    @cached_property
    def _watched(self) -> list[str]:
        """The metrics that have diverged when they are not finite."""
        goals = {Goal.parse(text).metric for text in self.meaning.goal}
        return [name for name in self._metrics if name in goals or name.lower().endswith("loss")]

    def grid(self, places: range, budget: int) -> EvaluationGrid:
        """A grid whose steps are no farther apart than those of these runs, the last of each left
        out. So no trial that ended early could have been measured before it says."""
        begin, end = self.begins[places.start], self.begins[places.stop]
        used = np.zeros(end - begin, bool)
        goals = {Goal.parse(text).metric for text in self.meaning.goal} & self._metrics.keys()
        for name in goals or self._metrics.keys():
            column = self._metrics[name].slice(begin, end - begin)
            used |= column.is_valid().to_numpy(zero_copy_only=False)
        at, step = self.at[begin:end][used], self.step[begin:end][used]
        same, gaps = at[1:] == at[:-1], np.diff(step)
        goes_on = same & np.append(same[1:], False)
        counted = goes_on if goes_on.any() else same
        if not counted.any():
            return EvaluationGrid(spacing=0, min_gap=max(budget, 1))
        ratios = gaps[counted] / np.maximum(step[:-1][counted], 1e-9)
        spacing = min(float(ratios.min()) * (1 - 1e-9), WIDEST_SPACING)
        return EvaluationGrid(spacing=spacing, min_gap=max(int(gaps[counted].min()), 1))

    @cached_property
    def spaces(self) -> dict[tuple[str, str], Space]:
        """Workload and recipe -> the values that its runs had."""
        values: dict[tuple[str, str], dict[str, set[Value]]] = {}
        for key, _, _, number in self.order:
            of = values.setdefault((key.workload, key.recipe), {})
            for name, value in self.params[number].items():
                of.setdefault(name, set()).add(value)
        return {
            key: {name: _entry(options) for name, options in of.items()}
            for key, of in values.items()
        }


def _write(run: Run, runs: _Runs, key: StudyKey, places: range) -> Study:
    """Stores a study's trials and repeats."""
    budget = int(runs.step[runs.begins[places.start] : runs.begins[places.stop]].max())
    rows = runs.rows(places, budget)
    trials = sum(not row["repeat"] for row in rows)
    repeated = {row["trial"] for row in rows if row["repeat"]}
    begin, middle, end = places.start, places.start + trials, places.stop
    table = pa.Table.from_pylist(rows[:trials], schema=IMPORTED_TRIALS)
    run.write_study(key, table, runs.table(range(begin, middle), key.batch_size).drop(["repeat"]))
    if repeated or run.repeats.holds(key):  # of an import that was killed
        schema = IMPORTED_TRIALS.insert(1, REPEAT)
        again = pa.Table.from_pylist(rows[trials:], schema=schema)
        run.repeats.write_study(key, again, runs.table(range(middle, end), key.batch_size))
    return Study(
        workload=key.workload,
        recipe=key.recipe,
        optimizer=key.recipe,
        batch_size=key.batch_size,
        goals=tuple(map(Goal.parse, runs.meaning.goal)),
        budget_steps=budget,
        grid=runs.grid(places, budget),
        space=runs.spaces[key.workload, key.recipe],
        trials=trials,
        search=SearchPlan(algorithm="unknown"),
        train_size=runs.meaning.examples,
        repeats=runs.most[key],
        repeat_best=max(len(repeated), 1),
        stop_at_goal=False,
        stop_dominated=False,
    )


def _entry(options: set[Value]) -> Range | Choice | Value:
    """The values of a metaparameter as an entry of a search space."""
    if len(options) == 1:
        return next(iter(options))
    if any(isinstance(value, str) for value in options):
        return Choice(options=tuple(sorted(options, key=str)))
    low, high = float(min(options)), float(max(options))  # type: ignore[type-var]
    if not (-LARGEST < low < high < LARGEST):
        return Choice(options=(low, high))
    if low > SMALLEST and high >= 10 * low:
        return Range(low=low, high=high, scale="log")
    if 0.5 <= low < high < 1 and 1 - low >= 10 * (1 - high):
        return Range(low=low, high=high, scale="reverse_log")
    return Range(low=low, high=high)


def _is_complete(word: str) -> bool:
    return word.lower() in COMPLETE


def _is_seed(value: Any) -> bool:
    number = _float(value)
    return number is not None and number.is_integer() and abs(number) < 2**62


def _codes(column: pa.ChunkedArray) -> Ints:
    """A number for each value; 0 where there is none."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    coded = column.unify_dictionaries().combine_chunks()
    indices = pc.fill_null(coded.indices, -1)
    return np.asarray(indices.to_numpy(zero_copy_only=False)) + 1


def _floats(column: pa.Array) -> Floats:
    found: Floats = pc.fill_null(column, math.nan).to_numpy(zero_copy_only=False)
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
        raise ValueError(f"its name would be longer than {MOST_IN_FOLDER} bytes")
    return text
