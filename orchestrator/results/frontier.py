"""The frontier: per study and goal, the trial with the fewest steps to goal.

It is read from the files of a run and nothing else. A trial that stopped early (because it had
reached its goals, or could no longer win) says nothing about what it would have done later: where
that could change the answer, the answer is `censored`, never a false one.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from orchestrator.records import (
    BadInput,
    Goal,
    Range,
    Study,
    StudyKey,
    Value,
    near_bounds,
    unknown,
    widened_to,
)
from orchestrator.results.store import Run
from orchestrator.results.tables import numbers, write_table

STOPPED_EARLY = ("reached", "dominated")


@dataclass(frozen=True, kw_only=True)
class Repeats:
    """The winner's point, run again with other seeds: free of the luck that made it the winner."""

    count: int
    reached: int
    median: float | None
    """Steps to goal; None where half of them or more did not reach it."""
    low: int | None
    high: int | None
    """Order statistics between which the true median lies ..."""
    confidence: float
    """... with this probability, whatever the distribution."""


@dataclass(frozen=True, kw_only=True)
class FrontierRow:
    """The answer of one study to one goal. Without a winner its fields are None."""

    workload: str
    recipe: str
    optimizer: str
    batch_size: int
    goal: str
    reached: bool
    censored: bool
    """Trials that stopped early could have changed this answer."""
    steps: int | None
    resolution: int | None
    """Steps since the winner's previous measurement: it passed the goal somewhere in between."""
    trial: int | None
    seed: int | None
    params: Mapping[str, Value] | None
    metrics: Mapping[str, float]
    """The winner's, at that step."""
    seconds: float | None
    """The winner's training time up to that step."""
    trials: Mapping[str, int]
    """Finished trials by status."""
    repeats: Repeats | None = None
    """How the winner did with other seeds."""
    warnings: tuple[str, ...]

    def remarks(self) -> list[str]:
        """What a reader of its steps should know besides, in words."""
        if self.repeats is None:
            return [*self.warnings]
        again = self.repeats
        low, high = ("never" if end is None else f"{end:,}" for end in (again.low, again.high))
        median = "above" if again.median is None else f"{again.median:,g}"
        return [
            f"{again.reached} of {again.count} repeats reached it, median {median} "
            f"({low} to {high}, {again.confidence:.0%})",
            *self.warnings,
        ]

    def to_json(self) -> dict[str, Any]:
        """As JSON has it: no NaN."""
        return asdict(replace(self, metrics={k: v for k, v in self.metrics.items() if _finite(v)}))


def frontier_of(run: Run, goals: Sequence[Goal] = ()) -> list[FrontierRow]:
    """The frontier of every study of `run`, for `goals` or else for each study's own."""
    studies = run.studies()
    if not goals and not any(study.goals for study in studies):
        raise BadInput(
            f"{run.place} was imported, and an archive names no goals. Name one or more with "
            f'--goal, such as --goal "val/classification_error<0.1".'
        )
    found = run.in_parallel(lambda study: _rows_of(run, study, goals or study.goals), studies)
    rows = [row for one in found for row in one]
    for goal in goals:
        if not any(row.reached for row in rows if row.goal == str(goal)):
            _refuse_unmeasured(run, studies, goal)
    return rows if goals else _with_lifted(studies, rows)


def _refuse_unmeasured(run: Run, studies: Iterable[Study], goal: Goal) -> None:
    """Tells of a metric that is nowhere in a run which has others."""
    measured = {name for study in studies for name in run.metrics(study.key)}
    if measured and goal.metric not in measured:
        raise unknown("metric", goal.metric, measured)


def _rows_of(run: Run, study: Study, goals: Sequence[Goal]) -> list[FrontierRow]:
    trials = run.trials(study.key)
    measurements = run.measurements(study.key, {goal.metric for goal in goals})
    repeats = run.repeats.measurements(study.key) if study.repeats else None
    return [_row(run, study, goal, trials, measurements, repeats) for goal in goals]


def _with_lifted(studies: Sequence[Study], rows: Sequence[FrontierRow]) -> list[FrontierRow]:
    """The rows, those marked whose budget from a smaller batch size turned out to be too short."""
    steps: dict[StudyKey, list[int | None]] = {}
    for row in rows:
        steps.setdefault(_key(row), []).append(row.steps)
    marks: dict[StudyKey, str] = {}
    for study in studies:
        smaller = [
            key
            for key in steps
            if (key.workload, key.recipe) == (study.workload, study.recipe)
            and key.batch_size < study.batch_size
        ]
        if study.inherit is None or not smaller:
            continue
        there, here = steps[max(smaller)], steps[study.key]
        if None in there:
            continue
        limit = math.ceil(study.inherit * max(step for step in there if step is not None))
        if limit < study.budget_steps and any(step is None or step > limit for step in here):
            marks[study.key] = (
                f"{limit:,} steps, the budget inherited from batch size {max(smaller).batch_size:,}"
                f", were too few: trials went on to the whole budget"
            )
    return [
        replace(row, warnings=(*row.warnings, marks[_key(row)])) if _key(row) in marks else row
        for row in rows
    ]


