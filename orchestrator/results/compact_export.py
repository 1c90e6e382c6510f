"""Exports a run in compact form, small enough to be kept in a repository."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from orchestrator.files.folders import new_folder
from orchestrator.records import BadInput, Study
from orchestrator.results.archive import in_parallel
from orchestrator.results.compact import needed, whole_curves
from orchestrator.results.frontier import frontier_of
from orchestrator.results.frontier_files import write_frontier
from orchestrator.results.purpose import Purpose
from orchestrator.results.searches import confirmation_of, holds_branches
from orchestrator.results.store import Run
from orchestrator.results.tables import is_metric

COPIED = (
    "provenance.json", "sessions.json", "step_times.json", "branches.json", "schedules.yaml",
)  # fmt: skip
"""The files that are copied as they are, if they are there."""


class Exported(NamedTuple):
    """The size of an export, in numbers."""

    trials: int = 0
    """Number of trials, without repeats."""
    whole: int = 0
    """Number of these trials of which all measurements are there."""
    measurements: int = 0
    """Number of measurements that were exported, with those of repeats."""
    of_measurements: int = 0
    """Number of measurements of the run, likewise."""


def _sum(parts: Iterable[Exported]) -> Exported:
    return Exported(*map(sum, zip(*parts, strict=True)))


def export_compact(
    run: Run, target: Path, progress: Callable[[int, int], None] = lambda done, of: None
) -> Exported:
    """Writes `run` in compact form to the folder `target`, which must not exist yet. A run of
    branches keeps all its measurements, since its verdicts compare whole curves."""
    if run.imported:
        raise BadInput(
            f"{run.place} was imported from an archive, which has no compact form.",
            code="imported-run",
        )
    with new_folder(target) as unfinished:
        parts = [_write(run, Run(unfinished), progress)]
        if (confirmation := confirmation_of(run)).exists:
            parts.append(_write(confirmation, confirmation_of(Run(unfinished)), progress))
    return _sum(parts)


def _write(run: Run, copy: Run, progress: Callable[[int, int], None]) -> Exported:
    machines = _machines(run)
    jobs = [(run, study, copy, machines) for study in run.studies()]
    parts = []
    for done, of_study in enumerate(in_parallel(_export_study, jobs), start=1):
        parts.append(of_study)
        progress(done, len(jobs))
    Purpose(copy.place).write_copy(Purpose(run.place), compact=not holds_branches(run))
    copy.write_sweep_file()
    for name in COPIED:
        if (run.place / name).is_file():
            (copy.place / name).write((run.place / name).read())
    if not holds_branches(run):
        write_frontier(copy, frontier_of(copy))
    return _sum(parts)


def _machines(run: Run) -> dict[str, str]:
    """Maps each machine that trained to a name that tells nothing of it."""
    columns = [
        of.trials(study.key, {"where"})["where"].to_pylist()
        for study in run.studies()
        for of in (run, run.repeats)
    ]
    names = {where.rpartition(":")[0] for where in itertools.chain(*columns) if where}
    return {name: f"machine-{number:03}" for number, name in enumerate(sorted(names), start=1)}


def _export_study(job: tuple[Run, Study, Run, Mapping[str, str]]) -> Exported:
    run, study, copy, machines = job
    parts = []
    for of, to in ((run, copy), (run.repeats, copy.repeats)):
        trials, measurements = of.trials(study.key), of.measurements(study.key)
        if not len(trials):
            continue
        if of is run and not holds_branches(run):
            kept = needed(study, trials, measurements)
        else:
            kept = np.full(len(measurements), True)
        table = measurements.filter(pa.array(kept))
        # Metrics are in the order of their names, however the files of trials were merged.
        names = sorted(table.column_names, key=lambda name: name if is_metric(name) else "")
        rows = _without_places(trials, machines)
        to.write_study(study.key, rows, table.select(names), smallest=True)
        sizes = Exported(measurements=len(table), of_measurements=len(measurements))
        if of is run:
            sizes = sizes._replace(trials=len(trials), whole=len(whole_curves(copy, study)))
        parts.append(sizes)
    return _sum(parts)


def _without_places(trials: pa.Table, machines: Mapping[str, str]) -> pa.Table:
    """The rows of trials without names of machines, and with the last line of each error only,
    since the lines above name folders."""

    def anonymous(where: str) -> str:
        machine, _, process = where.rpartition(":")
        return f"{machines[machine]}:{process}"

    def last_line(error: str) -> str:
        return error.strip().splitlines()[-1]

    for name, change in (("where", anonymous), ("error", last_line)):
        place = trials.column_names.index(name)
        values = [change(text) if text else text for text in trials[name].to_pylist()]
        trials = trials.set_column(place, trials.field(place), pa.array(values, pa.string()))
    return trials
