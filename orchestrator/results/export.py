"""Exports runs in compact form, small enough to be kept in a repository.

A compact run holds all measurements of the best trials of each goal, and those of repeats that
goals and forecasts read. Of every other trial it holds only those that an answer needs: the steps
to each goal, the best values and the state at the end.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from orchestrator.files.places import new_folder, pack
from orchestrator.records import BadInput, Goal, Study
from orchestrator.results.counting import Columns, Counted, first_steps, past, reached
from orchestrator.results.frontier import frontier_of
from orchestrator.results.frontier_files import write_frontier
from orchestrator.results.remarks import last_line
from orchestrator.results.store import Progress, RunFiles, confirmation_of, holds_branches
from orchestrator.results.tables import is_metric, numbers

COPIED = (
    "provenance.json", "sessions.json", "step_times.json", "branches.json", "schedules.yaml",
)  # fmt: skip
"""The files that are copied as they are, if they are there."""

Rows = NDArray[np.intp]
"""Positions of rows in a table of measurements."""


def export_compact(run: RunFiles, target: Path, progress: Progress = lambda done, of: None) -> None:
    """Writes `run` in compact form to the folder `target`, or to one file if `target` ends with
    .zip. It must not exist yet. A run of branches keeps all its measurements, since its verdicts
    compare whole curves."""
    if run.imported:
        raise BadInput(
            f"{run.place} was imported, and an imported run has no compact form.",
            code="imported-run",
        )
    with new_folder(target) as unfinished:
        whole = holds_branches(run)
        _copy(run, RunFiles(unfinished), whole, progress)
        if (confirmation := confirmation_of(run)).exists:
            _copy(confirmation, confirmation_of(RunFiles(unfinished)), whole, progress)
        if target.suffix == ".zip":
            pack(unfinished)


def _copy(run: RunFiles, copy: RunFiles, whole: bool, progress: Progress) -> None:
    studies, machines = run.studies(), _machines(run)
    write = partial(_write_compact, run, copy, whole, machines)
    run.in_parallel(write, studies, progress)
    copy.copy_purpose(run, compact=not whole)
    copy.write_sweep_file()
    for name in COPIED:
        if (run.place / name).is_file():
            (copy.place / name).write((run.place / name).read())
    if not holds_branches(run):
        write_frontier(copy, frontier_of(copy))


def _machines(run: RunFiles) -> dict[str, str]:
    """Maps each machine that trained to a name that tells nothing of it."""
    columns = [
        of.trials(study.key, {"where"})["where"].to_pylist()
        for study in run.studies()
        for of in (run, run.repeats)
    ]
    names = {where.rpartition(":")[0] for where in itertools.chain(*columns) if where}
    return {name: f"machine-{number:03}" for number, name in enumerate(sorted(names), start=1)}


def _write_compact(
    run: RunFiles, copy: RunFiles, whole: bool, machines: Mapping[str, str], study: Study
) -> None:
    for of, to in ((run, copy), (run.repeats, copy.repeats)):
        trials, measurements = of.trials(study.key), of.measurements(study.key)
        if not len(trials):
            continue
        table, names = measurements, measurements.column_names
        if of is run and not whole:
            table = measurements.filter(pa.array(_needed(study, trials, measurements)))
        elif not whole:  # Repeats are asked for goals and noise scales only.
            asked = {goal.metric for goal in study.goals}
            names = [n for n in names if n in asked or n.startswith("noise/") or not is_metric(n)]
        # Metrics are in the order of their names, however the files of trials were merged.
        names = sorted(names, key=lambda name: name if is_metric(name) else "")
        rows = _without_machines(trials, machines)
        to.write_study(study.key, rows, table.select(names), smallest=True)


def _without_machines(trials: pa.Table, machines: Mapping[str, str]) -> pa.Table:
    """The rows of trials without names of machines, and with the last line of each error only,
    since the lines above name folders."""
    parts = [where and where.rpartition(":") for where in trials["where"].to_pylist()]
    changed = {
        "where": [part and f"{machines[part[0]]}:{part[2]}" for part in parts],
        "error": [*map(last_line, trials["error"].to_pylist())],
    }
    for name, values in changed.items():
        column = trials.column_names.index(name)
        trials = trials.set_column(column, trials.field(column), pa.array(values, pa.string()))
    return trials


def _needed(study: Study, trials: pa.Table, measurements: pa.Table) -> NDArray[np.bool_]:
    """Which measurements of a study's trials a compact run holds."""
    trial, step = numbers(measurements["trial"]), numbers(measurements["step"])
    # A sampler was told whole curves, and is told them again when the run goes on.
    if study.search.is_adaptive or study.is_one_point or not len(trial):
        return np.full(len(trial), True)
    found = np.full(len(trial), False)
    counted = Counted(study, trials)
    last = np.append(np.flatnonzero(np.diff(trial)), len(trial) - 1)
    found[last] = True
    # If the budget is raised, a trial that spent it goes back to the measurement before.
    found[_before(trial, last[step[last] == study.budget_steps])] = True
    for goal in study.goals:
        if goal.metric not in measurements.column_names:
            continue
        value = numbers(measurements[goal.metric])
        rows = np.flatnonzero(~np.isnan(value))
        of, passed = trial[rows], np.flatnonzero(past(goal, value[rows]))
        # Runs of measurements that pass are as long as they were, and end where they ended.
        needed_of_goal = passed if goal.holds else _first_of_each(of, passed)
        found[rows[needed_of_goal]] = found[rows[_before(of, needed_of_goal)]] = True
        if goal.holds:
            found[rows[np.minimum(passed + 1, len(rows) - 1)]] = True
        best = first_steps(counted, reached(study, goal, (trial, step, value)))[: study.keep]
        found |= np.isin(trial, [index for _, index in best])
        found[_improvements(counted, goal, (trial, step, value))] = True
        measured = numbers(measurements[goal.metric].is_valid().cast(pa.int8()))
        found[_first_of_each(trial, np.flatnonzero(measured)[::-1])] = True
    for name in measurements.column_names:
        if is_metric(name):
            for rows in _extremes(trial, numbers(measurements[name])):
                found[rows] = True
    return found


