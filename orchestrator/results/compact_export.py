"""Exports a run in compact form, small enough to be kept in a repository."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from orchestrator.files.places import new_folder, pack
from orchestrator.records import BadInput, Study
from orchestrator.results.archive import in_parallel
from orchestrator.results.compact import needed
from orchestrator.results.frontier import frontier_of
from orchestrator.results.frontier_files import write_frontier
from orchestrator.results.store import Run, confirmation_of, holds_branches
from orchestrator.results.tables import is_metric

COPIED = (
    "provenance.json", "sessions.json", "step_times.json", "branches.json", "schedules.yaml",
)  # fmt: skip
"""The files that are copied as they are, if they are there."""


def export_compact(
    run: Run, target: Path, progress: Callable[[int, int], None] = lambda done, of: None
) -> None:
    """Writes `run` in compact form to the folder `target`, or to one file if `target` ends with
    .zip. It must not exist yet. A run of branches keeps all its measurements, since its verdicts
    compare whole curves."""
    if run.imported:
        raise BadInput(
            f"{run.place} was imported from an archive, which has no compact form.",
            code="imported-run",
        )
    with new_folder(target) as unfinished:
        _write(run, Run(unfinished), progress)
        if (confirmation := confirmation_of(run)).exists:
            _write(confirmation, confirmation_of(Run(unfinished)), progress)
        if target.suffix == ".zip":
            pack(unfinished)


def _write(run: Run, copy: Run, progress: Callable[[int, int], None]) -> None:
    machines = _machines(run)
    jobs = [(run, study, copy, machines) for study in run.studies()]
    for done, _ in enumerate(in_parallel(_export_study, jobs), start=1):
        progress(done, len(jobs))
    copy.copy_purpose(run, compact=not holds_branches(run))
    copy.write_sweep_file()
    for name in COPIED:
        if (run.place / name).is_file():
            (copy.place / name).write((run.place / name).read())
    if not holds_branches(run):
        write_frontier(copy, frontier_of(copy))


def _machines(run: Run) -> dict[str, str]:
    """Maps each machine that trained to a name that tells nothing of it."""
    columns = [
        of.trials(study.key, {"where"})["where"].to_pylist()
        for study in run.studies()
        for of in (run, run.repeats)
    ]
    names = {where.rpartition(":")[0] for where in itertools.chain(*columns) if where}
    return {name: f"machine-{number:03}" for number, name in enumerate(sorted(names), start=1)}


def _export_study(job: tuple[Run, Study, Run, Mapping[str, str]]) -> None:
    run, study, copy, machines = job
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
