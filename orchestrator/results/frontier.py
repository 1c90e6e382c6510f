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

from orchestrator.records import BadInput, Goal, Study, Value, unknown
from orchestrator.results.store import Run, write_table, write_text

STOPPED_EARLY = ("reached", "dominated")


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
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As JSON has it: no NaN."""
        return asdict(replace(self, metrics={k: v for k, v in self.metrics.items() if _finite(v)}))


def frontier_of(run: Run, goals: Sequence[Goal] = ()) -> list[FrontierRow]:
    """The frontier of every study of `run`, for `goals` or else for each study's own."""
    rows: list[FrontierRow] = []
    measured: set[str] = set()
    for study in run.studies():
        trials, measurements = run.trials(study.key), run.measurements(study.key)
        measured.update(measurements.column_names[3:])
        rows += [_row(study, goal, trials, measurements) for goal in goals or study.goals]
    for goal in goals:
        if measured and goal.metric not in measured:
            raise unknown("metric", goal.metric, measured)
    return rows


def _row(study: Study, goal: Goal, trials: pa.Table, measurements: pa.Table) -> FrontierRow:
    usable = trials.filter(pc.not_equal(trials["status"], "failed"))
    trial, step, value = _columns(measurements, goal.metric)
    with np.errstate(invalid="ignore"):
        passed = value < goal.bound if goal.direction == "<" else value > goal.bound
    passed &= np.isin(trial, usable["trial"].to_numpy())
    order = np.lexsort((trial, step))
    first = order[passed[order]][:1]
    best = (int(step[first[0]]), int(trial[first[0]])) if len(first) else None
    row = FrontierRow(
        workload=study.workload,
        recipe=study.recipe,
        optimizer=study.optimizer,
        batch_size=study.batch_size,
        goal=str(goal),
        reached=best is not None,
        censored=_censored(study, usable, set(trial[passed].tolist()), best),
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
    at = int(first[0])
    earlier = step[(trial == best[1]) & (step < best[0])]
    winner = usable.filter(pc.equal(usable["trial"], best[1])).to_pylist()[0]
    measurement = measurements.slice(at, 1).to_pylist()[0]
    return replace(
        row,
        steps=best[0],
        resolution=best[0] - int(earlier.max(initial=0)),
        trial=best[1],
        seed=winner["seed"],
        params=json.loads(winner["params"]),
        metrics={
            name: number
            for name, number in measurement.items()
            if "/" in name and number is not None
        },
        seconds=measurement["seconds"],
    )


def _columns(
    measurements: pa.Table, metric: str
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    trial = measurements["trial"].to_numpy().astype(np.int64)
    step = measurements["step"].to_numpy()
    if metric not in measurements.column_names:
        return trial, step, np.full(len(trial), math.nan)
    return trial, step, measurements[metric].to_numpy(zero_copy_only=False).astype(np.float64)


def _censored(
    study: Study, trials: pa.Table, crossed: set[int], best: tuple[int, int] | None
) -> bool:
    """Whether a trial that stopped early could have passed the goal before the winner did."""
    for row in trials.select(["trial", "status", "steps"]).to_pylist():
        if row["status"] not in STOPPED_EARLY or row["trial"] in crossed:
            continue
        upcoming = min(study.grid.after(row["steps"]), study.budget_steps)
        if upcoming > row["steps"] and (best is None or (upcoming, row["trial"]) < best):
            return True
    return False


def _warnings(
    study: Study, goal: Goal, trials: pa.Table, values_if_unreached: NDArray[np.float64] | None
) -> tuple[str, ...]:
    warnings = []
    statuses = trials["status"].to_pylist()
    if len(statuses) < study.trials:
        warnings.append(f"{len(statuses)} of {study.trials} trials have finished")
    if failed := statuses.count("failed"):
        error = trials.filter(pc.equal(trials["status"], "failed"))["error"][0].as_py()
        last = error.strip().splitlines()[-1] if error else "no reason given"
        warnings.append(f"{failed} of {study.trials} trials failed: {last}")
    if values_if_unreached is not None:
        finite = values_if_unreached[np.isfinite(values_if_unreached)]
        if len(finite):
            best = finite.min() if goal.direction == "<" else finite.max()
            warnings.append(f"no trial passed {goal}; the best measured is {best:.6g}")
    return tuple(warnings)


def write_frontier(run: Run, rows: Iterable[FrontierRow]) -> None:
    """Writes frontier.csv, what two identical runs share to the byte, and frontier.parquet."""
    rows = list(rows)
    write_text(run.path / "frontier.csv", to_csv(rows))
    table = pa.Table.from_pylist(
        [
            {
                **row.to_json(),
                **{k: json.dumps(getattr(row, k)) for k in ("params", "metrics", "trials")},
            }
            for row in rows
        ]
        or [{}]
    )
    write_table(run.path / "frontier.parquet", table)


def to_csv(rows: Iterable[FrontierRow]) -> str:
    """No durations and no counts by status: both are decided by the clock."""
    columns = [
        "workload", "recipe", "optimizer", "batch_size", "goal", "reached", "censored",
        "steps", "resolution", "trial", "seed", "params",
    ]  # fmt: skip
    rows = list(rows)
    metrics = sorted({name for row in rows for name in row.metrics})
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*columns, *metrics])
    for row in rows:
        fields = {**asdict(row), "params": "" if row.params is None else json.dumps(row.params)}
        writer.writerow(
            [*("" if fields[c] is None else fields[c] for c in columns)]
            + [repr(row.metrics[name]) if name in row.metrics else "" for name in metrics]
        )
    return text.getvalue()


def parse_goals(texts: Iterable[str]) -> list[Goal]:
    """Goals given on the command line, each once."""
    goals = [Goal.parse(text) for text in texts]
    if len(set(goals)) < len(goals):
        raise BadInput("The same goal is given twice.")
    return goals


def _finite(value: float) -> bool:
    return math.isfinite(value)