def _key(row: FrontierRow) -> StudyKey:
    return StudyKey(workload=row.workload, recipe=row.recipe, batch_size=row.batch_size)


def _row(
    run: Run,
    study: Study,
    goal: Goal,
    trials: pa.Table,
    measurements: pa.Table,
    repeats: pa.Table | None,
) -> FrontierRow:
    counted = _counted(trials)
    trial, step, value = _columns(measurements, goal.metric)
    with np.errstate(invalid="ignore"):
        passed = value < goal.bound if goal.direction == "<" else value > goal.bound
    places = np.flatnonzero(passed)
    places = places[np.isin(trial[places], [*counted])]
    firsts = _first_steps(trial[places], step[places])
    best = firsts[0] if firsts else None
    row = FrontierRow(
        workload=study.workload,
        recipe=study.recipe,
        optimizer=study.optimizer,
        batch_size=study.batch_size,
        goal=str(goal),
        reached=best is not None,
        censored=_censored(study, trials, counted, {index for _, index in firsts}, best),
        steps=None,
        resolution=None,
        trial=None,
        seed=None,
        params=None,
        metrics={},
        seconds=None,
        trials=dict(Counter(sorted(trials["status"].to_pylist()))),
        warnings=_warnings(study, goal, trials, None if best else value),
    )
    if best is None:
        return row
    earlier = step[(trial == best[1]) & (step < best[0])]
    winner = trials.slice(counted[best[1]], 1).to_pylist()[0]
    curve = run.curve(study.key, best[1])
    here = np.flatnonzero(numbers(curve["step"]) == best[0]).tolist()
    measurement = next(
        row
        for row in (curve.slice(place, 1).to_pylist()[0] for place in here)
        if row[goal.metric] is not None and goal.passed(row[goal.metric])
    )
    params = json.loads(winner["params"])
    return replace(
        row,
        steps=best[0],
        resolution=best[0] - int(earlier.max(initial=0)),
        trial=best[1],
        seed=winner["seed"],
        params=params,
        metrics={
            name: number
            for name, number in measurement.items()
            if "/" in name and number is not None
        },
        seconds=measurement["seconds"],
        repeats=_repeats(goal, best[1], repeats) if repeats is not None else None,
        warnings=row.warnings + _at_bounds(study, trials, firsts),
    )


def _counted(trials: pa.Table) -> dict[int, int]:
    """The trials that count, and their places in the table."""
    published = None
    if "archive_status" in trials.column_names:
        published = trials["archive_status"].to_pylist()
    return {
        index: place
        for place, (index, status) in enumerate(
            zip(trials["trial"].to_pylist(), trials["status"].to_pylist(), strict=True)
        )
        if status != "failed" and (published is None or published[place] in (None, "COMPLETE"))
    }


def _first_steps(trial: NDArray[np.int64], step: NDArray[np.int64]) -> list[tuple[int, int]]:
    """(steps, index) of the trials that passed a goal, best first; from where they had."""
    if not len(trial):
        return []
    # Runs of one trial, which a trial may have several of; sorting all would take far longer.
    starts = np.flatnonzero(np.diff(trial, prepend=trial[0] - 1))
    lowest = np.minimum.reduceat(step, starts)
    firsts: dict[int, int] = {}
    for index, at in zip(trial[starts].tolist(), lowest.tolist(), strict=True):
        firsts[index] = min(at, firsts.get(index, at))
    return sorted((at, index) for index, at in firsts.items())


