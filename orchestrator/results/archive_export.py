"""Exports a run in the layout of the published measurements of Shallue et al."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from orchestrator.files.places import new_folder
from orchestrator.records import BadInput, Choice, Range, Space, Status, Study
from orchestrator.results.archive import in_parallel
from orchestrator.results.archive_documents import OURS, SCALES
from orchestrator.results.compact import refuse_compact
from orchestrator.results.curve_files import write_curve
from orchestrator.results.store import Run
from orchestrator.results.tables import of_trial

STATUS_OUT: dict[Status, str] = {
    "reached": "COMPLETE",
    "exhausted": "COMPLETE",
    "diverged": "INFEASIBLE",
    "dominated": "INCOMPLETE",
    "paused": "INCOMPLETE",
    "failed": "INCOMPLETE",
}


def export_archive(
    run: Run, target: Path, progress: Callable[[int, int], None] = lambda done, of: None
) -> None:
    """Writes the trials of `run` to the folder `target`, which must not exist yet. Repeats of
    winners are left out, because the layout has no place for them."""
    refuse_compact(run, "the measurements that this layout is for")
    studies: dict[Path, Study] = {}
    for study in run.studies():
        folder = Path(*map(_part, [*_workload(study), study.recipe, str(study.batch_size)]))
        if (other := studies.setdefault(folder, study)) is not study:
            raise BadInput(
                f"{other.key} and {study.key} would both be written to {folder}. Rename a recipe "
                f"or workload of the run.",
                code="given-twice",
            )
    with new_folder(target) as unfinished:
        jobs = [
            (run, study, place, unfinished / folder)
            for place, (folder, study) in enumerate(studies.items(), start=1)
        ]
        for done, _ in enumerate(in_parallel(_export_study, jobs), start=1):
            progress(done, len(jobs))


def _workload(study: Study) -> list[str]:
    parts = [part for part in study.workload.split("/") if part]
    return parts if len(parts) > 1 else ["own", *parts]


def _export_study(job: tuple[Run, Study, int, Path]) -> None:
    run, study, place, folder = job
    folder.mkdir(parents=True)
    workload = _workload(study)
    trials, measurements = run.trials(study.key), run.measurements(study.key)
    document = {
        "batch_size": study.batch_size,
        "dataset": "/".join(workload[:-1]),
        "model": workload[-1],
        "optimizer": study.optimizer,
        "early_stopping": study.stop_at_goal,
        "train_steps": study.budget_steps,
        "parameter_configs": _parameter_configs(study.space),
    }
    foreign = "archive_status" in trials.column_names
    if not foreign:
        document[OURS] = {"place": place, **asdict(replace(study, repeats=0))}
    (folder / "study.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
    columns = [name for name in measurements.column_names if name not in ("trial", "examples")]
    for row in trials.to_pylist():
        own = f"{folder}/{row['trial']}"
        os.mkdir(own)
        params = json.loads(row["params"])
        status = row.pop("archive_status", None) or STATUS_OUT[row["status"]]
        metadata = {
            "trial_id": row["trial"],
            "status": status,
            "steps": row["steps"],
            "parameters": params,
            **({} if foreign else {OURS: {**row, "params": params}}),
        }
        with open(f"{own}/metadata.json", "w", encoding="utf-8") as file:
            file.write(json.dumps(metadata, indent=1))
        curve = of_trial(measurements, row["trial"])
        write_curve(f"{own}/measurements.csv", curve.select(columns))


def _part(name: str) -> str:
    """A name as one part of a path, which can't lead to another folder."""
    quoted = quote(name, safe="")
    return quoted.replace(".", "%2E") if not quoted.strip(".") else quoted


def _parameter_configs(space: Space) -> dict[str, Any]:
    scales = {ours: theirs for theirs, ours in SCALES.items()}
    configs: dict[str, Any] = {}
    for name, entry in space.items():
        if isinstance(entry, Range):
            configs[name] = {
                "type": "INTEGER" if entry.integer else "DOUBLE",
                "scale": scales[entry.scale],
                "min_value": entry.low,
                "max_value": entry.high,
            }
        else:
            options = entry.options if isinstance(entry, Choice) else (entry,)
            configs[name] = {"type": "DISCRETE", "feasible_points": list(options)}
    return configs