def _first_of_each(trial: NDArray[np.int32], rows: Rows) -> Rows:
    """The first of the `rows` of each trial."""
    return rows[np.unique(trial[rows], return_index=True)[1]]


def _before(trial: NDArray[np.int32], rows: Rows) -> Rows:
    """The rows before `rows` that belong to the same trial."""
    later = rows[rows > 0]
    before: Rows = later[trial[later - 1] == trial[later]] - 1
    return before


def _improvements(counted: Counted, goal: Goal, measured_at: Columns) -> Rows:
    """Measurements that improve the study's best value, in order of step, for any budget."""
    trial, step, value = measured_at
    usable = np.flatnonzero(np.isin(trial, [*counted.row_of]) & np.isfinite(value))
    lower = value if goal.direction == "<" else -value
    ordered = usable[np.lexsort((trial[usable], lower[usable], step[usable]))]
    best = np.minimum.accumulate(lower[ordered])
    return ordered[np.diff(best, prepend=np.inf) < 0]


def _extremes(trial: NDArray[np.int32], value: NDArray[np.float64]) -> Iterator[Rows]:
    """Each trial's first measurement with its lowest value, then those with its highest value."""
    starts = np.flatnonzero(np.diff(trial, prepend=-1))
    lengths = np.diff(starts, append=len(trial))
    for sign in (1, -1):
        lower = np.where(np.isfinite(value), sign * value, np.inf)
        lowest = np.repeat(np.minimum.reduceat(lower, starts), lengths)
        yield _first_of_each(trial, np.flatnonzero(np.isfinite(value) & (lower == lowest)))
