"""The layout in which the measurements of Shallue et al. were published, in and out.

[GROUP/]DATASET/MODEL/OPTIMIZER/BATCH_SIZE/study.json
[GROUP/]DATASET/MODEL/OPTIMIZER/BATCH_SIZE/TRIAL/metadata.json and measurements.csv

Of trials that were published as COMPLETE all count, of the others none. What we export carries our
own record beside theirs, under `orchestrate`, so that it comes back as it was.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from orchestrator.places import Place
from orchestrator.records import (
    BadInput,
    Choice,
    EvaluationGrid,
    Range,
    Scale,
    Space,
    Status,
    Study,
    StudyKey,
)
from orchestrator.results.curve_files import content_of, read_curves, write_curve
from orchestrator.results.provenance import provenance
from orchestrator.results.store import Run, study_from
from orchestrator.results.tables import MEASUREMENTS, TRIALS, of_trial

Job = TypeVar("Job")
Done = TypeVar("Done")

STATUS_IN: dict[str, Status] = {
    "COMPLETE": "exhausted",
    "INFEASIBLE": "diverged",
    "INCOMPLETE": "failed",
}
STATUS_OUT: dict[Status, str] = {
    "reached": "COMPLETE",
    "exhausted": "COMPLETE",
    "diverged": "INFEASIBLE",
    "dominated": "INCOMPLETE",
    "failed": "INCOMPLETE",
}
SCALES: dict[str, Scale] = {
    "LINEAR_SCALE": "linear",
    "LOG_SCALE": "log",
    "REVERSE_LOG_SCALE": "reverse_log",
}

TRAIN_SIZES = {"mnist": 55_000, "fashion_mnist": 55_000, "cifar_10": 45_000}
"""Examples in an epoch, by the names of the published data sets; `mnist_N` has N."""

OURS = "orchestrate"
"""The key of our own record in their JSON."""

IMPORTED_TRIALS = pa.schema(
    [field.with_nullable(True) for field in TRIALS] + [pa.field("archive_status", pa.string())]
)
IMPORTED_MEASUREMENTS = pa.schema([field.with_nullable(True) for field in MEASUREMENTS])

PARALLEL_FROM = 8
"""Studies; for fewer, other processes take longer to start than to help."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Something in an archive that could not be used."""

    path: str
    reason: str


def import_archive(
    source: Path, run: Run, progress: Callable[[int, int], None] = lambda done, of: None
) -> list[Problem]:
    """Makes `run` from the archive in `source`; returns what could not be used. Killed and called
    again, it goes on with the studies that are missing. `progress` hears of studies done."""
    if run.exists:
        raise BadInput(f"{run.place} is a run already. Name another folder with --out.")
    problems: list[Problem] = []
    folders: dict[StudyKey, Path] = {}
    known: list[tuple[int, Study]] = []
    for folder in _study_folders(source):
        read = _read_study(folder, source, problems)
        if read is None:
            continue
        other = folders.setdefault(read[1].key, folder)
        if other == folder:
            known.append(read)
        else:
            problems.append(_problem(folder, source, f"{other} holds the same study"))
    known.sort(key=lambda read: (read[0], read[1].key))
    if not known:
        raise BadInput(
            f"{source} holds no study. An archive has folders "
            f"[GROUP/]DATASET/MODEL/OPTIMIZER/BATCH_SIZE, each with one folder per trial."
        )
    studies = []
    run.check_writable()
    with run.locked():
        jobs = [(run.place, source, folders[study.key], study) for _, study in known]
        for done, (study, its_problems) in enumerate(_in_parallel(_import_study, jobs), start=1):
            studies.append(study)
            problems += its_problems
            progress(done, len(jobs))
        _write_problems(run, problems)
        name = source.resolve().name
        run.create(
            {"name": name, "imported": True}, studies, {**provenance(), "imported from": name}
        )
    return problems


def _in_parallel(work: Callable[[Job], Done], jobs: Sequence[Job]) -> Iterator[Done]:
    """In order; on all cores where there is enough to do."""
    if len(jobs) < PARALLEL_FROM:
        yield from map(work, jobs)
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=spawn) as pool:
        yield from pool.map(work, jobs, chunksize=1)