def _repeats(goal: Goal, winner: int, repeats: pa.Table) -> Repeats | None:
    ours = repeats.filter(pc.equal(repeats["trial"], winner)) if len(repeats) else repeats
    if not len(ours):
        return None
    _, step, value = _columns(ours, goal.metric)
    number = numbers(ours["repeat"])
    steps = sorted(
        min(
            (int(s) for s, v in zip(step[mine], value[mine], strict=True) if goal.passed(v)),
            default=math.inf,
        )
        for mine in (number == repeat for repeat in np.unique(number))
    )
    low, high, confidence = median_interval(len(steps))
    median = (steps[(len(steps) - 1) // 2] + steps[len(steps) // 2]) / 2
    return Repeats(
        count=len(steps),
        reached=sum(map(math.isfinite, steps)),
        median=median if math.isfinite(median) else None,
        low=int(steps[low]) if math.isfinite(steps[low]) else None,
        high=int(steps[high]) if math.isfinite(steps[high]) else None,
        confidence=confidence,
    )


def median_interval(count: int) -> tuple[int, int, float]:
    """Which of `count` ordered draws enclose the median of their distribution, and how surely: the
    narrowest pair with at least 90 %, else the outermost."""
    best = (0, count - 1, 1 - 2 * 0.5**count)
    below = 0.5**count
    for place in range(1, count // 2):
        below += math.comb(count, place) * 0.5**count
        if 1 - 2 * below < 0.9:
            break
        best = (place, count - 1 - place, 1 - 2 * below)
    return best


def _at_bounds(
    study: Study, trials: pa.Table, firsts: Sequence[tuple[int, int]]
) -> tuple[str, ...]:
    """Which ranges were widened, and near whose ends the best trial lies; where no trial was ended
    early, the median of the best three, which a single lucky one can't move."""
    params = dict(zip(trials["trial"].to_pylist(), trials["params"].to_pylist(), strict=True))
    space = study.space
    if study.search.extend:
        space = widened_to(space, map(json.loads, params.values()))
    warnings = [
        f"{name} was widened to {entry.low:g} ... {entry.high:g}"
        for name, entry in space.items()
        if isinstance(entry, Range) and entry != study.space[name]
    ]
    count = 1 if study.stop_dominated else 3
    best = [json.loads(params[index]) for _, index in firsts[:count]]
    typical = {
        name: sorted(point[name] for point in best)[(len(best) - 1) // 2]
        for name in best[0]
        if isinstance(space.get(name), Range) and all(name in point for point in best)
    }
    for name, side in near_bounds(space, typical):
        entry = space[name]
        assert isinstance(entry, Range)
        end = f"lower end, {entry.low:g}" if side == "low" else f"upper end, {entry.high:g}"
        warnings.append(f"{name} {typical[name]:.4g} is near the {end}, of its range")
    return tuple(warnings)


def _columns(
    measurements: pa.Table, metric: str
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    trial, step = numbers(measurements["trial"]), numbers(measurements["step"])
    if metric not in measurements.column_names:
        return trial, step, np.full(len(trial), math.nan)
    return trial, step, numbers(measurements[metric])


def _censored(
    study: Study,
    trials: pa.Table,
    counted: Mapping[int, int],
    crossed: set[int],
    best: tuple[int, int] | None,
) -> bool:
    """Whether a trial that stopped early could have passed the goal before the winner did."""
    statuses, steps = trials["status"].to_pylist(), trials["steps"].to_pylist()
    for index, place in counted.items():
        if statuses[place] not in STOPPED_EARLY or index in crossed:
            continue
        upcoming = study.following(steps[place])
        if upcoming > steps[place] and (best is None or (upcoming, index) < best):
            return True
    return False


def _warnings(
    study: Study, goal: Goal, trials: pa.Table, values_if_unreached: NDArray[np.float64] | None
) -> tuple[str, ...]:
    warnings = []
    statuses = trials["status"].to_pylist()
    if len(statuses) < study.trials:
        warnings.append(f"{len(statuses)} of {study.trials} trials have finished")
    lasting = len(statuses) - statuses.count("diverged")
    if lasting < study.trials and len(statuses) >= study.launches:
        warnings.append(
            f"only {lasting} of {study.trials} points did not diverge in {len(statuses)} launches"
        )
    if failed := statuses.count("failed"):
        error = trials["error"][statuses.index("failed")].as_py()
        last = error.strip().splitlines()[-1] if error else "no reason given"
        warnings.append(f"{failed} of {study.trials} trials failed: {last}")
    if values_if_unreached is not None:
        finite = values_if_unreached[np.isfinite(values_if_unreached)]
        if len(finite):
            best = finite.min() if goal.direction == "<" else finite.max()
            warnings.append(f"no trial passed {goal}; the best measured is {best:.6g}")
    return tuple(warnings)


JSON_COLUMNS = ("params", "metrics", "trials", "repeats")


def write_frontier(run: Run, rows: Iterable[FrontierRow]) -> None:
    """Writes frontier.csv, what two identical runs share to the byte, and frontier.parquet."""
    rows = list(rows)
    (run.place / "frontier.csv").write_text(to_csv(rows))
    table = pa.Table.from_pylist(
        [
            {
                **row.to_json(),
                **{k: json.dumps(row.to_json()[k]) for k in JSON_COLUMNS},
            }
            for row in rows
        ]
        or [{}]
    )
    write_table(run.place / "frontier.parquet", table)


def to_csv(rows: Iterable[FrontierRow]) -> str:
    """No durations and no counts by status: both are decided by the clock."""
    columns = [
        "workload", "recipe", "optimizer", "batch_size", "goal", "reached", "censored",
        "steps", "resolution", "trial", "seed", "params",
    ]  # fmt: skip
    rows = list(rows)
    metrics = sorted({name for row in rows for name in row.metrics})
    repeated = ["count", "reached", "median", "low", "high"] if any(r.repeats for r in rows) else []
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*columns, *(f"repeats_{name}" for name in repeated), *metrics])
    for row in rows:
        fields = {**asdict(row), "params": "" if row.params is None else json.dumps(row.params)}
        writer.writerow(
            [*("" if fields[c] is None else fields[c] for c in columns)]
            + [_cell(getattr(row.repeats, name, None)) for name in repeated]
            + [repr(row.metrics[name]) if name in row.metrics else "" for name in metrics]
        )
    return text.getvalue()


def _cell(value: object) -> object:
    return "" if value is None else value


def parse_goals(texts: Iterable[str]) -> list[Goal]:
    """Goals given on the command line, each once."""
    goals = [Goal.parse(text) for text in texts]
    if len(set(goals)) < len(goals):
        raise BadInput("The same goal is given twice.")
    return goals


def _finite(value: float) -> bool:
    return math.isfinite(value)