def _study_folders(source: Path) -> list[Path]:
    """Folders with a study.json, or with trials at least."""
    found = set()
    for place, folders, files in os.walk(source):
        if "study.json" in files:
            found.add(Path(place))
            folders.clear()
        elif "metadata.json" in files or "measurements.csv" in files:
            found.add(Path(place).parent)
            folders.clear()
    return sorted(found)


def _read_study(folder: Path, source: Path, problems: list[Problem]) -> tuple[int, Study] | None:
    """A study and its place among those of its run, as far as that is known."""
    parts = folder.relative_to(source).parts
    described: Mapping[str, Any] = {}
    try:
        described = _read_json(f"{folder}/study.json")
        if OURS in described:
            ours = dict(described[OURS])
            return ours.pop("place"), study_from(ours)
    except (OSError, ValueError, TypeError, KeyError) as error:
        problems.append(_problem(folder / "study.json", source, _reason(error)))
    try:
        *workload, optimizer, batch_size = parts
        assert len(workload) >= 2
        size = int(batch_size)
        assert size >= 1
    except (ValueError, AssertionError):
        problems.append(
            _problem(folder, source, "is not at [GROUP/]DATASET/MODEL/OPTIMIZER/BATCH_SIZE")
        )
        return None
    if described.get("batch_size", size) != size:
        reason = f"has batch_size {described['batch_size']}, but lies under {size}, which is taken"
        problems.append(_problem(folder / "study.json", source, reason))
    space: dict[str, Any] = {}
    for name, entry in _mapping(described.get("parameter_configs")).items():
        try:
            space[name] = _space_entry(entry)
        except (ValueError, TypeError, KeyError) as error:
            reason = f"parameter {name!r}: {_reason(error)}"
            problems.append(_problem(folder / "study.json", source, reason))
    steps = described.get("train_steps")
    return 0, Study(
        workload="/".join(workload),
        recipe=optimizer,
        optimizer=optimizer,
        batch_size=size,
        goals=(),
        budget_steps=steps if isinstance(steps, int) else 0,
        grid=EvaluationGrid(spacing=0, min_gap=1),
        space=space,
        trials=0,
        train_size=_train_size(workload[-2]),
        stop_at_goal=bool(described.get("early_stopping")),
        stop_dominated=False,
    )


def _train_size(dataset: str) -> int | None:
    subset = re.fullmatch(r"mnist_(\d+)", dataset)
    return int(subset[1]) if subset else TRAIN_SIZES.get(dataset)


def _space_entry(entry: Mapping[str, Any]) -> Range | Choice:
    if entry["type"] == "DISCRETE":
        return Choice(options=tuple(entry["feasible_points"]))
    return Range(
        low=float(entry["min_value"]),
        high=float(entry["max_value"]),
        scale=SCALES[entry["scale"]],
        integer=entry["type"] == "INTEGER",
    )


def _import_study(job: tuple[Place, Path, Path, Study]) -> tuple[Study, list[Problem]]:
    """Brings a study into the run, if it isn't there yet; the study with the number of trials that
    count, and the problems there were, which are kept with the trials."""
    place, source, folder, study = job
    run = Run(place)
    if run.holds(study.key):
        trials = run.trials(study.key)
    else:
        problems: list[Problem] = []
        trials, measurements = _read_trials(folder, source, study, problems)
        notes = {"problems": json.dumps([asdict(problem) for problem in problems])}
        trials = trials.replace_schema_metadata(notes)
        run.write_study(study.key, trials, measurements)
    if not study.trials:
        counted = pc.sum(pc.equal(trials["archive_status"], "COMPLETE")).as_py()
        study = replace(study, trials=counted or 0)
    kept = json.loads((trials.schema.metadata or {}).get(b"problems", b"[]"))
    return study, [Problem(**problem) for problem in kept]


def _read_trials(
    folder: Path, source: Path, study: Study, problems: list[Problem]
) -> tuple[pa.Table, pa.Table]:
    rows: dict[int, dict[str, Any]] = {}
    files: dict[int, str] = {}
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir())
    # Texts instead of paths: there are hundreds of thousands of them.
    for place in (f"{folder}/{name}" for name in names):
        try:
            row = _read_metadata(_read_json(f"{place}/metadata.json"), place, study)
        except (OSError, ValueError, TypeError, KeyError) as error:
            problems.append(_problem(f"{place}/metadata.json", source, _reason(error)))
            continue
        if row["trial"] in rows:
            problems.append(_problem(place, source, f"trial {row['trial']} is there twice"))
            continue
        rows[row["trial"]], files[row["trial"]] = row, f"{place}/measurements.csv"
    curves, flaws = read_curves({index: files[index] for index in sorted(files)})
    problems += [_problem(files[index], source, flaw) for index, flaw in flaws.items()]
    for row in rows.values():
        if row["steps"] is None:
            mine = curves["step"].filter(pc.equal(curves["trial"], row["trial"]))
            row["steps"] = pc.max(mine).as_py() or 0
    trials = [rows[index] for index in sorted(rows)]
    examples = pc.multiply(curves["step"], study.batch_size)
    measurements = pa.concat_tables(
        [IMPORTED_MEASUREMENTS.empty_table(), curves.add_column(2, "examples", examples)],
        promote_options="default",
    )
    return pa.Table.from_pylist(trials, schema=IMPORTED_TRIALS), measurements


def _read_metadata(metadata: Mapping[str, Any], place: str, study: Study) -> dict[str, Any]:
    ours = metadata.get(OURS)
    if ours is not None:
        return {**ours, "params": json.dumps(ours["params"]), "archive_status": None}
    status = metadata["status"]
    if status not in STATUS_IN:
        raise ValueError(f"status {status!r} is none of {', '.join(STATUS_IN)}")
    steps = metadata.get("steps")
    return {
        "trial": int(metadata.get("trial_id", os.path.basename(place))),
        "optimizer": study.optimizer,
        "status": STATUS_IN[status],
        "steps": None if steps is None else int(steps),
        "params": json.dumps(_mapping(metadata.get("parameters"))),
        "error": "INCOMPLETE in the archive" if status == "INCOMPLETE" else None,
        "archive_status": status,
    }


def _write_problems(run: Run, problems: Sequence[Problem]) -> None:
    lines = [f"{problem.path}: {problem.reason}" for problem in problems]
    (run.place / "problems.txt").write_text("".join(f"{line}\n" for line in lines))


def export_archive(
    run: Run, target: Path, progress: Callable[[int, int], None] = lambda done, of: None
) -> None:
    """Writes the trials of `run` to the folder `target`, which must not be there yet. Repeats of
    winners are no part of that layout, and are left out."""
    if target.exists():
        raise BadInput(f"{target} is there already. Name a folder that is not.")
    # Complete or not there: it is made under another name.
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    studies = run.studies()
    jobs = [(run, study, place, unfinished) for place, study in enumerate(studies, start=1)]
    for done, _ in enumerate(_in_parallel(_export_study, jobs), start=1):
        progress(done, len(jobs))
    unfinished.rename(target)


def _export_study(job: tuple[Run, Study, int, Path]) -> None:
    run, study, place, target = job
    parts = study.workload.split("/")
    workload = parts if len(parts) > 1 else ["own", *parts]
    folder = target.joinpath(*map(_part, [*workload, study.recipe, str(study.batch_size)]))
    folder.mkdir(parents=True)
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
        mine = of_trial(measurements, row["trial"])
        write_curve(f"{own}/measurements.csv", mine.select(columns))


def _part(name: str) -> str:
    """A folder's name that stays where it is put."""
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


def _read_json(path: str) -> dict[str, Any]:
    document = json.loads(content_of(path))
    if not isinstance(document, dict):
        raise ValueError("is no JSON object")
    return document


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _problem(path: str | Path, source: Path, reason: str) -> Problem:
    return Problem(path=os.path.relpath(path, source), reason=reason)


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "is missing"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, KeyError):
        return f"has no {error.args[0]!r}"
    return str(error)
